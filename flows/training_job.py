"""Flow of one training on one data set: the form behind `training-job/local`."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.walker import FLOW, run_chain, task_runner
from trainyard.spec.job import JobSpec, chain_of_job


@flow(name="training-job", task_runner=task_runner(), **FLOW)
async def training_job(job: JobSpec) -> State[dict[str, Any]]:
    """Train once on one data set and leave an adapter or a model. Without its trainer the job stays pending.

    Args:
        job: The data set, the model, and how it is trained.
    """
    return await run_chain(chain_of_job(job), is_job=True)
