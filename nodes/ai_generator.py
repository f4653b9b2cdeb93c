"""Writes rows from documents, by a model that answers somewhere or by rule."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from prefect import task
from prefect.client.schemas.objects import State

from nodes.completion import completion
from nodes.fan_out import fan_out
from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, run_node, skip_slot
from trainyard.compute.gpus import device_numbers, training_threads
from trainyard.data.generation.generate import find_in_documents, generate
from trainyard.data.pieces.documents import find_in_pieces
from trainyard.evals.selection import choose_best
from trainyard.prefect_api.slots import device_slots
from trainyard.spec.axes.data import GeneratorKind, Port
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.nodes import AiGeneratorConfig
from trainyard.stores.artifacts import NodeOutput, Produced, open_reference


@task(name="ai_generator", **NODE_TASK)
def ai_generator(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    """Ask for rows about each document and account for every answer: asked = kept + rejected, by reason."""
    return run_node(node, upstream, run, prepare, slot=slot)


def slot(context: NodeContext) -> AbstractContextManager[object]:
    """Take a device slot for a vLLM server that Trainyard starts, which needs nearly the whole device, like a trainer,
    and for a reward model that chooses among answers."""
    config = context.config(AiGeneratorConfig)
    if config.engine is not GeneratorKind.VLLM and config.best_of == 1:
        return skip_slot(context)
    return device_slots(context.settings, run=context.run.run_id, among=device_numbers()[:1], on_wait=context.note_wait)


def prepare(context: NodeContext) -> Make:
    config = context.config(AiGeneratorConfig)
    documents = open_reference(context.needed(Port.DOCUMENTS))
    reward_model = open_reference(context.needed(Port.REWARD)) if config.best_of > 1 else None

    def make(folder: Path) -> Produced:
        with completion(context) as complete:
            workers = fan_out(context) if complete is None else None
            find = find_in_pieces(workers, folder) if workers else find_in_documents
            produced = generate(config, documents, folder, complete=complete, report=context.report, find=find)
        if reward_model is None:
            return produced
        context.say(f"a reward model chooses among {config.best_of} answers to each question")
        return choose_best(
            produced, folder, reward_model, threads=training_threads(context.settings.threads), seed=config.seed,
            desired_state=context.desired_state, on_event=context.on_event,
        )  # fmt: skip

    return make
