"""Provenance of a run's results: its chain, its data, the result of each node, and its training.

Everything is read from what the run has left: its resolved chain, its events, the manifests of its results, and the
`training.json` of what it trained. While a training is running its ledger is in its events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import Field

from trainyard.app import run_folders as finding
from trainyard.app.artifacts.contents import damaged_error
from trainyard.app.context import Context
from trainyard.app.jobs.samples import read_lines_with
from trainyard.app.live.trainings import find_trainings
from trainyard.app.names import find_job, find_run
from trainyard.app.responses import Response
from trainyard.app.run_folders import FoundArtifact, RunFolder
from trainyard.app.run_records import data_sources
from trainyard.app.training_logs import TrainingLogs
from trainyard.backends.results import TRAINING_FILE
from trainyard.compute.child import EVENTS_FILE
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations import jobs as requests
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.metrics import number, select_since

LEDGER = (b'"ledger"',)
WORDS = (
    "stage", "method", "backend", "base_model", "base_sha256", "chat_template_sha256", "device", "precision", "head",
    "kernels", "attention", "batching", "renderer", "reward_model_sha256",
)  # fmt: skip
"""Of `training.json`."""
Counts = dict[str, int]


class ReadSource(Response):
    """A set that a data source has read; of a path the last name."""

    source: str
    format: str = ""
    rows: int | None = None
    sha256: str = ""
    """Of the rows as they were stored; empty if they are gone."""
    license: str = ""
    """As the chain names it; empty if it does not."""


class KeptResult(Response):
    """A port of a node that has ended."""

    node: str
    type: str
    port: str
    key: str
    """Content key: a digest of the node's settings, its inputs and our versions."""
    sha256: str = ""
    """Of its files; empty if they are gone."""
    rows: int | None = None
    bytes: int = 0
    reused: bool
    """An earlier run has made it."""
    needs: tuple[str, ...]
    """The nodes whose results went into it."""


class TrainedFrom(Response):
    """A step of a lineage: a base, then each adapter that was trained further."""

    sha256: str = ""
    stage: str = ""
    method: str = ""
    parents: tuple[str, ...] = ()
    """SHA-256 of adapters that were merged."""
    scored_by: str = ""
    """SHA-256 of the reward model whose scores it learned from."""


class TrainingOrigin(Response):
    """A trainer: what it counted, and how it was carried out."""

    node: str
    ended: bool
    """Whether it has left a result; before that only its ledger is known."""
    tokens: Counts = Field({})
    """The ledger of one pass over the data: read = trained + masked + truncated + dropped."""
    rows: Counts = Field({})
    words: dict[str, str] = Field({})
    """How it was carried out: stage, method, base and its digest, device, precision …"""
    versions: dict[str, str] = Field({})
    """Library -> its version."""
    seed: int | None = None
    lineage: tuple[TrainedFrom, ...] = ()
    """The oldest first."""
    registered: tuple[str, ...] = ()
    """Versions of the registry that are this result."""


class Provenance(Response):
    id: str
    run_id: str
    chain: str = ""
    digest: str = ""
    """Of the resolved chain; empty before the run has begun."""
    tenant: str
    data: tuple[ReadSource, ...] = ()
    results: tuple[KeptResult, ...] = ()
    """In the order in which the nodes ended."""
    trainings: tuple[TrainingOrigin, ...] = ()


def show_provenance(request: requests.JobInput, context: Context) -> Provenance:
    """Return the records of the run so far; nothing before it has begun.

    Raises `NotFound` (`E-JOB-NOT-FOUND`), and `Corrupt` (`E-CORRUPT`) for a record that cannot be read.
    """
    row, _ = find_job(request.job, context)
    path = context.settings.runs / row["run_id"]
    if not (path / finding.CHAIN_FILE).is_file():
        return Provenance(id=row["id"], run_id=row["run_id"], tenant=row["tenant"])
    run, store = find_run(row["run_id"], context), finding.open_store(context)
    artifacts = list(finding.find_artifacts(run, store))
    try:
        data = tuple(ReadSource(**drop_none(source)) for source in data_sources(path, context.settings.artifacts))
        trainings = tuple(list_trainings(artifacts, find_trainings(row), context))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged_error(path, f"What the run has recorded is not of this version: {error}") from error
    return Provenance(
        id=row["id"], run_id=run.id, chain=run.name, digest=str(run.chain.get("digest") or ""), tenant=run.tenant,
        data=data, results=tuple(describe_result(artifact, run) for artifact in artifacts), trainings=trainings,
    )  # fmt: skip


def list_trainings(
    artifacts: Sequence[FoundArtifact], works: Sequence[TrainingLogs], context: Context
) -> Iterator[TrainingOrigin]:
    """Yield each trainer that has begun or has left a result."""
    store, works_by_node = finding.open_store(context), {work.node: work for work in works}
    results = {
        artifact.node: artifact
        for artifact in artifacts
        if artifact.output and (artifact.folder(store) / TRAINING_FILE).is_file()
    }
    every = AdapterRegistry(context.settings.adapters).list(context.caller.tenant or None)
    for node in dict.fromkeys([*works_by_node, *results]):
        artifact = results.get(node)
        sha256 = artifact.reference.sha256 if artifact and artifact.reference else ""
        names = tuple(version.name for version in every if sha256 and version.sha256 == sha256)
        yield describe_training(node, read_record(artifact, store) if artifact else {}, works_by_node.get(node), names)


def drop_none(fields: JsonMapping) -> JsonObject:
    """Return the fields that are known."""
    return {name: value for name, value in fields.items() if value is not None}


def describe_result(artifact: FoundArtifact, run: RunFolder) -> KeptResult:
    chain_node: JsonMapping = next(
        (node for node in run.chain.get("nodes") or () if node.get("id") == artifact.node), {}
    )
    reference = artifact.reference
    return KeptResult(
        node=artifact.node, type=str(chain_node.get("type") or ""), port=artifact.port.value,
        key=artifact.key, reused=artifact.reused,
        rows=artifact.rows, needs=tuple(map(str, chain_node.get("needs") or ())),
        sha256=reference.sha256 if reference else "",
        bytes=reference.bytes if reference else 0,
    )  # fmt: skip


def read_record(artifact: FoundArtifact, store: Any) -> dict[str, object]:
    """Return the `training.json` of a result. Raises `Corrupt` (`E-CORRUPT`) for one that is not a JSON object."""
    path = artifact.folder(store) / TRAINING_FILE
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise finding.unreadable_result(artifact.key, str(error)) from error
    if not isinstance(value, dict):
        raise finding.unreadable_result(artifact.key, f"{TRAINING_FILE} is not a JSON object.")
    return value


def describe_training(
    node: str, record: JsonMapping, work: TrainingLogs | None, registered: tuple[str, ...]
) -> TrainingOrigin:
    """Return a trainer by its record; before its end by the ledger in its events."""
    data = record.get("data") or (read_ledger(work) if work else {})
    hyper = record.get("hyperparameters") or {}
    return TrainingOrigin(
        node=node, ended=bool(record), registered=registered, seed=hyper.get("seed"),
        tokens=build_counts(data.get("tokens")), rows=build_counts(data.get("rows")),
        words={name: str(record[name]) for name in WORDS if record.get(name) not in (None, "")},
        versions={str(name): str(value) for name, value in (record.get("versions") or {}).items()},
        lineage=tuple(describe_lineage(record.get("lineage") or ())),
    )  # fmt: skip


def describe_lineage(entries: Sequence[Any]) -> Iterator[TrainedFrom]:
    for entry in entries:
        if isinstance(entry, Mapping):
            fields = {name: str(entry.get(name) or "") for name in ("sha256", "stage", "method", "scored_by")}
            yield TrainedFrom(**fields, parents=tuple(map(parent_sha256, entry.get("parents") or ())))


def parent_sha256(parent: object) -> str:
    return str(parent.get("sha256") or "") if isinstance(parent, Mapping) else str(parent)


def build_counts(counts: Any) -> Counts:
    return {str(name): int(count) for name, count in (counts or {}).items() if number(count) is not None}


def read_ledger(work: TrainingLogs) -> dict[str, object]:
    """Return the newest ledger that a training has reported."""
    newest: dict[str, object] = {}
    for event in select_since(read_lines_with(LEDGER, work.folder / EVENTS_FILE), work.since):
        if event["event"] == "ledger":
            newest = event
    tokens = {name: value for name, value in newest.items() if name not in ("time", "rows") and isinstance(value, int)}
    return {"tokens": tokens, "rows": newest.get("rows")}
