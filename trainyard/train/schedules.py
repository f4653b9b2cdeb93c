"""How the learning rate moves: ten schedules, nine of them pure functions `multiplier(step, total, warmup) -> float`.

`step` counts optimizer steps that are done, so that the first step of a run uses `multiplier(0, ...)`. That is the
convention of transformers and torch, whose schedulers these functions equal (transformers/optimization.py;
torch.optim.lr_scheduler): a warm-up starts at zero, and a rate at `total` is defined but never used. `constant` and
`reduce_on_plateau` know no warm-up. Nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trainyard.errors import Corrupt
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.training import TrainerConfig

Multiplier = Callable[[int, int, int], float]
"""(steps done, steps of the run, steps of the warm-up) -> factor of the peak learning rate."""

RESTART_CYCLES = 2
"""Cosine waves of `cosine_with_restarts`. The default of transformers, 1, never restarts."""
POLYNOMIAL_POWER = 2.0
"""Exponent of `polynomial`. The default of transformers, 1, is `linear`."""
STABLE_DECAY = 10
"""`wsd` decays over the last tenth of the run (MiniCPM, arXiv 2404.06395, section 4)."""
INVERSE_SQRT_TIMESCALE = 10_000
"""Timescale of `inverse_sqrt` without a warm-up, as in transformers."""
ONE_CYCLE_START, ONE_CYCLE_END = 25.0, 1e4
"""torch's `div_factor` (peak over first rate) and `final_div_factor` (first over last rate)."""
PLATEAU_FACTOR, PLATEAU_PATIENCE, PLATEAU_THRESHOLD = 0.1, 10, 1e-4
"""torch's defaults: a tenth of the rate after more than 10 metrics without a relative improvement of 0.01 %."""
PLATEAU_WINDOWS = 50
"""A run has this many of those metrics: each is the mean over a fiftieth of its steps. The loss of single batches would
reach a new minimum too rarely, and its noise alone would bring the rate down."""


def constant(step: int, total: int, warmup: int) -> float:
    return 1.0


def constant_with_warmup(step: int, total: int, warmup: int) -> float:
    return rising(step, warmup) if step < warmup else 1.0


def linear(step: int, total: int, warmup: int) -> float:
    return rising(step, warmup) if step < warmup else max(0.0, 1.0 - passed(step, total, warmup))


def cosine(step: int, total: int, warmup: int) -> float:
    return rising(step, warmup) if step < warmup else half_wave(min(1.0, passed(step, total, warmup)))


def cosine_with_restarts(step: int, total: int, warmup: int) -> float:
    """Half cosine waves that each begin at the peak (SGDR, arXiv 1608.03983)."""
    if step < warmup:
        return rising(step, warmup)
    progress = passed(step, total, warmup)
    return half_wave(RESTART_CYCLES * progress % 1.0) if progress < 1.0 else 0.0


def polynomial(step: int, total: int, warmup: int) -> float:
    if step < warmup:
        return rising(step, warmup)
    return max(0.0, 1.0 - passed(step, total, warmup)) ** POLYNOMIAL_POWER


def warmup_stable_decay(step: int, total: int, warmup: int) -> float:
    """The peak until the last tenth of the run, then half a cosine wave."""
    if step < warmup:
        return rising(step, warmup)
    decay = max(1, total // STABLE_DECAY)
    return half_wave(min(1.0, max(0.0, (step - (total - decay)) / decay)))


def inverse_sqrt(step: int, total: int, warmup: int) -> float:
    """1 / sqrt(step / timescale), the timescale being the warm-up (Vaswani et al., arXiv 1706.03762, section 5.3)."""
    if step < warmup:
        return rising(step, warmup)
    timescale = warmup or INVERSE_SQRT_TIMESCALE
    return 1.0 / math.sqrt((step - warmup + timescale) / timescale)


def one_cycle(step: int, total: int, warmup: int) -> float:
    """A cosine from 1/25 to the peak at step `warmup - 1`, and one down to 1/250000 (Smith, arXiv 1708.07120)."""
    first, last = 1.0 / ONE_CYCLE_START, 1.0 / (ONE_CYCLE_START * ONE_CYCLE_END)
    top = warmup - 1
    if step < top:
        return between(first, 1.0, step / top)
    return between(1.0, last, min(1.0, (step - top) / max(1, total - 1 - top)))


def rising(step: int, warmup: int) -> float:
    return step / max(1, warmup)


def passed(step: int, total: int, warmup: int) -> float:
    """Fraction of the steps after the warm-up that are done."""
    return (step - warmup) / max(1, total - warmup)


def half_wave(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def between(start: float, end: float, progress: float) -> float:
    return end + (start - end) * half_wave(progress)


SCHEDULES: dict[Schedule, Multiplier] = {
    Schedule.LINEAR: linear,
    Schedule.COSINE: cosine,
    Schedule.CONSTANT: constant,
    Schedule.CONSTANT_WITH_WARMUP: constant_with_warmup,
    Schedule.COSINE_WITH_RESTARTS: cosine_with_restarts,
    Schedule.POLYNOMIAL: polynomial,
    Schedule.REDUCE_ON_PLATEAU: constant,  # times the factor that `Plateau` has come to
    Schedule.WSD: warmup_stable_decay,
    Schedule.INVERSE_SQRT: inverse_sqrt,
    Schedule.ONE_CYCLE: one_cycle,
}


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

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("factor", "best", "bad", "total", "count")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.factor, self.best, self.bad = state["factor"], state["best"], state["bad"]
        self.total, self.count = state["total"], state["count"]


class LearningRate:
    """Sets the learning rate of every group of an optimizer, each in proportion to its own peak.

    A group's peak is the `lr` it came with. It is kept in the group as `initial_lr`, as torch's schedulers do, and so
    survives a loaded optimizer state. `total_steps` is the length of the run in optimizer steps, the warm-up
    `hyperparameters.warmup_steps` or `ceil(hyperparameters.warmup_ratio * total_steps)` of them.
    """

    def __init__(self, optimizer: Any, config: TrainerConfig, total_steps: int) -> None:
        hyper = config.hyperparameters
        self.optimizer, self.schedule, self.total_steps = optimizer, hyper.schedule, total_steps
        self.warmup_steps = hyper.warmup(total_steps)
        self.steps = 0
        self.plateau = Plateau(max(1, total_steps // PLATEAU_WINDOWS))
        self._apply()

    @property
    def last(self) -> list[float]:
        """The rate of each group, as the next optimizer step uses it."""
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
        return SCHEDULES[self.schedule](self.steps, self.total_steps, self.warmup_steps) * self.plateau.factor

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "plateau": self.plateau.state_dict(), **self._shape()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the step of `state`. Raises as `require_same` does."""
        self.require_same(state)
        self.steps = int(state["steps"])
        self.plateau.load_state_dict(state["plateau"])
        self._apply()

    def require_same(self, state: Mapping[str, Any]) -> None:
        """Raise `Corrupt` (`E-CHECKPOINT-MISMATCH`) for a state of another schedule, length, warm-up or peak rate,
        whose curve would jump."""
        for name, here in self._shape().items():
            if state.get(name) != here:
                raise Corrupt(
                    f"The checkpoint's learning rate has {name} {state.get(name)}, this run's has {here}.",
                    why="Continuing would make the learning rate jump to another curve.",
                    do="Continue with the config that the checkpoint was made with, or start the training again.",
                    code="E-CHECKPOINT-MISMATCH",
                )

    def _shape(self) -> dict[str, Any]:
        """What decides the curve."""
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
