"""Callbacks for callers that have none: the defaults of every `at`, `report`, `on_event` and `give_up`."""

from __future__ import annotations

from collections.abc import Callable


def ignore(*_: object) -> None:
    """Ignore a report."""


def never() -> bool:
    return False


def call_now(work: Callable[[], None]) -> None:
    """Do at once what could be done later."""
    work()
