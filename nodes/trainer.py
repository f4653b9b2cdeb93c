"""Trains an adapter or a model in a supervised child process; one at a time on each device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from prefect import task
from prefect.client.schemas.objects import State

from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, carry_out
from trainyard.api.runs import gpu_slot, wanted_by
from trainyard.backends.base import run_training
from trainyard.backends.job import TrainingJob
from trainyard.compute.gpus import training_threads
from trainyard.spec.axes import DATA_PORTS, Port
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import NodeOutput, Produced, open_reference
from trainyard.stores.models import resolve_model


@task(name="trainer", **NODE_TASK)
def trainer(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    """Train with the config's stage, method and backend, and account for every token."""
    return carry_out(node, upstream, run, prepare, slot)


def slot(context: NodeContext) -> AbstractContextManager[None]:
    return gpu_slot(context.settings, run=context.run.run_id)


def prepare(context: NodeContext) -> Make:
    job = job_of(context)

    def make(folder: Path) -> Produced:
        return run_training(
            job,
            folder,
            wanted=wanted_by(context.run.run_id),
            on_event=context.on_event,
            settings=context.settings,
        )

    return make


def job_of(context: NodeContext) -> TrainingJob:
    """What the training child is told: every input verified, the base resolved and checked."""
    config = context.config(TrainerConfig)
    data = context.needed(*(port for port in context.node.inputs if port in DATA_PORTS))
    adapter, model = context.first(Port.ADAPTER), context.first(Port.MODEL)
    name = str(open_reference(model)) if model else config.base_model or context.settings.default_base_model
    base = resolve_model(name, context.settings)
    return TrainingJob(
        config=config,
        data={data.kind: str(open_reference(data))},
        data_sha256={data.kind: data.sha256},
        base=base.location,
        base_sha256=base.sha256,
        adapter=str(open_reference(adapter)) if adapter else None,
        parents=tuple(reference.sha256 for reference in (adapter, model) if reference),
        threads=training_threads(context.settings.threads),
        locks=str(context.settings.services / "devices"),
        run=context.run.run_id,
        node=context.node.id,
    )
