"""A step service for tests: our own Tinker wire over one open step session, in a home of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.answering import answering
from tests.unit.backends.session_host import HostedSession, host_session, make_record
from trainyard.settings import load_settings, settings

METHOD = {"type": "lora", "rank": 8, "alpha": 32.0, "dropout": 0.0, "target_modules": "all-linear"}
"""The method of the step session, as a native trainer names it."""


def open_step_session(home: Path, model: Path) -> AbstractContextManager[HostedSession]:
    """The step session for METHOD on a model, as the wire looks for it."""
    settings_of_service = load_settings(home=home, threads=1)
    # On a busy machine a test of the module takes longer than the two minutes after which a session ends by itself.
    return host_session(settings_of_service, make_record(model, name="tinker-r8-am", method=METHOD, idle_s=3600))


@contextmanager
def serving_steps(home: Path, model: Path) -> Iterator[str]:
    """The address of the wire of a home that may read a model; what the block runs has another home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("TRAINYARD_DATA_ROOTS", json.dumps([str(model.parent)]))
        patch.setenv("TRAINYARD_THREADS", "1")
        settings.cache_clear()
        with answering() as url:
            patch.undo()
            settings.cache_clear()
            yield f"{url}/tinker"
