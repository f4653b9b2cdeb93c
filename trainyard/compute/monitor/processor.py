"""Processor share of a process, next to the other programs that wanted it (Linux)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

LEAST_SHARE = 0.05
"""A smaller share of the processor is not believed."""


class ProcessorTime(NamedTuple):
    """Nanoseconds that the threads of a process computed, and that they waited for a processor."""

    run: int
    wait: int

    def share_since(self, before: ProcessorTime) -> float:
        """Return the computing share of the time since an earlier reading."""
        run, wait = self.run - before.run, self.wait - before.wait
        return max(LEAST_SHARE, run / (run + wait)) if run > 0 and wait >= 0 else 1.0


def read_processor_time(pid: int, proc: Path = Path("/proc")) -> ProcessorTime | None:
    """Return the kernel's counters for the threads of a process; None where it does not, or the process has ended."""
    run = wait = 0
    try:
        for path in (proc / str(pid) / "task").iterdir() if pid else ():
            fields = (path / "schedstat").read_text(encoding="ascii").split()
            run, wait = run + int(fields[0]), wait + int(fields[1])
    except (OSError, ValueError, IndexError):
        return None
    return ProcessorTime(run, wait) if run else None
