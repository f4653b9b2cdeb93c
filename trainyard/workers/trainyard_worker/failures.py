"""Errors in words, as the keywords of an error {what, why, do, code}: the same here and in the supervised child."""

from __future__ import annotations

import errno
import os
import traceback
from typing import Any

from .contract import LOG_FILE, LOST

LOST_CODE = "E-RANK-LOST"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WorkerError(Exception):
    """An error that a user can read; the runner raises it as the class `kind` of `trainyard.errors`."""

    def __init__(self, what: str, *, why: str = "", do: str = "", code: str, kind: str = "TrainyardError") -> None:
        super().__init__(f"{code}: {what}")
        self.fields = {"kind": kind, "code": code, "what": what, "why": why, "do": do}


def describe_out_of_memory(text: str) -> dict[str, str]:
    """A full device; the first line of `text` says how much was requested."""
    return {
        "what": "The device ran out of memory.",
        "why": text.splitlines()[0],
        "do": "Lower batch_size or max_length, or set gradient_checkpointing: true.",
        "code": "E-DEVICE-MEMORY",
    }


def rank_lost(size: str) -> dict[str, str]:
    """Another process of a distributed training is gone."""
    return {
        "what": f"One of the {size} processes of the training is gone.",
        "why": "It was killed from outside, perhaps because the machine ran out of memory.",
        "do": "Look into the log; with less memory, use fewer processes or a smaller batch_size.",
        "code": LOST_CODE,
    }


def nonfinite_loss(step: int, loss: float) -> dict[str, str]:
    """A loss that is NaN or infinite."""
    return {
        "what": f"The loss of step {step} is {loss}.",
        "why": "The weights left the range of numbers: usually the learning rate is too high for this data.",
        "do": "Lower hyperparameters.learning_rate, or use precision: fp32.",
        "code": "E-NON-FINITE",
    }


def nonfinite_weights(name: str) -> dict[str, str]:
    """A trained tensor that contains NaN or infinity."""
    return {
        "what": f"The trained weights contain NaN or infinite values, first in {name}.",
        "why": "The training diverged; nothing of it is worth keeping.",
        "do": "Lower hyperparameters.learning_rate, or use precision: fp32.",
        "code": "E-NON-FINITE",
    }


def unchanged_weights_error(why: str) -> dict[str, str]:
    """A training after which no weight is another one."""
    return {
        "what": "The training has ended and moved no weight: its result would be what it began with.",
        "why": why,
        "do": "Look at learning_rate, precision, rewards and the rows that are learned, and train again.",
        "code": "E-UNCHANGED",
    }


def crash(error: BaseException) -> dict[str, str]:
    """An unforeseen exception; the traceback is in the log."""
    last_line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, MemoryError):
        return {
            "what": "This machine ran out of memory.",
            "why": last_line,
            "do": "Lower batch_size or max_length, or close other programs.",
            "code": "E-MEMORY",
        }
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        where = f" of {error.filename}" if error.filename else ""
        return {
            "what": f"The disk{where} is full.",
            "why": last_line,
            "do": "Free space there, then start the run again: it continues from its last checkpoint.",
            "code": "E-DISK-FULL",
        }
    return {
        "what": f"The program ended with an unforeseen error: {last_line}",
        "why": "",
        "do": f"Read the traceback in {LOG_FILE}; if the input looks right, report it.",
        "code": "E-CRASH",
    }


def describe_error(error: Exception) -> dict[str, Any]:
    """{kind, code, what, why, do} of an error of a tool: its own, a full memory, or that another process is gone."""
    text, size = str(error), os.environ.get("WORLD_SIZE", "1")
    if isinstance(error, WorkerError):
        return error.fields
    fields = crash(error)
    if "out of memory" in text.lower():
        fields = describe_out_of_memory(text)
    elif int(size) > 1 and any(word in text for word in LOST):
        fields = rank_lost(size)
    return {"kind": "TrainyardError", **fields}
