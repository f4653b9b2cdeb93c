"""Records of a run on disk: the resolved chain, its events as they happen, and its result.

    runs/<run id>/
        chain.json      the resolved chain, as it was carried out
        events.jsonl    one line per event: {"time", "node", "event", …}; `--watch` tails it
        result.json     per node: state, seconds, outputs, facts, message
        curves.svg      the losses of its trainers, drawn when the run ends

Prefect's own state remains the truth about the run: losing this folder blocks no server, and losing Prefect's
database loses no result.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from trainyard.compute import events as event_files
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import Event, EventTail, EventWriter
from trainyard.errors import NOT_BETTER, NotDeployed
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.money import Cost
from trainyard.spec.states import NOT_DEPLOYED_DETAIL, JobState
from trainyard.stores.artifacts import ArtifactStore, Reference
from trainyard.stores.files import translate_os_errors
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import MANIFEST, write_json_durably

if TYPE_CHECKING:
    from trainyard.app.training_logs import TrainingLogs

FEW_ROWS_TAG = "few-rows:allow"
"""Tag of a run that trains although there are fewer rows than were requested, or than a verdict needs."""
REFRESH_TAG = "refresh"
"""A run with this tag makes every result again, including finished ones."""
REFRESH_FROM = "refresh-from:"
"""A run with the tag `refresh-from:NODE` makes the results of that node and of all after it again."""
PROGRESS_EVERY_S = 0.5
"""Least time between two progress lines of one node: nobody reads faster, and the file stays small."""


class NodeState(StrEnum):
    """State of one node of a run."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    REUSED = "reused"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELED = "canceled"

    @property
    def succeeded(self) -> bool:
        return self in (NodeState.COMPLETED, NodeState.REUSED)


class NodeResult(BaseModel):
    """Result of one node: how it ended and its outputs."""

    model_config = ConfigDict(frozen=True)

    id: str
    type: str
    state: NodeState
    seconds: float = 0.0
    message: str = ""
    outputs: dict[Port, Reference] = {}
    facts: JsonObject = {}


class ClosedGate(BaseModel):
    """The no of a gate: nothing was deployed, for these reasons."""

    model_config = ConfigDict(frozen=True)

    node: str
    """Id of the deployer."""
    evaluator: str = ""
    """Id of the evaluator whose report says no: `evaluations show RUN EVALUATOR`, `/evaluations/RUN/EVALUATOR`."""
    verdict: str
    reasons: tuple[str, ...]
    """The checks that failed, each as `benchmark/set: values`."""
    passed: tuple[str, ...] = ()
    do: str = ""

    @property
    def line(self) -> str:
        """`not better than its baseline: 3 of 5 checks`."""
        return format_closed_gate(self.model_dump())


def is_closed_gate(facts: Mapping[str, object]) -> bool:
    """Return whether facts are those of a deployer whose gate refused."""
    return facts.get("deployed") is False and bool(facts.get("reasons"))


def format_closed_gate(facts: JsonMapping) -> str:
    """Return the verdict of a closed gate, with the number of checks that failed where they decided."""
    if facts["verdict"] != NOT_BETTER:
        return str(facts["verdict"])
    count, total = len(facts["reasons"]), len(facts["reasons"]) + len(facts["passed"])
    return f"{facts['verdict']}: {count} of {total} check{'s' if total != 1 else ''}"


class RunResult(BaseModel):
    """Result of a run."""

    model_config = ConfigDict(frozen=True)

    id: str = ""
    """What names it: the job's id, or the run's own where no trainer is part of it."""
    run_id: str
    name: str
    chain: str = ""
    digest: str = ""
    state: JobState
    detail: str = ""
    """`not deployed` of a completed run whose gate refused."""
    message: str
    nodes: tuple[NodeResult, ...] = ()
    gate: ClosedGate | None = None
    """Reason of a gate's refusal to deploy."""
    url: str = ""
    seconds: float = 0.0
    next: tuple[str, ...] = ()
    """Commands for what comes after it."""
    cost: Cost | None = None
    """What its trainings have cost, of every start; None where no price is known."""

    @property
    def succeeded(self) -> bool:
        return self.state is JobState.COMPLETED

    @property
    def exit_code(self) -> int:
        """Of a command that shows this result: a run that was only started has not failed."""
        if self.succeeded and self.detail == NOT_DEPLOYED_DETAIL:
            return NotDeployed.exit_code
        return 1 if self.state in (JobState.FAILED, JobState.CANCELED) else 0

    @property
    def state_text(self) -> str:
        """Return the state with its detail: `completed (not deployed)`."""
        return f"{self.state.value} ({self.detail})" if self.detail else self.state.value

    def _repr_markdown_(self) -> str:
        """Return what a notebook shows, with the loss as it is when it is shown."""
        from trainyard.app.notebook_views import run_markdown  # draws curves; only notebooks need it

        return run_markdown(self)

    def node(self, node_id: str) -> NodeResult:
        """Return the result of one node. Raises `KeyError` for an id that the chain does not have."""
        return {node.id: node for node in self.nodes}[node_id]


@dataclass
class RunRecord:
    """Writer of one run's folder; several threads may write events."""

    folder: Path
    _last: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def events(self) -> Path:
        return self.folder / EVENTS_FILE

    def follow(self) -> EventTail:
        """Return a reader of the events from the first one on, which continues where it ended."""
        return EventTail(self.events)

    def begin(self, chain: JsonObject) -> None:
        with translate_os_errors(f"The run's folder {self.folder} was not made"):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_json_durably(self.folder / "chain.json", chain)

    def emit(self, node: str, event: str, **fields: Any) -> None:
        """Append one event; progress comes at most twice a second for each node.

        Raises `LimitExceeded` (`E-DISK-FULL`), `Unavailable` (`E-DISK-ERROR`); nothing of the line is left then.
        """
        now = time.time()
        with self._lock:
            if event == "progress":
                if now - self._last.get(node, 0.0) < PROGRESS_EVERY_S:
                    return
                self._last[node] = now
        with translate_os_errors(f"The events of the run were not written to {self.events}"):
            writer = EventWriter(self.events)
            try:
                writer.emit(event, node=node, **fields)
            finally:
                writer.close()

    def finish(self, result: RunResult) -> None:
        write_json_durably(self.folder / "result.json", add_version("run", result.model_dump(mode="json")))


def read_events(folder: Path) -> Iterator[Event]:
    """Return every event of a run so far."""
    return event_files.read_events(RunRecord(folder).events)


def data_sources(folder: Path, artifacts: Path) -> list[dict[str, object]]:
    """Return the sets that the data sources of a run have read: {source, format, rows, sha256, license} for each set;
    paths by their last name.

    The digest is that of the rows as they were stored.
    """
    chain = folder / "chain.json"
    nodes = json.loads(chain.read_text(encoding="utf-8"))["nodes"] if chain.is_file() else []
    sources = {node["id"]: node["config"] for node in nodes if node["type"] == "data_source"}
    done = {event["node"]: event for event in read_events(folder) if event["event"] == "finished"}
    return [
        {
            "source": source_name(sources[name]["sets"].get(port) or sources[name]),
            "format": facts.get("format"),
            "rows": done[name].get("rows", {}).get(port),
            "sha256": read_stored_sha256(artifacts, done[name]["key"], port),
            "license": find_license(sources[name], port),
        }
        for name in sorted(sources.keys() & done.keys())
        for port, facts in sorted(done[name].get("facts", {}).items())
        if isinstance(facts, dict)
    ]


def find_license(config: JsonMapping, port: str) -> str | None:
    """Return the licence of a port's set, else of its source, or those of a mixture; None if none is named."""
    mixed = ((config.get("mix") or {}).get("sets") or {}).values()
    licences = [(config["sets"].get(port) or {}).get("license") or config.get("license")]
    licences += [part.get("license") for part in mixed]
    return ", ".join(dict.fromkeys(filter(None, licences))) or None


def source_name(config: JsonObject) -> str:
    """Return the last name of a path or a repository, or an address without a user and a query."""
    if config.get("url"):
        parts = urlsplit(config["url"])
        return f"{parts.scheme}://{parts.hostname}{parts.path}"
    if config.get("hub"):
        return f"hub:{config['hub']['name']}@{config['hub']['revision']}"
    if config.get("sql"):
        return f"SQL over {config['sql'].get('database') or ', '.join(config['sql'].get('files') or ())}"
    if config.get("mix"):
        return ", ".join(source_name(part) or name for name, part in config["mix"]["sets"].items())
    return Path(config.get("path") or config.get("repository") or "").name


def read_stored_sha256(artifacts: Path, key: str, port: str) -> str:
    """Return the digest of a stored result's set, as its manifest has it; empty if it is gone."""
    manifest = ArtifactStore(artifacts).folder(key) / MANIFEST
    if not manifest.is_file():
        return ""
    manifest_fields = read_versioned("artifact", manifest.read_bytes(), manifest)
    return str(manifest_fields["output"]["outputs"].get(port, {}).get("sha256") or "")


def read_chain(folder: Path) -> ResolvedChain | None:
    """Return the chain as an earlier start of the run carried it out; None before the first, or from another
    version.
    """
    path = folder / "chain.json"
    try:
        return ResolvedChain.model_validate_json(path.read_bytes()) if path.is_file() else None
    except ValidationError:
        return None


def read_result(folder: Path) -> RunResult | None:
    path = folder / "result.json"
    return RunResult.model_validate(read_versioned("run", path.read_bytes(), path)) if path.is_file() else None


def note_preemption(run_folder: Path, works: list[TrainingLogs]) -> str:
    """Record in the run's events that its trainers were preempted, and print it."""
    messages = []
    for work in works:
        message = f"The training stopped at step {work.progress().step}; its checkpoint is kept."
        RunRecord(run_folder).emit(work.node, "stopped", message=message, reason="preempt")
        messages.append(f"{work.node}: {message}")
    return "; ".join(messages)
