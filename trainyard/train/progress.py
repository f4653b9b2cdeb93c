"""The progress of a run, as stored in its checkpoints: its position, its losses, and its evaluations.

What follows from an evaluation is a pure function of the numbers: a run that was stopped and continued decides as one
that was not.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

from trainyard.json_types import JsonObject
from trainyard.spec.axes.stages import EvalMetric
from trainyard.spec.training import EvalSettings
from trainyard.train.checkpoint.retention import Best, list_best
from trainyard.train.contracts import Cursor
from trainyard.train.reporting.counts import Counted

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

    def ranked(self, metric: EvalMetric) -> list[int]:
        """The evaluated steps, the best one first; without those whose metric is not finite."""
        metrics = {
            int(evaluation[STEP]): evaluation[metric] for evaluation in self.found if math.isfinite(evaluation[metric])
        }
        return list_best(metrics, choose_by(metric))

    def best_step(self, metric: EvalMetric) -> int | None:
        return next(iter(self.ranked(metric)), None)

    def at(self, step: int) -> dict[str, float] | None:
        """What was measured at a step; None where nothing was."""
        return next((evaluation for evaluation in reversed(self.found) if evaluation[STEP] == step), None)

    def value_at(self, step: int, metric: EvalMetric) -> float | None:
        """The metric of a step; None where it was not measured, or is not finite."""
        evaluation = self.at(step)
        return evaluation[metric] if evaluation is not None and math.isfinite(evaluation[metric]) else None


def choose_by(metric: EvalMetric) -> Best:
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


@dataclass
class SavedProgress:
    """Part of a checkpoint."""

    cursor: Cursor = field(default_factory=Cursor)
    losses: list[list[float]] = field(default_factory=list)
    """[step, loss, learning rate] of every step."""
    partial: dict[str, float] = field(default_factory=dict)
    """Sums over the micro-batches of a step that is not complete."""
    counted: Counted = field(default_factory=Counted)
    """What the complete steps were trained on."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    """What was measured on the held-out rows."""
    kept: JsonObject = field(default_factory=dict)
    """What the next steps learn from besides the rows: completions that were drawn for several of them."""

    def as_values(self) -> JsonObject:
        plain = {"losses": list(self.losses), "partial": dict(self.partial)}
        drawn_state = {"kept": dict(self.kept)} if self.kept else {}
        evaluations = {"evaluations": asdict(self.evaluations)} if self.evaluations.found else {}
        return {"cursor": asdict(self.cursor), **plain, "counted": asdict(self.counted), **evaluations, **drawn_state}

    @classmethod
    def from_values(cls, values: JsonObject) -> SavedProgress:
        losses = [list(point) for point in values["losses"]]
        return cls(
            Cursor(**values["cursor"]),
            losses,
            dict(values["partial"]),
            Counted(**values.get("counted", {})),
            Evaluations(**values.get("evaluations", {})),
            dict(values.get("kept", {})),
        )
