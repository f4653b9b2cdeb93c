"""Asynchronous successive halving: which trial continues, and to which step.

Li et al. 2018, "A System for Massively Parallel Hyperparameter Tuning" (ASHA), arXiv:1810.05934, algorithm 2. A trial
stops at a rung, and the best `1/reduction` of those that are there are promoted: nothing waits for a rung to be full.

Optuna's pruners decide the same, but a trial that they stop has ended for good. A trial here is only paused: its
training saved a checkpoint, and a promotion resumes it at the next step, bit for bit as if it had not stopped. So the
scheduler is ours, and Optuna chooses the values (`sampling.py`) and keeps the study (`study.py`).

With n trials, reduction 3 and rungs at 1/9 and 1/3 of R steps, n·R/9 + n/3·2R/9 + n/9·2R/3 steps are trained: about a
quarter of n·R. Promotions that later trials make look premature add to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from trainyard.sweeps.spec import Scalar


class TrialState(StrEnum):
    """State of one trial. A *stopped* one has not been promoted when the sweep ended."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    REFUSED = "refused"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self not in (TrialState.RUNNING, TrialState.PAUSED)


class Trial(BaseModel):
    """A set of values and the result of its training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    params: dict[str, Scalar]
    state: TrialState
    found: dict[int, float] = {}
    """Step at which it was compared -> metric."""
    value: float | None = None
    """Metric of the finished training."""
    target: int | None = None
    """Step to which it trains now; None: to its end."""
    steps: int = 0
    """Steps that its training has taken."""
    code: str = ""
    message: str = ""

    def at(self, step: int) -> float | None:
        """Return the metric at a rung; of a training that ended before it, its last one."""
        return self.found.get(step, self.value)


def rank_trials(trials: Iterable[Trial], step: int, *, highest: bool) -> list[Trial]:
    """Return the trials that have a metric at that step, the best first; of two equal ones the earlier."""
    pairs = [(value, trial) for trial in trials if (value := trial.at(step)) is not None]
    return [trial for _, trial in sorted(pairs, key=lambda pair: (-pair[0] if highest else pair[0], pair[1].number))]


def find_promotion(
    trials: Sequence[Trial], levels: Sequence[int], reduction: int, *, highest: bool
) -> tuple[Trial, int] | None:
    """Return the paused trial that continues, and to which step; None if none has earned it yet.

    `levels` are the steps of the rungs and of the end, ascending. The highest rung is looked at first, as in the paper.
    """
    for rung, above in reversed(list(pairwise(levels))):
        best = rank_trials(trials, rung, highest=highest)
        for trial in best[: len(best) // reduction]:
            if trial.state is TrialState.PAUSED and trial.target == rung:
                return trial, above
    return None


def find_best(trials: Iterable[Trial], *, highest: bool) -> Trial | None:
    """Return the finished trial with the best metric."""
    completed = [trial for trial in trials if trial.state is TrialState.COMPLETED and trial.value is not None]
    return min(
        completed,
        key=lambda trial: (-(trial.value or 0.0) if highest else trial.value or 0.0, trial.number),
        default=None,
    )
