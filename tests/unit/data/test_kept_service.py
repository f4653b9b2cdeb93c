"""Who shares a reading service: what runs in the context that keeps it, and no other thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from trainyard.data.limited.service import ReadingService, kept_service, reading_service


def service_here() -> ReadingService:
    with reading_service() as found:
        return found


def test_a_kept_service_is_that_of_its_context_alone() -> None:
    before = service_here()  # which the fixture of this folder keeps
    with kept_service() as kept, ThreadPoolExecutor(1) as pool:
        assert service_here() is kept
        assert pool.submit(copy_context().run, service_here).result() is kept
        other = pool.submit(service_here).result()
        assert other is not kept
        assert other.process is None  # it ended with its block, and the kept one has not
        assert kept.process is not None
        assert kept.process.poll() is None
    assert service_here() is before
