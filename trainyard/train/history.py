"""The evaluations of a run, and what follows from them; imported without torch, by plans and reports.

The check of every loss, of whatever engine computed it. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from trainyard.errors import TrainyardError
from trainyard.spec.axes.stages import EvalMetric
from trainyard.spec.training import EvalSettings
from trainyard.train.checkpoint.checkpoints import Best, list_best

STEP = "step"


@dataclass
class Evaluations:
    """Part of the progress of a run."""

    found: list[dict[str, float]] = field(default_factory=list)
    """{step, loss, …} of every evaluation, in order."""
    mark: float | None = None
    """The metric of the last evaluation that counted as an improvement."""
    waited: int = 0
    """Evaluations since then."""
    ended: bool = False
    """Whether the training has ended because of them."""

    def add(self, step: int, metrics: dict[str, float], settings: EvalSettings) -> None:
        """Enter an evaluation, and decide whether the training ends."""
        self.found.append({STEP: step, **metrics})
        value = metrics[settings.metric]
        if is_improvement(value, self.mark, settings):
            self.mark, self.waited = value, 0
        else:
            self.waited += 1
        self.ended = settings.patience is not None and self.waited >= settings.patience

    def rank_steps(self, metric: EvalMetric) -> list[int]:
        """The evaluated steps, the best one first; without those whose metric is not finite."""
        values = {int(entry[STEP]): entry[metric] for entry in self.found if math.isfinite(entry[metric])}
        return list_best(values, choose_comparison(metric))

    def best_step(self, metric: EvalMetric) -> int | None:
        return next(iter(self.rank_steps(metric)), None)

    def at(self, step: int) -> dict[str, float] | None:
        """Return the measurements at a step; None without any."""
        return next((entry for entry in reversed(self.found) if entry[STEP] == step), None)

    def value_at(self, step: int, metric: EvalMetric) -> float | None:
        """The metric of a step; None where it was not measured, or is not finite."""
        metrics = self.at(step)
        return metrics[metric] if metrics is not None and math.isfinite(metrics[metric]) else None

    def record(self, settings: EvalSettings, *, rows: int, last: int, total_steps: int) -> dict[str, object]:
        """Return the results of a training that ended at step `last`, and which step its result is of.

        `rows` is the number of evaluated rows.
        """
        best = self.best_step(settings.metric)
        return {
            "rows": rows,
            "metric": settings.metric.value,
            "best_step": best,
            "best": self.at(best) if best is not None else None,
            "last": self.at(last),
            "result_step": best if settings.load_best and best is not None else last,
            "stopped_early": self.ended and last < total_steps,
            "found": self.found,
        }


def choose_comparison(metric: EvalMetric) -> Best:
    """`min` or `max`, whichever chooses the better value."""
    return min if metric.facts.best == "min" else max


def is_improvement(value: float, mark: float | None, settings: EvalSettings) -> bool:
    """Whether a value is better than the last improvement, by more than `min_delta`."""
    if not math.isfinite(value):
        return False
    if mark is None:
        return True
    gain = mark - value if settings.metric.facts.best == "min" else value - mark
    return gain > settings.min_delta


def require_finite_loss(step: int, loss: float) -> None:
    """Raise `TrainyardError` (`E-NON-FINITE`) for a loss that is NaN or infinite."""
    if not math.isfinite(loss):
        raise TrainyardError(
            f"The loss of step {step} is {loss}.",
            why="The weights left the range of numbers: usually the learning rate is too high for this data.",
            do="Lower hyperparameters.learning_rate, or use precision: fp32.",
            code="E-NON-FINITE",
        )


def require_finite_gradients(norm: float, step: int) -> None:
    """Raise `E-NON-FINITE` before such gradients reach the weights. With fp16 the step is skipped instead."""
    if not math.isfinite(norm):
        raise TrainyardError(
            f"The gradients of step {step} have the norm {norm}.",
            why="A row or a weight is too large for the range of numbers; the weights are as they were.",
            do="Lower hyperparameters.learning_rate, use precision: fp32, or look for broken rows.",
            code="E-NON-FINITE",
        )
