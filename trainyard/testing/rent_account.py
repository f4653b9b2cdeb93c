"""A customer's account at a double of a service that rents machines: its machines, its clock, its faults, its server.

A test moves the clock; machines start, vanish and end by it. `prime_server.py`, `skypilot_server.py` and
`dstack_server.py` are the services.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import RLock, Thread
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

STARTS_S = 60.0
"""Time until a machine is ready."""
Query = dict[str, list[str]]
Answer = tuple[int, Any]
"""Status and body; a status of 0 means that the connection ends without a reply."""


@dataclass
class Machine:
    """A machine, and what it has cost."""

    id: str
    name: str
    order: Any
    """What was ordered, as the service keeps it."""
    provider: str
    created: float
    price: float
    visible_from: float
    ends: float | None = None
    """When it ends automatically, or by a stop that takes its time."""
    ended: float | None = None

    def cost(self, now: float) -> float:
        return self.price * self.lived(now) / 3600

    def lived(self, now: float) -> float:
        return (now if self.ended is None else self.ended) - self.created


@dataclass
class Task:
    """What an engine runs on a machine."""

    command: str
    variables: dict[str, str]


@dataclass
class RentFaults:
    """Faults of a service; each is off by default."""

    lose_create_reply: bool = False
    """The machine is made, and the connection ends."""
    drop_create: bool = False
    """The connection ends, and no machine is made."""
    late_s: float = 0.0
    """Seconds until a machine is in lists and has a page."""
    vanish_after_s: float = 0.0
    """Age at which the provider takes a machine back."""
    price_factor: float = 1.0
    """Price of the machine over that of its offer; above 1 the service overlooks the highest price of an order."""
    no_offers: bool = False
    fail: Callable[[str, str], bool] = lambda _method, _path: False
    """Whether a request fails with 503."""


@dataclass
class RentAccount(ABC):
    """The account of one customer."""

    reads: ClassVar[frozenset[str]] = frozenset()
    """Last parts of the paths that only read."""

    key: str = "account-key"
    now: float = 1_795_000_000.0
    faults: RentFaults = field(default_factory=RentFaults)
    machines: list[Machine] = field(default_factory=list)
    stops_s: float = 0.0
    """Seconds that a machine takes to end, during which it costs money."""
    creates: int = 0
    """Orders that arrived."""
    paths: list[str] = field(default_factory=list)
    """Every request that arrived."""
    start_task: Callable[[Machine, Task], None] | None = None
    """Called with what an engine runs on a machine."""
    end_task: Callable[[Machine], None] | None = None
    lock: RLock = field(default_factory=RLock)

    @abstractmethod
    def answer(self, method: str, path: str, query: Query, body: Any) -> Answer: ...

    @abstractmethod
    def deny(self) -> Answer:
        """Return the answer to a wrong key."""

    def is_read(self, method: str, path: str) -> bool:
        """Return whether a request changes nothing."""
        return method == "GET" or path.rpartition("/")[2] in self.reads

    def running(self) -> list[Machine]:
        """Return the machines that cost money now."""
        self.end_due()
        return [machine for machine in self.machines if machine.ended is None and machine.created <= self.now]

    def visible(self) -> list[Machine]:
        return [machine for machine in self.running() if self.now >= machine.visible_from]

    def end_due(self) -> None:
        """End the machines whose time has come, by the provider or at their deadline."""
        for machine in self.machines:
            vanishes = machine.created + self.faults.vanish_after_s if self.faults.vanish_after_s else None
            ends = min((end for end in (vanishes, machine.ends) if end is not None), default=None)
            if machine.ended is None and ends is not None and self.now >= ends:
                self.end(machine, ends)

    def end(self, machine: Machine, when: float) -> None:
        machine.ended = max(when, machine.created)
        if self.end_task is not None:
            self.end_task(machine)

    def add_machine(self, name: str, order: Any, provider: str, price: float, task: Task | None = None) -> Machine:
        """Make a machine. That of an engine has a task; if it is late, it costs nothing before."""
        visible_from = self.now + self.faults.late_s
        created = self.now if task is None else visible_from
        machine = Machine(f"pod-{len(self.machines)}", name, order, provider, created, price, visible_from)
        self.machines.append(machine)
        if task is not None and self.start_task is not None:
            self.start_task(machine, task)
        return machine

    def handle(self, method: str, path: str, query: Query, body: Any, key: str) -> Answer:
        """Return the answer to a request."""
        with self.lock:
            self.paths.append(path)
            self.end_due()
            if key != f"Bearer {self.key}":
                return self.deny()
            if self.faults.fail(method, path):
                return 503, {"detail": "unavailable"}
            return self.answer(method, path, query, body)

    @property
    def reply_headers(self) -> dict[str, str]:
        """Headers of the last answer."""
        return {}

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Yield the address of the service on a free port of loopback."""
        handler = type("Handler", (AccountHandler,), {"account": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class AccountHandler(BaseHTTPRequestHandler):
    """One connection to a double."""

    account: RentAccount
    protocol_version = "HTTP/1.1"
    wbufsize = 65_536
    disable_nagle_algorithm = True

    def date_time_string(self, timestamp: float | None = None) -> str:
        return format_datetime(datetime.fromtimestamp(timestamp or self.account.now, UTC), usegmt=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def reply(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        url, key = urlsplit(self.path), self.headers.get("Authorization") or ""
        with self.account.lock:
            status, value = self.account.handle(self.command, url.path, parse_qs(url.query), body, key)
            headers = self.account.reply_headers
        if status == 0:
            self.close_connection = True
            return
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    do_GET = do_POST = do_DELETE = reply
