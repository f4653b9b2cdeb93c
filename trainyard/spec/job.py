"""Trainers without a chain: the body of a job, with a data set, and of a step session, whose calls bring their rows."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from trainyard.spec.axes.axis import Strict, omit_default
from trainyard.spec.axes.data import BAD_FRACTION, DataFormat
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.chain import LABELS, THEME, ChainSpec, Labels, Theme
from trainyard.spec.migrate import job_words
from trainyard.spec.money import Dollars
from trainyard.spec.nodes import (
    Columns,
    DataSourceConfig,
    DataSourceNode,
    Name,
    RowsPath,
    SourceSet,
    TrainerNode,
    Url,
    is_empty,
    is_unset,
)
from trainyard.spec.training import TrainerConfig, TrainingSettings, name_default_metric, resolve_trainer


class DatasetSpec(Strict):
    """Location of a job's rows: a path in a data root, or in a repository of a data worker."""

    path: RowsPath = Field(description="File or folder inside a data root.")
    format: DataFormat = DataFormat.AUTO
    data_worker: Url | None = Field(None, description="Address of a data worker, which has `path` in a repository.")
    columns: Columns = Field(
        default_factory=dict, description="Field of a row -> the column that contains it.", exclude_if=is_empty
    )
    max_rows: int | None = Field(None, ge=1, le=10**12, description="Rows that are read; default: all.")
    heldout: SourceSet | None = Field(
        None, description="Rows that are not learned from: `eval: {set: heldout}` reads them.", exclude_if=is_unset
    )
    max_bad_fraction: float = Field(
        BAD_FRACTION, ge=0, le=1,
        description="Share of rows that may be bad, or refused by the chat template, before the run fails.",
    )  # fmt: skip


class JobSpec(TrainingSettings):
    """The body of a training job. Spellings of other tools, such as `hyperparams:`, are read too."""

    name: Name = Field("training-job", description="Of the job, in lists and reports.")
    tenant: Name = Field("default", description="Owner of its data and adapters.")
    dataset: DatasetSpec
    theme: Theme = omit_default("", description=THEME)
    tags: Labels = omit_default((), max_length=16, description=LABELS)
    max_spend: Dollars | None = omit_default(None, description="USD that the job may spend; no limit by default.")

    @model_validator(mode="before")
    @classmethod
    def in_our_words(cls, value: Any) -> object:
        return name_default_metric(job_words(value))


def chain_of_job(job: JobSpec) -> ChainSpec:
    """Return the canonical chain of a job: its data set, then its trainer."""
    shared = {name: getattr(job, name) for name in TrainerConfig.model_fields if name in JobSpec.model_fields}
    data = DataSourceConfig(**{name: getattr(job.dataset, name) for name in DatasetSpec.model_fields})
    return ChainSpec(
        name=job.name,
        tenant=job.tenant,
        theme=job.theme,
        tags=job.tags,
        max_spend=job.max_spend,
        nodes=(
            DataSourceNode(type="data_source", config=data),
            TrainerNode(type="trainer", config=TrainerConfig(**shared)),
        ),
    )


# Step sessions


OPEN_STEPS = 1
"""Steps of a constant schedule, whose rate depends on no number of steps."""


class SessionSpec(TrainingSettings):
    """The body of a step session: the settings of a trainer that need no data set."""

    name: Name = Field("session", description="Of the session, in lists.")
    tenant: Name = Field("default", description="Owner of the session.")
    idle_s: int = Field(
        120, ge=1, le=86_400,
        description="Seconds after the last call or heartbeat at which it saves, ends and gives its device back.",
    )  # fmt: skip
    autosave_s: int = Field(
        60, ge=1, le=3600, description="Seconds between its own checkpoints; more where one takes over 5 % of that."
    )


def trainer_of_session(spec: SessionSpec) -> TrainerConfig:
    """Return the settings as a trainer has them, nothing filled in."""
    shared = {name: getattr(spec, name) for name in TrainingSettings.model_fields}
    return TrainerConfig(**shared)


def is_open_ended(config: TrainerConfig) -> bool:
    """Return whether the number of steps is not given: then the rate is constant, and a call may override it."""
    return config.hyperparameters.max_steps is None


def resolve_session(config: TrainerConfig, default_base_model: str) -> TrainerConfig:
    """Return the same with every default written out; without `max_steps` the schedule is constant."""
    if is_open_ended(config):
        updates = {"max_steps": OPEN_STEPS, "schedule": Schedule.CONSTANT}
        config = config.model_copy(update={"hyperparameters": config.hyperparameters.model_copy(update=updates)})
    return resolve_trainer(config, default_base_model)
