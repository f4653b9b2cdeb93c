"""The journal of a training at its provider, and the request to end it there, as other processes see them.

A paused or failed training has no process here, and its job at the provider may continue. The request is a file of its
work folder: the child of the next start finds it, and only the worker that starts it has the provider's key.
"""

from __future__ import annotations

from pathlib import Path

import orjson

JOURNAL_FILE = "provider.json"
CANCEL_FILE = "cancel-at-provider"


def is_open_at_provider(work: Path) -> bool:
    """Return whether the provider has a job of a training that is not known to be over, or may have one."""
    path = work / JOURNAL_FILE
    if not path.is_file():
        return False
    journal = orjson.loads(path.read_bytes())
    return bool(journal.get("creating") or ("job" in journal and not journal.get("over")))


def request_cancel(work: Path) -> None:
    """Let the next start of a training end its job at the provider."""
    (work / CANCEL_FILE).touch()


def is_cancel_requested(work: Path) -> bool:
    return (work / CANCEL_FILE).exists()


def withdraw_cancel(work: Path) -> None:
    """Let the next start of a training follow its job, or make one."""
    (work / CANCEL_FILE).unlink(missing_ok=True)
