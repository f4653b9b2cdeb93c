"""The ledger: list, show, verify, prove, export, cosign. Requests, texts and rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trainyard.json_types import JsonObject
from trainyard.operations.artifacts import format_time
from trainyard.operations.base import Request, Tenant
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table, json_text

if TYPE_CHECKING:
    from trainyard.app.artifacts.anchors import AnchoredLedger, AnchorResult
    from trainyard.app.artifacts.ledger import (
        AnchorCheck,
        Cosigned,
        ExportedLedger,
        LedgerCheck,
        LedgerEntries,
        LedgerEntry,
        LedgerProof,
        RotatedKey,
    )
    from trainyard.app.artifacts.lineage import LineageGraph, LineageNode
    from trainyard.app.artifacts.lineage_export import Lineage
    from trainyard.app.artifacts.reproduction import Reproduction
    from trainyard.app.reports.report import RunReport

ENTRY = "Number of an entry, or enough of the beginning of its key, of its run or of its job."
Vkey = Annotated[str | None, Option("--key")]
KEY = "Public key that you trust, as `ledger verify` printed it earlier; default: that of this home."


class LedgerLogInput(Request):
    kind: str | None = Field(None, max_length=40, description="Only entries of this kind, such as trained.")
    run: Annotated[str | None, Option(completes="run")] = Field(
        None, max_length=200, description="Only entries of this run: its id, or enough of the beginning."
    )
    tenant: Tenant = Field(None, description="Only this tenant's.")
    limit: int = Field(20, ge=1, le=1000, description="Maximum number of entries, newest first.")
    before: int | None = Field(None, ge=0, description="Only entries with a lower number.")


class LedgerShowInput(Request):
    entry: Annotated[str, Argument("ENTRY")] = Field(min_length=1, max_length=200, description=ENTRY)


class LedgerVerifyInput(Request):
    key: Vkey = Field(None, max_length=500, description=KEY)
    witness: Annotated[tuple[str, ...], Option("--witness")] = Field(
        (), description="Public keys of witnesses, each of which has to have cosigned a checkpoint of this log."
    )
    anchor: bool = Field(False, description="Ask every anchor for its checkpoints, and compare them with the log.")


class LedgerAnchorInput(Request):
    to: Annotated[tuple[str, ...], Option("--to")] = Field(
        (), description="Names of anchors in trainyard.toml, or kinds; default: all."
    )
    deploy: Annotated[bool, Option(local=True)] = Field(
        False, description="Deploy the contract of the anchor instead, and print its address."
    )


class WitnessServerInput(Request):
    logs: Annotated[tuple[str, ...], Option("--log")] = Field(
        min_length=1, description="Public keys of the logs that are cosigned: NAME+ID+BASE64."
    )
    port: int = Field(8894, ge=0, le=65_535, description="Port on the loopback interface; 0: a free one.")


class LedgerProveInput(Request):
    entry: Annotated[str, Argument("ENTRY")] = Field(min_length=1, max_length=200, description=ENTRY)
    since: int | None = Field(
        None, ge=1, description="Prove instead that the log of so many entries is the beginning of this one."
    )


class LedgerExportInput(Request):
    target: Annotated[Path, Argument("TARGET")] = Field(description="Folder to write; it must not exist.")
    entries: Annotated[tuple[str, ...], Option("--entry")] = Field(
        (), description="Entries of which the bundle contains a proof each; the log itself is always whole."
    )

    data: bool = Field(
        False, description="Also the recipes, rows and earlier weights of these trainings, for `reproduce --bundle`."
    )


class ReproduceInput(Request):
    entry: Annotated[str, Argument("ENTRY")] = Field(min_length=1, max_length=200, description=ENTRY)
    bundle: Annotated[Path | None, Option(local=True)] = Field(
        None, description="Folder of `ledger export --data`, instead of this home's ledger."
    )
    base: str | None = Field(None, max_length=4096, description="Base model, where its name is another one here.")
    from_base: bool = Field(False, description="Train earlier adapters again, too, instead of reading stored copies.")
    keep: Annotated[Path | None, Option(local=True)] = Field(
        None, description="Folder for the new adapter; default: it is removed."
    )


class ReportInput(Request):
    run: Annotated[str, Argument("RUN", completes="run")] = Field(
        min_length=1, max_length=200, description="Id of a run or a job, its name, or the beginning of one."
    )
    out: Annotated[Path | None, Option(local=True)] = Field(
        None, description="HTML file to write; default: the page is printed."
    )
    samples: bool = Field(False, description="Also answers before and after; they contain text of the data.")


class LedgerWitnessInput(Request):
    source: Annotated[Path, Argument("LOG|FILE", is_file=True)] = Field(
        description="Folder of another machine's ledger, or a cosigned checkpoint of this one to keep."
    )
    out: Annotated[Path | None, Option(local=True)] = Field(
        None, description="File for the cosigned checkpoint; default: print it."
    )


class LedgerRotateInput(Request):
    because: str = Field(min_length=1, max_length=500, description="Why the key is replaced; it is in the entry.")


class LineageInput(Request):
    adapter: Annotated[str, Argument("ADAPTER", completes="adapter")] = Field(
        min_length=1, max_length=200, description="TENANT/ROLE[/vN], an ended job, or a digest of weights."
    )
    svg: bool = Field(False, description="As SVG.")
    export: Annotated[Path | None, Option(local=True)] = Field(
        None, description="Folder to write: graph, picture, in-toto statement, and the proof of each entry."
    )


MOST_LINES = 200
"""Lines of a lineage as text, in each direction."""


def lineage_text(result: Lineage) -> str:
    """Return what an adapter was made from and what it became, a line for each edge; or its picture."""
    if result.svg:
        return result.svg.rstrip("\n")
    graph = result.graph
    nodes = {node.id: node for node in graph.nodes}
    root = nodes[graph.root]
    lines = [f"{graph.adapter}: {format_node(root)}"]
    for title, upstream in (("made from", True), ("led to", False)):
        branch = list(walk_lineage(graph, upstream=upstream))
        lines += [title] if branch else []
        lines += [f"{'  ' * depth}{step:<10} {format_node(nodes[name])}" for depth, step, name in branch[:MOST_LINES]]
        lines += [f"  … {len(branch) - MOST_LINES:,} more: --json"] if len(branch) > MOST_LINES else []
    lines += [f"note: {note}" for note in graph.notes]
    lines += [f"written: {result.files} files in {result.folder}"] if result.folder else []
    return "\n".join(lines)


def format_node(node: LineageNode) -> str:
    entry = f"entry {node.entry}" if node.entry is not None else ""
    about = ", ".join(filter(None, (node.detail, entry, "deleted" if node.missing else "")))
    return f"{node.kind} {node.label}{f' ({about})' if about else ''}"


def walk_lineage(graph: LineageGraph, *, upstream: bool) -> Iterator[tuple[int, str, str]]:
    """Yield (depth, step, node) of one direction, depth first; a node that was shown before is not entered again."""
    links: dict[str, list[tuple[str, str]]] = {}
    for edge in graph.edges:
        near, far = (edge.target, edge.source) if upstream else (edge.source, edge.target)
        links.setdefault(near, []).append((edge.step, far))
    seen, stack = {graph.root}, [(1, *link) for link in reversed(links.get(graph.root, []))]
    while stack:
        depth, step, name = stack.pop()
        yield depth, step, name
        if name not in seen:
            seen.add(name)
            stack += [(depth + 1, *link) for link in reversed(links.get(name, []))]


def format_kind(entry: LedgerEntry) -> str:
    marks = {"reused": "reused", "unledgered": "late"}
    notes = [mark for name, mark in marks.items() if entry.entry.get(name)]
    notes += [str(entry.entry["anchor"])] if "anchor" in entry.entry else []
    return " ".join([str(entry.entry["kind"]), *(f"({mark})" for mark in notes)])


def ledger_log_text(result: LedgerEntries) -> str:
    """Return a line for each entry."""
    missing = [f"not in the ledger yet: {format_missing(row)}" for row in result.unledgered]
    if not result.entries:
        return "\n".join([*missing, "no entries"])
    rows = [
        (
            str(item.seq),
            format_time(float(item.entry["time"])),
            format_kind(item),
            str(item.entry.get("run", ""))[:8],
            str(item.entry.get("node", "")),
            str(item.entry.get("tenant", "")),
            str(item.entry.get("theme", "")),
        )
        for item in result.entries
    ]
    more = f"\nmore: --before {result.entries[-1].seq}" if result.more else ""
    table = format_table(rows, ("entry", "time (UTC)", "kind", "run", "node", "tenant", "theme")) + more
    return "\n".join([*missing, table])


def format_missing(row: JsonObject) -> str:
    """Return an entry that could not be written, and why."""
    subject = row.get("version") or row.get("run") or ""
    return f"{row['kind']} {subject} of {format_time(float(row['time']))} UTC ({row['code']})"


def ledger_entry_text(result: LedgerEntry) -> str:
    """Return each field on a line of its own."""
    rows = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in result.entry.items()]
    return format_table([("leaf", result.leaf), *rows], ("field", "value"))


def ledger_check_text(result: LedgerCheck) -> str:
    head = f"{result.size:,} entries, root {result.root}\norigin {result.origin}\nkey    {result.key}"
    facts = {"witnessed": result.witnessed, "anchored": result.anchored, "note": result.notes}
    lines = [head, *(f"{word}: {line}" for word, rows in facts.items() for line in rows)]
    lines += [anchor_check_line(check) for check in result.anchors]
    if not result.problems:
        return "\n".join([*lines, TAMPER_EVIDENT])
    lines.append(f"{len(result.problems)} problems: this ledger was changed, cut or damaged")
    for item in result.problems:
        entry = f"entry {item.entry}: " if item.entry is not None else ""
        lines.append(f"- {entry}{item.problem} ({item.file})")
    return "\n".join(lines)


def anchor_check_line(check: AnchorCheck) -> str:
    head = f"anchor {check.name} ({check.kind})"
    if check.unreachable:
        return f"{head}: NOT CHECKED. {check.unreachable}"
    if check.size is None:
        return f"{head}: nothing of this log is there yet"
    when = f", {format_time(check.time)} UTC" if check.time is not None else ""
    return f"{head}: {check.size:,} entries{when}, {check.where}\n  proves: {check.proves}"


def anchored_text(result: AnchoredLedger) -> str:
    if result.contract:
        return f"deployed: contract = {json.dumps(result.contract)}"
    return "\n".join(map(anchor_line, result.anchors))


def anchor_line(anchor: AnchorResult) -> str:
    head = f"{anchor.name} ({anchor.kind})"
    if anchor.problem:
        return f"{head}: FAILED, tried again later. {anchor.problem}"
    if not anchor.is_new:
        return f"{head}: has the {anchor.size or 0:,} entries already"
    return f"{head}: {anchor.size or 0:,} entries, {anchor.where}\n  proves: {anchor.proves}"


TAMPER_EVIDENT = (
    "Nothing was changed since it was signed. This is tamper-evident, not tamper-proof: who has this home's key and\n"
    "its disk can write another log. Keep this root elsewhere, have a witness cosign it, or anchor it."
)


def ledger_proof_text(result: LedgerProof) -> str:
    return result.proof.rstrip("\n")


def exported_text(result: ExportedLedger) -> str:
    proofs = f" with {result.proofs} proofs" if result.proofs else ""
    proofs += f" and the data of {result.recipes} trainings" if result.recipes else ""
    return f"{result.entries:,} entries{proofs} in {result.folder}\ncheck them: python {result.folder}/verify_ledger.py"


def reproduction_text(result: Reproduction) -> str:
    """Return the verdict, then each digest, each difference and what could not be checked."""
    last = result.trainings[-1]
    lines = [f"{result.verdict}: entry {result.entry}, trained again in {last.seconds:g} s"]
    rows = [
        (item.role, item.recorded[:16], item.sha256[:16], "same" if item.matches else "DIFFERS", item.how)
        for item in result.inputs
    ]
    rows += [
        (f"weights ({item.node})", item.recorded[:16], item.sha256[:16],
         "same" if item.recorded == item.sha256 else "DIFFERS", f"entry {item.entry}")
        for item in result.trainings
    ]  # fmt: skip
    lines.append(format_table(rows, ("what", "recorded", "now", "", "how")))
    if result.verdict != "identical":
        lines += [f"{name}: {then:.6g} recorded, {now:.6g} now" for name, (then, now) in last.losses.items()]
        lines.append(
            f"Losses may differ by {result.tolerance:.0%} where other hardware or versions compute other bits."
        )
    lines += [f"differs: {line}" for line in result.differences]
    lines += [f"not checked: {line}" for line in result.unchecked]
    return "\n".join([*lines, f"kept: {result.kept}"] if result.kept else lines)


def report_text(result: RunReport) -> str:
    """Return the page, or the answers and where it was written."""
    if not result.path:
        return result.html.rstrip("\n")
    return "\n".join([*(f"{question} {answer}" for question, answer in result.answers), f"written: {result.path}"])


def cosigned_text(result: Cosigned) -> str:
    if result.kept:
        return f"kept: {result.size:,} entries of this ledger are witnessed"
    checked = f"consistent with the {result.before:,} seen before" if result.before else "seen for the first time"
    head = f"{result.origin}: {result.size:,} entries, {checked}\nkey of this witness: {result.key}"
    return head if result.out else f"{head}\n\n{result.checkpoint}".rstrip("\n")


def rotated_text(result: RotatedKey) -> str:
    return f"entry {result.seq}: the ledger is signed by {result.key} from here on"


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "ledger log": Operation(
        "The entries of the ledger, newest first: data read, trainings, evaluations, deployments.",
        request=LedgerLogInput, run="app.artifacts.ledger:list_entries", text=ledger_log_text, scope=READ,
        route="GET /api/v1/ledger", tenants=True,
    ),
    "ledger show": Operation(
        "One entry of the ledger: a training with device, price, model, data digests and cost.",
        request=LedgerShowInput, run="app.artifacts.ledger:show_entry", text=ledger_entry_text, scope=READ,
        route="GET /api/v1/ledger/entries/{entry}", tenants=True,
    ),
    "ledger verify": Operation(
        "Check every entry, tile and signature of the ledger, and name changed ones.",
        request=LedgerVerifyInput, run="app.artifacts.ledger:verify", text=ledger_check_text, scope=ADMIN,
        route="GET /api/v1/ledger/verify",
    ),
    "ledger prove": Operation(
        "A proof that an entry is in the log, or that an earlier log is its beginning.",
        request=LedgerProveInput, run="app.artifacts.ledger:prove", text=ledger_proof_text, scope=READ,
        example="trainyard ledger prove 12 > adapter.tlog-proof",
        route="GET /api/v1/ledger/entries/{entry}/proof", tenants=True,
    ),
    "ledger export": Operation(
        "Write the ledger with its public key and a script that checks it without Trainyard.",
        request=LedgerExportInput, run="app.artifacts.ledger:export", text=exported_text, scope=ADMIN,
        local="It writes a folder anywhere on this machine.",
    ),
    "reproduce": Operation(
        "Carry out a recorded training again, and compare data and weights with the ledger.",
        request=ReproduceInput, run="app.artifacts.reproduction:reproduce", text=reproduction_text, scope=RUN,
        route="POST /api/v1/ledger/entries/{entry}/reproduction", heavy=True, only_answers=True, tenants=True,
    ),
    "report": Operation(
        "One page about a run: data, tokens, evaluation, what it replaced, cost, and proof.",
        request=ReportInput, run="app.reports.report:write_report", text=report_text, scope=READ,
        example="trainyard report 58b893cd --out report.html",
        route="GET /api/v1/runs/{run}/report", tenants=True,
    ),
    "ledger witness": Operation(
        "Cosign another machine's ledger if it only grew, or keep a witness's checkpoint of this one.",
        request=LedgerWitnessInput, run="app.artifacts.ledger:witness", text=cosigned_text, scope=ADMIN,
        local="It reads a folder anywhere on this machine.",
    ),
    "ledger anchor": Operation(
        "Bring the newest checkpoint of the ledger to the anchors of trainyard.toml.",
        request=LedgerAnchorInput, run="app.artifacts.anchors:anchor", text=anchored_text, scope=ADMIN,
        example="trainyard ledger anchor --to office",
    ),
    "ledger serve-witness": Operation(
        "Cosign checkpoints of other ledgers over HTTP (c2sp.org/tlog-witness) until stopped.",
        request=WitnessServerInput, run="surfaces.witness:serve_witness", text=json_text, scope=ADMIN,
        local="It becomes a server on this machine.", endless=True,
    ),
    "ledger rotate": Operation(
        "Replace the ledger's key, which may be lost; an entry records it.",
        request=LedgerRotateInput, run="app.artifacts.ledger:rotate", text=rotated_text, scope=ADMIN,
        example="trainyard ledger rotate --because 'the disk with the key broke'",
        local="It writes a secret on this machine.",
    ),
    "lineage": Operation(
        "What an adapter was made from: documents, rows, weights; and what became of it: evaluations, deployments.",
        request=LineageInput, run="app.artifacts.lineage_export:show_lineage", text=lineage_text, scope=READ,
        example="trainyard lineage default/handbook --svg > handbook.svg",
        route="GET /api/v1/lineage", tenants=True,
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
