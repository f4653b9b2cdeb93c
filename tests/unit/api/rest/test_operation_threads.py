"""The threads of operations: what they return and raise, how many there are, and that none is left."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from functools import partial

import pytest

from trainyard.api.rest.operation_threads import OperationThreads, operation_threads

WORD: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="")


def names() -> set[str]:
    return {one.name for one in threading.enumerate() if one.name.startswith("operation-")}


def test_calls_return_on_threads_that_end_with_their_loop() -> None:
    async def several() -> list[str]:
        threads = operation_threads()
        assert operation_threads() is threads
        first = [await threads.run(lambda: threading.current_thread().name) for _ in range(3)]
        assert len(set(first)) == 1, "one after another, they take the thread that waits"
        assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
        together = threading.Barrier(4, timeout=20)

        def meet() -> str:
            together.wait()
            return threading.current_thread().name

        return await asyncio.gather(*(threads.run(meet) for _ in range(4)))

    assert len(set(asyncio.run(several()))) == 4
    assert not names()


def test_what_a_call_raises_is_raised_where_it_is_awaited() -> None:
    def fail(error: BaseException) -> None:
        raise error

    async def failing() -> int:
        threads = operation_threads()
        for error in (ValueError("no"), KeyboardInterrupt(), SystemExit(3)):
            with pytest.raises(type(error)):
                await threads.run(partial(fail, error))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(partial(fail, StopIteration()))
        return await threads.run(lambda: 5)

    assert asyncio.run(failing()) == 5, "the thread takes further calls"


def test_the_context_of_the_caller_is_that_of_the_call() -> None:
    def change() -> str:
        before = WORD.get()
        WORD.set("other")
        return before

    async def ask() -> tuple[str, str]:
        WORD.set("given")
        return await operation_threads().run(change), WORD.get()

    assert asyncio.run(ask()) == ("given", "given")


def test_further_calls_wait_for_a_thread() -> None:
    async def crowd() -> tuple[int, list[int]]:
        threads, open_, most = OperationThreads(3), [0, 0], threading.Lock()
        asyncio.get_running_loop().set_default_executor(threads)
        release = threading.Event()

        def work(number: int) -> int:
            with most:
                open_[0] += 1
                open_[1] = max(open_)
            release.wait(20)
            with most:
                open_[0] -= 1
            return number

        calls = [asyncio.create_task(threads.run(partial(work, n))) for n in range(20)]
        while open_[0] < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        release.set()
        return open_[1], await asyncio.gather(*calls)

    most, found = asyncio.run(crowd())
    assert (most, found) == (3, list(range(20)))
    assert not names()


def test_a_call_that_nobody_awaits_any_more_is_carried_out() -> None:
    done = threading.Event()

    async def give_up() -> int:
        threads, begun = operation_threads(), threading.Event()

        def work() -> None:
            begun.set()
            release.wait(20)
            done.set()

        release = threading.Event()
        call = asyncio.create_task(threads.run(work))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        release.set()
        return await threads.run(lambda: 5)

    assert asyncio.run(give_up()) == 5
    assert done.is_set()
    assert not names()
