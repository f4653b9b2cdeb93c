"""Lineage of an adapter: documents and commits, rows, weights, evaluations, versions and deployments, as a typed graph.

    graph = build_lineage("default/handbook/v3", context)
    svg = draw_lineage(graph)                        # app/artifacts/lineage_drawing.py

The ledger says which step made which digest out of which; names of files and commits come from the artifact store, as
far as the data is still there. Where it was deleted, its digest and the step that read it remain. A word names a
version of the registry (also a deleted one), an ended job, or the digest of weights that the ledger has.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from trainyard.app.adapters.trained import find_version_or_job
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.app.run_folders import RunFolder
from trainyard.app.run_records import read_events, source_name
from trainyard.data.rows import ROWS_FILE
from trainyard.errors import InvalidInput, NotFound, TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.data import DATA_PORTS, Port
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion, parse_name
from trainyard.stores.artifacts import ArtifactStore, Reference
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.recording import DATA_READ, DEPLOYED, EVALUATED, PROMOTED, PUBLISHED, TRAINED
from trainyard.stores.schema import read_versioned
from trainyard.stores.whole import MANIFEST

DIGEST = re.compile(r"[0-9a-f]{6,64}")
MOST_DOCUMENTS = 500
"""Documents of a set that are nodes of their own; the others are one node together."""
SHORT = 12
"""Characters of a digest in a label."""
WEIGHTS = frozenset({Port.ADAPTER.value, Port.MODEL.value, Port.REWARD.value})


class LineageKind(StrEnum):
    """Kind of a node, in the order from data to deployment."""

    DOCUMENT = "document"
    COMMIT = "commit"
    ROWS = "rows"
    BASE = "base"
    ADAPTER = "adapter"
    EVALUATION = "evaluation"
    VERSION = "version"
    DEPLOYMENT = "deployment"


class LineageNode(Response):
    """Something that has a digest or a name: a document, a set of rows, weights, a report, a version."""

    id: str
    """`KIND:DIGEST`, or `KIND:NAME` where there is no digest."""
    kind: LineageKind
    label: str
    sha256: str = ""
    detail: str = ""
    """One line more: rows, stage and method, verdict."""
    entry: int | None = None
    """Number of the ledger's entry of the step that made it."""
    run: str = ""
    missing: bool = False
    """Whether its data was deleted: digest and entry remain."""


class LineageEdge(Response):
    """`target` was made from `source`."""

    source: str
    target: str
    step: str
    """data_read, generated, validated, trained, continued, evaluated, published or promoted."""
    entry: int | None = None
    """Number of the ledger's entry that says so."""


class LineageGraph(Response):
    """Nodes and edges from documents to deployments. Edges of a broken record may form cycles."""

    adapter: str
    """The word that was asked for."""
    sha256: str
    """Digest of its weights."""
    root: str
    """Id of its node."""
    nodes: tuple[LineageNode, ...]
    edges: tuple[LineageEdge, ...]
    notes: tuple[str, ...] = ()
    """What is not known, and why."""


@dataclass
class LedgerRecords:
    """Entries of a ledger, by the digests that they made and by the entries that they continue."""

    entries: dict[int, JsonObject] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    makers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Digest -> entries whose outputs have it, oldest first."""
    children: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Key of an entry -> entries that have it as a parent."""
    of_version: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, seq: int, entry: JsonObject) -> None:
        self.entries[seq] = entry
        self.keys[str(entry.get("key", ""))] = seq
        for output in outputs_of(entry).values():
            self.makers[output["sha256"]].append(seq)
        for parent in texts(entry.get("parents")):
            self.children[parent].append(seq)
        if entry.get("version"):
            self.of_version[str(entry["version"])].append(seq)

    def find_makers(self, sha256: str, *kinds: str) -> list[int]:
        return [seq for seq in self.makers.get(sha256, ()) if not kinds or self.entries[seq].get("kind") in kinds]

    def choose_maker(self, sha256: str, *kinds: str) -> int | None:
        """Return the step that made a digest; one that only reused it, where the other is not in the log."""
        numbers = [seq for seq in self.find_makers(sha256, *kinds) if self.entries[seq].get("kind") in MAKING]
        return next((seq for seq in numbers if not self.entries[seq].get("reused")), numbers[0] if numbers else None)


MAKING = frozenset({DATA_READ, "generated", "validated", TRAINED, EVALUATED})


def outputs_of(entry: JsonMapping) -> dict[str, JsonMapping]:
    """Return port -> {sha256, …} of an entry, without what is not of this form."""
    outputs = entry.get("outputs")
    if not isinstance(outputs, Mapping):
        return {}
    return {
        str(port): part
        for port, part in outputs.items()
        if isinstance(part, Mapping) and isinstance(part.get("sha256"), str) and part["sha256"]
    }


def texts(values: object) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, Sequence) else []


def mappings(values: object) -> list[JsonMapping]:
    listed = values if isinstance(values, Sequence) and not isinstance(values, str) else []
    return [value for value in listed if isinstance(value, Mapping)]


def read_records(context: Context) -> LedgerRecords:
    """Return the entries that the caller may see; none for a home without a ledger."""
    records, ledger, tenant = LedgerRecords(), Ledger.at_home(context.settings.home), context.caller.tenant
    try:
        head = ledger.head()
    except NotFound:
        return records
    for seq in range(head.size):
        entry = head.entry(seq)
        if not tenant or entry.get("tenant") == tenant:
            records.add(seq, entry)
    return records


def build_lineage(word: str, context: Context) -> LineageGraph:
    """Return the lineage of the adapter that a word names.

    Raises `NotFound` (`E-ADAPTER-NOT-FOUND`, `E-JOB-NOT-FOUND`) for a word that neither the registry, nor a job, nor
    the ledger has, and `Corrupt` for a ledger that cannot be read.
    """
    records = read_records(context)
    sha256, version = find_weights(word, records, context)
    builder = LineageBuilder(records, context)
    root = builder.add_weights(sha256, version)
    builder.walk()
    return LineageGraph(
        adapter=word, sha256=sha256, root=root, nodes=tuple(builder.nodes.values()),
        edges=tuple(builder.edges.values()), notes=tuple(dict.fromkeys(builder.notes)),
    )  # fmt: skip


def find_weights(word: str, records: LedgerRecords, context: Context) -> tuple[str, AdapterVersion | None]:
    """Return the digest that a word names, and the version of the registry where it is one."""
    try:
        adapter = find_version_or_job(word, context)
    except (NotFound, InvalidInput) as error:
        if (version := find_deleted(word, context)) is not None:
            return version.sha256, version
        if DIGEST.fullmatch(word):
            trained = {sha for sha in records.makers if sha.startswith(word) and records.find_makers(sha, TRAINED)}
            if len(trained) == 1:
                return trained.pop(), None
            raise NotFound(
                f"The ledger has {len(trained) or 'no'} trainings of weights {word}.",
                do="Name a version (`trainyard adapters list`), an ended job, or enough of a digest.",
                code="E-ADAPTER-NOT-FOUND",
            ) from error
        raise
    if isinstance(adapter, AdapterVersion):
        if context.caller.tenant not in ("", adapter.tenant):
            raise NotFound(f"There is no adapter version {word}.", code="E-ADAPTER-NOT-FOUND")
        return adapter.sha256, adapter
    return adapter.reference.sha256, None


def find_deleted(word: str, context: Context) -> AdapterVersion | None:
    """Return the manifest of a version that was deleted; None for any other word."""
    try:
        tenant, _, number = parse_name(word)
        if number is None or context.caller.tenant not in ("", tenant):
            return None
        return AdapterRegistry(context.settings.adapters).find(word)
    except TrainyardError:
        return None


class LineageBuilder:
    """A graph under construction: each digest is visited once, so that a cycle in a record ends."""

    def __init__(self, records: LedgerRecords, context: Context) -> None:
        self.records, self.context = records, context
        self.nodes: dict[str, LineageNode] = {}
        self.edges: dict[tuple[str, str, str], LineageEdge] = {}
        self.notes: list[str] = []
        self.pending: deque[tuple[str, int]] = deque()
        self.stored = StoredResults(context)

    # Nodes and edges

    def add(self, node: LineageNode) -> str:
        self.nodes.setdefault(node.id, node)
        return node.id

    def link(self, source: str, target: str, step: str, entry: int | None = None) -> None:
        self.edges.setdefault((source, target, step), LineageEdge(source=source, target=target, step=step, entry=entry))

    def add_weights(self, sha256: str, version: AdapterVersion | None = None) -> str:
        """Add weights by the step that trained them; what came before is visited by `walk`."""
        node_id = f"{LineageKind.ADAPTER}:{sha256}"
        if node_id in self.nodes:
            return node_id
        seq = self.records.choose_maker(sha256, TRAINED)
        entry = self.records.entries.get(seq, {}) if seq is not None else {}
        model = entry.get("model_trained") or {}
        detail = " ".join(str(model[name]) for name in ("stage", "method", "backend") if model.get(name))
        missing = not self.stored.has(sha256, entry) and version is None
        self.add(
            LineageNode(
                id=node_id, kind=LineageKind.ADAPTER, label=sha256[:SHORT], sha256=sha256, detail=detail, entry=seq,
                run=str(entry.get("run", "")), missing=missing or bool(version and version.deleted),
            )
        )  # fmt: skip
        self.add_after(node_id, sha256)
        if seq is not None:
            self.pending.append((node_id, seq))
        elif version is not None:
            self.add_by_manifest(node_id, version)
        else:
            self.notes.append(f"The ledger of this home has no training of {sha256[:SHORT]}.")
        return node_id

    def walk(self) -> None:
        """Add what each step was made from, until nothing is left."""
        while self.pending:
            node_id, seq = self.pending.popleft()
            entry = self.records.entries[seq]
            if entry.get("kind") == TRAINED:
                self.add_training(node_id, seq, entry)
            else:
                self.add_step(node_id, seq, entry)

    def add_training(self, node_id: str, seq: int, entry: JsonMapping) -> None:
        model = entry.get("model_trained") or {}
        if model.get("sha256") or model.get("name"):
            base = LineageNode(
                id=f"{LineageKind.BASE}:{model.get('sha256') or model['name']}", kind=LineageKind.BASE,
                label=str(model.get("name") or "")[:80], sha256=str(model.get("sha256") or ""),
                detail=f"{model['parameters']:,} parameters" if isinstance(model.get("parameters"), int) else "",
            )  # fmt: skip
            self.link(self.add(base), node_id, "trained", seq)
        for part in mappings(entry.get("data")):
            self.link(self.add_rows(str(part.get("sha256")), str(part.get("port", "")), entry), node_id, "trained", seq)
        for sha256 in texts(entry.get("earlier_weights")):
            before = self.add_weights(sha256)
            self.link(before, node_id, "continued", seq)
            if before == node_id:
                self.notes.append(f"Entry {seq} says that {sha256[:SHORT]} was continued from itself.")

    def add_step(self, node_id: str, seq: int, entry: JsonMapping) -> None:
        """Add what a set of rows was made from: the outputs of the steps before it, or what a data source has read."""
        kind = str(entry.get("kind"))
        if kind == DATA_READ:
            self.add_sources(node_id, seq, entry)
        for parent in texts(entry.get("parents")):
            before = self.records.keys.get(parent)
            if before is None:
                self.notes.append(f"Entry {seq} continues an entry that this ledger has not.")
                continue
            for port, output in outputs_of(self.records.entries[before]).items():
                if port in WEIGHTS:
                    self.link(self.add_weights(output["sha256"]), node_id, kind, seq)
                elif port in DATA_PORTS:
                    source = self.add_rows(output["sha256"], port, self.records.entries[before])
                    if source != node_id:
                        self.link(source, node_id, kind, seq)

    def add_rows(self, sha256: str, port: str, near: JsonMapping) -> str:
        """Add a set of rows by the step that made it, of the same run where there are several."""
        node_id = f"{LineageKind.ROWS}:{sha256}"
        if node_id in self.nodes:
            return node_id
        makers = self.records.find_makers(sha256)
        of_run = [seq for seq in makers if self.records.entries[seq].get("run") == near.get("run")]
        chosen = self.records.choose_maker(sha256)
        seq = of_run[0] if of_run else chosen
        entry = self.records.entries.get(seq, {}) if seq is not None else {}
        output = next((part for part in outputs_of(entry).values() if part["sha256"] == sha256), {})
        rows = output.get("rows")
        missing = not self.stored.has(sha256, entry)
        self.add(
            LineageNode(
                id=node_id, kind=LineageKind.ROWS, label=f"{port} {sha256[:SHORT]}", sha256=sha256,
                detail=f"{rows:,} rows" if isinstance(rows, int) else "", entry=seq, run=str(entry.get("run", "")),
                missing=missing,
            )
        )  # fmt: skip
        if missing:
            self.notes.append(f"The rows {sha256[:SHORT]} are not in the store any more; their digest is.")
        if seq is not None:
            self.pending.append((node_id, seq))
        return node_id

    def add_sources(self, node_id: str, seq: int, entry: JsonMapping) -> None:
        """Add the files, commits and addresses that a data source has read, as far as that is still recorded."""
        sha256 = self.nodes[node_id].sha256
        reference = self.stored.find(sha256, entry)
        documents = self.stored.list_documents(reference)
        for document in documents[:MOST_DOCUMENTS]:
            self.link(self.add(document.as_node(seq)), node_id, DATA_READ, seq)
        rest = documents[MOST_DOCUMENTS:]
        if rest:
            label = f"{len(rest):,} other documents"
            node = LineageNode(id=f"document:{sha256}:rest", kind=LineageKind.DOCUMENT, label=label, entry=seq)
            self.link(self.add(node), node_id, DATA_READ, seq)
        for source in self.stored.list_sources(entry, reference):
            if documents and source.kind is LineageKind.DOCUMENT:
                continue
            self.link(self.add(source.as_node(seq)), node_id, DATA_READ, seq)

    def add_by_manifest(self, node_id: str, version: AdapterVersion) -> None:
        """Add what the manifest of a version says of its origin, for one that the ledger has no training of."""
        facts = version.facts
        if facts.get("base_model") or facts.get("base_sha256"):
            sha256 = str(facts.get("base_sha256") or "")
            base = LineageNode(
                id=f"{LineageKind.BASE}:{sha256 or facts['base_model']}", kind=LineageKind.BASE, sha256=sha256,
                label=Path(str(facts.get("base_model") or sha256[:SHORT])).name,
            )  # fmt: skip
            self.link(self.add(base), node_id, "trained")
        for part in mappings(facts.get("data")):
            sha256 = str(part.get("sha256") or "")
            name = str(part.get("source") or sha256[:SHORT])[:80]
            rows = part.get("rows")
            node = LineageNode(
                id=f"{LineageKind.ROWS}:{sha256 or name}", kind=LineageKind.ROWS, label=name, sha256=sha256,
                detail=f"{rows:,} rows" if isinstance(rows, int) else "", missing=True,
            )  # fmt: skip
            self.link(self.add(node), node_id, "trained")
        origin = facts.get("origin") or {}
        where = f" It was pulled from {origin['source']}." if origin.get("source") else ""
        self.notes.append(f"The ledger of this home has no training of it: this is what its manifest says.{where}")

    def add_after(self, node_id: str, sha256: str) -> None:
        """Add the evaluations, versions and deployments of weights."""
        reports: dict[int, str] = {}
        for maker in self.records.find_makers(sha256, TRAINED):
            for seq in self.records.children.get(str(self.records.entries[maker].get("key")), ()):
                entry = self.records.entries[seq]
                if entry.get("kind") == EVALUATED:
                    reports[seq] = self.add_evaluation(node_id, seq, entry)
        for seq in self.records.find_makers(sha256, PUBLISHED, PROMOTED):
            self.add_release(node_id, seq, self.records.entries[seq], reports)

    def add_evaluation(self, node_id: str, seq: int, entry: JsonMapping) -> str:
        report = outputs_of(entry).get(Port.REPORT.value, {})
        sha256 = str(report.get("sha256", ""))
        verdict = {True: "better", False: "not better"}.get(entry.get("better"), "")  # type: ignore[arg-type]
        node = LineageNode(
            id=f"{LineageKind.EVALUATION}:{sha256 or seq}", kind=LineageKind.EVALUATION, sha256=sha256,
            label=f"report {sha256[:SHORT]}".strip(), detail=verdict, entry=seq, run=str(entry.get("run", "")),
        )  # fmt: skip
        self.link(node_id, self.add(node), EVALUATED, seq)
        return node.id

    def add_release(self, node_id: str, seq: int, entry: JsonMapping, reports: Mapping[int, str]) -> None:
        name = str(entry.get("version") or "")
        version = LineageNode(id=f"{LineageKind.VERSION}:{name}", kind=LineageKind.VERSION, label=name, entry=seq)
        self.link(node_id, self.add(version), PUBLISHED, seq)
        if entry.get("kind") == PROMOTED:
            action = str(entry.get("action") or "promote")
            deployment = LineageNode(
                id=f"{LineageKind.DEPLOYMENT}:{seq}", kind=LineageKind.DEPLOYMENT, label=f"{name} live", detail=action,
                entry=seq,
            )  # fmt: skip
            self.link(version.id, self.add(deployment), PROMOTED, seq)
        for deployed in self.records.of_version.get(name, ()):
            step = self.records.entries[deployed]
            if step.get("kind") != DEPLOYED:
                continue
            parents = {self.records.keys.get(parent) for parent in texts(step.get("parents"))}
            for report in parents & reports.keys():
                self.link(reports[report], version.id, DEPLOYED, deployed)  # type: ignore[index]


@dataclass(frozen=True)
class Source:
    """A file, an address or a commit that rows come from."""

    kind: LineageKind
    name: str
    sha256: str = ""
    detail: str = ""

    def as_node(self, entry: int) -> LineageNode:
        return LineageNode(
            id=f"{self.kind}:{self.sha256 or self.name}", kind=self.kind, label=self.name[:120], sha256=self.sha256,
            detail=self.detail, entry=entry,
        )  # fmt: skip


class StoredResults:
    """What the artifact store and the run folders still have of the results that the ledger names."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.store = ArtifactStore(context.settings.artifacts)
        self.versions = {version.sha256 for version in AdapterRegistry(context.settings.adapters).list()}
        self.runs: dict[str, dict[str, Reference]] = {}

    def has(self, sha256: str, entry: JsonMapping) -> bool:
        return sha256 in self.versions or self.find(sha256, entry) is not None

    def find(self, sha256: str, entry: JsonMapping) -> Reference | None:
        """Return the stored result with this digest that a run has left; None if it was removed."""
        run = str(entry.get("run") or "")
        if not run or "/" in run:
            return None
        if run not in self.runs:
            self.runs[run] = dict(self.list_results(run))
        return self.runs[run].get(sha256)

    def list_results(self, run: str) -> Iterator[tuple[str, Reference]]:
        """Yield digest -> reference of what a run has left and the store still has; nothing is read but manifests."""
        keys = {str(event.get("key")) for event in read_events(self.context.settings.runs / run) if event.get("key")}
        for key in keys:
            manifest = self.store.folder(key) / MANIFEST
            if not manifest.is_file():
                continue
            for value in read_versioned("artifact", manifest.read_bytes(), manifest)["output"]["outputs"].values():
                reference = Reference.model_validate(value)
                yield reference.sha256, reference

    def list_documents(self, reference: Reference | None) -> list[Source]:
        """Return the documents and commits of a set of documents, by name; nothing of their text."""
        if reference is None or reference.kind is not Port.DOCUMENTS or not (reference.path / ROWS_FILE).is_file():
            return []
        from pyarrow import ipc, memory_map  # 0.3 s, and only a lineage with documents needs it

        counts: Counter[tuple[str, str]] = Counter()
        with memory_map(str(reference.path / ROWS_FILE)) as source, ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                counts.update(zip(batch.column("source").to_pylist(), batch.column("kind").to_pylist(), strict=True))
        return [
            Source(LineageKind.COMMIT if kind == "commit" else LineageKind.DOCUMENT, name or "document", detail=kind)
            for name, kind in sorted(counts)
        ]

    def list_sources(self, entry: JsonMapping, reference: Reference | None) -> Iterator[Source]:
        """Yield what the data source of a run has read: the last names of paths, addresses, revisions."""
        path = self.context.settings.runs / str(entry.get("run") or ".")
        chain = RunFolder(path, 0.0).chain
        nodes = [node for node in mappings(chain.get("nodes")) if node.get("id") == entry.get("node")]
        config = nodes[0].get("config") if nodes else None
        sets = [*(config.get("sets") or {}).values(), config] if isinstance(config, Mapping) else []
        mix = config.get("mix") if isinstance(config, Mapping) else None
        sets += list((mix.get("sets") or {}).values()) if isinstance(mix, Mapping) else []
        for source in mappings(sets):
            if name := source_name(dict(source)):
                yield Source(LineageKind.DOCUMENT, name)
        facts = reference.facts if reference else {}
        if facts.get("revision"):
            revision = str(facts["revision"])
            address = str(facts.get("address") or "")
            yield Source(LineageKind.COMMIT, f"{address} {revision[:SHORT]}".strip(), revision)
