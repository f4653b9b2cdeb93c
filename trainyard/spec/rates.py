"""Rates over a whole run, known before it starts: `multiplier(step, total, warmup) -> float` (no torch).

`step` counts optimizer steps that are done, so that the first step of a run uses `multiplier(0, ...)`. A warm-up counts
from 1: its first step has a rate of `1 / (warmup + 1)` of the peak, and the first step after it has the peak. That is
the curve of transformers (transformers/optimization.py) without its first step, which has a rate of zero and teaches
nothing. After the warm-up the functions equal those of transformers and torch (torch.optim.lr_scheduler). A rate at
`total` is defined but never used. `constant` and `reduce_on_plateau` know no warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from trainyard.spec.axes.schedules import Schedule

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


def constant(step: int, total: int, warmup: int) -> float:
    return 1.0


def constant_with_warmup(step: int, total: int, warmup: int) -> float:
    return rising(step, warmup) if step < warmup else 1.0


def linear(step: int, total: int, warmup: int) -> float:
    return rising(step, warmup) if step < warmup else max(0.0, 1.0 - decay_progress(step, total, warmup))


def cosine(step: int, total: int, warmup: int) -> float:
    return rising(step, warmup) if step < warmup else half_wave(min(1.0, decay_progress(step, total, warmup)))


def cosine_with_restarts(step: int, total: int, warmup: int) -> float:
    """Half cosine waves that each begin at the peak (SGDR, arXiv 1608.03983)."""
    if step < warmup:
        return rising(step, warmup)
    progress = decay_progress(step, total, warmup)
    return half_wave(RESTART_CYCLES * progress % 1.0) if progress < 1.0 else 0.0


def polynomial(step: int, total: int, warmup: int) -> float:
    if step < warmup:
        return rising(step, warmup)
    return float(max(0.0, 1.0 - decay_progress(step, total, warmup)) ** POLYNOMIAL_POWER)


def warmup_stable_decay(step: int, total: int, warmup: int) -> float:
    """Return the peak until the last tenth of the run, then half a cosine wave."""
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
    """Return a cosine from 1/25 to the peak at step `warmup - 1`, and one down to 1/250000 (Smith, arXiv
    1708.07120).
    """
    first, last = 1.0 / ONE_CYCLE_START, 1.0 / (ONE_CYCLE_START * ONE_CYCLE_END)
    top = warmup - 1
    if step < top:
        return interpolate(first, 1.0, step / top)
    return interpolate(1.0, last, min(1.0, (step - top) / max(1, total - 1 - top)))


def rising(step: int, warmup: int) -> float:
    """Return the part of the peak in the warm-up, counted from 1: never zero, and the peak at step `warmup`."""
    return (step + 1) / (warmup + 1)


def decay_progress(step: int, total: int, warmup: int) -> float:
    """Fraction of the steps after the warm-up that are done."""
    return (step - warmup) / max(1, total - warmup)


def half_wave(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def interpolate(start: float, end: float, progress: float) -> float:
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


MOST_POINTS = 4096
"""Rates of a run that are looked at: all of a short run, of a long one every so many and those around its warm-up."""
LEAST_PEAK = 0.5
"""Share of the learning rate that the highest step of a run has to reach."""


def sample_rates(schedule: Schedule, total: int, warmup: int) -> Iterator[float]:
    """Yield the multipliers of a run, of a long one a sample that contains its highest."""
    stride = max(1, total // MOST_POINTS)
    corners = {step for step in (warmup - 1, warmup, warmup + 1, total - 1) if 0 <= step < total}
    for step in sorted({*range(0, total, stride), *corners}):
        yield SCHEDULES[schedule](step, total, warmup)


def highest_rate(schedule: Schedule, total: int, warmup: int) -> float:
    """Return the largest multiplier of a run; 0 for one that would learn nothing."""
    return max(sample_rates(schedule, total, warmup))
