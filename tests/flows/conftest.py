"""One Prefect server for all flow tests, with a database of its own."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator

import pytest
from prefect.settings import PREFECT_API_SSL_CERT_FILE, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from trainyard.api.stack import few_certificates
from trainyard.settings import Settings

CERTIFICATE = "PREFECT_API_SSL_CERT_FILE"

os.environ.update(PREFECT_SERVER_ANALYTICS_ENABLED="false", PREFECT_LOGGING_LEVEL="WARNING")


@pytest.fixture(scope="package")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary Prefect server; starting it takes about ten seconds, so it is started once."""
    few = few_certificates(Settings(home=tmp_path_factory.mktemp("certificate")), "http://127.0.0.1")
    with (
        prefect_test_harness(server_startup_timeout=120),
        temporary_settings({PREFECT_API_SSL_CERT_FILE: few[CERTIFICATE]}),
    ):
        yield


@pytest.fixture(autouse=True, scope="module")
def collect_sockets() -> Iterator[None]:
    """Prefect leaves sockets to the garbage collector; they are collected here, where that is no error."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/flows" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("prefect"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
