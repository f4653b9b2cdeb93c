"""The nodes of a run: from the run's own files while it is running, then from its record; and their remaining time.

The remaining time of a training follows from the pace of its steps, before the first ones from the estimate of `plan`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainyard.app.context import Context
from trainyard.app.live.trainings import curves_folder, find_trainings, read_new_steps
from trainyard.app.names import find_job
from trainyard.app.plan.estimate import FinishedNodes, count_tokens, find_shapes, find_timings, name_data_sets
from trainyard.app.responses import Response
from trainyard.app.run_folders import ENDED, read_output
from trainyard.app.run_records import NodeResult, NodeState, read_chain, read_events, read_result
from trainyard.app.secrets import list_secrets, redact_lines
from trainyard.app.training_logs import TrainingLogs
from trainyard.compute.events import Event
from trainyard.compute.gpus import list_devices
from trainyard.errors import Conflict, Corrupt, NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations import jobs as requests
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedChain, ResolvedNode, Source
from trainyard.spec.estimate.estimate import Known, estimate
from trainyard.spec.states import JobState
from trainyard.spec.summaries import summarize_node
from trainyard.stores.artifacts import ArtifactStore, NodeOutput, Reference
from trainyard.stores.live.job_index import Row
from trainyard.stores.schema import read_versioned
from trainyard.stores.whole import MANIFEST

MOST_LINES = 500
"""Lines of one node, the last ones."""
STATES = {
    "started": NodeState.RUNNING, "progress": NodeState.RUNNING, "finished": NodeState.COMPLETED,
    "reused": NodeState.REUSED, "failed": NodeState.FAILED, "stopped": NodeState.CANCELED,
    "skipped": NodeState.SKIPPED, "waiting": NodeState.PENDING,
}  # fmt: skip
"""Event of a run -> the state of its node from then on."""
ATTEMPT_ENDS = ("finished", "failed", "stopped")
ENDED_STATES = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)
LEVELS = {"warning": 30, "failed": 40}


class RunNode(Response):
    """A node of a run."""

    id: str
    type: str
    needs: tuple[str, ...]
    inputs: dict[Port, tuple[Source, ...]]
    makes: tuple[Port, ...]
    state: NodeState
    seconds: float = 0.0
    fraction: float | None = None
    """How much is done while it is running, 0 … 1."""
    message: str = ""
    outputs: dict[Port, Reference] = Field({})
    """What it left."""
    summary: str = ""
    """What it does, in one line."""


class RunNodes(Response):
    id: str
    run_id: str
    name: str
    state: JobState
    detail: str
    message: str
    chain: str = ""
    digest: str = ""
    url: str = ""
    nodes: tuple[RunNode, ...]
    """Empty until the run begins."""


class NodeLine(Response):
    time: float
    text: str
    level: int = 20


class NodeDetail(RunNode):
    config: JsonObject
    """Complete, every default written out."""
    facts: JsonObject
    lines: tuple[NodeLine, ...]
    """What it reported, the last lines of it; a trainer's own output is in `jobs logs`."""
    trains: bool
    """Whether it is a trainer, with metrics and a log of its own."""


def list_nodes(request: requests.JobInput, context: Context) -> RunNodes:
    """Return every node of a run and its state. Raises `NotFound` (`E-JOB-NOT-FOUND`)."""
    row, _ = find_job(request.job, context)
    folder = context.settings.runs / row["run_id"]
    chain = read_chain(folder)
    fields = {name: row.get(name, "") for name in ("id", "run_id", "name", "state", "detail", "message", "url")}
    if chain is None:
        return RunNodes(**fields, nodes=())
    progress = follow_events(read_events(folder))
    ends = read_node_results(folder, row)
    store = ArtifactStore(context.settings.artifacts)
    nodes = [
        build_run_node(node, progress.get(node.id, []), ends.get(node.id), row, store) for node in order_nodes(chain)
    ]
    left = {node.id: frozenset(node.outputs) for node in nodes if node.outputs}
    linked = (node.model_copy(update={"inputs": read_inputs(node.inputs, left)}) for node in nodes)
    return RunNodes(**fields, chain=chain.name, digest=chain.digest, nodes=tuple(linked))


def read_inputs(
    inputs: Mapping[Port, tuple[Source, ...]], left: Mapping[str, Collection[Port]]
) -> dict[Port, tuple[Source, ...]]:
    """Return the inputs of a node by what it reads of each node before it: what that one has `left`.

    Before that, it is the port of the same kind: an sft trainer reads pairs only where a data source has no examples.
    """

    def is_read(port: Port, source: Source, sources: Sequence[Source]) -> bool:
        if source.node_id in left:
            return source.port in left[source.node_id]
        same_kind = any(candidate.node_id == source.node_id and candidate.port == port for candidate in sources)
        return source.port == port or not same_kind

    read_sources = {
        port: tuple(source for source in sources if is_read(port, source, sources)) for port, sources in inputs.items()
    }
    return {port: sources for port, sources in read_sources.items() if sources}


def show_node(request: requests.NodeInput, context: Context) -> NodeDetail:
    """Return one node with its config, its lines and what it left. Raises `NotFound` (`E-NOT-FOUND`)."""
    row, _ = find_job(request.job, context)
    folder = context.settings.runs / row["run_id"]
    chain = read_chain(folder)
    if chain is None or request.node not in chain.by_id:
        names = ", ".join(chain.order) if chain else "none before it begins"
        raise NotFound(
            f"The run {row['name']} has no node {request.node!r}.", why=f"It has: {names}.", do="Name one of them.",
            code="E-NOT-FOUND",
        )  # fmt: skip
    node, end = chain.node(request.node), read_node_results(folder, row).get(request.node)
    events = follow_events(read_events(folder)).get(request.node, [])
    now = build_run_node(node, events, end, row, ArtifactStore(context.settings.artifacts))
    facts = end.facts if end else next((event["facts"] for event in reversed(events) if event.get("facts")), {})
    return NodeDetail(
        **dict(now), config=node.config.model_dump(mode="json"), facts=facts,
        lines=build_lines(events[-MOST_LINES:], context), trains=node.type == "trainer",
    )  # fmt: skip


def order_nodes(chain: ResolvedChain) -> list[ResolvedNode]:
    return [chain.node(node_id) for node_id in chain.order]


def follow_events(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Node -> its events."""
    by_node: dict[str, list[Event]] = {}
    for event in events:
        by_node.setdefault(str(event.get("node", "")), []).append(event)
    return by_node


def read_node_results(folder: Path, row: Mapping[str, object]) -> dict[str, NodeResult]:
    """Return how the nodes ended, if the run has ended and was not continued since."""
    result = read_result(folder) if row["state"] in ENDED_STATES else None
    return {node.id: node for node in result.nodes} if result else {}


def build_run_node(
    node: ResolvedNode, events: list[Event], end: NodeResult | None, row: JsonMapping, store: ArtifactStore
) -> RunNode:
    stated = [event for event in events if event["event"] in STATES]
    state = choose_state(STATES[stated[-1]["event"]] if stated else NodeState.PENDING, row["state"])
    last = events[-1] if events else {}
    fields: dict[str, object] = {
        "state": state, "message": str(last.get("message") or last.get("text") or ""),
        "seconds": measure_duration(events), "fraction": last.get("fraction") if state is NodeState.RUNNING else None,
    }  # fmt: skip
    if state in (NodeState.COMPLETED, NodeState.REUSED):
        fields["outputs"] = read_outputs(store, str(stated[-1]["key"]))
    if end is not None:
        fields = {"state": end.state, "message": end.message, "seconds": end.seconds, "outputs": end.outputs}
    return RunNode(
        id=node.id, type=node.type, needs=node.needs, inputs=node.inputs, makes=node.produces,
        summary=summarize_node(node.config), **fields,
    )  # fmt: skip


def choose_state(state: NodeState, run: JobState) -> NodeState:
    """Return the state of a node whose last event said `state`, in a run that is in state `run` by now.

    In a paused run, a node that runs or was stopped is paused; one that was stopped waits once its run continues.
    """
    if state not in (NodeState.RUNNING, NodeState.CANCELED):
        return state
    if run is JobState.PAUSED:
        return NodeState.PAUSED
    if run in ENDED_STATES:
        return NodeState.CANCELED  # its process is gone, or about to go
    return state if state is NodeState.RUNNING else NodeState.PENDING


def measure_duration(events: Sequence[Event]) -> float:
    """Return how long the last attempt of a node took: until its end, or until its last event so far."""
    starts = [index for index, event in enumerate(events) if event["event"] == "started"]
    if not starts:
        return 0.0
    attempt = events[starts[-1] :]
    last = next((event for event in attempt if event["event"] in ATTEMPT_ENDS), attempt[-1])
    return round(float(last["time"] - attempt[0]["time"]), 3)


def read_outputs(store: ArtifactStore, key: str) -> dict[Port, Reference]:
    """Return what a finished result contains, as its manifest says; nothing if it was removed since."""
    manifest = store.folder(key) / MANIFEST
    if not manifest.is_file():
        return {}
    return NodeOutput.model_validate(read_versioned("artifact", manifest.read_bytes(), manifest)["output"]).outputs


def build_lines(events: Iterable[Event], context: Context) -> tuple[NodeLine, ...]:
    """Events as the lines of a log, without secrets."""
    lines = [build_line(event) for event in events]
    texts = redact_lines([line.text for line in lines], list_secrets(context.settings))
    return tuple(line.model_copy(update={"text": text}) for line, text in zip(lines, texts, strict=True))


def build_line(event: Event) -> NodeLine:
    """Return an event as a line of a log."""
    kind = event["event"]
    text = str(event.get("text") or event.get("message") or "")
    label = text if kind in ("note", "warning", "progress") and text else f"{kind}: {text}" if text else kind
    return NodeLine(time=event["time"], text=label, level=LEVELS.get(kind, 20))


WORKING = (JobState.PENDING, JobState.RUNNING)


class TimeLeft(Response):
    """A training that has not ended."""

    node: str
    seconds: float | None = None
    """Until its last step; None where no training like it was measured on this machine."""
    basis: Literal["steps", "plan", "unknown"] = "unknown"
    """steps: the pace of its newest steps. plan: what a plan estimates, before its second step."""
    seconds_per_step: float | None = None


def estimate_time_left(row: Row, context: Context) -> tuple[TimeLeft, ...]:
    """Return one entry for each training of a running or waiting job, in the chain's order; none of a sweep's trials.

    Before the run has begun there is none either.
    """
    if row["state"] not in WORKING:
        return ()
    folder, settings = context.settings.runs / row["run_id"], context.settings
    works = {work.node: work for work in find_trainings(row)}
    chain = read_chain(folder)
    if chain is None or not works.keys() <= chain.by_id.keys():
        return ()  # the trials of a sweep pause at their rungs
    ended = {event["node"]: event["key"] for event in read_events(folder) if event["event"] in ENDED}
    waiting = [node_id for node_id in chain.order if chain.node(node_id).type == "trainer" and node_id not in ended]
    estimates = {node_id: estimate_by_steps(works[node_id], settings) for node_id in waiting if node_id in works}
    planned = (
        estimate_by_plan(chain, ended, settings) if any(estimates.get(node_id) is None for node_id in waiting) else {}
    )
    return tuple(
        estimates.get(node_id) or subtract_elapsed(node_id, planned.get(node_id), works.get(node_id))
        for node_id in waiting
    )


def estimate_by_steps(work: TrainingLogs, settings: Settings) -> TimeLeft | None:
    """Return the remaining seconds at the pace of the newest steps; None before the second step, or where no one says
    how many.
    """
    store = read_new_steps(work, curves_folder(settings))
    total, pace = store.progress().total_steps, store.pace()
    if total is None or pace is None:
        return None
    left = (total - pace.step) * pace.seconds_per_step - max(0.0, time.time() - pace.time)
    return TimeLeft(
        node=work.node, seconds=max(0.0, left), basis="steps", seconds_per_step=pace.seconds_per_step
    )  # fmt: skip


def subtract_elapsed(node: str, seconds: float | None, work: TrainingLogs | None) -> TimeLeft:
    """Return the remaining seconds of an estimate, since the training was started."""
    if seconds is None:
        return TimeLeft(node=node)
    worked = 0.0 if work is None else max(0.0, time.time() - work.since)
    return TimeLeft(node=node, seconds=max(0.0, seconds - worked), basis="plan")


def estimate_by_plan(chain: ResolvedChain, ended: JsonObject, settings: Settings) -> dict[str, float]:
    """Trainer's id -> seconds that `plan` estimates, with the rows that the nodes before it have left by now."""
    settings, here = settings.for_tenant(chain.tenant), list_devices()[0]
    outputs = dict(read_finished_outputs(ended, settings))
    finished = FinishedNodes(chain, {node_id: outputs.get(node_id) for node_id in chain.order}, ended)
    inputs = Known(
        rows={node_id: counted for node_id, output in outputs.items() if (counted := count_rows(output))},
        shapes=find_shapes(chain, settings), device=here, timings=find_timings(chain, settings, here),
        data=name_data_sets(finished), tokens_per_row=count_tokens(finished),
    )  # fmt: skip
    return {
        node_estimate.node: node_estimate.seconds
        for node_estimate in estimate(chain, inputs)
        if node_estimate.seconds is not None
    }


def read_finished_outputs(ended: Mapping[str, object], settings: Settings) -> Iterator[tuple[str, NodeOutput]]:
    """(node, what it left) as the manifests say; one that cannot be read is left out, as if it were not finished."""
    store = ArtifactStore(settings.artifacts)
    for node, key in ended.items():
        try:
            output = read_output(store, str(key))
        except (Corrupt, Conflict):
            continue
        if output is not None:
            yield node, output


def count_rows(output: NodeOutput) -> dict[Port, int]:
    return {port: part.rows for port, part in output.outputs.items() if part.rows is not None}
