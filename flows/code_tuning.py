"""A source tree in, an adapter that knows it out, with its evaluation: the form of the `code-tuning` template."""

from __future__ import annotations

from typing import Any, Literal

from prefect import flow
from prefect.client.schemas.objects import State

from flows.forms import DEPLOY_STEPS, PUBLISH, TRAINING, BaseModelName, Count, Model, Path
from flows.walker import FLOW, run_chain, task_runner
from trainyard.spec.templates import CodeTuning, DeploySteps, PublishForm, TrainingForm


@flow(name="code-tuning", task_runner=task_runner(), **FLOW)
async def code_tuning(
    *,
    repository: Path = ".",
    learn_from: Literal["files", "commits"] = "files",
    count: Count = 200,
    model: Model | None = None,
    base_model: BaseModelName | None = None,
    training: TrainingForm = TRAINING,
    publish: PublishForm = PUBLISH,
    steps: DeploySteps = DEPLOY_STEPS,
) -> State[dict[str, Any]]:
    """Train on the code or the history of a repository and evaluate the result.

    Args:
        repository: Folder of the code, or of a git repository; a relative path starts at the deployment's folder.
        learn_from: The code as it is (files), or the history (commits): message and diff of each commit.
        count: Rows to train on; rows for the evaluation come on top.
        model: Model that writes the pairs; empty: they are taken from the code by rule.
        base_model: Folder or Hub name of the model to train; empty: the default of the settings.
        training: How the adapter is trained.
        publish: Under which name it is registered, and where it has to answer.
        steps: Which further nodes the chain has.
    """
    form = CodeTuning(
        repository=repository,
        learn_from=learn_from,
        count=count,
        model=model,
        base_model=base_model,
        training=training,
        publish=publish,
        steps=steps,
    )
    return await run_chain(form.build())
