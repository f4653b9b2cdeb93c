"""One Prefect server for all flow tests, with a database of its own."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.concurrency.services import ConcurrencySlotAcquisitionWithLeaseService
from prefect.context import _temporary_global_settings_context, get_settings_context
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_SSL_CERT_FILE,
    PREFECT_API_URL,
    PREFECT_HOME,
    temporary_settings,
)

from tests.conftest import end_loops_of_prefect
from trainyard.app.services import certificate_variables, start_server, stop
from trainyard.settings import Settings
from trainyard.stores.auth_string import read_auth

CERTIFICATE = "PREFECT_API_SSL_CERT_FILE"

os.environ.update(PREFECT_SERVER_ANALYTICS_ENABLED="false", PREFECT_LOGGING_LEVEL="WARNING")


class FlowServer:
    """A Prefect server as `trainyard up` starts it, from the first module that needs it to the last one of this room.

    Starting it takes about ten seconds, and one that runs on takes a twelfth of a core from the tests of other rooms.
    Not Prefect's own test harness: its server stands still for a minute at times (see `prefect_api/gc_thread.py`).
    """

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.url = ""

    def start(self, home: Path) -> Settings:
        if self.settings is None:
            settings = Settings(home=home, prefect_port=0)
            self.url = start_server(settings, lambda _: None).url
            self.settings = settings
        return self.settings

    def stop(self) -> None:
        if self.settings is not None:
            stop(self.settings, "server")
            self.settings = None


FLOW_SERVER = FlowServer()


@pytest.fixture(scope="session")
def flow_server() -> Iterator[FlowServer]:
    """The server, stopped at the latest before the session looks for what is left."""
    yield FLOW_SERVER
    FLOW_SERVER.stop()


@pytest.fixture(scope="module")
def prefect(flow_server: FlowServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The server of the flow tests, as the one that this process talks to."""
    server_settings = flow_server.start(tmp_path_factory.mktemp("server"))
    prefect_settings = {
        PREFECT_API_URL: flow_server.url,
        PREFECT_API_AUTH_STRING: read_auth(server_settings),
        PREFECT_HOME: server_settings.prefect_home,
        PREFECT_API_SSL_CERT_FILE: certificate_variables(server_settings, flow_server.url)[CERTIFICATE],
    }
    # The second context is for threads that a test starts: they have none of their own.
    with temporary_settings(prefect_settings), _temporary_global_settings_context(get_settings_context()):
        yield


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the server after the last flow test that this process has been given."""
    if nextitem is None or "tests/flows" not in nextitem.path.as_posix():
        FLOW_SERVER.stop()


def end_threads_of_prefect() -> None:
    """End what Prefect keeps until the process exits: it draws from the global `random` while the tests of another room
    run, and Hypothesis fails a test in which that happens. Prefect starts them again when they are needed.
    """
    for service in (APILogWorker, EventsWorker, ConcurrencySlotAcquisitionWithLeaseService):
        service.drain_all()
    end_loops_of_prefect()


@pytest.fixture(autouse=True, scope="module")
def end_prefect_in_this_process() -> Iterator[None]:
    """Prefect leaves sockets to the garbage collector; they are collected here, where that is no error."""
    yield
    end_threads_of_prefect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/flows" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
