"""Trains an adapter or a model in a supervised child process; one at a time on each device."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect import task
from prefect.client.schemas.objects import State

from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, run_node
from trainyard.app.run_records import read_chain, read_events
from trainyard.backends.base import turn_folder, work_folder
from trainyard.backends.job import TrainingJob, list_differences, prepare_job, read_job
from trainyard.backends.ledger_entry import describe_training, read_training_record
from trainyard.backends.oom import train_within_memory
from trainyard.backends.recipe import describe_reproduction
from trainyard.backends.results import CHECKPOINT_FOLDER
from trainyard.compute.lease import turn_lock
from trainyard.data.rows import ROWS_FILE, count_rows
from trainyard.errors import Conflict, NotDeployed
from trainyard.evals.gate import Word
from trainyard.evals.tasks import count_held_out
from trainyard.json_types import JsonMapping
from trainyard.prefect_api.slots import device_slots
from trainyard.spec.axes.data import DATA_PORTS, Port
from trainyard.spec.estimate.verdict import Counted, VerdictFloor
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import NodeOutput, Produced, open_reference


@task(name="trainer", **NODE_TASK)
def trainer(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    """Train with the config's stage, method and backend, and account for every token."""
    return run_node(node, upstream, run, prepare, slot=slot, describe=describe)


def describe(context: NodeContext, output: NodeOutput, started: float, seconds: float) -> JsonMapping:
    """Return the ledger's fields of the training; one that is reused took no time in this run."""
    job = context.jobs[-1] if context.jobs else build_job(context)
    (result,) = output.outputs.values()
    sender, theme = (str(context.run.ledger.get(name) or "") for name in ("sender", "theme"))
    record = {**read_training_record(result.path), "energy_j": output.facts.get("energy_j")}
    fields = describe_training(
        job, record, context.settings, started=started, seconds=seconds, theme=theme, sender=sender
    )
    if not context.jobs:  # its recipe is in the entry of the run that trained it
        return fields
    chain = read_chain(context.record.folder)
    return fields | describe_reproduction(
        job, record, result.path, context.settings, inputs=dict(list_inputs(context)),
        chain=chain.model_dump(mode="json") if chain else None,
    )  # fmt: skip


def list_inputs(context: NodeContext) -> Iterator[tuple[str, tuple[str, Path | None]]]:
    """Yield role -> (digest, folder) of each result that the training reads."""
    data = context.needed(*(port for port in context.node.inputs if port in DATA_PORTS))
    yield f"data/{data.kind.value}", (data.sha256, data.path)
    for port in (Port.ADAPTER, Port.MODEL, Port.REWARD):
        if (reference := context.first(port)) is not None:
            yield port.value, (reference.sha256, reference.path)


@contextmanager
def slot(context: NodeContext) -> Iterator[None]:
    """One device, one for each process of a distributed training, or none where a service computes; an identical
    training elsewhere is waited for."""
    settings, run, config = context.settings, context.run.run_id, context.config(TrainerConfig)
    count = 0 if config.backend.facts.remote else config.launch.local_processes
    turn = turn_lock(turn_folder(build_job(context), settings))
    with device_slots(
        settings, count, run=run, turn=turn, read_state=context.desired_state, on_wait=context.note_wait
    ) as devices:
        context.devices.extend(devices)
        yield


def prepare(context: NodeContext) -> Make:
    job = build_job(context)
    require_same(context, job)
    require_verdict(context, job)

    def make(folder: Path) -> Produced:
        context.jobs.append(job)
        work = work_folder(job, context.settings)
        context.record.emit(context.node.id, "job", digest=job.digest, folder=str(work))
        return train_within_memory(
            job, folder, desired_state=context.desired_state, on_event=context.on_event, settings=context.settings
        )

    return make


def require_same(context: NodeContext, job: TrainingJob) -> None:
    """Refuse to continue when the job that an earlier attempt of this run trained has changed, and say what changed.

    Raises `Conflict` (`E-CHECKPOINT-MISMATCH`): starting from zero would throw the checkpoints of that
    attempt away unasked.
    """
    earlier = [e for e in read_events(context.record.folder) if e["node"] == context.node.id and e["event"] == "job"]
    if not earlier or earlier[-1]["digest"] == job.digest:
        return
    before = Path(earlier[-1]["folder"])
    earlier_job = read_job(before)
    if (
        earlier_job is not None and earlier_job.digest == job.digest
    ):  # an earlier version named the same job by another digest
        return
    changes = "; ".join(list_differences(before, job)) or "what it trains on"
    if not any((before / CHECKPOINT_FOLDER).glob("*")):
        context.say(f"starts from zero, because this has changed since the earlier attempt: {changes}", logging.WARNING)
        return
    raise Conflict(
        f"The training of this run cannot continue with other settings: {changes}.",
        why="Its checkpoints belong to what it was started with.",
        do="Put it back and resume, or start a new run.",
        code="E-CHECKPOINT-MISMATCH",
    )


def require_verdict(context: NodeContext, job: TrainingJob) -> None:
    """Train nothing in a chain whose gate could not decide on its rows; a training that has begun continues.

    Raises `NotDeployed` (`E-GATE`) with the rows and cases that are needed.
    """
    floor = context.run.floor
    rows = rows_judged(context, job)
    if floor is None or rows is None or work_folder(job, context.settings).exists():
        return
    _, folder = rows
    if reasons := floor.reasons(trained=count_rows(folder / ROWS_FILE), held_out=count_held_out_rows(context, floor)):
        raise NotDeployed(
            "There are not enough rows to say whether an adapter is better; nothing was trained.",
            reasons=reasons,
            verdict=f"{Word.FEW_ROWS}; nothing was trained",
            do="Give more rows, write few_rows: allow (of a template: publish.few_rows), or leave the deployer out.",
        )


def count_held_out_rows(context: NodeContext, floor: VerdictFloor) -> Counted | None:
    """Return the rows that decide, where their node has ended."""
    node_id, port = floor.decides or ("", Port.SFT)
    output = context.upstream.get(node_id)
    if output is None or port not in output.outputs:
        return None
    return count_held_out(Path(open_reference(output.outputs[port])), port)


def rows_judged(context: NodeContext, job: TrainingJob) -> tuple[Port, Path] | None:
    """Return the rows by which the chain's result is judged: this trainer's, or those of the judged one after it."""
    floor = context.run.floor
    if floor is None:
        return None
    if context.node.id in floor.candidates:
        port, folder = next(iter(job.data.items()))
        return port, Path(folder)
    outputs = ((context.upstream.get(name), port) for name, port in floor.waits.get(context.node.id, ()))
    references = (output.outputs[port] for output, port in outputs if output is not None and port in output.outputs)
    reference = next(references, None)
    return None if reference is None else (reference.kind, Path(open_reference(reference)))


def build_job(context: NodeContext) -> TrainingJob:
    """Return the training child's job: every input verified, the base model resolved and checked."""
    config = context.config(TrainerConfig)
    data = context.needed(*(port for port in context.node.inputs if port in DATA_PORTS))
    adapter, model, scorer = (context.first(port) for port in (Port.ADAPTER, Port.MODEL, Port.REWARD))
    name = str(open_reference(model)) if model else config.base_model or context.settings.default_base_model
    return prepare_job(
        config,
        name,
        context.settings,
        data={data.kind: str(open_reference(data))},
        data_sha256={data.kind: data.sha256},
        adapter=str(open_reference(adapter)) if adapter else None,
        reward_model=str(open_reference(scorer)) if scorer else None,
        reward_sha256=scorer.sha256 if scorer else "",
        parents=tuple(reference.sha256 for reference in (adapter, model, scorer) if reference),
        devices=tuple(context.devices) or (0,),
        run=context.run.run_id,
        node=context.node.id,
        continues=context.run.continues,
        until=context.run.until.get(context.node.id),
        max_spend=context.run.max_spend,
    )
