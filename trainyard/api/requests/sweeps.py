"""Requests about sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from trainyard.api.requests.base import Parameters, Request
from trainyard.api.requests.chains import CHAIN_CHARS
from trainyard.api.requests.fields import Argument, Option
from trainyard.spec.axes.stages import EvalMetric

SWEEP_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"


class SweptChain(Request):
    """What is trained, and what of it varies."""

    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(
        None, description="A chain or job file with a trainer."
    )
    chain: str | None = Field(
        None, min_length=1, max_length=CHAIN_CHARS, description="A stored chain in the place of a file: its name or id."
    )
    parameters: Parameters = Field(
        {}, description="NODE.SETTING=RANGE: uniform, loguniform, int, logint or choice; or one value for all trials."
    )


class SweepInput(SweptChain):
    """A chain that is trained with many sets of values."""

    trials: int = Field(16, ge=1, le=10_000, description="Sets of values that are tried; of a grid at most all.")
    metric: str | None = Field(None, description="Metric of the evaluation that decides; default: the trainer's.")
    direction: Literal["min", "max"] | None = Field(None, description="Its better end; default: by the metric.")
    scheduler: Literal["asha", "none"] = Field("asha", description="Whether trials stop early.")
    sampler: Literal["tpe", "random", "grid"] = Field("tpe", description="How values are chosen.")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Of the sampler.")
    reduction: int = Field(3, ge=2, le=64, description="One trial of so many continues at a rung.")
    first_rung: int | None = Field(None, ge=1, description="Steps before the first rung; default: two rungs below all.")
    parallel: int = Field(1, ge=1, le=64, description="Trials at a time; each waits for a device.")
    trainer: str | None = Field(None, description="Which trainer is compared, if there is more than one.")
    name: str | None = Field(None, pattern=SWEEP_NAME, description="Default: chain and digest.")
    continued: Annotated[str | None, Option("--continue", completes="sweep")] = Field(
        None, pattern=SWEEP_NAME, description="Continue the sweep of this name; nothing else is given."
    )
    watch: Annotated[bool, Option("-w", "--watch", local=True)] = Field(False, description="Follow it to its end.")

    @field_validator("metric")
    @classmethod
    def is_measured(cls, given: str | None) -> str | None:
        """Refuse a metric that no evaluation during training has."""
        known = [f"eval_{metric.value}" for metric in EvalMetric]
        if given is not None and given not in known and f"eval_{given}" not in known:
            raise ValueError(f"{given!r} is not a metric of an evaluation during training: {', '.join(known)}")
        return given

    @property
    def asked_metric(self) -> EvalMetric | None:
        return EvalMetric(self.metric.removeprefix("eval_")) if self.metric is not None else None


class SweepNameInput(Request):
    name: Annotated[str, Argument("NAME", completes="sweep")] = Field(
        pattern=SWEEP_NAME, description="Name of a sweep."
    )


class ShowSweepInput(SweepNameInput):
    best: bool = Field(False, description="Print only the chain of the best trial, as YAML.")
    plot: Annotated[bool, Option(local=True)] = Field(False, description="Draw the metrics of the trials by step.")
