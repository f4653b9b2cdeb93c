"""The graph of another process or machine, over HTTP (`trainyard serve --role graph`).

Every write may be sent again: a document's key makes the second one a no-op, so lost answers cost nothing.

Where the knowledge graph is: an address becomes a `Graph`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import orjson

from trainyard.cancellation import CALLER_HOOKS, require_caller
from trainyard.errors import InvalidInput, TrainyardError, Unavailable, from_fields
from trainyard.settings import Settings
from trainyard.stores.graph.contract import AskedGraph, Graph
from trainyard.stores.graph.local import LadybugGraph

TIMEOUT_S, ATTEMPTS, FIRST_WAIT_S = 120.0, 4, 0.5
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
VERBS = {
    "mutate": ("POST", "results"), "has": ("POST", "documents"), "query": ("POST", "rows"), "dump": ("GET", "lines"),
    "stats": ("GET", ""),
}  # fmt: skip
"""Verb -> method, and the key of its answer; an empty key is the whole body."""
TOKEN_VARIABLE = "TRAINYARD_TOKEN"


class HttpGraph(AskedGraph):
    """A graph server at an address such as `http://127.0.0.1:9081`. `http` and `sleep` are for tests."""

    def __init__(
        self, url: str, *, http: httpx.Client | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.url, self.sleep = url.rstrip("/"), sleep
        self.http = http or httpx.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT_S, event_hooks=CALLER_HOOKS
        )

    def ask(self, verb: str, **fields: Any) -> Any:
        """Send a request up to four times. Raises the server's error, or `Unavailable` (`E-GRAPH-STORE`)."""
        method, key = VERBS[verb]
        content = orjson.dumps(fields) if method == "POST" else None
        parameters = {name: value for name, value in fields.items() if value} if content is None else None
        problem = ""
        for attempt in range(ATTEMPTS):
            require_caller()
            if attempt:
                self.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))
            try:
                reply = self.http.request(
                    method,
                    f"/v1/graph/{verb}",
                    content=content,
                    params=parameters,
                    headers={"content-type": "application/json"},
                )
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if reply.is_success:
                value = self.read(reply)
                return value[key] if key else value
            reason = refusal(reply)
            if reason is not None and reply.status_code not in TRANSIENT:
                raise reason
            problem = f"{reply.status_code}: {reason or reply.text[:200]}"
            if reply.status_code not in TRANSIENT:
                break
        raise Unavailable(
            f"The graph server at {self.url} does not answer.",
            why=problem or "It gave no reason.",
            do="Start it with `trainyard serve --role graph`, or correct its address and TRAINYARD_TOKEN.",
            code="E-GRAPH-STORE",
        )

    def read(self, reply: httpx.Response) -> Any:
        try:
            return reply.json()
        except ValueError as error:
            raise Unavailable(
                f"The server at {self.url} is not a graph server.", why="Its answer is not valid JSON.",
                do="Correct the address.", code="E-GRAPH-STORE",
            ) from error  # fmt: skip

    def close(self) -> None:
        self.http.close()


def refusal(reply: httpx.Response) -> TrainyardError | None:
    """Return the error that the server sent, if it is a Trainyard error."""
    try:
        error = reply.json()["error"]
        return from_fields(error) if error["what"] else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def check_url(address: str) -> str:
    """Return an http(s) address without a password. Raises `InvalidInput` (`E-GRAPH-QUERY`)."""
    try:
        url = httpx.URL(address)
        good = url.scheme in ("http", "https") and bool(url.host) and not url.userinfo
    except (httpx.InvalidURL, TypeError):
        good = False
    if not good:
        raise InvalidInput(
            "The address of the graph is not usable.",
            why="It is neither a folder's file:// address nor http(s)://host:port without a password.",
            do="Write it like http://127.0.0.1:9081; a token belongs into TRAINYARD_TOKEN.",
            code="E-GRAPH-QUERY",
        )
    return address


def graph_file(settings: Settings) -> Path:
    """Return the database of this home."""
    return settings.home / "graph" / "knowledge.lbug"


def open_graph(address: str, settings: Settings) -> Graph:
    """The graph at an address: empty for this home's database, `file:///path` for another file, or a server's URL.

    Nothing is started or connected before the first call. Raises `InvalidInput` (`E-GRAPH-QUERY`).
    """
    if not address:
        return LadybugGraph(graph_file(settings))
    parts = urlsplit(address)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return LadybugGraph(Path(unquote(parts.path)))
    return HttpGraph(check_url(address))
