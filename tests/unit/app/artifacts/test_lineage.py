"""The lineage of an adapter from the entries of a ledger: whole, cut, circular, wide and long."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from trainyard.app.artifacts.lineage import LineageGraph, LineageKind, build_lineage
from trainyard.app.artifacts.lineage_drawing import MOST_DRAWN, draw_lineage, fold
from trainyard.app.context import Caller, Context
from trainyard.errors import Conflict, NotFound
from trainyard.operations.ledger import lineage_text
from trainyard.settings import load_settings
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.recording import (
    DATA_READ,
    DEPLOYED,
    EVALUATED,
    PROMOTED,
    PUBLISHED,
    TRAINED,
)
from trainyard.surfaces.invocation import build_request, execute_operation

WIDE = [f"wide-{n}" for n in range(1000)]
VERSION = "default/handbook/v1"
SVG = "{http://www.w3.org/2000/svg}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def step(kind: str, key: str, parents: tuple[str, ...] = (), tenant: str = "default",
         outputs: dict[str, str] | None = None, **fields: object) -> dict[str, object]:  # fmt: skip
    parts = {port: {"sha256": digest(name), "rows": 10} for port, name in (outputs or {}).items()}
    common = {"kind": kind, "key": key, "run": "r1", "tenant": tenant, "node": key, "parents": list(parents)}
    return {**common, "outputs": parts, **fields}


def training(name: str, data: str, earlier: tuple[str, ...] = ()) -> dict[str, object]:
    model = {"name": "tiny", "sha256": digest("tiny"), "parameters": 5, "stage": "sft", "method": "lora"}
    return step(
        TRAINED, f"train-{name}", (f"read-{data}",), outputs={"adapter": name}, model_trained=model,
        data=[{"port": "sft", "sha256": digest(data)}], earlier_weights=[digest(other) for other in earlier],
    )  # fmt: skip


def record(home: Path, *steps: dict[str, object]) -> None:
    Ledger.at_home(home).append(*steps)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Documents, rows, two trainings of which one continues the other, a verdict, a version and its deployment."""
    home = tmp_path / "home"
    record(
        home,
        step(DATA_READ, "read-documents", outputs={"documents": "documents"}),
        step("generated", "read-rows", ("read-documents",), outputs={"sft": "rows"}),
        training("first", "rows"),
        training("second", "rows", ("first",)),
        step(EVALUATED, "judge", ("train-second", "read-rows"), outputs={"report": "report"}, better=True),
        step(PUBLISHED, "publish", outputs={"adapter": "second"}, version=VERSION),
        step(PROMOTED, "promote", outputs={"adapter": "second"}, version=VERSION, action="promote"),
        step(DEPLOYED, "deploy", ("train-second", "judge"), version=VERSION),
    )
    return home


def context(home: Path, tenant: str = "") -> Context:
    return Context(load_settings(home=home), say=lambda _text: None, caller=Caller("test", tenant=tenant))


def edges(graph: LineageGraph) -> set[tuple[str, str, str]]:
    labels = {node.id: f"{node.kind} {node.label}" for node in graph.nodes}
    return {(labels[edge.source], edge.step, labels[edge.target]) for edge in graph.edges}


def test_a_lineage_leads_from_documents_to_the_deployment(home: Path) -> None:
    graph = build_lineage(digest("second")[:10], context(home))
    rows, first, second = f"rows sft {digest('rows')[:12]}", digest("first")[:12], digest("second")[:12]
    report = f"evaluation report {digest('report')[:12]}"
    assert edges(graph) == {
        (f"rows documents {digest('documents')[:12]}", "generated", rows),
        (rows, "trained", f"adapter {first}"),
        (rows, "trained", f"adapter {second}"),
        ("base tiny", "trained", f"adapter {first}"),
        ("base tiny", "trained", f"adapter {second}"),
        (f"adapter {first}", "continued", f"adapter {second}"),
        (f"adapter {second}", "evaluated", report),
        (f"adapter {second}", "published", "version default/handbook/v1"),
        (report, "deployed", "version default/handbook/v1"),
        ("version default/handbook/v1", "promoted", "deployment default/handbook/v1 live"),
    }
    assert {edge.entry for edge in graph.edges} <= set(range(1, 9))


def test_deleted_data_stays_in_the_lineage_by_its_digest(home: Path) -> None:
    graph = build_lineage(digest("second"), context(home))
    rows = next(node for node in graph.nodes if node.label.startswith("sft"))
    assert (rows.missing, rows.sha256, rows.entry) == (True, digest("rows"), 2)
    assert any("not in the store any more" in note for note in graph.notes)
    assert "(deleted)" in draw_lineage(graph)


def test_an_adapter_that_continues_itself_ends(home: Path) -> None:
    record(home, *(training(name, "rows", (earlier,)) for name, earlier in (["loop", "loop"], "ab", "ba")))
    loop = build_lineage(digest("loop"), context(home))
    assert any("continued from itself" in note for note in loop.notes)
    pair = build_lineage(digest("a"), context(home))
    assert {edge.step for edge in pair.edges if edge.source == pair.root} == {"continued"}
    for graph in (loop, pair):
        assert len(ElementTree.fromstring(draw_lineage(graph)).findall(f".//{SVG}rect")) == len(graph.nodes) + 1


def test_a_thousand_nodes_fold_into_a_readable_picture(home: Path) -> None:
    long = [training(f"long-{n}", f"rows-{n}", (f"long-{n - 1}",) if n else ()) for n in range(500)]
    reads = [step(DATA_READ, f"read-{name}", outputs={"sft": name}) for name in WIDE]
    mixed = step("validated", "read-mixed", tuple(f"read-{name}" for name in WIDE), outputs={"sft": "mixed"})
    record(home, *long, *reads, mixed, training("wide", "mixed"))
    for name, fewest in (("long-499", 1001), ("wide", 1002)):
        graph = build_lineage(digest(name), context(home))
        assert len(graph.nodes) >= fewest
        drawing = fold(graph, MOST_DRAWN)
        assert len(drawing.nodes) <= MOST_DRAWN
        assert graph.root in drawing.nodes
        picture = ElementTree.fromstring(draw_lineage(graph))
        assert int(picture.attrib["height"]) < 5000
        texts = [element.text or "" for element in picture.iter(f"{SVG}text")]
        assert any(text.startswith("1,000 sets") or "earlier nodes" in text for text in texts)


def test_names_are_escaped_in_the_picture(home: Path) -> None:
    name = 'x"><script>alert(1)</script>'
    record(home, step(PUBLISHED, "publish2", outputs={"adapter": "second"}, version=name))
    picture = draw_lineage(build_lineage(digest("second"), context(home)))
    assert "<script" not in picture
    ElementTree.fromstring(picture)


def test_another_tenants_adapter_is_not_there(home: Path) -> None:
    with pytest.raises(NotFound):
        build_lineage(digest("second"), context(home, "acme"))
    with pytest.raises(NotFound):
        build_lineage(digest("unknown"), context(home))
    with pytest.raises(NotFound):
        build_lineage("default/handbook/v9", context(home))


def test_a_home_without_a_ledger_has_no_lineage(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        build_lineage("abcdef123456", context(tmp_path / "none"))


def test_an_export_has_the_graph_and_a_proof_of_each_entry(home: Path, tmp_path: Path) -> None:
    request = build_request("lineage", {"adapter": digest("second"), "export": tmp_path / "out"})
    result = execute_operation("lineage", request, context(home))
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*")}
    assert {"lineage.json", "lineage.svg", "proofs/entry-4.json", "proofs/entry-4.tlog-proof"} <= names
    assert "led to" in lineage_text(result)
    assert json.loads((tmp_path / "out" / "lineage.json").read_text())["sha256"] == digest("second")
    with pytest.raises(Conflict, match="exists already"):
        execute_operation("lineage", request, context(home))


def test_the_command_prints_text_json_or_a_picture(home: Path) -> None:
    def run(*options: str) -> str:
        command = [sys.executable, "-m", "trainyard", "lineage", digest("second"), *options]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={"TRAINYARD_HOME": str(home), "PATH": "/usr/bin"}
        )
        return done.stdout

    assert "continued  adapter" in run()
    assert run("--svg").startswith("<svg")
    assert len(json.loads(run("--json"))["graph"]["edges"]) == 10
    assert {kind.value for kind in LineageKind} >= {"document", "commit", "deployment"}
