"""Pairs whose answers are grounded in the documents: the form of the `rag-tuning` template."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.forms import EVALUATE_STEPS, PUBLISH, TRAINING, BaseModelName, Count, Model, Path, Share
from flows.walker import FLOW, run_chain, task_runner
from trainyard.spec.templates import EvaluateSteps, PublishForm, RagTuning, TrainingForm


@flow(name="rag-tuning", task_runner=task_runner(), **FLOW)
async def rag_tuning(
    *,
    documents: Path,
    count: Count = 200,
    model: Model | None = None,
    grounding: Share = 0.6,
    base_model: BaseModelName | None = None,
    training: TrainingForm = TRAINING,
    publish: PublishForm = PUBLISH,
    steps: EvaluateSteps = EVALUATE_STEPS,
) -> State[dict[str, Any]]:
    """Train on a knowledge base; every answer is checked against its document.

    Args:
        documents: File or folder of the knowledge base; a relative path starts at the deployment's folder.
        count: Rows to train on, all wordings counted; rows for the evaluation come on top.
        model: Model that writes the pairs; empty: they are taken from the text by rule.
        grounding: Least share of an answer's words that have to be found in its document.
        base_model: Folder or Hub name of the model to train; empty: the default of the settings.
        training: How the adapter is trained.
        publish: Under which name it is registered, and where it has to answer.
        steps: Which further nodes the chain has.
    """
    form = RagTuning(
        documents=documents,
        count=count,
        model=model,
        grounding=grounding,
        base_model=base_model,
        training=training,
        publish=publish,
        steps=steps,
    )
    return await run_chain(form.build())
