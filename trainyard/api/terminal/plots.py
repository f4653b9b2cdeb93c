"""Training curves drawn in the terminal by plotille: lines for training losses, letters for evaluation losses."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import plotille

HEIGHT = 16
WIDEST = 100
TICKS = 12
"""Columns that plotille writes left of the canvas."""
MARKS = ((None, "o"), ("+", "x"))
"""Marks of the losses (None: braille) and the evaluation losses of the first and the second training."""


def draw_curves(curves: Mapping[str, Sequence[Any]]) -> str:
    """Draw losses and evaluation losses by step; `curves` is name -> points."""
    figure = plotille.Figure()
    figure.width, figure.height = min(WIDEST, shutil.get_terminal_size().columns) - TICKS - 4, HEIGHT
    figure.with_colors, figure.x_label, figure.y_label = sys.stdout.isatty() and len(curves) > 1, "step", "loss"
    figure.x_ticks_fkt, figure.y_ticks_fkt = lambda low, _: f"{low:.0f}", lambda low, _: f"{low:.4g}"
    steps = [point.step for points in curves.values() for point in points]
    figure.set_x_limits(min_=min(steps), max_=max(*steps, min(steps) + 1))
    found = 0
    for (line, mark), (name, points) in zip(MARKS, curves.items(), strict=False):
        for field, draw, marker in (("loss", figure.plot, line), ("eval_loss", figure.scatter, mark)):
            pairs = [(point.step, getattr(point, field)) for point in points]
            pairs = [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]
            if pairs:
                found += len(pairs)
                x, y = zip(*pairs, strict=True)
                draw(x, y, label=f"{name} {field}", marker=marker)
    return str(figure.show(legend=True)) if found else f"{', '.join(curves)}: no finite losses yet"
