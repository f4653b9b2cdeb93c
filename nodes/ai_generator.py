"""Writes rows from documents, by a model that answers somewhere or by rule."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from prefect import task
from prefect.client.schemas.objects import State

from nodes.completion import completion
from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, carry_out, no_slot
from trainyard.api.runs.slots import device_slots
from trainyard.compute.gpus import device_numbers
from trainyard.data.generation.generate import generate
from trainyard.spec.axes.data import GeneratorKind, Port
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.nodes import AiGeneratorConfig
from trainyard.stores.artifacts import NodeOutput, Produced, open_reference


@task(name="ai_generator", **NODE_TASK)
def ai_generator(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    """Ask for rows about each document and account for every answer: asked = kept + rejected, by reason."""
    return carry_out(node, upstream, run, prepare, slot)


def slot(context: NodeContext) -> AbstractContextManager[object]:
    """Take a device slot for a vLLM server that Trainyard starts: it needs nearly the whole device, like a trainer."""
    if context.config(AiGeneratorConfig).engine is not GeneratorKind.VLLM:
        return no_slot(context)
    return device_slots(context.settings, run=context.run.run_id, among=device_numbers()[:1])


def prepare(context: NodeContext) -> Make:
    config = context.config(AiGeneratorConfig)
    documents = open_reference(context.needed(Port.DOCUMENTS))

    def make(folder: Path) -> Produced:
        with completion(context) as complete:
            return generate(config, documents, folder, complete=complete, report=context.report)

    return make
