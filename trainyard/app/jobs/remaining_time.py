"""The time that the trainings of a job have left: by the pace of their steps, before that by what `plan` estimates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Literal

from trainyard.app.context import Context
from trainyard.app.live.trainings import curves_folder, find_trainings, read_new_steps
from trainyard.app.plan.estimate import FinishedNodes, count_tokens, find_shapes, find_timings, name_data_sets
from trainyard.app.responses import Response
from trainyard.app.run_folders import ENDED, read_output
from trainyard.app.run_records import read_chain, read_events
from trainyard.app.training_logs import TrainingLogs
from trainyard.compute.gpus import list_devices
from trainyard.errors import Conflict, Corrupt
from trainyard.json_types import JsonObject
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.estimate.estimate import Known, estimate
from trainyard.spec.states import JobState
from trainyard.stores.artifacts import ArtifactStore, NodeOutput
from trainyard.stores.live.job_index import Row

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
