"""Rate limits of callers: a bucket of requests for each, places for those that are being answered, and a pause for
who sends wrong credentials.

A token has 256 random bits, so guessing one is hopeless at any speed, and no wrong one counts. The home's own string
may be one that an operator chose, `PREFECT_SERVER_API_AUTH_STRING`: from an address that sent ten wrong ones within a
minute only tokens are looked up, and everything else is refused without a comparison. A caller with a token is not
locked out by others.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trainyard.errors import LimitExceeded
from trainyard.serve.listening import MAX_CONNECTIONS

MAX_KNOWN = 10_000
"""Callers and addresses that are remembered; the one that was quiet for the longest is forgotten first."""
BURST_S = 2.0
"""A bucket contains the requests of so many seconds."""
HEAVY_S = 5.0
"""When to ask again for a place."""
OPEN_S = 5.0
"""When to ask again for a place among the requests that are being answered, such as streams of events."""
MOST_OF_CALLER, MOST_OF_CALLERS = MAX_CONNECTIONS // 2, 3 * MAX_CONNECTIONS // 4
MOST_OF_ADDRESS, MOST_OF_ADDRESSES = MAX_CONNECTIONS // 8, 3 * MAX_CONNECTIONS // 16
"""Requests being answered: of one caller and of all, of one address without a caller (pages) and of all such.

Together they are fewer than the connections that the server keeps, so that there is always one for who comes."""
WRONG_S = 60.0
"""Within so many seconds wrong credentials of one address are counted."""


class TooMany(LimitExceeded):
    """Too many requests; ask again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        self.retry_after_s = max(1, math.ceil(retry_after_s))
        super().__init__(message, do=f"Ask again in {self.retry_after_s} s.", code="E-RATE")


@dataclass
class CallerRates:
    """A token bucket for each caller."""

    per_s: float
    now: Callable[[], float] = time.monotonic
    buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    """Caller -> (requests left, when that was)."""

    def take(self, caller: str) -> None:
        """Count one request. Raises `TooMany` (`E-RATE`)."""
        now, most = self.now(), max(1.0, self.per_s * BURST_S)
        left, since = self.buckets.pop(caller, (most, now))
        left = min(most, left + (now - since) * self.per_s)
        self.buckets[caller] = (left - 1 if left >= 1 else left, now)
        if len(self.buckets) > MAX_KNOWN:
            self.buckets.popitem(last=False)
        if left < 1:
            raise TooMany(f"{caller} sent more than {self.per_s:g} requests a second.", (1 - left) / self.per_s)


@dataclass
class OpenRequests:
    """The requests being answered, by sender. An open stream counts as one, and so does an unread file."""

    most_of_one: int
    most_of_all: int
    open: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def reserve_slot(self, caller: str) -> Iterator[None]:
        """A place for one request until it is answered. Raises `TooMany` (`E-RATE`) if there is none."""
        if self.open[caller] >= self.most_of_one:
            raise TooMany(f"{self.most_of_one} requests and streams of {caller} are open.", OPEN_S)
        if self.open.total() >= self.most_of_all:
            raise TooMany(f"{self.most_of_all} requests and streams are open.", OPEN_S)
        self.open[caller] += 1
        try:
            yield
        finally:
            self.open[caller] -= 1
            if not self.open[caller]:
                del self.open[caller]


@dataclass
class WrongCredentials:
    """Times at which addresses sent wrong credentials."""

    most: int = 10
    now: Callable[[], float] = time.monotonic
    failures: OrderedDict[str, deque[float]] = field(default_factory=OrderedDict)

    def note(self, address: str) -> None:
        times = self.failures.pop(find_network(address), deque(maxlen=self.most))
        times.append(self.now())
        self.failures[find_network(address)] = times
        if len(self.failures) > MAX_KNOWN:
            self.failures.popitem(last=False)

    def require_patience(self, address: str) -> None:
        """Raises `TooMany` (`E-RATE`) for an address that sent too many of late."""
        times = list(self.failures.get(find_network(address), ()))
        if len(times) == self.most and (left := times[0] + WRONG_S - self.now()) > 0:
            raise TooMany(f"{self.most} wrong credentials came from this address within {WRONG_S:g} s.", left)


HEAVY: dict[int, threading.BoundedSemaphore] = {}
"""The places for heavy operations of this process, by how many there are."""


@contextmanager
def reserve_heavy_slot(most: int) -> Iterator[None]:
    """One of the places for heavy operations. Raises `TooMany` (`E-RATE`) if all are taken."""
    semaphore = HEAVY.setdefault(most, threading.BoundedSemaphore(most))
    if not semaphore.acquire(blocking=False):
        raise TooMany(f"{most} operations that take long are running for callers over a network.", HEAVY_S)
    try:
        yield
    finally:
        semaphore.release()


def find_network(address: str) -> str:
    """Return the address itself; of IPv6 the first 64 bits, of which one customer has all others."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network(f"{ip}/64", strict=False)) if ip.version == 6 else address
