"""Logs of long-lived processes: a new start begins a new file, and the files of the starts before it are kept."""

from __future__ import annotations

from pathlib import Path

KEPT_LOGS = 5


def rotate_log(log: Path, keep: int = KEPT_LOGS) -> None:
    """Make room for a new log: `name.log` becomes `name.log.1`, that `.2`, …; the oldest goes. Empty ones do not count.

    What a process that crashed has written last is read after the next `up`, too.
    """
    if not log.is_file() or log.stat().st_size == 0:
        return
    names = [log, *(log.with_name(f"{log.name}.{number}") for number in range(1, keep + 1))]
    for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
        if newer.is_file():
            newer.replace(older)
