"""`trainyard serve --controller … --data-workers …`: both reach every run, or are refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from trainyard.app.context import Context
from trainyard.app.services import external_api_url
from trainyard.errors import InvalidInput, Unavailable
from trainyard.operations.serving import ServeInput
from trainyard.settings import load_settings
from trainyard.surfaces.serve import apply_integrations, serve


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def controller() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Healthy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_HOME", "TRAINYARD_DATA_WORKERS"):
        monkeypatch.setenv(name, "[]")  # so that what a test sets is removed
        monkeypatch.delenv(name)


def test_controller_gets_the_runs(controller: str, home: Path) -> None:
    apply_integrations(ServeInput(controller=controller), load_settings())
    assert external_api_url(load_settings()) == f"{controller}/api"


def test_controller_that_does_not_answer_is_refused(home: Path) -> None:
    with pytest.raises(Unavailable, match="E-SERVER-UNREACHABLE"):
        apply_integrations(ServeInput(controller="http://127.0.0.1:9"), load_settings())
    assert "PREFECT_API_URL" not in os.environ


def test_data_workers_are_those_of_every_run(home: Path) -> None:
    request = ServeInput(data_workers=("http://one:8892/,http://two:8892", "http://three:8892"))
    expected = ("http://one:8892", "http://two:8892", "http://three:8892")
    assert apply_integrations(request, load_settings()).data_workers == expected
    assert load_settings().data_workers == expected
    with pytest.raises(InvalidInput, match="E-SETTINGS"):
        apply_integrations(ServeInput(data_workers=("ftp://one",)), load_settings())


def test_another_role_has_neither(home: Path) -> None:
    request = ServeInput(role="data", data_workers=("http://one:8892",))
    with pytest.raises(InvalidInput, match="--data-workers belongs to the role training, not to data"):
        serve(request, Context(load_settings()))
