"""Writes rows from documents, by a model that answers somewhere or by rule."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.client.schemas.objects import State

from nodes.completion import completion
from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, carry_out
from trainyard.data.generation import generate
from trainyard.spec.axes import Port
from trainyard.spec.graph import ResolvedNode
from trainyard.stores.artifacts import NodeOutput, Produced, open_reference


@task(name="ai_generator", **NODE_TASK)
def ai_generator(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    """Ask for rows about each document and account for every answer: asked = kept + rejected, by reason."""
    return carry_out(node, upstream, run, prepare)


def prepare(context: NodeContext) -> Make:
    documents = open_reference(context.needed(Port.DOCUMENTS))

    def make(folder: Path) -> Produced:
        with completion(context) as complete:
            return generate(context.node.config, documents, folder, complete=complete, report=context.report)

    return make
