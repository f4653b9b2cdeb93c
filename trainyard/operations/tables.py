"""Tables that fit a terminal: which columns wrap, which are left out, in what order.

A heading says how its column gives way, the same in every table. A text wraps at the borders of words. `WHOLE` is
copied by people: it is never wrapped or cut. `SPARE` columns are left out, in their order, where wrapping is not
enough; the last line names them. Where even that is not enough, a row becomes a block with a line for each column.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence

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
    """Width below which a column must not be: its own for what is copied, else that of its words."""
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
