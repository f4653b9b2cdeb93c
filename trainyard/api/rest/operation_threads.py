"""Threads that carry out operations for the service's loop.

After a pause of some milliseconds, a call by `asyncio.to_thread` and its return take 0.3 ms, by anyio as long, and by
these threads 0.14: a queue of the standard library's in C there, and one callback of the loop back.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

MAX_WORKING = 32
"""Operations that are carried out at a time; further ones wait."""
Result = TypeVar("Result")
Outcome = tuple[Any, BaseException | None]
"""What a call has returned, or what it has raised."""


class WaitingCall(NamedTuple):
    """One call, and who awaits it."""

    work: Callable[[], Any]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Outcome]


class OperationThreads(ThreadPoolExecutor):
    """Threads that are started when they are needed and wait for the next call, until the loop ends.

    It is the executor of its loop as well: who ends the loop calls `shutdown`.
    """

    def __init__(self, most: int = MAX_WORKING) -> None:
        super().__init__(most, "thread")
        self.most, self.calls = most, SimpleQueue[WaitingCall | None]()
        self.waiting = deque[None]()
        """One entry for each thread that waits for a call, and that no call was put in for yet."""
        self.threads = list[threading.Thread]()

    async def run(self, work: Callable[[], Result]) -> Result:
        """What `work` returns on a thread, in the context of the caller. Raises what it raises."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.calls.put(WaitingCall(work, contextvars.copy_context(), loop, future))
        try:
            self.waiting.pop()
        except IndexError:
            self.start_thread()
        result, error = await future
        try:
            if error is not None:
                raise error
            return result  # type: ignore[no-any-return]
        finally:
            del error  # its traceback refers to this frame

    def start_thread(self) -> None:
        """Start one thread more; with all of them busy, the first that is done takes the call."""
        if len(self.threads) < self.most:
            thread = threading.Thread(target=self.work, name=f"operation-{len(self.threads)}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def work(self) -> None:
        while (call := self.calls.get()) is not None:
            outcome = carry_out(call)
            self.waiting.append(None)
            hand_over(call, outcome)
            del call, outcome  # with what they refer to

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads once they are done with their calls."""
        for _ in self.threads:
            self.calls.put(None)
        if wait:
            for thread in self.threads:
                thread.join()
        super().shutdown(wait, cancel_futures=cancel_futures)


def carry_out(call: WaitingCall) -> Outcome:
    try:
        return call.context.run(call.work), None
    except BaseException as error:
        return None, error


def hand_over(call: WaitingCall, outcome: Outcome) -> None:
    """Give an outcome to the loop of its call; one that has ended awaits none."""
    try:
        call.loop.call_soon_threadsafe(set_outcome, call.future, outcome)
    except RuntimeError:
        if not call.loop.is_closed():
            raise


def set_outcome(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.cancelled():
        future.set_result(outcome)


KNOWN: WeakKeyDictionary[asyncio.AbstractEventLoop, OperationThreads] = WeakKeyDictionary()


def operation_threads() -> OperationThreads:
    """The threads of the running loop."""
    loop = asyncio.get_running_loop()
    found = KNOWN.get(loop)
    if found is None:
        found = KNOWN[loop] = OperationThreads()
        loop.set_default_executor(found)
    return found
