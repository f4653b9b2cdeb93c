"""Sweeps: many trainings with different settings. Requests, texts and rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from trainyard.operations.base import Nothing, Parameters, Request
from trainyard.operations.chains import (
    CHAIN_CHARS,
)
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import draw_lines, format_table
from trainyard.spec.axes.stages import EvalMetric

if TYPE_CHECKING:
    from trainyard.app.sweeps import SweepList, SweepReport

SWEEP_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"


class SweptChain(Request):
    """The trained chain and its varied settings."""

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
    reduction: int = Field(3, ge=2, le=64, description="Share of trials that continue at a rung, as 1/N.")
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
    def is_measured(cls, metric: str | None) -> str | None:
        """Refuse a metric that no evaluation during training has."""
        metrics = [f"eval_{item.value}" for item in EvalMetric]
        if metric is not None and metric not in metrics and f"eval_{metric}" not in metrics:
            raise ValueError(f"{metric!r} is not a metric of an evaluation during training: {', '.join(metrics)}")
        return metric

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


def sweep_text(result: SweepReport) -> str:
    """Return the trials of a sweep as a table, with its steps and its best; or the chain of the best alone."""
    if result.best_chain:
        return str(result.best_chain).rstrip()
    paths = sorted({path for trial in result.trials for path in trial.params})
    rows = []
    for trial in result.trials:
        measured = [step for step in result.rungs if step in trial.found]
        rung = f"{measured[-1]}" if measured else "-"
        last = trial.value if trial.value is not None else trial.found.get(measured[-1]) if measured else None
        values = [short(trial.params[path]) for path in paths]
        mark = " *" if result.best is not None and trial.number == result.best.number else ""
        state = f"{trial.state.value}{mark}" + (f": {trial.code}" if trial.code else "")
        rows.append([str(trial.number), *values, rung, str(trial.steps), "-" if last is None else f"{last:.4f}", state])
    header = ("trial", *(path.rpartition(".")[2] for path in paths), "rung", "steps", result.metric, "state")
    lines = [format_table(rows, header)] if rows else []
    if result.plot and rows:
        lines.append(draw_trials(result))
    return "\n".join([*lines, sweep_line(result)])


def short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sweep_line(result: Any) -> str:
    """Return one sweep in one line."""
    share = f" ({result.num_steps / result.num_whole_steps:.0%} of whole trainings)" if result.num_whole_steps else ""
    best = f", best {result.metric} {result.best.value:.4f} (trial {result.best.number})" if result.best else ""
    over = sum(trial.state.is_over for trial in result.trials)
    state = "running" if result.is_running else "done" if over == result.num_trials else "not running"
    count = f"{len(result.trials)} of {result.num_trials} trials"
    return f"{result.name}: {state}, {count}, {result.num_steps:,} steps{share}{best}"


def sweeps_text(result: SweepList) -> str:
    return "\n".join(map(sweep_line, result.sweeps)) if result.sweeps else "no sweeps yet"


def draw_trials(result: Any) -> str:
    """Return the metric of every trial by step: where curves end, trials were stopped."""
    curves = {}
    for trial in result.trials:
        points = dict(trial.found) | ({trial.steps: trial.value} if trial.value is not None else {})
        curves[str(trial.number)] = sorted(points.items())
    return draw_lines(curves, x="step", y=result.metric)


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "sweep": Operation(
        "Train a chain with many sets of values; stop worse trials early, and continue better ones.",
        request=SweepInput, run="app.sweep_start:sweep", text=sweep_text, scope=RUN,
        example="trainyard sweep chain.yaml -p 'trainer.learning_rate=loguniform(1e-5,1e-3)' --watch",
        route="POST /api/v1/sweeps",
    ),
    "sweep show": Operation(
        "The trials of a sweep with their rungs, steps and metrics; with --best, the chain of the best one.",
        request=ShowSweepInput, run="app.sweeps:show_sweep", text=sweep_text, scope=READ,
        example="trainyard sweep show NAME --best > best.yaml",
        route="GET /api/v1/sweeps/{name}",
    ),
    "sweep list": Operation(
        "Every sweep, how far it is, and its best trial.",
        request=Nothing, run="app.sweeps:list_sweeps", text=sweeps_text, scope=READ,
        route="GET /api/v1/sweeps",
    ),
    "sweep stop": Operation(
        "End a sweep; its trainings save first, so that `trainyard sweep --continue` continues it.",
        request=SweepNameInput, run="app.sweep_start:stop_sweep", text=sweep_text, scope=RUN,
        route="POST /api/v1/sweeps/{name}/stop",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
