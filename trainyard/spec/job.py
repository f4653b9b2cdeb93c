"""One training execution asked for by itself: a body with a data set and a trainer's settings, and its chain."""

from __future__ import annotations

from trainyard.spec.axes import DataFormat
from trainyard.spec.chain import ChainSpec
from trainyard.spec.nodes import DataSourceConfig, DataSourceNode, Name, Path, TrainerNode, Url
from trainyard.spec.training import Strict, TrainerConfig, TrainingSettings


class DatasetSpec(Strict):
    """Where a job's rows are: a path in a data root. A data worker is read and refused (`R-DATA-WORKER`)."""

    path: Path
    format: DataFormat = DataFormat.AUTO
    data_worker: Url | None = None
    tenant_id: Name | None = None


class JobSpec(TrainingSettings):
    """The body of a training job. `method: dpo` and `hyperparams:` are read too (`spec/migrate.py`)."""

    name: Name = "training-job"
    tenant: Name = "default"
    dataset: DatasetSpec


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
