"""One training execution asked for by itself: a body with a data set and a trainer's settings, and its chain."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from trainyard.spec.axes import BackendName, DataFormat, Device, Method, Quantization, Stage
from trainyard.spec.chain import ChainSpec
from trainyard.spec.migrate import trainer_words
from trainyard.spec.nodes import DataSourceConfig, DataSourceNode, Name, Path, TrainerNode, Url
from trainyard.spec.training import (
    EngineSettings,
    Hyperparameters,
    LaunchSettings,
    LoraSettings,
    PreferenceSettings,
    Strict,
    TrainerConfig,
)


class DatasetSpec(Strict):
    """Where a job's rows are: a path in a data root, or a path at a data worker."""

    path: Path
    format: DataFormat = DataFormat.AUTO
    data_worker: Url | None = None
    tenant_id: Name | None = None


class JobSpec(Strict):
    """The body of a training job. `method: dpo` and `hyperparams:` are read too (`spec/migrate.py`)."""

    name: Name = "training-job"
    tenant: Name = "default"
    dataset: DatasetSpec
    base_model: str | None = Field(None, min_length=1, max_length=512, description="Name or folder; default: setting.")
    stage: Stage = Stage.SFT
    method: Method = Method.LORA
    backend: BackendName = BackendName.NATIVE
    hyperparameters: Hyperparameters = Field(default_factory=Hyperparameters)
    lora: LoraSettings = Field(default_factory=LoraSettings)
    preference: PreferenceSettings = Field(default_factory=PreferenceSettings)
    quantization: Quantization | None = None
    engine: EngineSettings = Field(default_factory=EngineSettings)
    launch: LaunchSettings = Field(default_factory=LaunchSettings)
    device: Device = Device.AUTO
    budget_s: int | None = Field(None, ge=1, le=2_592_000)

    @model_validator(mode="before")
    @classmethod
    def in_our_words(cls, given: Any) -> Any:
        return trainer_words(given)


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
