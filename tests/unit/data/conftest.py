"""One reading service for all tests of this folder: most of them read a set, and each start costs half a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trainyard.data.limited.service import ReadingService, keep_service


@pytest.fixture(scope="session", autouse=True)
def service() -> Iterator[ReadingService]:
    with keep_service() as reading_service:
        yield reading_service
