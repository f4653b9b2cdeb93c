"""The operation `lineage`: the graph of an adapter, its picture, its provenance statement, and a folder of proofs."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field

from trainyard.app.artifacts.lineage import LineageGraph, build_lineage
from trainyard.app.artifacts.lineage_drawing import draw_lineage
from trainyard.app.artifacts.statements import build_statement
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.errors import Conflict
from trainyard.json_types import JsonObject
from trainyard.operations.ledger import LineageInput
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.proofs import format_inclusion
from trainyard.stores.whole import write_folder


class Lineage(Response):
    """Lineage of an adapter."""

    graph: LineageGraph
    svg: str = ""
    """Its picture, if it was asked for."""
    statement: JsonObject | None = None
    """In-toto statement with the SLSA provenance of its training; None where the ledger has none."""
    folder: Path | None = None
    """Where it was written, with the proof of each of its entries."""
    files: int = Field(0)


def show_lineage(request: LineageInput, context: Context) -> Lineage:
    """Return where an adapter comes from and what became of it. Raises what `build_lineage` raises.

    With `export`, also `Conflict` (`E-FILE-EXISTS`) for a folder that is there.
    """
    graph = build_lineage(request.adapter, context)
    statement = find_statement(graph, context)
    lineage = Lineage(graph=graph, statement=statement)
    if request.export is not None:
        lineage = export_lineage(lineage, request.export.expanduser().absolute(), context)
    return lineage.model_copy(update={"svg": draw_lineage(graph)}) if request.svg else lineage


def find_statement(graph: LineageGraph, context: Context) -> JsonObject | None:
    """Return the statement of the step that trained an adapter."""
    seq = next(node.entry for node in graph.nodes if node.id == graph.root)
    return None if seq is None else build_statement(Ledger.at_home(context.settings.home).head().entry(seq))


def export_lineage(lineage: Lineage, target: Path, context: Context) -> Lineage:
    """Write graph, picture, statement and the C2SP proof of every entry that the graph names."""
    if target.exists():
        raise Conflict(
            f"{target} exists already.", do="Name a folder that is not there; nothing is overwritten.",
            code="E-FILE-EXISTS",
        )  # fmt: skip
    graph = lineage.graph
    entries = [*(node.entry for node in graph.nodes), *(edge.entry for edge in graph.edges)]
    numbers = sorted({entry for entry in entries if entry is not None})
    files = {
        "lineage.json": json.dumps(graph.model_dump(mode="json"), indent=1),
        "lineage.svg": draw_lineage(graph),
    }
    if lineage.statement is not None:
        files["provenance.intoto.json"] = json.dumps(lineage.statement, indent=1)
    if numbers:
        head = Ledger.at_home(context.settings.home).head()
        for seq in numbers:
            files[f"proofs/entry-{seq}.json"] = head.tiles.entry(seq).decode()
            files[f"proofs/entry-{seq}.tlog-proof"] = format_inclusion(head, seq)

    def write(folder: Path) -> None:
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")

    write_folder(target, write, facts=None)
    return lineage.model_copy(update={"folder": target, "files": len(files)})
