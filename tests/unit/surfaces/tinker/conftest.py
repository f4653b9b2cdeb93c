"""A service whose Tinker wire finds an open step session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answering import answering
from tests.unit.surfaces.tinker.wire import WireClient, open_step_session
from trainyard.settings import load_settings, settings


@pytest.fixture(scope="module")
def step_session(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Path]:
    """The home of an open step session."""
    home = tmp_path_factory.mktemp("tinker")
    with open_step_session(load_settings(home=home, threads=1), tiny_model):
        yield home


@pytest.fixture
def wire_home(step_session: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same home as that of the services that a test starts."""
    monkeypatch.setenv("TRAINYARD_HOME", str(step_session))
    monkeypatch.setenv("TRAINYARD_THREADS", "1")
    monkeypatch.setenv("TRAINYARD_DEFAULT_BASE_MODEL", str(tiny_model))
    settings.cache_clear()
    yield step_session
    settings.cache_clear()


@pytest.fixture
def service(wire_home: Path) -> Iterator[str]:
    with answering() as url:
        yield url


@pytest.fixture
def client(service: str, tiny_model: Path) -> Iterator[WireClient]:
    client = WireClient(service, tiny_model)
    yield client
    client.http.close()
