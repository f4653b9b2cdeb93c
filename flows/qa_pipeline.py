"""Documents in, an adapter that knows them out: the form of the `qa-pipeline` template."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.forms import PUBLISH, STEPS, TRAINING, BaseModelName, Count, Model, Path, Wordings
from flows.walker import FLOW, run_chain, task_runner
from trainyard.spec.templates import PublishForm, QaPipeline, Steps, TrainingForm


@flow(name="qa-pipeline", task_runner=task_runner(), **FLOW)
async def qa_pipeline(
    *,
    documents: Path,
    count: Count = 200,
    model: Model | None = None,
    wordings: Wordings = 3,
    base_model: BaseModelName | None = None,
    training: TrainingForm = TRAINING,
    publish: PublishForm = PUBLISH,
    steps: Steps = STEPS,
) -> State[dict[str, Any]]:
    """Generate question and answer pairs from documents and train an adapter on them.

    Args:
        documents: File or folder to learn; a relative path starts at the deployment's folder.
        count: Rows to train on, all wordings counted; rows for the evaluation come on top.
        model: Model that writes the pairs; empty: they are taken from the text by rule.
        wordings: Wordings of each question; with `validate` the last is kept from training and tests what was learned.
        base_model: Folder or Hub name of the model to train; empty: the default of the settings.
        training: How the adapter is trained.
        publish: Under which name it is registered, and where it has to answer.
        steps: Which further nodes the chain has.
    """
    form = QaPipeline(
        documents=documents,
        count=count,
        model=model,
        wordings=wordings,
        base_model=base_model,
        training=training,
        publish=publish,
        steps=steps,
    )
    return await run_chain(form.build())
