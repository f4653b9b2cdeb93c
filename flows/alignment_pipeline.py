"""Examples, then preferences, on one adapter: the form of the `alignment-pipeline` template."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.forms import ALIGNMENT, PUBLISH, STEPS, TRAINING, BaseModelName, MaxRows, Path
from flows.walker import FLOW, run_chain, task_runner
from trainyard.spec.templates import AlignmentForm, AlignmentPipeline, PublishForm, Steps, TrainingForm


@flow(name="alignment-pipeline", task_runner=task_runner(), **FLOW)
async def alignment_pipeline(
    *,
    sft: Path,
    preference: Path,
    max_rows: MaxRows | None = None,
    base_model: BaseModelName | None = None,
    training: TrainingForm = TRAINING,
    alignment: AlignmentForm = ALIGNMENT,
    publish: PublishForm = PUBLISH,
    steps: Steps = STEPS,
) -> State[dict[str, Any]]:
    """Supervised fine-tuning, then direct preference optimisation of the same adapter.

    Args:
        sft: Data set of instructions and answers; a relative path starts at the deployment's folder.
        preference: Data set of chosen and rejected answers; a relative path starts at the deployment's folder.
        max_rows: Rows read of each data set; empty: all.
        base_model: Folder or Hub name of the model to train; empty: the default of the settings.
        training: How the adapter is trained on the examples.
        alignment: How it then learns the preferences.
        publish: Under which name it is registered, and where it has to answer.
        steps: Which further nodes the chain has.
    """
    form = AlignmentPipeline(
        sft=sft,
        preference=preference,
        max_rows=max_rows,
        base_model=base_model,
        training=training,
        alignment=alignment,
        publish=publish,
        steps=steps,
    )
    return await run_chain(form.build())
