"""Keeps the good rows, counts every other one with its reason, and makes held-out sets for the evaluator."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from prefect import task
from prefect.client.schemas.objects import State

from nodes.fan_out import fan_out
from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, run_node
from trainyard.data.paths import data_roots, resolve_inside
from trainyard.data.pieces.rows import sift_in_pieces
from trainyard.data.quality.sensitive import sensitive_sentences
from trainyard.data.validation import load_token_counter, validate
from trainyard.errors import NotFound
from trainyard.spec.axes.data import Port
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.nodes import ValidatorConfig
from trainyard.spec.ports import ROW_PORTS
from trainyard.stores.artifacts import NodeOutput, Produced, open_reference
from trainyard.stores.models import resolve_model


@task(name="validator", **NODE_TASK)
def validator(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    """Check schema, length in tokens, quality, duplicates and grounding; hold out documents and wordings."""
    return run_node(node, upstream, run, prepare)


def prepare(context: NodeContext) -> Make:
    context.needed(*ROW_PORTS)
    config = context.config(ValidatorConfig)
    roots = data_roots(context.settings)
    sets = [str(resolve_inside(path, roots, field="config.evaluation_sets")) for path in config.evaluation_sets]
    config = config.model_copy(update={"evaluation_sets": tuple(sets)})
    tokenizer = tokenizer_folder(config, context)
    tokens = load_token_counter(tokenizer)
    documents = context.first(Port.DOCUMENTS)
    folder_of_documents = open_reference(documents) if documents else None
    workers = fan_out(context)
    sift = sift_in_pieces(workers, tokenizer) if workers else None

    def make(folder: Path) -> Produced:
        outputs: dict[Port, Any] = {}
        facts: dict[str, Any] = {}
        for port in ROW_PORTS:
            for source in context.inputs.get(port, [])[:1]:
                open_reference(source)
                produced = validate(
                    config, source, folder, tokens=tokens, documents=folder_of_documents, report=context.report,
                    sift=sift,
                )  # fmt: skip
                for warning in (*produced.facts["warnings"], *produced.facts["cautions"]):
                    context.say(f"{port.value}: {warning}", logging.WARNING)
                for line in sensitive_sentences(produced.facts["sensitive"]):
                    context.say(f"{port.value}: {line}", logging.WARNING)
                outputs |= produced.outputs
                facts |= {port.value: produced.facts}
        return Produced(outputs=outputs, facts=facts)

    return make


def tokenizer_folder(config: ValidatorConfig, context: NodeContext) -> Path:
    """Return the folder of the tokenizer that counts as the trainer after this node will count."""
    name = config.tokenizer or context.settings.default_base_model
    folder = resolve_model(name, context.settings).path
    if folder is None:
        raise NotFound(
            f"The tokenizer of {name!r} is not on this machine.",
            do="Download the model first, or name a folder with tokenizer.json as `tokenizer`.",
            code="E-TOKENIZER",
        )
    return folder
