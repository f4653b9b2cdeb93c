"""Divergence checks of a training: a loss that rose, numbers near their limit, overfitting.

A pure function of the steps and the evaluations, for every backend: a supervisor reads the events as they come, and the
end of a training reads its whole curve. The loss of step 1 is that of the base, because nothing has moved before it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from trainyard.json_types import JsonMapping, JsonObject

WINDOW = 10
"""Steps whose mean is compared with the loss of step 1; a shorter training is read over its last third."""
LEAST_RISE, LEAST_NATS = 0.1, 0.05
"""The mean has to be above the loss of step 1 by this share of it, and by so much."""
NOISE, NOISE_WINDOW = 4.0, 30
"""The rise is also above so many standard deviations of one step's loss, up to `MOST_NOISE` times the first loss."""
MOST_NOISE = 2.0
LIMIT = 20.0
"""A loss of so many times that of step 1 (at least 1) is near the end of the range of numbers."""
GRADIENT_JUMP, LEAST_NORMS, NORM_WINDOW = 100.0, 5, 50
"""A gradient's norm of so many times the median of the newest ones, once there are a few, or one that is not finite."""
LEAST_LOSSES, LEAST_FALL = 20, 0.01
"""Losses from which on the last third's mean has to be below the first third's by this share of it."""
OVERFIT_RISE = 0.02
"""Share of the best held-out loss by which the newest one is above it."""


class DivergenceKind(StrEnum):
    """Kind of a finding against a training."""

    LOSS_ROSE = "loss_rose"
    NEAR_LIMIT = "near_limit"
    GRADIENT_JUMP = "gradient_jump"
    OVERFITTING = "overfitting"
    NOT_LEARNED = "not_learned"


LOWER_RATE = "lower hyperparameters.learning_rate, or raise warmup_ratio"
LEARN_MORE = "raise hyperparameters.learning_rate or the epochs, or look at the rows with `trainyard data preview`"
TAKE_BEST = "take the best step by eval.load_best, end there by eval.patience, or train fewer epochs"


@dataclass(frozen=True)
class Divergence:
    """A finding, with the step at which it was seen and what to do about it."""

    kind: DivergenceKind
    step: int
    because: str
    advice: str

    @property
    def text(self) -> str:
        return f"{self.because}: {self.advice}"

    def as_dict(self) -> JsonObject:
        return asdict(self) | {"kind": self.kind.value, "text": self.text}


@dataclass
class DivergenceWatch:
    """Reads steps and evaluations in their order; each kind is reported once while it lasts."""

    takes_best: bool = False
    """Whether the result has the weights of the best step, by `eval.load_best`."""
    first: float | None = None
    window: int = WINDOW
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=NOISE_WINDOW))
    """The newest losses: a mean is over `window` of them, the noise over all."""
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)
    """(step, held-out loss, mean training loss before it)."""
    highest: tuple[int, float] | None = None
    """Step and loss that came near the limit of numbers."""
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=NORM_WINDOW))
    """The newest finite norms of gradients, before any clip."""
    jump: tuple[int, float, float] | None = None
    """Step and norm of the largest jump, with the median before it."""
    lasting: frozenset[DivergenceKind] = frozenset()

    @property
    def mean(self) -> float:
        """Return the mean of the newest losses."""
        return fmean(list(self.recent)[-self.window :])

    def on_step(
        self, step: int, loss: float | None, eval_loss: float | None = None, norm: float | None = None
    ) -> list[Divergence]:
        """Add a step; return new problems. `norm` is that of the gradient, NaN for one that is not finite."""
        if norm is not None:
            self.note_norm(step, norm)
        if loss is not None:
            self.first = loss if self.first is None else self.first
            self.recent.append(loss)
            if loss > LIMIT * max(abs(self.first), 1.0) and (self.highest is None or loss > self.highest[1]):
                self.highest = (step, loss)
        if eval_loss is not None and math.isfinite(eval_loss) and self.recent:
            self.evaluations.append((step, eval_loss, self.mean))
        judged = len(self.recent) >= self.window or eval_loss is not None or self.highest or self.jump
        findings = self.findings(step) if judged else []
        new = [finding for finding in findings if finding.kind not in self.lasting]
        self.lasting = frozenset(finding.kind for finding in findings)
        return new

    def findings(self, step: int) -> list[Divergence]:
        """Return what speaks against the training at a step."""
        findings = (self.rise(step), self.check_limit(), self.gradient_jump(), self.overfitting())
        return [finding for finding in findings if finding is not None]

    def note_norm(self, step: int, norm: float) -> None:
        """Compare a norm with the median of those before it, and keep the largest jump."""
        if len(self.norms) >= LEAST_NORMS:
            usual = median(self.norms)
            jumps = not math.isfinite(norm) or norm > GRADIENT_JUMP * usual > 0
            if jumps and (self.jump is None or not math.isfinite(norm) or norm > self.jump[1]):
                self.jump = (step, norm, usual)
        if math.isfinite(norm):
            self.norms.append(norm)

    def rise(self, step: int) -> Divergence | None:
        if self.first is None or len(self.recent) < 2:
            return None
        mean = self.mean
        if mean - self.first <= max(LEAST_RISE * abs(self.first), LEAST_NATS, estimate_noise(self.recent, self.first)):
            return None
        because = f"the loss is above that of the base: {self.first:.3f} at step 1, {mean:.3f} at step {step}"
        return Divergence(DivergenceKind.LOSS_ROSE, step, because, LOWER_RATE)

    def check_limit(self) -> Divergence | None:
        if self.highest is None:
            return None
        step, loss = self.highest
        because = f"the loss reached {loss:.3g} at step {step}, near the end of the range of numbers"
        return Divergence(DivergenceKind.NEAR_LIMIT, step, because, LOWER_RATE)

    def gradient_jump(self) -> Divergence | None:
        if self.jump is None:
            return None
        step, norm, usual = self.jump
        change = f"rose to {norm:.3g}" if math.isfinite(norm) else "is not finite"
        because = f"the norm of the gradient {change} at step {step}; the median before it is {usual:.3g}"
        return Divergence(DivergenceKind.GRADIENT_JUMP, step, because, LOWER_RATE)

    def overfitting(self) -> Divergence | None:
        """Return two evaluations or more after the best one are worse, while the training loss fell."""
        if len(self.evaluations) < 3:
            return None
        best = min(self.evaluations, key=lambda evaluation: evaluation[1])
        later = [evaluation for evaluation in self.evaluations if evaluation[0] > best[0]]
        if len(later) < 2 or min(evaluation[1] for evaluation in later[-2:]) <= best[1] + OVERFIT_RISE * abs(best[1]):
            return None
        last = later[-1]
        if last[2] >= best[2]:
            return None
        advice = "the result has the weights of that step; fewer epochs are enough" if self.takes_best else TAKE_BEST
        because = (
            f"overfitting: the held-out loss rose from {best[1]:.3f} at step {best[0]} to {last[1]:.3f} at step "
            f"{last[0]}, while the training loss fell from {best[2]:.3f} to {last[2]:.3f}"
        )
        return Divergence(DivergenceKind.OVERFITTING, last[0], because, advice)


def estimate_noise(losses: Iterable[float], first: float) -> float:
    """Return the rise that chance alone may show, from the differences between neighbouring steps."""
    values = list(losses)
    differences = [abs(after - before) for before, after in pairwise(values)]
    # The median of |a - b| of two normal values is 0.954 of their standard deviation.
    return min(NOISE * median(differences) / 0.954, MOST_NOISE * abs(first))


def judge_training(
    losses: Sequence[Sequence[Any]],
    evaluations: Sequence[JsonMapping],
    *,
    takes_best: bool = False,
    norms: Mapping[int, float] | None = None,
) -> list[Divergence]:
    """Return what speaks against a finished training.

    `losses` are [step, loss, …]; `evaluations` are {step, loss, …}; `norms` are step -> norm of the gradient.
    """
    watch = DivergenceWatch(takes_best, window=max(2, min(WINDOW, math.ceil(len(losses) / 3))))
    held_out = {
        int(evaluation["step"]): float(evaluation["loss"])
        for evaluation in evaluations
        if evaluation.get("loss") is not None
    }
    last = 0
    for last, loss, *_ in losses:
        watch.on_step(int(last), loss, held_out.get(int(last)), (norms or {}).get(int(last)))
    findings = watch.findings(int(last))
    return findings or find_no_progress([loss for _, loss, *_ in losses if loss is not None], int(last))


def find_no_progress(losses: Sequence[float], step: int) -> list[Divergence]:
    """Return a finding for a training whose loss is at its end where it was."""
    third = len(losses) // 3
    if len(losses) < LEAST_LOSSES:
        return []
    first, last = fmean(losses[:third]), fmean(losses[-third:])
    if last < first - LEAST_FALL * abs(first) or max(first, last) < LEAST_NATS:
        return []
    because = f"the loss did not fall: {first:.3f} in the first third of the steps, {last:.3f} in the last"
    return [Divergence(DivergenceKind.NOT_LEARNED, step, because, LEARN_MORE)]
