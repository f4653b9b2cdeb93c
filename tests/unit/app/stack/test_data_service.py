"""The data worker that `trainyard up` starts where a port is set."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from trainyard.app.services import running, stop, wait_until_healthy
from trainyard.app.stack.data_service import NAME, start_data
from trainyard.callbacks import ignore
from trainyard.compute.services import free_port
from trainyard.prefect_api.reviving import list_dead_services
from trainyard.settings import Settings, load_settings

pytestmark = pytest.mark.integration
NO_SERVER = "http://127.0.0.1:9/api"


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-operator")
    settings = load_settings(home=home, data_port=free_port(4700))
    yield settings
    stop(settings, NAME)


def test_no_port_is_no_data_worker(home: Path) -> None:
    assert start_data(load_settings(home=home), NO_SERVER, ignore) is None


def test_the_data_worker_answers_is_started_once_and_is_missed_when_it_dies(here: Settings) -> None:
    service = start_data(here, NO_SERVER, ignore)
    assert service is not None
    wait_until_healthy(service)
    assert service.url == f"http://127.0.0.1:{here.data_port}"
    assert httpx.get(f"{service.url}/api/models").status_code == 401
    assert start_data(here, NO_SERVER, ignore) == service
    process = service.process()
    assert process is not None
    assert "AWS_SECRET_ACCESS_KEY" not in process.environ(), "its storage is a folder"
    assert list_dead_services(here) == []
    os.kill(service.pid, signal.SIGKILL)
    process.wait(10)
    assert running(here, NAME) is None
    assert list_dead_services(here) == [NAME]
