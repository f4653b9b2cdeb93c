"""A step service for tests: our own Tinker wire over one open step session, in a home of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.answering import answering
from trainyard.settings import settings

METHOD = {"type": "lora", "rank": 8, "alpha": 32.0, "dropout": 0.0, "target_modules": "all-linear"}
"""What the step session trains, as a native trainer says it."""


@contextmanager
def serving_steps(home: Path) -> Iterator[str]:
    """The address of the wire of a home; what the block runs has another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("TRAINYARD_THREADS", "1")
        settings.cache_clear()
        with answering() as url:
            patch.undo()
            settings.cache_clear()
            yield f"{url}/tinker"
