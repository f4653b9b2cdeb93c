"""Execution of every node: return the cached result or compute it; report progress; turn errors into messages.

A node module contains one Prefect task and one `prepare` function: context in, `make(folder) -> Produced` out. All that
they share is here, once. Results travel through Prefect as references; finished results live in the artifact store,
which verifies their bytes, so Prefect's own cache is off: there is one truth about what is finished.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Failed

from nodes.summaries import count_rows, summary
from trainyard.app.live.waits import describe_wait
from trainyard.app.plan.keys import content_key, list_needed_models
from trainyard.app.run_records import RunRecord, is_closed_gate, read_events
from trainyard.backends.job import TrainingJob
from trainyard.backends.ledger_entry import list_licences
from trainyard.backends.openlineage_events import LineageStep, emit_step
from trainyard.compute.lease import Wait
from trainyard.compute.supervise import DesiredState
from trainyard.data.remote.kinds import pin_sources
from trainyard.errors import InvalidInput, NotDeployed, TrainyardError
from trainyard.prefect_api.states import (
    BUDGET_EXCEEDED,
    INTERRUPTED,
    NOT_DEPLOYED,
    SKIPPED,
    SPENDING_LIMIT,
    STOPPED_NAMES,
    WANTED_EVERY_S,
    make_state_reader,
)
from trainyard.settings import Settings, settings
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import digest
from trainyard.spec.estimate.verdict import VerdictFloor
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.nodes import DataSourceConfig
from trainyard.stores.artifacts import ArtifactStore, NodeOutput, Produced, Reference
from trainyard.stores.ledger.log import run_key
from trainyard.stores.ledger.recording import (
    DATA_READ,
    DEPLOYED,
    EVALUATED,
    FAILED,
    GENERATED,
    PAUSED,
    RESUMED,
    TRAINED,
    VALIDATED,
    record_step,
)
from trainyard.stores.metrics import TrainingPace
from trainyard.stores.model_hub import download_model
from trainyard.stores.models import resolve_model
from trainyard.tracing import span

Config = TypeVar("Config", bound=Strict)
Make = Callable[[Path], Produced]
Upstream = dict[str, NodeOutput]

STOPPED = "E-STOPPED"
"""Code of a node that ended because its run was paused, cancelled or preempted, which is not a failure."""
SPENDING = "E-SPEND"
"""Code of a training that a spending limit refuses before it starts."""
BUDGET = "budget"
"""Reason of a supervised child that was stopped because its wall time was used up."""
NODE_TASK: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": True, "log_prints": False}
"""Options of every node's task."""


@dataclass(frozen=True)
class RunInfo:
    """Facts of the run that a node is part of."""

    run_id: str
    chain: str
    tenant: str
    folder: str
    """`TRAINYARD_HOME/runs/<run id>`."""
    floor: VerdictFloor | None = None
    """What its gate needs before it can decide; None where few rows are allowed, or nothing is judged and deployed."""
    refresh: bool = False
    """Make every result again, even if a finished one is in the store."""
    until: Mapping[str, int] = field(default_factory=dict)
    """Id of a trainer -> step after which its training saves and stops for now, as a trial of a sweep does."""
    continues: str = ""
    """Run or sweep whose trainings it continues; empty for its own."""
    id: str = ""
    """What names it to users: the job's id, or `run_id` where no trainer is part of it."""
    ledger: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the run that each of its entries in the ledger has."""
    max_spend: Decimal | None = None
    """US dollars that the run may spend."""


@dataclass(frozen=True)
class NodeContext:
    """Context of a node for `prepare`: the node, its inputs and the run."""

    node: ResolvedNode
    inputs: dict[Port, list[Reference]]
    """Port -> references, the nearest earlier node first."""
    run: RunInfo
    settings: Settings
    record: RunRecord
    logger: logging.Logger | logging.LoggerAdapter[Any]
    left: tuple[str, ...] = ()
    """Ports that the nodes before it have filled, also those that it does not take."""
    devices: list[int] = field(default_factory=list)
    """Numbers of the devices whose slots it has while it is running."""
    pace: TrainingPace = field(default_factory=TrainingPace)
    """The rate of its training."""
    waits: list[str] = field(default_factory=list)
    """What it has waited for, in words."""
    upstream: Upstream = field(default_factory=dict)
    """Outputs of the nodes before it."""
    jobs: list[TrainingJob] = field(default_factory=list)
    """The training that the node has run."""

    @property
    def desired_state(self) -> Callable[[], DesiredState]:
        """Return whether the run should continue, for the supervisors of its children; shared by all nodes of the
        run.
        """
        return watch_desired_state(self.run.run_id)

    def config(self, kind: type[Config]) -> Config:
        """Return the node's complete config, which the resolved chain contains as the config of its type."""
        assert isinstance(self.node.config, kind)
        return self.node.config

    def report(self, fraction: float, text: str) -> None:
        """Report the progress of this node: 0 … 1 and a few words.

        Raises `TrainyardError` (`E-STOPPED`) when this process has been asked to end: the process that continues the
        run makes the result again. A pause lets it finish.
        """
        if INTERRUPTED.is_set():
            raise TrainyardError("The node was stopped: its process has to end.", code=STOPPED)
        self.show(fraction, text)

    def show(self, fraction: float, text: str) -> None:
        """Like `report` for a supervised child, which is stopped by its supervisor."""
        self.record.emit(self.node.id, "progress", fraction=round(fraction, 4), text=text)

    def say(self, text: str, level: int = logging.INFO) -> None:
        """A line that a user should see, in the run's log and in `--watch`."""
        self.logger.log(level, text)
        self.record.emit(self.node.id, "warning" if level >= logging.WARNING else "note", text=text)

    def note_wait(self, wait: Wait) -> None:
        """Report that the node waits, for what, and who has it."""
        self.waits.append(describe_wait(wait, self.settings, self.run.tenant).text)
        self.logger.info(self.waits[-1])
        self.record.emit(self.node.id, "waiting", text=self.waits[-1])

    def end_wait(self) -> None:
        """Report that a node that waited is starting."""
        if self.waits:
            self.show(0.0, "starting")

    def note_failure(self, error: TrainyardError) -> None:
        """Write the failure to the run's events; on a full disk, to the run's log alone."""
        try:
            self.record.emit(self.node.id, "failed", message=str(error), error=error.as_dict())
        except TrainyardError as second:
            self.logger.error("%s; and %s", error, second)

    def begin(self, key: str) -> None:
        """Note the start; a second start in one run says why it is one."""
        before = [event["event"] for event in read_events(self.record.folder) if event["node"] == self.node.id]
        self.record.emit(self.node.id, "started", key=key)
        if "finished" in before and not self.run.refresh:
            self.say("made again: its config, its inputs or the code have changed since the earlier attempt")
        elif "started" in before:
            last = next(event for event in reversed(before) if event in ("started", "stopped"))
            if last == "stopped":  # a pause, or a rung of a sweep
                record_node(self, RESUMED)
                self.say("started again: it was stopped before")
            else:
                self.say("started again: an earlier attempt of this run had not finished it", logging.WARNING)

    def on_event(self, event: dict[str, Any]) -> None:
        """Forward the events of a supervised child: progress to the bar, warnings and restarts to the log."""
        if event["event"] == "progress":
            self.show(event.get("step", 0) / (event.get("total_steps") or 1), self.pace.line(event))
        elif event["event"] in ("held_out", "early_stop"):
            self.say(str(event["text"]))
        elif event["event"] == "divergence":
            self.logger.warning(event["text"])
            self.record.emit(self.node.id, "warning", text=event["text"], divergence=event["divergence"])
        elif event["event"] in ("warning", "restart"):
            self.say(str(event.get("text") or event.get("message") or event), logging.WARNING)

    def needed(self, *ports: Port) -> Reference:
        """Like `first`, for an input without which the node cannot work."""
        reference = self.first(*ports)
        if reference is None:
            names = " or ".join(port.value for port in ports)
            raise InvalidInput(
                f"The node {self.node.id!r} got no {names}.",
                why=f"The nodes before it left {', '.join(self.left) or 'nothing'}: "
                "what a file contains is known only when it is read.",
                do=f"Give the data source a set that fills {names}, or name the format.",
                code="E-NODE",
            )
        return reference

    def first(self, *ports: Port) -> Reference | None:
        """Return the nearest reference on the first of these ports that has one."""
        return next((self.inputs[port][0] for port in ports if self.inputs.get(port)), None)


@lru_cache(maxsize=8)
def watch_desired_state(run_id: str) -> Callable[[], DesiredState]:
    """Shared by the nodes of a run; a chain that is done within a second never asks the server."""
    return make_state_reader(run_id, first_after_s=WANTED_EVERY_S)


Prepare = Callable[[NodeContext], Make]
Slot = Callable[[NodeContext], AbstractContextManager[object]]


Describe = Callable[[NodeContext, NodeOutput, float, float], Mapping[str, Any]]
"""(context, output, time of the start, seconds) -> more fields of the entry in the ledger."""


def describe_nothing(*_: object) -> Mapping[str, Any]:
    return {}


def skip_slot(_: NodeContext) -> AbstractContextManager[object]:
    return nullcontext()


def run_node(
    node: ResolvedNode,
    upstream: Upstream,
    run: RunInfo,
    prepare: Prepare,
    *,
    slot: Slot = skip_slot,
    describe: Describe = describe_nothing,
) -> State[NodeOutput]:
    """Run one node. The returned state's message is what a user reads: a failure says what, why and what to do."""
    with span(f"node {node.id}", type=node.type, run=run.id or run.run_id):
        return carry_out_node(node, upstream, run, prepare, slot=slot, describe=describe)


def carry_out_node(
    node: ResolvedNode, upstream: Upstream, run: RunInfo, prepare: Prepare, *, slot: Slot, describe: Describe
) -> State[NodeOutput]:
    context = open_context(node, upstream, run)
    if closed := next((name for name, output in upstream.items() if is_closed_gate(output.facts)), ""):
        return Cancelled(name=SKIPPED, message=f"the gate of {closed} said no")
    try:
        output = reuse_or_make(context, prepare, slot)
        event = "reused" if output.reused else "finished"
        message = summary(node.type, output)
        context.record.emit(
            node.id, event, key=output.key, facts=output.facts, rows=count_rows(output), message=message
        )
        record_node(context, KINDS_OF_NODES[node.type], output=output, describe=describe)
    except NotDeployed as error:
        return build_not_deployed_state(context, error)
    except TrainyardError as error:
        if error.code == STOPPED:
            return build_stopped_state(context, error)
        context.note_failure(error)
        record_node(context, FAILED, code=error.code)
        return Failed(name=SPENDING_LIMIT if error.code == SPENDING else "Failed", message=str(error))
    name = "Cached" if output.reused else "Completed"
    return Completed(name=name, message=("reused: " if output.reused else "") + message, data=output)


KINDS_OF_NODES = {
    "data_source": DATA_READ,
    "ai_generator": GENERATED,
    "validator": VALIDATED,
    "trainer": TRAINED,
    "evaluator": EVALUATED,
    "deployer": DEPLOYED,
}
"""Type of a node -> the kind of its entry in the ledger."""


def record_node(
    context: NodeContext,
    kind: str,
    *,
    output: NodeOutput | None = None,
    describe: Describe = describe_nothing,
    **fields: object,
) -> None:
    """Record a step of a node in the ledger; where that fails, the run says so. Twice is one entry."""
    run, events = context.run, [e for e in read_events(context.record.folder) if e["node"] == context.node.id]
    started = [float(event["time"]) for event in events if event["event"] == "started"]
    seconds = round(time.time() - started[-1], 3) if started and not (output and output.reused) else 0.0
    attempt = sum(event["event"] == kind_event for event in events for kind_event in (STEP_EVENTS.get(kind),))
    if output is not None:
        key = step_key(run.run_id, context.node.id, output.key)
        outputs = {
            port.value: {"sha256": part.sha256, "rows": part.rows, "bytes": part.bytes}
            for port, part in output.outputs.items()
        }
        licences = list_licences([source for part in output.outputs.values() for source in list_sources(part.facts)])
        fields |= {"outputs": outputs, "reused": output.reused, "licences": licences or None}
        fields |= {name: output.facts.get(name) for name in ("deployed", "version", "better")}
        fields |= describe(context, output, started[-1] if started else time.time(), seconds)
    else:
        key = run_key(kind, run.run_id, context.node.id, attempt)
    parents = [step_key(run.run_id, name, before.key) for name, before in context.upstream.items()]
    problem = record_step(
        context.settings.home,
        kind,
        key,
        run=run.run_id,
        tenant=run.tenant,
        node=context.node.id,
        seconds=seconds,
        parents=parents,
        settings_sha256=digest(context.node.config),
        **run.ledger,
        **fields,
    )
    if problem:
        context.say(problem, logging.WARNING)
    step = LineageStep(
        key,
        kind,
        str(run.ledger.get("chain") or run.chain),
        context.node.id,
        run.tenant,
        started[-1] if started else time.time(),
        time.time(),
        [(port.value, part.sha256) for port, parts in context.inputs.items() for part in parts],
        {port.value: part.sha256 for port, part in output.outputs.items()} if output is not None else {},
    )
    if problem := emit_step(step, context.settings):
        context.say(problem, logging.WARNING)


STEP_EVENTS = {RESUMED: "started", PAUSED: "stopped", FAILED: "failed"}
"""Kind of an entry without a result -> the event of the run whose number is a part of its key."""


def step_key(run_id: str, node: str, key: str) -> str:
    """Return the key of the entry of a node's result in a run."""
    return run_key("step", run_id, node, key)


def list_sources(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the data sets that a result's facts name, with their licences."""
    return [source for source in facts.get("sources") or () if isinstance(source, Mapping)]


def build_not_deployed_state(context: NodeContext, error: NotDeployed) -> State[NodeOutput]:
    """Return the state of a node whose gate refused: it has decided, so it is completed. A next run decides again."""
    facts = {
        "deployed": False,
        "verdict": error.verdict,
        "reasons": list(error.reasons),
        "passed": list(error.passed),
        "do": error.do,
    }
    key = content_key(context.node, context.inputs, context.settings, context.run.run_id)
    output = NodeOutput(key=key, outputs={}, facts=facts)
    message = summary(context.node.type, output)
    context.record.emit(context.node.id, "finished", key=key, facts=facts, rows={}, message=message)
    record_node(context, KINDS_OF_NODES[context.node.type], output=output)
    return Completed(name=NOT_DEPLOYED, message=message, data=output)


def build_stopped_state(context: NodeContext, error: TrainyardError) -> State[NodeOutput]:
    """Return the state of a node that was stopped, named after the reason; time or money that is used up is a
    failure."""
    reason = getattr(error, "reason", "")
    if reason == BUDGET:
        message = f"{error.what} Its budget of wall time is used up. Do: Resume it, and it continues for as long again."
        context.record.emit(context.node.id, "failed", message=message, error=error.as_dict())
        return Failed(name=BUDGET_EXCEEDED, message=message)
    if reason == DesiredState.SPEND:
        message = f"{error.what} Do: {error.do}"
        context.record.emit(context.node.id, "failed", message=message, error=error.as_dict())
        return Failed(name=SPENDING_LIMIT, message=message)
    if reason not in STOPPED_NAMES:
        # Another process stopped the child, or the node is not a trainer: the run's own state says why.
        reason = context.desired_state().value
    reason = reason if reason in STOPPED_NAMES else DesiredState.PREEMPT.value
    context.record.emit(context.node.id, "stopped", message=error.what, reason=reason)
    record_node(context, PAUSED, reason=reason)
    return Cancelled(name=STOPPED_NAMES[reason], message=error.what)


def open_context(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> NodeContext:
    """Return the node's surroundings, with its inputs picked out of the outputs of the nodes before it."""
    inputs = gather(node, upstream)
    tenant_settings = settings().for_tenant(run.tenant)
    left = tuple(sorted({port.value for output in upstream.values() for port in output.outputs}))
    return NodeContext(
        node, inputs, run, tenant_settings, RunRecord(Path(run.folder)), get_run_logger(), left, upstream=upstream
    )


def gather(node: ResolvedNode, upstream: Mapping[str, NodeOutput]) -> dict[Port, list[Reference]]:
    """Port -> references, in the order of the resolved edges (nearest first)."""
    inputs: dict[Port, list[Reference]] = {}
    for port, sources in node.inputs.items():
        references = [upstream[source.node_id].outputs.get(source.port) for source in sources]
        inputs[port] = [reference for reference in references if reference is not None]
    return inputs


def reuse_or_make(context: NodeContext, prepare: Prepare, slot: Slot) -> NodeOutput:
    """Return the finished result of an identical node, else a new one, made inside the slot and committed whole."""
    store = ArtifactStore(context.settings.artifacts)
    fetch_models(context)
    pin_data(context)
    key = content_key(context.node, context.inputs, context.settings, context.run.run_id)
    again = context.run.refresh and key not in list_own_keys(context)
    output = None if again else store.find(key)
    if output is not None:
        return output
    if context.desired_state() is not DesiredState.RUN:
        raise TrainyardError("The run was stopped before the node began.", code=STOPPED)
    context.begin(key)
    with slot(context):
        context.end_wait()
        # Another run may have made the same result while this one waited for the slot.
        output = None if again else store.find(key)
        if output is None:
            output = store.produce(key, prepare(context), replace=again)
    return output


def fetch_models(context: NodeContext) -> None:
    """Download the Hub models that the node loads and that are not on this machine."""
    if context.first(Port.MODEL):  # it trains what the node before it has made
        return
    for name in list_needed_models(context.node, context.settings):
        if resolve_model(name, context.settings).path is None:
            context.say(f"downloading {name} from the Hub")
            download_model(name, context.settings)


def pin_data(context: NodeContext) -> None:
    """List the data sets elsewhere that the node reads, before its result gets its key."""
    config, run = context.node.config, context.run
    if isinstance(config, DataSourceConfig):
        pin_sources(config, context.settings, run=run.run_id, refresh=run.refresh, say=context.say)


def list_own_keys(context: NodeContext) -> set[str]:
    """Keys that this run made already: a retry of a run with `refresh` does not make them a second time."""
    events = read_events(context.record.folder)
    return {event["key"] for event in events if event["event"] == "finished" and event["node"] == context.node.id}
