"""The order of requests: those of a model by their `seq_id`, those of a sampler as they come, each on a thread.

A number is carried out when all before it have been. The same number with the same body returns the first future; with
another body it is refused. A number that a service before this one has run gets the reply that the step session
keeps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from trainyard.errors import Conflict, InvalidInput, LimitExceeded, TrainyardError
from trainyard.surfaces.tinker.futures import Answer, Future, Futures

LOG = logging.getLogger("trainyard.tinker")
KEPT_NUMBERS = 4096
MAX_WAITING = 1024
GAP_S = 300.0
"""How long a request waits for a number before it. The SDK sends the chunks of a step at once."""
Work = Callable[[Future], Answer]


@dataclass
class Item:
    """A request that waits."""

    future: Future
    work: Work
    since: float = field(default_factory=time.monotonic)


class WorkQueue:
    """Carries out requests one after another, on a thread that lives while there are some."""

    def __init__(self, name: str) -> None:
        self.name, self.lock = name, threading.Lock()
        self.ready: deque[Item] = deque()
        self.running = False

    def put(self, item: Item) -> None:
        with self.lock:
            self.ready.append(item)
            if not self.running:
                self.running = True
                threading.Thread(target=self.run, name=f"tinker-{self.name}"[:60], daemon=True).start()

    def run(self) -> None:
        while True:
            with self.lock:
                if not self.ready:
                    self.running = False
                    return
                item = self.ready.popleft()
            carry_out_item(item)


def carry_out_item(item: Item) -> None:
    """Finish the future of a request with its answer or its error."""
    if item.future.canceled:
        item.future.fail(InvalidInput("The request was canceled.", code="E-REQUEST-REFUSED"))
        return
    try:
        item.future.finish(item.work(item.future))
    except TrainyardError as error:
        item.future.fail(error)
    except Exception as error:  # a bug must not leave a client waiting for ever
        LOG.error("a request of the Tinker wire failed", exc_info=error)
        item.future.fail(TrainyardError(f"The service failed: {type(error).__name__}.", code="E-BUG"))


class NumberedQueue:
    """The requests of one model or sampler, by their numbers."""

    def __init__(self, name: str, next_seq: int, futures: Futures) -> None:
        self.queue, self.futures = WorkQueue(name), futures
        self.lock = threading.RLock()
        self.next_seq = next_seq
        self.waiting: dict[int, Item] = {}
        self.seen: OrderedDict[int, tuple[str, Future]] = OrderedDict()

    def submit(self, seq: int | None, digest: str, tenant: str, model_id: str, work: Work) -> Future:
        """Enter a request and return its future: a new one, or the first of the same number.

        Raises `InvalidInput` (`E-PARAMETER`) for a number that came with another body, `LimitExceeded` (`E-LIMIT`) for
        one too far ahead.
        """
        with self.lock:
            number = self.next_seq + len(self.waiting) if seq is None else seq
            if number < 1:
                raise InvalidInput(f"The number {number} is not positive.", do="Begin with 1.", code="E-PARAMETER")
            if number in self.seen:
                first_digest, future = self.seen[number]
                if first_digest != digest:
                    raise InvalidInput(
                        f"The number {number} came with another request before.",
                        do="Use the next number for a new request.", code="E-PARAMETER",
                    )  # fmt: skip
                return future
            if number >= self.next_seq and len(self.waiting) >= MAX_WAITING:
                raise LimitExceeded(
                    f"{MAX_WAITING:,} requests wait for the request {self.next_seq}.", do="Send it.", code="E-LIMIT"
                )
            future = self.futures.add(tenant, model_id)
            future.seq = seq
            self.seen[number] = (digest, future)
            if len(self.seen) > KEPT_NUMBERS:
                self.seen.popitem(last=False)
            if number < self.next_seq:
                future.only_repeat = True
                self.queue.put(Item(future, work))
                return future
            self.waiting[number] = Item(future, work)
            while self.next_seq in self.waiting:
                self.queue.put(self.waiting.pop(self.next_seq))
                self.next_seq += 1
            return future

    def fail_after_gap(self) -> None:
        """End the requests that have waited too long for a number before them; they may be sent again."""
        now = time.monotonic()
        with self.lock:
            if not self.waiting or now - min(item.since for item in self.waiting.values()) < GAP_S:
                return
            error = Conflict(
                f"The request {self.next_seq} has not come for {GAP_S:.0f} s.", do=f"Send {self.next_seq} first.",
                code="E-STEP",
            )  # fmt: skip
            for number, item in self.waiting.items():
                del self.seen[number]
                item.future.fail(error)
            self.waiting.clear()

    def abandon(self, error: TrainyardError) -> None:
        """End the requests that wait for a number that will not come."""
        with self.lock:
            for item in self.waiting.values():
                item.future.fail(error)
            self.waiting.clear()
