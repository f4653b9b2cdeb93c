"""Building blocks of text output besides tables: curves and error messages."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.loading import load_object

HEIGHT = 16
WIDEST = 100
TICKS = 12
"""Columns that plotille writes left of the canvas."""
MARKS = ((None, "o"), ("+", "x"))
"""Marks of the losses (None: braille) and the evaluation losses of the first and the second training."""


def draw_curves(curves: Mapping[str, Sequence[Any]]) -> str:
    """Draw losses and evaluation losses by step; `curves` is name -> points."""
    canvas = load_object("plotille:Figure")()
    canvas.width, canvas.height = min(WIDEST, shutil.get_terminal_size().columns) - TICKS - 4, HEIGHT
    canvas.with_colors, canvas.x_label, canvas.y_label = sys.stdout.isatty() and len(curves) > 1, "step", "loss"
    canvas.x_ticks_fkt, canvas.y_ticks_fkt = lambda low, _: f"{low:.0f}", lambda low, _: f"{low:.4g}"
    steps = [point.step for points in curves.values() for point in points]
    canvas.set_x_limits(min_=min(steps), max_=max(*steps, min(steps) + 1))
    values: list[float] = []
    for (line, mark), (name, points) in zip(MARKS, curves.items(), strict=False):
        for field, draw, marker in (("loss", canvas.plot, line), ("eval_loss", canvas.scatter, mark)):
            pairs = [(point.step, getattr(point, field)) for point in points]
            pairs = [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]
            if pairs:
                x, y = zip(*pairs, strict=True)
                values += y
                draw(x, y, label=f"{name} {field}", marker=marker)
    if not values:
        return f"{', '.join(curves)}: no finite losses yet"
    fit_height(canvas, values)
    return str(canvas.show(legend=True))


def fit_height(canvas: Any, values: Sequence[float]) -> None:
    """Let the picture end at the lowest and the highest value; its own margin would show losses below zero."""
    low, high = min(values), max(values)
    canvas.set_y_limits(min_=low, max_=high if high > low else low + max(abs(low), 1.0))


def draw_lines(curves: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str) -> str:
    """Draw lines of (x, y) pairs in one picture; those that are not finite are left out."""
    canvas = load_object("plotille:Figure")()
    canvas.width, canvas.height = min(WIDEST, shutil.get_terminal_size().columns) - TICKS - 4, HEIGHT
    canvas.with_colors, canvas.x_label, canvas.y_label = sys.stdout.isatty(), x, y
    canvas.x_ticks_fkt, canvas.y_ticks_fkt = lambda low, _: f"{low:.0f}", lambda low, _: f"{low:.4g}"
    finite = {name: [pair for pair in pairs if math.isfinite(pair[1])] for name, pairs in curves.items()}
    if values := [value for pairs in finite.values() for _, value in pairs]:
        fit_height(canvas, values)
    for name, pairs in finite.items():
        if pairs:
            xs, ys = zip(*pairs, strict=True)
            canvas.plot(xs, ys, label=name)
            canvas.scatter(xs, ys, marker="o")
    return str(canvas.show()) if values else "nothing measured yet"


def json_text(result: Any) -> str:
    """Return a result that has no text of its own."""
    return str(result.model_dump_json(indent=2))


def print_error(error: TrainyardError, *, as_json: bool) -> None:
    """An error in words on stderr; with `--json` also as a document on stdout, so that a program always gets one."""
    if as_json:
        print(json.dumps({"error": error.as_dict()}, indent=2))
    lines = [f"{error.code}: {error.what}"]
    lines += [f"  {line}" for line in error.why.splitlines()]
    lines += [f"  Do: {error.do}"] if error.do and error.do not in error.why else []
    print("\n".join(lines), file=sys.stderr)


CODED = re.compile(r"(?P<code>[ER]-[A-Z0-9-]+): ")
OF_NODE = re.compile(r"(?P<node>\S+: )?(?P<error>[ER]-[A-Z0-9-]+: .*)")


def short_reason(message: str) -> str:
    """Return the code of an error in words, whose whole text is shown once, elsewhere; else the first line."""
    coded = CODED.match(message)
    return coded["code"] if coded else message.partition("\n")[0]


def message_text(message: str) -> str:
    """Return the message of a run with what, why and what to do of each error on lines of their own."""
    return "\n".join(line for text in message.splitlines() for line in error_lines(text))


def error_lines(text: str) -> list[str]:
    """Split an error in one line, as a state of Prefect has it; any other text stays one line."""
    error = OF_NODE.fullmatch(text)
    if error is None:
        return [text]
    problem, _, rest = text.partition(" Why: ")
    why, _, do = rest.partition(" Do: ")
    if not rest:
        problem, _, do = text.partition(" Do: ")
    return [problem, *([f"  {why}"] if why else []), *([f"  Do: {do}"] if do else [])]


def next_lines(commands: Sequence[str]) -> list[str]:
    """Return the commands that come after this one, a line each; none for none."""
    return ["next:", *(f"  {command}" for command in commands)] if commands else []
