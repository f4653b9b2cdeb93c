"""One reading service for everything in a process, for as long as somebody uses it."""

from __future__ import annotations

from contextlib import ExitStack

from trainyard.data.limited.requests import ParseItem, ParseRequest
from trainyard.data.limited.service import ReadingService, SharedReading


def test_a_service_ends_with_the_last_who_uses_it() -> None:
    shared = SharedReading()
    first, second = ReadingService(), ReadingService()
    with shared.use() as nobody:
        assert nobody is None
    with ExitStack() as one, ExitStack() as other:
        assert one.enter_context(shared.use(first)) is first
        first.start()
        assert other.enter_context(shared.use(second)) is first
        assert second.process is None
        one.close()  # as a thread does that began before another
        assert first.process is not None
        assert first.process.poll() is None
        other.close()
        assert first.process is None
    with shared.use(second) as found:
        assert found is second


def test_a_service_that_does_not_run_is_started_by_its_first_request() -> None:
    with SharedReading().use(ReadingService()) as service:
        assert service is not None
        assert service.process is None
        assert len(service.parse(ParseRequest([ParseItem(b'{"a": 1}', "json")]))) == 1
        assert service.process is not None
    assert service.process is None
