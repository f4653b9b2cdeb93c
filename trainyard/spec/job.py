"""One training execution without a chain: a body with a data set and a trainer's settings, and its chain."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import DataFormat
from trainyard.spec.chain import ChainSpec
from trainyard.spec.migrate import job_words
from trainyard.spec.nodes import DataSourceConfig, DataSourceNode, Name, Path, TrainerNode, Url
from trainyard.spec.training import TrainerConfig, TrainingSettings


class DatasetSpec(Strict):
    """Where a job's rows are: a path in a data root. A data worker is read and refused (`R-DATA-WORKER`)."""

    path: Path = Field(description="File or folder inside a data root.")
    format: DataFormat = DataFormat.AUTO
    data_worker: Url | None = Field(None, description="Always refused in this release.")
    max_rows: int | None = Field(None, ge=1, le=10**12, description="Rows that are read; default: all.")


class JobSpec(TrainingSettings):
    """The body of a training job. Spellings of other tools, such as `hyperparams:`, are read too."""

    name: Name = Field("training-job", description="Of the job, in lists and reports.")
    tenant: Name = Field("default", description="Owner of its data and adapters.")
    dataset: DatasetSpec

    @model_validator(mode="before")
    @classmethod
    def in_our_words(cls, given: Any) -> Any:
        return job_words(given)


def chain_of_job(job: JobSpec) -> ChainSpec:
    """The canonical chain of a job: its data set, then its trainer."""
    shared = {name: getattr(job, name) for name in TrainerConfig.model_fields if name in JobSpec.model_fields}
    data = DataSourceConfig(**{name: getattr(job.dataset, name) for name in DatasetSpec.model_fields})
    return ChainSpec(
        name=job.name,
        tenant=job.tenant,
        nodes=(
            DataSourceNode(type="data_source", config=data),
            TrainerNode(type="trainer", config=TrainerConfig(**shared)),
        ),
    )
