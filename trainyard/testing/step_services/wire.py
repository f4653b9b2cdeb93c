"""The HTTP side of a step service's double: keys, strict bodies, faults, files.

A fault is put into `faults` under the name of a route; the next request of that route meets it.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import parse_qs, urlsplit

from trainyard.testing.loopback import LoopbackHandler, LoopbackServer, serving

Json: TypeAlias = Any
"""A JSON value."""
Schema: TypeAlias = Any
"""A type, a tuple of types, a list with the schema of its items, or a mapping of fields; `name?` may be left out."""
NUMBER = (int, float)
UNAUTHORIZED, REFUSED, GONE, CONFLICT, LIMITED, BROKEN = 401, 400, 404, 409, 429, 500


class WireFault(Enum):
    """What happens to a request."""

    LOST = "executed, and the connection breaks before the reply"
    LIMITED = "429, nothing is executed"
    BROKEN = "500, nothing is executed"


class WireRefusal(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class WireCall:
    """One request, as a route sees it."""

    parts: tuple[str, ...]
    """Groups of the route's pattern."""
    body: Json
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Route:
    """A method and a path, with the body that it takes and the function that answers it."""

    name: str
    method: str
    pattern: str
    answer: Callable[[WireCall], Json]
    fields: Schema = None


class WireDouble:
    """A step service behind a socket. `routes` is the table of a subclass."""

    keys: ClassVar[Mapping[str, str]] = {"authorization": "Bearer "}
    """Header with the key -> its prefix; one of them is enough."""

    def __init__(self, key: str) -> None:
        self.key, self.url = key, ""
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, deque[WireFault]] = defaultdict(deque)
        self.files: dict[str, Path] = {}
        """Name in a link -> file."""
        self._lock = threading.Lock()

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the wire."""
        raise NotImplementedError

    def error_body(self, status: int, message: str) -> Json:
        """Return the body of an error."""
        return {"error": {"message": message, "type": "error", "code": str(status)}}

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Answer on a free port while the block runs; the value is the URL."""
        double = self

        class WireHandler(LoopbackHandler):
            def reply(self) -> None:
                double.reply(self, self.body())

            do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = reply

        with serving(LoopbackServer(WireHandler)) as server:
            self.url = server.url
            yield server.url

    def link_to(self, path: Path) -> str:
        """Return a signed link to a file, which takes no key."""
        name = f"{len(self.files)}-{path.name}"
        self.files[name] = path
        return f"{self.url}/signed/{name}"

    def reply(self, handler: LoopbackHandler, content: bytes) -> None:
        """Answer one request."""
        target = urlsplit(handler.path)
        if target.path.startswith("/signed/"):
            is_keyless = not any(name in handler.headers for name in self.keys)
            handler.send(*((200, self.files[target.path[8:]].read_bytes()) if is_keyless else (REFUSED, "a key")))
            return
        with self._lock:
            try:
                name, answer = self._answer(handler, target.path, dict(parse_qs(target.query)), content)
                status, value, is_lost = 200, answer, self._take(name, WireFault.LOST)
            except AssertionError as error:  # of the service that computes
                status, value, is_lost = BROKEN, self.error_body(BROKEN, str(error)), False
            except WireRefusal as error:
                status, value, is_lost = error.status, self.error_body(error.status, str(error)), False
        if is_lost:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        handler.send(status, value)

    def _answer(
        self, handler: LoopbackHandler, path: str, query: Mapping[str, list[str]], content: bytes
    ) -> tuple[str, Json]:
        if not any(handler.headers.get(name) == before + self.key for name, before in self.keys.items()):
            raise WireRefusal(UNAUTHORIZED, "The API key is not valid.")
        for route in self.routes():
            matched = re.fullmatch(route.pattern, path)
            if matched is None or route.method != handler.command:
                continue
            self.calls[route.name] += 1
            if self._take(route.name, WireFault.LIMITED):
                raise WireRefusal(LIMITED, "Too many requests.")
            if self._take(route.name, WireFault.BROKEN):
                raise WireRefusal(BROKEN, "Internal error.")
            body = json.loads(content) if content else {}
            if route.fields is not None:
                require_fields(body, route.fields, "body")
            single = {name: values[-1] for name, values in query.items()}
            headers = {name.lower(): value for name, value in handler.headers.items()}
            return route.name, route.answer(WireCall(matched.groups(), body, single, headers))
        raise WireRefusal(GONE, f"There is no {handler.command} {path}.")

    def _take(self, name: str, fault: WireFault) -> bool:
        """Return whether the next fault of a route is this one, and remove it."""
        if self.faults[name] and self.faults[name][0] is fault:
            self.faults[name].popleft()
            return True
        return False


def require_fields(value: Json, schema: Schema, where: str) -> None:
    """Raise `WireRefusal` (400) for an unknown or missing field, or a value of another type."""
    if isinstance(schema, Mapping):
        if not isinstance(value, Mapping):
            raise WireRefusal(REFUSED, f"{where} is not an object.")
        names = {name.removesuffix("?"): name for name in schema}
        if unknown := sorted(set(value) - set(names)):
            raise WireRefusal(REFUSED, f"{where} has an unknown field {unknown[0]}.")
        for name, key in names.items():
            optional = key.endswith("?")
            if name in value and not (optional and value[name] is None):
                require_fields(value[name], schema[key], f"{where}.{name}")
            elif not optional:
                raise WireRefusal(REFUSED, f"{where} has no {name}.")
    elif isinstance(schema, list):
        if not isinstance(value, list):
            raise WireRefusal(REFUSED, f"{where} is not a list.")
        for number, item in enumerate(value):
            require_fields(item, schema[0], f"{where}[{number}]")
    elif not isinstance(value, schema) or (isinstance(value, bool) and schema is not bool):
        raise WireRefusal(REFUSED, f"{where} is a {type(value).__name__}.")
