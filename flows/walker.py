"""Walks any resolved chain: every node a task, independent branches at once, a failure costs only its descendants.

The flows are `async def` and submit synchronous tasks: Prefect's synchronous engine joins its heartbeat thread when a
flow ends, which alone costs about a second. Measured: `benchmarks/chain_overhead.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from prefect import Task
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause, PrefectHTTPStatusError
from prefect.futures import PrefectConcurrentFuture, PrefectFuture
from prefect.runtime import flow_run
from prefect.states import Cancelled, Crashed, Failed, Pending
from prefect.task_runners import ThreadPoolTaskRunner

from flows.endings import INTERRUPT_GRACE_S, interruptible, leave, wait_for_server, wait_for_trainer, was_stopped
from flows.notes import RunProgress, announce, publish_report, tag_job
from nodes.runner import RunInfo
from nodes.table import NODES
from trainyard.app.plan.refusals import refuse_or_wait
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.run_records import (
    FEW_ROWS_TAG,
    REFRESH_FROM,
    REFRESH_TAG,
    ClosedGate,
    NodeResult,
    NodeState,
    RunRecord,
    RunResult,
    is_closed_gate,
    read_chain,
    read_events,
)
from trainyard.backends.ledger_entry import format_time
from trainyard.compute.child import RUN_VARIABLE
from trainyard.compute.events import EventTail
from trainyard.errors import TrainyardError
from trainyard.inherited import keep_files_private
from trainyard.prefect_api.states import (
    BUDGET_EXCEEDED,
    INTERRUPTED,
    PREEMPTED,
    SKIPPED,
    SPENDING_LIMIT,
    build_completed,
    node_state,
)
from trainyard.settings import settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ChainSpec
from trainyard.spec.estimate.verdict import find_floor
from trainyard.spec.graph import ResolvedChain
from trainyard.spec.states import NOT_DEPLOYED_DETAIL
from trainyard.stores.artifacts import NodeOutput
from trainyard.stores.live.job_ids import SENDER_TAG, TENANT_TAG, find_continued_run, find_job_id
from trainyard.stores.spending import SpendingStore
from trainyard.tracing import span

PROGRESS_EVERY_S = 10.0
"""Seconds between two updates of the progress artifact: each is a row in the server's database."""
POLL_S = 0.25
"""How soon a request to end is seen while nodes work."""
THREADS = 64
"""Nodes in flight. They are submitted in topological order, so a thread only ever waits for an earlier one."""

GATE_FACTS = ("verdict", "reasons", "passed", "do")
"""Facts of a deployer whose gate refused."""

FLOW: dict[str, Any] = {"persist_result": True, "validate_parameters": True, "log_prints": False}
"""Options of every flow here. Each call builds its own task runner."""

Table = Mapping[str, Task[..., Any]]
Future = PrefectConcurrentFuture[Any]
Futures = dict[str, Future]

logger = logging.getLogger(__name__)


def task_runner() -> Any:
    """Return a pool for one flow. (Prefect's own annotations do not accept its runners as such.)"""
    return ThreadPoolTaskRunner(max_workers=THREADS)


async def run_chain(spec: ChainSpec, table: Table = NODES, *, is_job: bool = False) -> State[dict[str, Any]]:
    """Resolve a chain and run it; the body of every flow. The state's message is the verdict in words.

    A job whose trainer is not installed is left pending, and this process ends.
    """
    keep_files_private()
    await quietly(tag_job(spec))
    try:
        chain = resolve_chain(spec, settings(), read_chain(settings().runs / str(flow_run.id)))
        # What Trainyard's own surfaces started was read there.
        from_trainyard = any(tag.startswith(TENANT_TAG) for tag in flow_run.tags)
        waits = refuse_or_wait(
            chain,
            settings(),
            is_job=is_job,
            allows=lambda _: from_trainyard or accepts_few_rows(),
            read_data=not from_trainyard,
        )
    except TrainyardError as error:
        return Failed(message=str(error))
    if waits:
        await quietly(announce(chain))
        await wait_for_trainer(str(flow_run.id), waits)
    try:
        return await walk(chain, table)
    except TrainyardError as error:  # of the run's own record, such as a disk that is full
        return Failed(message=f"{error} Next: `trainyard jobs resume {find_run_id(chain)} --watch` continues it.")


async def walk(chain: ResolvedChain, table: Table = NODES) -> State[dict[str, Any]]:
    """Run a resolved chain inside the running flow."""
    started = time.time()
    run = run_info(chain)
    os.environ[RUN_VARIABLE] = run.run_id
    record = RunRecord(Path(run.folder))
    record.begin(chain.model_dump(mode="json"))
    progress = RunProgress(chain, EventTail.at_end(record.events))
    with interruptible(), span(f"run {chain.name}", run=run.id, digest=chain.digest):
        announcing = asyncio.create_task(quietly(announce(chain)))
        futures = submit(chain, run, table)
        await wait_for_all(list(futures.values()), progress)
        await announcing
        result = await conclude(chain, run, record, futures, time.time() - started)
        if was_stopped(result.nodes):
            return await leave(run.run_id, result.nodes, record, unfinished=not all(map(is_done, futures.values())))
    if not await report_end(progress, result, record.folder):
        await wait_for_server(run.run_id)
        await report_end(progress, result, record.folder)
    return final_state(result, name=name_failure(futures))


async def report_end(progress: RunProgress, result: RunResult, folder: Path) -> bool:
    """Write the final progress and the report; return whether the server accepted both."""
    return all(await asyncio.gather(quietly(progress.show(result.message)), quietly(publish_report(result, folder))))


async def wait_for_all(futures: list[Future], progress: RunProgress) -> None:
    """Return when every node has ended, or soon after this process was asked to go.

    Prefect's own `wait` ends at a suspension, while a training is still saving.
    """
    loop, ended, left = asyncio.get_running_loop(), asyncio.Event(), len(futures)

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            ended.set()

    def on_done(_: PrefectFuture[Any]) -> None:
        loop.call_soon_threadsafe(count)

    for future in futures:
        future.add_done_callback(on_done)
    reported_at, interrupted_at = time.monotonic(), None
    while not await wait_for_end(ended, POLL_S):
        if INTERRUPTED.is_set():
            interrupted_at = interrupted_at or time.monotonic()
            if time.monotonic() - interrupted_at > INTERRUPT_GRACE_S:
                return
        elif time.monotonic() - reported_at >= PROGRESS_EVERY_S:
            reported_at = time.monotonic()
            await quietly(progress.show())


async def wait_for_end(ended: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def quietly(note: Awaitable[None]) -> bool:
    """Await a write to the server that may fail: a run does not end because its progress bar could not be updated."""
    try:
        await note
    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
        logger.warning("The run's state could not be reported to Prefect's pages: %s", error)
        return False
    return True


def is_done(future: Future) -> bool:
    return future.wrapped_future.done()


def build_state(future: Future, reason: str = "") -> State[Any]:
    """Return how a node ended; `reason` is the message of a node that was stopped.

    Prefect raises `Pause` in a node that it did not start, or whose end it saw suspended.
    """
    if not is_done(future):
        return Cancelled(name=PREEMPTED, message="stopped before its next save")
    if future.wrapped_future.cancelled():
        return Pending(name="NotReady")
    error = future.wrapped_future.exception()
    if isinstance(error, Pause):
        return Cancelled(name="Paused", message=reason or "the run was paused")
    if error is not None:
        return Crashed(message=f"{type(error).__name__}: {error}")
    return future.wrapped_future.result()


def run_info(chain: ResolvedChain) -> RunInfo:
    run_id = str(flow_run.id)
    folder = str(settings().runs / run_id)
    refresh = REFRESH_TAG in flow_run.tags
    continues = find_continued_run(flow_run.tags)
    return RunInfo(
        run_id,
        chain.name,
        chain.tenant,
        folder,
        None if accepts_few_rows() else find_floor(chain),
        refresh,
        continues=continues,
        id=find_run_id(chain),
        ledger=describe_run(chain),
        max_spend=chain.max_spend,
    )


def describe_run(chain: ResolvedChain) -> dict[str, Any]:
    """Return the fields of the run that each of its entries in the ledger has."""
    requested = flow_run.scheduled_start_time
    sender = next((tag.removeprefix(SENDER_TAG) for tag in flow_run.tags if tag.startswith(SENDER_TAG)), "")
    return {
        "job": find_run_id(chain),
        "chain": chain.name,
        "chain_revision": chain.digest,
        "theme": chain.theme,
        "tags": list(chain.tags),
        "requested": format_time(requested.timestamp()) if requested else None,
        "sender": f"token:{sender}" if sender else "",
    }


def accepts_few_rows() -> bool:
    """Return whether the run trains also on fewer rows than were requested."""
    return FEW_ROWS_TAG in flow_run.tags


def find_run_id(chain: ResolvedChain) -> str:
    """Return what names the running flow's run: the job's id, or the run's own where no trainer is part of it."""
    has_trainer = any(node.type == "trainer" for node in chain.nodes)
    return find_job_id(str(flow_run.id), flow_run.tags) if has_trainer else str(flow_run.id)


def submit(chain: ResolvedChain, run: RunInfo, table: Table) -> Futures:
    """Submit every node in topological order; the futures of the nodes before it are its edges in Prefect's graph.

    Tasks carry no tags: Prefect asks the server for a concurrency slot of every tag, up to two seconds for each node.
    """
    by_id = {node.id: node for node in chain.nodes}
    again = list_refreshed_nodes(chain, flow_run.tags)
    futures: Futures = {}
    for node_id in chain.order:
        node = by_id[node_id]
        before = {source.node_id for sources in node.inputs.values() for source in sources} | set(node.needs)
        before |= {name for name, _ in run.floor.waits.get(node_id, ())} if run.floor else set()
        named = table[node.type].with_options(name=node_id, task_run_name=node_id)
        upstream = {earlier: futures[earlier] for earlier in chain.order if earlier in before}
        node_run = replace(run, refresh=True) if node_id in again else run
        future = named.submit(node, upstream, node_run)
        assert isinstance(future, PrefectConcurrentFuture), "flows here run their nodes in threads"
        futures[node_id] = future
    return futures


def list_refreshed_nodes(chain: ResolvedChain, tags: Iterable[str]) -> set[str]:
    """Return the nodes that a tag `refresh-from:NODE` names, and all after them."""
    names = {tag.removeprefix(REFRESH_FROM) for tag in tags if tag.startswith(REFRESH_FROM)}
    for node_id in chain.order:
        node = chain.node(node_id)
        before = {source.node_id for sources in node.inputs.values() for source in sources} | set(node.needs)
        if before & names:
            names.add(node_id)
    return names


async def conclude(
    chain: ResolvedChain, run: RunInfo, record: RunRecord, futures: Futures, seconds: float
) -> RunResult:
    """Collect every node's end in one result, written next to the run's events."""
    spans = node_seconds(record.folder)
    types = {node.id: node.type for node in chain.nodes}
    fields = {
        node_id: {"id": node_id, "type": types[node_id], "seconds": spans.get(node_id, 0.0)} for node_id in chain.order
    }
    why = {event["node"]: str(event["message"]) for event in read_events(record.folder) if event["event"] == "stopped"}
    states = {node_id: build_state(futures[node_id], why.get(node_id, "")) for node_id in chain.order}
    nodes = tuple([await node_result(fields[node_id], states[node_id]) for node_id in chain.order])
    for node in nodes:
        if node.state is NodeState.SKIPPED:
            record.emit(node.id, "skipped", message=node.message)
    gate = find_closed_gate(chain, nodes)
    ended_early = any(node.state in (NodeState.FAILED, NodeState.CANCELED) for node in nodes)
    failed = ended_early or (gate is None and any(node.state is NodeState.SKIPPED for node in nodes))
    result = RunResult(
        id=run.id,
        run_id=run.run_id,
        name=str(flow_run.name),
        chain=chain.name,
        digest=chain.digest,
        state="failed" if failed else "completed",
        detail=NOT_DEPLOYED_DETAIL if gate and not failed else "",
        message=verdict(nodes, run.id, gate),
        nodes=nodes,
        gate=gate,
        seconds=round(seconds, 3),
        cost=SpendingStore(settings().spending).find_cost(run.run_id),
    )
    record.finish(result)
    return result


def node_seconds(folder: Path) -> dict[str, float]:
    """Node id -> seconds between its last start and its end, from the run's events."""
    started: dict[str, float] = {}
    spans: dict[str, float] = {}
    for event in read_events(folder):
        if event["event"] == "started":
            started[event["node"]] = event["time"]
        elif event["event"] in ("finished", "failed", "stopped") and event["node"] in started:
            spans[event["node"]] = round(event["time"] - started[event["node"]], 3)
    return spans


async def node_result(fields: dict[str, Any], state: State[Any]) -> NodeResult:
    """Return Prefect's state of one node in Trainyard's words: a node that was `NotReady` was skipped."""
    word, message = node_state(state), state.message or ""
    if word.succeeded:
        output: NodeOutput = await state.aresult()
        return NodeResult(**fields, state=word, message=message, outputs=output.outputs, facts=output.facts)
    if word is NodeState.SKIPPED:
        reason = message if state.name == SKIPPED else ""  # Prefect's words for `NotReady` name an id that nobody knows
        return NodeResult(**fields, state=word, message=reason or "a node before it did not finish")
    word = word if word is NodeState.CANCELED else NodeState.FAILED
    return NodeResult(**fields, state=word, message=message or f"it ended as {state.name}")


def find_closed_gate(chain: ResolvedChain, nodes: tuple[NodeResult, ...]) -> ClosedGate | None:
    """Return the reason of a gate that refused to deploy; of several deployers, the first."""
    for node in nodes:
        if is_closed_gate(node.facts):
            sources = chain.node(node.id).inputs.get(Port.REPORT, ())
            evaluator = sources[0].node_id if sources else ""
            return ClosedGate(node=node.id, evaluator=evaluator, **{name: node.facts[name] for name in GATE_FACTS})
    return None


def verdict(nodes: tuple[NodeResult, ...], run: str, gate: ClosedGate | None = None) -> str:
    """Return one message for the flow's state: what finished, or what failed, what was skipped, and what to type
    next.
    """
    failed = [node for node in nodes if node.state in (NodeState.FAILED, NodeState.CANCELED)]
    skipped = [node.id for node in nodes if node.state is NodeState.SKIPPED]
    if gate is not None and not failed:
        lines = [f"Not deployed: {gate.line}.", *(f"- {reason}" for reason in gate.reasons)]
        lines += [
            f"{node.id}: {divergence['text']}." for node in nodes for divergence in node.facts.get("divergence") or ()
        ]
        lines += [f"Skipped because of that: {', '.join(skipped)}."] if skipped else []
        show = f"`trainyard evaluations show {run} {gate.evaluator}` has every check. " if gate.evaluator else ""
        return "\n".join([*lines, f"{show}{gate.do}".rstrip()])
    if not failed and not skipped:
        reused = sum(node.state is NodeState.REUSED for node in nodes)
        messages = [
            f"{node.id}: {divergence['text']}" for node in nodes for divergence in node.facts.get("divergence") or ()
        ]
        messages += [node.message for node in nodes if node.type in ("evaluator", "deployer")][-2:]
        count = f"{len(nodes)} nodes finished" + (f", {reused} of them reused" if reused else "")
        return "; ".join([count, *messages]) + "."
    lines = [f"{len(failed)} of {len(nodes)} nodes failed: {', '.join(node.id for node in failed)}."]
    if skipped:
        lines.append(f"Skipped because of that: {', '.join(skipped)}.")
    lines += [f"{node.id}: {node.message}" for node in failed]
    lines.append(f"Next: correct the cause, then `trainyard jobs resume {run} --watch`; finished nodes are reused.")
    return "\n".join(lines)


def name_failure(futures: Futures) -> str:
    """Return the name of the state of a failed run: a training whose time or money was used up says so for its run."""
    names = {build_state(future).name for future in futures.values()}
    return next((name for name in (SPENDING_LIMIT, BUDGET_EXCEEDED) if name in names), "Failed")


def final_state(result: RunResult, *, name: str = "Failed") -> State[dict[str, Any]]:
    if not result.succeeded:
        return Failed(name=name, message=result.message)
    return build_completed(result, data=result.model_dump(mode="json"))
