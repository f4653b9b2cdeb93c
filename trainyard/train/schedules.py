"""Learning-rate schedules of an optimizer: by the curves of `spec/rates`, and by a metric. Nothing needs torch."""

from __future__ import annotations

from typing import Any

from trainyard.errors import Corrupt
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.rates import SCHEDULES
from trainyard.spec.training import TrainerConfig

PLATEAU_FACTOR, PLATEAU_PATIENCE, PLATEAU_THRESHOLD = 0.1, 10, 1e-4
"""torch's defaults: a tenth of the rate after more than 10 metrics without a relative improvement of 0.01 %."""
PLATEAU_WINDOWS = 50
"""A run has this many of those metrics: each is the mean over a fiftieth of its steps. The loss of single batches would
reach a new minimum too rarely, and its noise alone would bring the rate down."""
FIRST_OF_WARMUP = 1
"""Number of the first step in a warm-up. Checkpoints of earlier releases count from 0, and continue as they began."""


class Plateau:
    """Lowers its factor when a metric (lower is better) has stopped falling: torch's `ReduceLROnPlateau` over the mean
    of each window of steps. A window without a metric is passed over, so a metric may also come now and then."""

    def __init__(self, window: int = 1) -> None:
        self.window = window
        self.factor = 1.0
        self.best: float | None = None
        self.bad = 0
        self.total, self.count = 0.0, 0

    def step(self, steps: int, metric: float | None) -> None:
        """Step number `steps` is done, with a metric or without."""
        if metric is not None:
            self.total, self.count = self.total + metric, self.count + 1
        if self.count and steps % self.window == 0:
            self.see(self.total / self.count)
            self.total, self.count = 0.0, 0

    def see(self, metric: float) -> None:
        """Take the next value; NaN counts as no improvement."""
        if self.best is None or metric < self.best * (1.0 - PLATEAU_THRESHOLD):
            self.best, self.bad = metric, 0
        else:
            self.bad += 1
        if self.bad > PLATEAU_PATIENCE:
            self.factor *= PLATEAU_FACTOR
            self.bad = 0

    def state_dict(self) -> JsonObject:
        return {name: getattr(self, name) for name in ("factor", "best", "bad", "total", "count")}

    def load_state_dict(self, state: JsonMapping) -> None:
        self.factor, self.best, self.bad = state["factor"], state["best"], state["bad"]
        self.total, self.count = state["total"], state["count"]


class LearningRate:
    """Sets the learning rate of every group of an optimizer, each in proportion to its own peak.

    A group's peak is the `lr` it came with. It is kept in the group as `initial_lr`, as torch's schedulers do, and so
    survives a loaded optimizer state. `total_steps` is the length of the run in optimizer steps, the warm-up
    `hyperparameters.warmup_steps` or `ceil(hyperparameters.warmup_ratio * total_steps)` of them, at most all but one.
    """

    def __init__(self, optimizer: Any, config: TrainerConfig, total_steps: int) -> None:
        hyper = config.hyperparameters
        self.optimizer, self.schedule, self.total_steps = optimizer, hyper.schedule, total_steps
        self.warmup_steps = hyper.warmup(total_steps)
        self.is_warmup_explicit = hyper.warmup_steps is not None
        self.steps = 0
        self.first = FIRST_OF_WARMUP
        self.plateau = Plateau(max(1, total_steps // PLATEAU_WINDOWS))
        self._apply()

    @property
    def last(self) -> list[float]:
        """Return the rate of each group, as the next optimizer step uses it."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def step(self, metric: float | None = None) -> None:
        """One optimizer step is done; not to be called for a skipped one.

        `metric` is what `reduce_on_plateau` watches, lower being better, such as the loss of the step.
        """
        self.steps += 1
        if self.schedule is Schedule.REDUCE_ON_PLATEAU:
            self.plateau.step(self.steps, metric)
        self._apply()

    def multiplier(self) -> float:
        rises = self.schedule.facts.warms_up and self.schedule is not Schedule.ONE_CYCLE
        if not self.first and rises and self.steps < self.warmup_steps:
            return self.steps / self.warmup_steps
        return SCHEDULES[self.schedule](self.steps, self.total_steps, self.warmup_steps) * self.plateau.factor

    def state_dict(self) -> JsonObject:
        return {"steps": self.steps, "first": self.first, "plateau": self.plateau.state_dict(), **self._shape()}

    def load_state_dict(self, state: JsonMapping) -> None:
        """Continue after the step of `state`. Raises as `require_same` does."""
        self.require_same(state)
        self.steps, self.first = int(state["steps"]), int(state.get("first", 0))
        self.plateau.load_state_dict(state["plateau"])
        self._apply()

    def require_same(self, state: JsonMapping) -> None:
        """Raise `Corrupt` (`E-CHECKPOINT-MISMATCH`) for a state of another schedule, length, warm-up or peak rate,
        whose curve would jump."""
        values = dict(state)
        if "first" not in values and not self.is_warmup_explicit:  # an earlier release let the warm-up take all steps
            values["warmup_steps"] = min(values["warmup_steps"], self.total_steps - 1)
        for name, here in self._shape().items():
            if values.get(name) != here:
                raise Corrupt(
                    f"The checkpoint's learning rate has {name} {state.get(name)}, this run's has {here}.",
                    why="Continuing would make the learning rate jump to another curve.",
                    do="Continue with the config that the checkpoint was made with, or start the training again.",
                    code="E-CHECKPOINT-MISMATCH",
                )

    def _shape(self) -> JsonObject:
        """Return what decides the curve."""
        return {
            "schedule": str(self.schedule),
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "peaks": [group["initial_lr"] for group in self.optimizer.param_groups],
        }

    def _apply(self) -> None:
        # The groups are looked up each time: loading a state replaces them by other dictionaries.
        multiplier = self.multiplier()
        for group in self.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * multiplier
