"""Futures: what a request has come to, by its id, until its client has had time to fetch it.

A future belongs to a tenant; for another one it is as if it were not there. Finished ones are forgotten, the oldest
first, above the limits: a client then gets 410 and sends its request again.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import LimitExceeded, TrainyardError

KEPT = 4096
KEPT_BYTES = 256 << 20
MAX_PENDING = 4096
"""Of one tenant."""
USER_ERRORS = frozenset({"InvalidInput", "Refused", "NotFound", "Conflict", "Denied", "LimitExceeded"})


@dataclass
class Answer:
    """A finished request: JSON, or protobuf for the replies that the SDK takes in no other form."""

    json: dict[str, Any] | None = None
    protobuf: bytes | None = None


@dataclass(eq=False)
class Future:
    """A request."""

    id: str
    tenant: str
    model_id: str | None = None
    seq: int | None = None
    """Its number among the requests of the model."""
    only_repeat: bool = False
    """Whether it was run before this service started: its reply is looked up, and no step is taken."""
    answer: Answer | None = None
    error: TrainyardError | None = None
    queue_state: str = "active"
    queue_reason: str | None = None
    canceled: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    listeners: list[Callable[[Future], None]] = field(default_factory=list)

    def finish(self, answer: Answer, error: TrainyardError | None = None) -> None:
        """End with an answer; the first one counts."""
        with self.lock:
            if self.answer is not None:
                return
            self.answer, self.error = answer, error
            listeners, self.listeners = self.listeners, []
            self.done.set()
        for listener in listeners:
            listener(self)

    def fail(self, error: TrainyardError) -> None:
        """End with an error in the SDK's form: a user's or the server's."""
        category = "user" if type(error).__name__ in USER_ERRORS else "server"
        self.finish(Answer({"error": f"{error} [{error.code}]", "category": category}), error)

    def when_done(self, listener: Callable[[Future], None]) -> None:
        """Call a listener once the request has ended, on the thread that ends it; at once if it has already."""
        with self.lock:
            if self.answer is None:
                self.listeners.append(listener)
                return
        listener(self)

    def pause(self, reason: str) -> None:
        """Say why the request does not run yet: the device is taken."""
        self.queue_state, self.queue_reason = "paused_capacity", reason

    def resume(self) -> None:
        self.queue_state, self.queue_reason = "active", None


class Futures:
    """The futures of all tenants. Safe for threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_id: OrderedDict[str, Future] = OrderedDict()

    def add(self, tenant: str, model_id: str | None = None) -> Future:
        """Return a new future. Raises `LimitExceeded` (`E-RATE`) while too many are pending."""
        future = Future(f"req-{secrets.token_hex(16)}", tenant, model_id)
        with self.lock:
            pending = sum(1 for other in self.by_id.values() if other.tenant == tenant and other.answer is None)
            if pending >= MAX_PENDING:
                raise LimitExceeded(
                    f"{MAX_PENDING:,} requests are pending.", do="Wait for some of them.", code="E-RATE"
                )
            self.by_id[future.id] = future
            self.forget()
        return future

    def find(self, tenant: str, request_id: str) -> Future | None:
        """Return a future of a tenant; None for one of another tenant, and one that is forgotten."""
        with self.lock:
            future = self.by_id.get(request_id)
            return future if future is not None and future.tenant == tenant else None

    def forget(self) -> None:
        """Drop the oldest finished futures above the limits."""
        finished = [future for future in self.by_id.values() if future.answer is not None]
        total = sum(len(future.answer.protobuf or b"") for future in finished if future.answer)
        for future in finished:
            if len(finished) <= KEPT and total <= KEPT_BYTES:
                return
            del self.by_id[future.id]
            finished = finished[1:]
            total -= len(future.answer.protobuf or b"") if future.answer else 0
