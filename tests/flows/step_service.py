"""A step service for tests: our own Tinker wire over one open step session, in a home of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.answering import answering
from tests.unit.surfaces.tinker.wire import open_step_session
from trainyard.settings import load_settings, settings

METHOD = {"type": "lora", "rank": 8, "alpha": 32.0, "dropout": 0.0, "target_modules": "all-linear"}
"""What the step session trains, as a native trainer says it."""


@contextmanager
def serving_steps(home: Path, model: Path) -> Iterator[str]:
    """The address of a service whose step session for METHOD on a model is open."""
    with pytest.MonkeyPatch.context() as patch, open_step_session(load_settings(home=home, threads=1), model):
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("TRAINYARD_THREADS", "1")
        settings.cache_clear()
        with answering() as url:
            patch.undo()
            settings.cache_clear()
            yield f"{url}/tinker"
