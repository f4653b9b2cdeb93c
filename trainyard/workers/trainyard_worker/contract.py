"""Names and event lines that a supervised child and the workers below it agree on."""

from __future__ import annotations

import ctypes
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


def event_line(event: str, fields: dict[str, Any]) -> bytes:
    """One event as a line of JSON. Numbers that are not finite become null, as JSON has no name for them."""
    return orjson.dumps({"event": event, "time": time.time(), **fields}, default=str, option=orjson.OPT_APPEND_NEWLINE)


def open_events(path: Path) -> int:
    """Open the event file for appending; processes may share it, because each event is one write."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
