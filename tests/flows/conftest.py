"""One Prefect server for all flow tests, with a database of its own."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator

import pytest
from prefect._internal.concurrency import threads
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

from trainyard.api.services import stop
from trainyard.api.stack import few_certificates, start_server
from trainyard.settings import Settings
from trainyard.stores.auth_string import read_auth

CERTIFICATE = "PREFECT_API_SSL_CERT_FILE"

os.environ.update(PREFECT_SERVER_ANALYTICS_ENABLED="false", PREFECT_LOGGING_LEVEL="WARNING")


@pytest.fixture(scope="package")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Prefect server as `trainyard up` starts it; starting it takes about ten seconds, so it is started once.

    Not Prefect's own test harness: its server stands still for a minute at times (see `trainyard.api.collected`).
    """
    own = Settings(home=tmp_path_factory.mktemp("server"), prefect_port=0)
    url = start_server(own, lambda _: None).url
    given = {
        PREFECT_API_URL: url,
        PREFECT_API_AUTH_STRING: read_auth(own),
        PREFECT_HOME: own.prefect_home,
        PREFECT_API_SSL_CERT_FILE: few_certificates(own, url)[CERTIFICATE],
    }
    # The second context is for threads that a test starts: they have none of their own.
    with temporary_settings(given), _temporary_global_settings_context(get_settings_context()):
        yield
    stop(own, "server")


def end_threads_of_prefect() -> None:
    """End what Prefect keeps until the process exits: it draws from the global `random` while the tests of another room
    run, and Hypothesis fails a test in which that happens. Prefect starts them again when they are needed.
    """
    for service in (APILogWorker, EventsWorker, ConcurrencySlotAcquisitionWithLeaseService):
        service.drain_all()
    for portal in list(threads._active_instances):
        portal.shutdown()
        if portal.thread.is_alive():
            portal.thread.join(10)


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
            item.add_marker(pytest.mark.xdist_group("prefect"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
