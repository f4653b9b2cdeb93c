"""Names and the writer of events that a supervised child and the workers below it agree on."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

import orjson

EVENTS_FILE, ERROR_FILE, LOG_FILE, SPEC_FILE = "events.jsonl", "error.json", "child.log", "spec.json"
PR_SET_PDEATHSIG = 1
LOST = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "ProcessGroup")
"""Words of torch when a process waits for one that is gone."""


def prctl(option: int, value: int) -> None:
    """Linux `prctl(2)` with one argument; raises OSError when the kernel refuses. A no-op on other systems."""
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class EventWriter:
    """Appends events to a file, each as one write: several threads and processes may write to the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def emit(self, event: str, **fields: Any) -> None:
        """Append one line of JSON; numbers that are not finite become null, as JSON has no name for them.

        Raises `OSError`; nothing of the line is left then, so that the next line is whole.
        """
        value = {"event": event, "time": time.time(), **fields}
        line = orjson.dumps(value, default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
        written = os.write(self._descriptor, line)
        if written < len(line):
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        os.close(self._descriptor)
