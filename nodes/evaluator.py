"""Compares the trained adapter with its baseline, case by case, on data that training did not see."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from prefect import task
from prefect.client.schemas.objects import State

from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, run_node
from trainyard.backends.choices import keep_evaluation
from trainyard.compute.gpus import device_numbers, training_threads
from trainyard.data.paths import data_roots, resolve_inside
from trainyard.evals.job import job_from_inputs
from trainyard.evals.runner import evaluate
from trainyard.prefect_api.slots import device_slots
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.nodes import EvaluatorConfig
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.artifacts import NodeOutput, Produced, open_reference


@task(name="evaluator", **NODE_TASK)
def evaluator(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    """Score candidate, baseline and control on every held-out set and write the report that the gate reads."""
    return run_node(node, upstream, run, prepare, slot=slot)


def slot(context: NodeContext) -> AbstractContextManager[object]:
    first, run = device_numbers()[:1], context.run.run_id
    return device_slots(
        context.settings, run=run, among=first, read_state=context.desired_state, on_wait=context.note_wait
    )


def prepare(context: NodeContext) -> Make:
    for references in context.inputs.values():
        for reference in references:
            open_reference(reference)
    config = resolve_task_files(context.config(EvaluatorConfig), context)
    choices = keep_evaluation(context.settings)
    live = live_version(context, config)
    path = AdapterRegistry(context.settings.adapters).path(live) if live else None
    job = job_from_inputs(
        config, context.inputs,
        threads=choices.threads or training_threads(context.settings.threads), device=choices.device,
        live=path, live_sha256=live.sha256 if live else "",
    )  # fmt: skip

    def make(folder: Path) -> Produced:
        return evaluate(
            job, folder, desired_state=context.desired_state, on_event=context.on_event, settings=context.settings
        )

    return make


def resolve_task_files(config: EvaluatorConfig, context: NodeContext) -> EvaluatorConfig:
    """Return the config with every task file's real path, which lies inside a data root."""
    roots = data_roots(context.settings)
    lines = [
        line.model_copy(update={"path": str(resolve_inside(line.path, roots, field="config.benchmarks"))})
        if line.path
        else line
        for line in config.benchmarks
    ]
    return config.model_copy(update={"benchmarks": tuple(lines)})


def live_version(context: NodeContext, config: EvaluatorConfig) -> AdapterVersion | None:
    """Return the version that is live now on the evaluator's role, if the candidate is compared with it."""
    if config.baseline == "base" or config.role is None:
        return None
    registry, tenant = AdapterRegistry(context.settings.adapters), context.settings.tenant
    if registry.live(tenant, config.role).version is None:
        return None
    return registry.show(f"{tenant}/{config.role}")
