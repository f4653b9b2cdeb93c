"""Coordinates of the pictures of a report; the template draws them as SVG.

Long curves are thinned by the smallest and largest loss of each interval, so that a spike stays visible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 220, 54, 12, 12, 30
BUCKETS = 200
"""Intervals of steps, each drawn by two points at most."""
TICKS = 4

Points = Sequence[tuple[float, float]]


class PlottedCurve(NamedTuple):
    name: str
    points: str
    """`x,y x,y …` of an SVG polyline."""
    first: float
    last: float


class Tick(NamedTuple):
    at: float
    text: str


class LossPlot(NamedTuple):
    """Curves of a training with both axes."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    curves: tuple[PlottedCurve, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def plot_losses(curves: Mapping[str, Points]) -> LossPlot | None:
    """Return the picture of curves of (step, loss); None where no loss is finite."""
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in curves.items()}
    finite = {name: points for name, points in finite.items() if points}
    every = [point for points in finite.values() for point in points]
    if not every:
        return None
    last = max(step for step, _ in every)
    first = min(step for step, _ in every)
    low, high = min(loss for _, loss in every), max(loss for _, loss in every)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = max(low - margin, 0.0) if low >= 0 else low - margin, high + margin  # no tick below 0 without a loss

    def x(step: float) -> float:
        return LEFT + (step - first) / ((last - first) or 1) * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)

    drawn = tuple(
        PlottedCurve(
            name, " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in thin(points)), points[0][1], points[-1][1]
        )
        for name, points in finite.items()
    )
    steps = sorted({round(first + (last - first) * n / TICKS) for n in range(TICKS + 1)})
    losses = [low + (high - low) * n / TICKS for n in range(TICKS + 1)]
    return LossPlot(
        WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM, drawn,
        tuple(Tick(round(x(step), 1), f"{step:,}") for step in steps),
        tuple(Tick(round(y(loss), 1), f"{loss:.3g}") for loss in losses),
    )  # fmt: skip


def thin(points: Points) -> list[tuple[float, float]]:
    """Return the smallest and the largest loss of each interval of steps, in their order."""
    if len(points) <= 2 * BUCKETS:
        return list(points)
    size = math.ceil(len(points) / BUCKETS)
    kept = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


class IntervalBar(NamedTuple):
    """An improvement with its interval on an axis from the least to the largest of all, in percent of its width."""

    zero: float
    low: float
    width: float
    mean: float


def place_intervals(improvements: Sequence[tuple[float, float, float]]) -> list[IntervalBar]:
    """Return the place of each (mean, low, high) on one axis that contains 0."""
    reach = max((abs(value) for values in improvements for value in values), default=0.0) or 1.0

    def place(value: float) -> float:
        return round(50 + 48 * value / reach, 2)

    return [
        IntervalBar(place(0), place(low), max(0.6, round(place(high) - place(low), 2)), place(mean))
        for mean, low, high in improvements
    ]
