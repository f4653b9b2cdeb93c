"""Count the lines that child processes run: an interpreter imports this file when PYTHONPATH names its folder.

`tests/conftest.py` puts the folder there when pytest measures coverage. Documents, templates, patterns and the graph
are read in children that may write no file and keep no descriptor, so coverage's own support for subprocesses sees
nothing of them. Such a child leaves its lines in memory that it shares with the process it was forked from, which adds
them to its own and writes the file. A child that is killed leaves nothing.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import resource
import sys
from pathlib import Path
from typing import NoReturn

MEASURED = ("trainyard.spec", "trainyard.stores", "trainyard.data")
BOARD_BYTES = 4 << 20
REPOSITORY = Path(__file__).parents[2]


def find_module(argv: list[str]) -> str:
    """The module that `python -m` was asked to run, or an empty string."""
    return argv[argv.index("-m") + 1] if "-m" in argv[:-1] else ""


class Board:
    """Lines of children, in memory shared with them. They write one after another."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, BOARD_BYTES)

    def add(self, lines: dict[str, list[int]]) -> None:
        merged = self.take()
        for name, numbers in lines.items():
            merged[name] = sorted({*merged.get(name, []), *numbers})
        payload = json.dumps(merged).encode()
        self.memory[: 8 + len(payload)] = len(payload).to_bytes(8, "big") + payload

    def take(self) -> dict[str, list[int]]:
        """What is written there, which is removed."""
        length = int.from_bytes(self.memory[:8], "big")
        lines: dict[str, list[int]] = json.loads(self.memory[8 : 8 + length]) if length else {}
        self.memory[:8] = bytes(8)
        return lines


def measure() -> None:
    """Start to count, and keep what was counted however the process ends."""
    import coverage
    from coverage import CoverageData

    counter = coverage.Coverage(data_file=None, source_pkgs=list(MEASURED), config_file=False, messages=False)
    board = Board()
    end = os._exit

    def keep() -> None:
        counter.stop()
        data = counter.get_data()
        board.add({name: sorted(data.lines(name) or ()) for name in data.measured_files()})
        if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 0:
            return
        coverage_data = CoverageData(
            basename=str(REPOSITORY / ".coverage"), suffix=f"child.{os.getpid()}.{os.urandom(4).hex()}"
        )
        coverage_data.add_lines(board.take())
        coverage_data.write()

    def keep_and_end(status: int) -> NoReturn:
        try:
            keep()
        finally:
            end(status)

    os._exit = keep_and_end
    atexit.register(keep)
    counter.start()


if find_module(sys.orig_argv).startswith(MEASURED):
    measure()
