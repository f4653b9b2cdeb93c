"""The graph of another process or machine, over HTTP (`trainyard serve --role graph`).

Every write may be sent again: a document's key makes the second one a no-op, so lost answers cost nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson

from trainyard.errors import InvalidInput, TrainyardError, Unavailable
from trainyard.stores.files import Files, RealFiles
from trainyard.stores.graph.contract import GraphStats
from trainyard.stores.graph.dumping import write_lines
from trainyard.stores.graph.facts import MutateResult, Mutation, checked
from trainyard.stores.graph.local import rebuilt

TIMEOUT_S, ATTEMPTS, FIRST_WAIT_S = 120.0, 4, 0.5
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
TOKEN_VARIABLE = "TRAINYARD_TOKEN"


class HttpGraph:
    """A graph server at an address such as `http://127.0.0.1:9081`. `http` and `sleep` are for tests."""

    def __init__(
        self, url: str, *, files: Files | None = None, http: httpx.Client | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.url, self.files, self.sleep = url.rstrip("/"), files or RealFiles(), sleep
        self.http = http or httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_S)

    def mutate(self, mutations: Sequence[Mutation]) -> list[MutateResult]:
        given = [checked(one) for one in mutations]
        if not given:
            return []
        return [MutateResult(**one) for one in self.ask("POST", "/v1/graph/mutate", {"mutations": given})["results"]]

    def has(self, documents: Collection[str]) -> set[str]:
        return set(self.ask("POST", "/v1/graph/has", {"documents": sorted(documents)})["documents"])

    def query(self, cypher: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        asked = {"cypher": cypher, "parameters": dict(parameters or {})}
        rows: list[dict[str, Any]] = self.ask("POST", "/v1/graph/query", asked)["rows"]
        return rows

    def stats(self, tenant: str | None = None) -> GraphStats:
        return GraphStats(**self.ask("GET", "/v1/graph/stats", tenant=tenant))

    def dump(self, tenant: str | None = None) -> Iterator[str]:
        return iter(self.ask("GET", "/v1/graph/dump", tenant=tenant)["lines"])

    def export(self, path: Path, tenant: str | None = None) -> int:
        return write_lines(path, self.dump(tenant), self.files)

    def ask(self, method: str, path: str, body: Any = None, *, tenant: str | None = None) -> Any:
        """One request, sent up to four times. Raises what the server raised, or `Unavailable` (`E-GRAPH-STORE`)."""
        problem, parameters = "", {"tenant": tenant} if tenant else None
        content = orjson.dumps(body) if body is not None else None
        for attempt in range(ATTEMPTS):
            if attempt:
                self.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))
            try:
                reply = self.http.request(
                    method, path, content=content, params=parameters, headers={"content-type": "application/json"}
                )
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if reply.is_success:
                return self.read(reply)
            said = refusal(reply)
            if said is not None and reply.status_code not in TRANSIENT:
                raise said
            problem = f"{reply.status_code}: {said or reply.text[:200]}"
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

    def __enter__(self) -> HttpGraph:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


def refusal(reply: httpx.Response) -> TrainyardError | None:
    """Return the error that the server sent, if it is a Trainyard error."""
    try:
        error = reply.json()["error"]
        return rebuilt(error)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def check_url(address: str) -> str:
    """An http(s) address without a password. Raises `InvalidInput` (`E-GRAPH-QUERY`)."""
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
