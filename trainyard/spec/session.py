"""A step session without its rows: a trainer's settings, and how long it stays open. Each call brings its own rows."""

from __future__ import annotations

from pydantic import Field

from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.nodes import Name
from trainyard.spec.training import TrainerConfig, TrainingSettings, resolve_trainer

OPEN_STEPS = 1
"""Steps of a constant schedule, whose rate depends on no number of steps."""


class SessionSpec(TrainingSettings):
    """The body of a step session: the settings of a trainer that need no data set."""

    name: Name = Field("session", description="Of the session, in lists.")
    tenant: Name = Field("default", description="Owner of the session.")
    idle_s: int = Field(900, ge=1, le=86_400, description="Seconds after the last call at which it saves and ends.")
    autosave_s: int = Field(
        60, ge=1, le=3600, description="Seconds between its own checkpoints; more where one takes over 5 % of that."
    )


def trainer_of_session(spec: SessionSpec) -> TrainerConfig:
    """The settings as a trainer has them, nothing filled in."""
    shared = {name: getattr(spec, name) for name in TrainingSettings.model_fields}
    return TrainerConfig(**shared)


def is_open_ended(config: TrainerConfig) -> bool:
    """Whether the number of steps is not given: then the rate is constant, and a call may override it."""
    return config.hyperparameters.max_steps is None


def resolve_session(config: TrainerConfig, default_base_model: str) -> TrainerConfig:
    """The same with every default written out; without `max_steps` the schedule is constant."""
    if is_open_ended(config):
        updates = {"max_steps": OPEN_STEPS, "schedule": Schedule.CONSTANT}
        config = config.model_copy(update={"hyperparameters": config.hyperparameters.model_copy(update=updates)})
    return resolve_trainer(config, default_base_model)
