"""One reading service for everything in a block, and for the threads that work for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context

from trainyard.data.limited.requests import ParseItem, ParseRequest
from trainyard.data.limited.service import ReadingService, keep_service, reading_service


def identify_service() -> int:
    with reading_service() as service:
        return id(service)


def require_no_process() -> None:
    """As in a process without a service."""
    with keep_service() as service:
        assert service.process is None
        assert len(service.parse(ParseRequest([ParseItem(b'{"a": 1}', "json")]))) == 1
        assert service.process is not None
        with keep_service() as again, reading_service() as inner, ThreadPoolExecutor(1) as pool:
            assert again is inner is service
            assert pool.submit(copy_context().run, identify_service).result() == id(service)
            assert pool.submit(identify_service).result() != id(service)
        assert service.process is not None
    assert service.process is None


def test_one_service_reads_for_a_block_and_ends_with_it() -> None:
    Context().run(require_no_process)


def test_a_service_that_is_offered_is_the_kept_one() -> None:
    def run() -> None:
        offered = ReadingService()
        with keep_service(offered) as service:
            assert service is offered

    Context().run(run)
