"""The flow behind `sweep/local`: trials of one chain, each trained as far as its metric deserves.

A sweep is a flow, because the order of its trainings is all that it adds: which segment of which trial comes next is
decided in `trainyard/sweeps`, from the study alone. Each segment runs the chain's own node tasks up to the trainer, in
this one run: so trials share finished results by their content keys, take turns at the device like any job, appear
with their own task, log and metrics as `<trainer>.<number>`, and a pause, cancel or kill of the run stops them all.
A flow run for each segment would cost a process and an import of Prefect (5 s) for trainings of half a minute.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.artifacts import acreate_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.runtime import flow_run
from prefect.states import Failed

from flows.endings import INTERRUPT_GRACE_S, interruptible, leave, wait_for_server
from flows.walker import (
    FLOW,
    POLL_S,
    Futures,
    build_state,
    final_state,
    is_done,
    quietly,
    run_info,
    submit,
    task_runner,
)
from nodes.runner import RunInfo
from nodes.table import NODES
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.run_records import NodeResult, NodeState, RunRecord, RunResult, read_events
from trainyard.app.training_logs import find_training_logs
from trainyard.compute.child import RUN_VARIABLE, faultpoint
from trainyard.errors import Refused, TrainyardError
from trainyard.inherited import keep_files_private
from trainyard.prefect_api.states import AT_RUNG, INTERRUPTED, node_state
from trainyard.settings import settings
from trainyard.spec.chain import ResolvedChain
from trainyard.stores.artifacts import NodeOutput
from trainyard.stores.live.job_ids import TENANT_TAG, job_tags
from trainyard.sweeps.asha import Trial, TrialState, find_best
from trainyard.sweeps.chains import apply_values, list_needed_nodes
from trainyard.sweeps.scheduling import ATTEMPTS, Segment, SegmentEnd, TrialSchedule, read_metric, read_metric_at
from trainyard.sweeps.spec import SweepSpec
from trainyard.sweeps.study import SweepRecord, SweepStudy, find_record, sweep_folder, sweep_lock, write_record

STOPPED_BY_KILL = "E-KILLED"


@flow(name="sweep", task_runner=task_runner(), **FLOW)
async def sweep(spec: SweepSpec) -> State[dict[str, Any]]:
    """Train a chain with many sets of values and find the best.

    Args:
        spec: The chain, the settings that are varied with their ranges, and how trials are chosen and stopped.
    """
    keep_files_private()
    try:
        chain = resolve_chain(spec.chain, settings())
        return await run_sweep(spec, chain)
    except TrainyardError as error:
        return Failed(message=f"{error} Next: `trainyard sweep --continue {spec.name}`.")


async def run_sweep(spec: SweepSpec, chain: ResolvedChain) -> State[dict[str, Any]]:
    """Carry out the segments of a sweep inside the running flow, as one process at a time."""
    run, started = run_info(chain), time.time()
    os.environ[RUN_VARIABLE] = run.run_id
    record = RunRecord(Path(run.folder))
    record.begin(chain.model_dump(mode="json"))
    sweep_record = find_record(settings(), spec.name)
    if sweep_record is None or sweep_record.run_id != run.run_id:
        sweep_record = SweepRecord(
            spec=spec, run_id=run.run_id, created=sweep_record.created if sweep_record else started
        )
        write_record(settings(), sweep_record)
    with sweep_lock(settings(), spec.name, run.run_id), interruptible():
        await quietly(tag_run(spec))
        run = replace(
            run, continues=f"{spec.name}-{sweep_record.created}"
        )  # a sweep whose run is gone gets another one
        trials = Trials(spec, chain, run, record, SweepStudy(sweep_folder(settings(), spec.name), spec))
        await trials.run_all()
        result = trials.result(time.time() - started)
        if trials.stopping:
            return await leave(run.run_id, result.nodes, record, unfinished=trials.unfinished)
        record.finish(result)
    if not await quietly(publish(spec, trials.study.trials())):
        await wait_for_server(run.run_id)
    return final_state(result)


async def tag_run(spec: SweepSpec) -> None:
    async with get_client() as client:
        tags = {tag for tag in flow_run.tags if not tag.startswith(TENANT_TAG)}
        tags |= {f"chain:{spec.chain.name}", f"sweep:{spec.name}", f"{TENANT_TAG}{spec.chain.tenant}"}
        await client.update_flow_run(UUID(flow_run.id), tags=sorted(job_tags(flow_run.id, tags)))


async def publish(spec: SweepSpec, trials: list[Trial]) -> None:
    """Write the trials as a table of the run's page."""
    rows = [
        {
            "trial": trial.number,
            **trial.params,
            "steps": trial.steps,
            spec.metric.value: trial.value,
            "state": trial.state.value,
        }
        for trial in trials
    ]
    await acreate_table_artifact(rows, key=f"sweep-{spec.name}", description=f"Trials of {spec.name}")


@dataclass
class Trials:
    """The trials of one sweep in this process."""

    spec: SweepSpec
    chain: ResolvedChain
    run: RunInfo
    record: RunRecord
    study: SweepStudy
    stopping: str = ""
    """Why no further segment is started."""
    unfinished: bool = False

    def __post_init__(self) -> None:
        self.ids = tuple(node.id for node in self.chain.nodes)
        self.schedule = TrialSchedule(self.spec, self.study)
        self.data_turn = asyncio.Lock()
        """Two trials that need the same data do not make it twice."""

    async def run_all(self) -> None:
        """Carry out segments, as many at a time as the sweep says, until no decision is left or it is stopped."""
        running: dict[asyncio.Task[SegmentEnd], Segment] = {}
        interrupted_at: float | None = None
        while True:
            while not self.stopping and not INTERRUPTED.is_set() and len(running) < self.spec.parallel:
                segment = self.schedule.take()
                if segment is None:
                    break
                running[asyncio.create_task(self.run_operation(segment))] = segment
            if not running:
                break
            ended, _ = await asyncio.wait(running, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                ending = task.result()
                self.stopping = self.stopping or (ending.message or "stopped" if ending.state is None else "")
                self.schedule.enter(running.pop(task), ending)
            interrupted_at = interrupted_at or (time.monotonic() if INTERRUPTED.is_set() else None)
            if interrupted_at is not None and time.monotonic() - interrupted_at > INTERRUPT_GRACE_S:
                self.unfinished = bool(running)
                break
        if INTERRUPTED.is_set():
            self.stopping = self.stopping or "its process was asked to end"
        if not self.stopping:
            self.study.stop_paused()

    async def run_operation(self, segment: Segment) -> SegmentEnd:
        """Run one segment; a training that was killed from outside is started again, from its checkpoint."""
        try:
            spec = apply_values(self.spec.chain, self.ids, segment.trial.params)
            chain = resolve_chain(spec, settings())
        except Refused as refused:
            return SegmentEnd(TrialState.REFUSED, code=refused.code, message=refused.reasons[0].line())
        for _ in range(ATTEMPTS):
            ending = await self.attempt(segment, chain)
            if ending.code != STOPPED_BY_KILL:
                break
        return ending

    async def attempt(self, segment: Segment, chain: ResolvedChain) -> SegmentEnd:
        faultpoint("sweep.attempt")
        name = self.find_node(segment.trial)
        part = trial_part(chain, self.spec.trainer, name)
        async with self.data_turn:
            futures = submit(part, replace(self.run, until={name: segment.until} if segment.until else {}), NODES)
            await wait_for_nodes([node for node in part.order if node != name], futures)
        await wait_for_nodes([name], futures)
        return await self.find_end(segment, part, futures)

    async def find_end(self, segment: Segment, part: ResolvedChain, futures: Futures) -> SegmentEnd:
        """Return the state of the trial, from the states of its nodes."""
        name = self.find_node(segment.trial)
        state = build_state(futures[name])
        if state.is_completed():
            output: NodeOutput = await state.aresult()
            value = read_metric(output.facts, self.spec.metric)
            return SegmentEnd(TrialState.COMPLETED, steps=int(output.facts["steps"]), value=value)
        if state.name == AT_RUNG:
            assert segment.until is not None, "only a segment with a rung stops there"
            log = next(entry for entry in find_training_logs(self.record.folder) if entry.node == name)
            value = read_metric_at(log.folder, segment.until, self.spec.metric)
            return SegmentEnd(TrialState.PAUSED, steps=segment.until, value=value)
        states = [(node, build_state(futures[node])) for node in part.order]
        stops = [(node, ending) for node, ending in states if ending.type is StateType.CANCELLED]
        if stops:
            return SegmentEnd(None, message=stops[0][1].message or "stopped")
        failed, ending = next((node, ending) for node, ending in states if node_state(ending) is NodeState.FAILED)
        code, message = self.find_error_code(failed), ending.message or f"it ended as {ending.name}"
        refused = code.startswith("R-")
        return SegmentEnd(TrialState.REFUSED if refused else TrialState.FAILED, code=code, message=message)

    def find_error_code(self, node: str) -> str:
        """Return the code of the error that a node failed with."""
        errors = [event["error"] for event in read_events(self.record.folder) if is_failure(event, node)]
        return str(errors[-1]["code"]) if errors else "E-FAILED"

    def find_node(self, trial: Trial) -> str:
        return f"{self.spec.trainer}.{trial.number}"

    def result(self, seconds: float) -> RunResult:
        """Return the sweep as the result of its run: its trials are its nodes."""
        trials = self.study.trials()
        best = find_best_text(self.spec, trials)
        nodes = tuple(self.node_result(trial) for trial in trials)
        is_done = not self.stopping and bool(best)
        failed = next((trial for trial in trials if trial.state in (TrialState.FAILED, TrialState.REFUSED)), None)
        why = f" Trial {failed.number}: {failed.message}" if failed else ""
        counts = f"{len(trials)} trials, {sum(trial.steps for trial in trials):,} steps."
        return RunResult(
            id=self.run.id, run_id=self.run.run_id, name=str(flow_run.name),
            chain=self.chain.name, digest=self.chain.digest,
            state="completed" if is_done else "failed",
            message=f"{counts} {best}" if best else f"{counts} No trial finished.{why}",
            nodes=nodes, seconds=round(seconds, 3),
        )  # fmt: skip

    def node_result(self, trial: Trial) -> NodeResult:
        """Return one trial as a node of the run; one that is on its way has been stopped with it."""
        states = {
            TrialState.COMPLETED: NodeState.COMPLETED,
            TrialState.STOPPED: NodeState.COMPLETED,
            TrialState.PAUSED: NodeState.COMPLETED,
            TrialState.RUNNING: NodeState.CANCELED,
        }
        state = states.get(trial.state, NodeState.FAILED)
        message = trial.message or f"{trial.state.value} at step {trial.steps}"
        return NodeResult(id=self.find_node(trial), type="trainer", state=state, message=message)


def is_failure(event: dict[str, Any], node: str) -> bool:
    return event["event"] == "failed" and event["node"] == node and "error" in event


def find_best_text(spec: SweepSpec, trials: list[Trial]) -> str:
    best = find_best(trials, highest=spec.direction == "max")
    if best is None:
        return ""
    values = ", ".join(f"{path}={value}" for path, value in best.params.items())
    return f"Best: trial {best.number}, {spec.metric.value} {best.value:.4f} with {values}."


def trial_part(chain: ResolvedChain, trainer: str, name: str) -> ResolvedChain:
    """Return the nodes that a trial needs; its trainer has the name of the trial."""
    needed = list_needed_nodes(chain, trainer)
    nodes = tuple(chain.node(node_id) for node_id in needed)
    named = tuple(node.model_copy(update={"id": name}) if node.id == trainer else node for node in nodes)
    order = tuple(name if node_id == trainer else node_id for node_id in needed)
    return ResolvedChain.model_construct(
        name=chain.name, tenant=chain.tenant, nodes=named, order=order, digest=chain.digest
    )


async def wait_for_nodes(names: list[str], futures: Futures) -> None:
    """Return when these nodes have ended, however they did."""
    while not all(is_done(futures[name]) for name in names):
        await asyncio.sleep(POLL_S / 5)
