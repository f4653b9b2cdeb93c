"""Tables that fit a terminal: which columns wrap, which are left out, in what order.

A heading says how its column gives way, the same in every table. A text wraps at the borders of words. `WHOLE` is
copied by people: it is never wrapped or cut. `SPARE` columns are left out, in their order, where wrapping is not
enough; the last line names them. Where even that is not enough, a row becomes a block with a line for each column.

What texts for people are made of besides tables: curves, and errors in words.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.loading import load_object

GAP = 2
LEAST = 16
"""Width down to which a text wraps."""
WHOLE = frozenset((
    "id", "name", "setting", "key", "node", "run", "template", "path", "checkpoint", "trainer", "training", "backend",
    "script", "renderer", "role", "version", "from", "bucket", "metric", "benchmark", "port", "tenant", "revision",
))  # fmt: skip
SPARE = (
    "sha256", "digest", "weights", "clock", "power", "temperature", "author", "surface", "extends", "seconds", "days",
    "bytes", "loss", "primary", "op", "kind", "tenant", "mode", "imports", "adapter", "memory", "tokens", "ended",
    "stage", "message", "detail", "group", "revision", "type", "step", "invalid", "duplicates", "role", "method",
    "takes", "port", "rows", "range", "training", "stop tokens",
)  # fmt: skip


def terminal_width() -> int | None:
    """Columns of the terminal on stdout, or as COLUMNS says; None in a pipe."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def format_table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Return columns padded with spaces, which cut and grep work on; on a terminal, fitted to its width."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = natural_widths(texts, header)
    columns = terminal_width()
    if columns is not None and total_width(widths) > columns:
        return fit_table(texts, header, columns)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                     for row in [[*header], *texts])  # fmt: skip


def paragraph(text: str) -> str:
    """Return a text that a terminal shows wrapped at the borders of words; elsewhere as it is."""
    columns = terminal_width()
    return text if columns is None or cell_width(text) <= columns else draw([], [text], [columns])


def natural_widths(rows: Sequence[Sequence[str]], header: Sequence[str]) -> list[int]:
    return [max(cell_width(row[column]) for row in [header, *rows]) for column in range(len(header))]


def cell_width(text: str) -> int:
    """Columns that a text takes, of which some characters have two."""
    return len(text) if text.isascii() else int(load_object("rich.cells:cell_len")(text))


def total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def fit_table(rows: Sequence[Sequence[str]], header: Sequence[str], columns: int) -> str:
    """Wrap texts; where that is not enough leave columns out; where that is not enough, write a block for each row."""
    visible, left_out = [*range(len(header))], []
    widths = natural_widths(rows, header)
    least = [minimum_width(header[at], [row[at] for row in rows], widths[at]) for at in visible]
    for name in SPARE:
        if total_width([least[at] for at in visible]) <= columns or len(visible) == 1:
            break
        dropped = [at for at in visible[1:] if header[at] == name]
        left_out += [header[at] for at in dropped]
        visible = [at for at in visible if at not in dropped]
    if total_width([least[at] for at in visible]) > columns:
        return blocks(rows, header, columns)
    fitted = shrink([widths[at] for at in visible], [least[at] for at in visible], columns)
    text = draw([[row[at] for at in visible] for row in rows], [header[at] for at in visible], fitted)
    return f"{text}\n(left out for the width: {', '.join(left_out)})" if left_out else text


def minimum_width(name: str, cells: Sequence[str], natural: int) -> int:
    """Minimum width of a column: its full width for copied values, else that of its words."""
    if name in WHOLE or natural <= LEAST:
        return natural
    longest = max((cell_width(word) for cell in cells for word in cell.split()), default=0)
    return max(min(LEAST, longest), *map(cell_width, name.split()), 1)


def shrink(widths: list[int], least: Sequence[int], columns: int) -> list[int]:
    """Take from the widest column that may give way until all fit; the last one keeps twice as much."""
    last = len(widths) - 1
    while total_width(widths) > columns:
        wider = [at for at, width in enumerate(widths) if width > least[at]]
        widest = max(wider, key=lambda at: widths[at] / (2 if at == last else 1))
        widths[widest] -= 1
    return widths


def draw(rows: Sequence[Sequence[str]], header: Sequence[str], widths: Sequence[int]) -> str:
    """Return a table whose cells are wrapped at the borders of words."""
    console = load_object("rich.console:Console")(
        file=io.StringIO(), width=total_width(widths), highlight=False, color_system=None, force_terminal=False
    )
    grid = load_object("rich.table:Table").grid(padding=(0, GAP, 0, 0))
    for width in widths:
        grid.add_column(width=width, overflow="fold")
    plain = load_object("rich.text:Text")
    for row in [header, *rows]:
        grid.add_row(*map(plain, row))
    console.print(grid)
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip("\n").split("\n"))


def blocks(rows: Sequence[Sequence[str]], header: Sequence[str], columns: int) -> str:
    """Return a block for each row: a line for each cell that has a text, the heading before it."""
    names = max(map(cell_width, header))
    blocks = []
    for row in rows:
        lines = []
        for name, cell in zip(header, row, strict=True):
            room = max(columns - names - GAP, LEAST, cell_width(cell) if name in WHOLE else 0)
            lines += [draw([], [name, cell], [names, min(room, max(cell_width(cell), 1))])] if cell else []
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


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
