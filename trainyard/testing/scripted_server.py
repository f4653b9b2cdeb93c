"""An OpenAI-compatible server that fails on demand: the double of every model server that Trainyard talks to.

    with ScriptedServer([status(503), hang(), half_reply()], then=ok("hello")) as server:
        client = ChatClient(server.url, "scripted", …)

Each chat request takes the next behaviour of the script; when the script is used up, `then` answers. It listens on a
free loopback port (or on `port`) in a thread of its own, records what it was asked (`server.requests`), and speaks
HTTP/1.1 with keep-alive over real sockets, so that clients meet real closed connections and real silence.

`slots` and `service_s` make it a queue: so many requests are served at once, each for that long (a number, or what a
function makes of the request, such as its tokens by their rate). As a program of its own,
`python -m trainyard.testing.scripted_server --slots 64 --service-ms 50` prints its URL and serves until its standard
input closes.

Shapes: OpenAI API reference (chat completion object, error object).
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from trainyard.json_types import JsonObject

CREATED = 1_700_000_000
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


@dataclass
class Exchange:
    """A request, and the ways to answer it."""

    server: ScriptedServer
    connection: ScriptedConnection
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    number: int = -1
    """Which chat request this is, from 0; -1 for every other request."""

    def reply(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        self.connection.send(http_head(status, len(content), headers or {}) + content)

    def error(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        """OpenAI's error object."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.reply(status, {"error": {"message": message, "type": kind, "param": None, "code": None}}, headers)


Behaviour = Callable[[Exchange], Awaitable[None] | None]
"""Answers one request, at once or as a coroutine."""


def http_head(status: int, length: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


def completion(request: JsonObject, text: Any, *, finish_reason: str = "stop") -> JsonObject:
    """Return a chat completion object; tokens are counted as words."""
    prompt = sum(len(str(message.get("content", "")).split()) for message in request.get("messages", ()))
    tokens = len(str(text).split())
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": CREATED,
        "model": request.get("model", "scripted"),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish_reason,
            }
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens},
    }


def example(schema: JsonObject, number: int) -> Any:
    """A small value that meets a JSON Schema (objects, arrays, strings, numbers, enums); its strings are unique."""
    serial = iter(range(1_000_000))

    def build(part: JsonObject) -> Any:
        if "enum" in part:
            return part["enum"][0]
        match part.get("type"):
            case "object":
                return {name: build(value) for name, value in part.get("properties", {}).items()}
            case "array":
                return [build(part.get("items", {"type": "string"})) for _ in range(part.get("minItems", 1))]
            case "integer" | "number":
                return part.get("minimum", 0)
            case "boolean":
                return True
            case _:
                return f"text {number}.{next(serial)}"

    return build(schema)


def default_text(exchange: Exchange) -> str:
    """Return what a server that honours `response_format` says: an example of the schema, else one sentence."""
    response_schema = (exchange.body.get("response_format") or {}).get("json_schema")
    return (
        json.dumps(example(response_schema["schema"], exchange.number))
        if response_schema
        else f"Reply {exchange.number}."
    )


# The behaviours. Each is called with its settings and gives what one request will meet.


def ok(text: str | Callable[[Exchange], str] | None = None, *, finish_reason: str = "stop") -> Behaviour:
    """A complete answer: the text, what a function makes of the request, or an example of the schema requested."""

    def behave(exchange: Exchange) -> None:
        content = text(exchange) if callable(text) else default_text(exchange) if text is None else text
        exchange.reply(200, completion(exchange.body, content, finish_reason=finish_reason))

    return behave


def status(code: int, message: str = "scripted failure", *, retry_after: float | str | None = None) -> Behaviour:
    """Return an HTTP error with OpenAI's error object, and a Retry-After header if one is given."""
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return lambda exchange: exchange.error(code, message, headers)


def slow(seconds: float, then: Behaviour | None = None) -> Behaviour:
    """Another behaviour, `seconds` later."""

    async def behave(exchange: Exchange) -> None:
        await asyncio.sleep(seconds)
        if (waits := (then or ok())(exchange)) is not None:
            await waits

    return behave


def hang() -> Behaviour:
    """Accepts the request and never answers."""
    return slow(86_400)


def half_reply() -> Behaviour:
    """Announces a whole answer, sends half of it and closes the connection."""

    def behave(exchange: Exchange) -> None:
        content = orjson.dumps(completion(exchange.body, default_text(exchange)))
        exchange.connection.send(http_head(200, len(content), {}) + content[: len(content) // 2])
        exchange.connection.close()

    return behave


def half_json() -> Behaviour:
    """Return an HTTP reply that is whole, with a JSON body that breaks off in the middle."""

    def behave(exchange: Exchange) -> None:
        content = orjson.dumps(completion(exchange.body, default_text(exchange)))
        exchange.reply(200, content[: len(content) // 2])

    return behave


def body(value: Any) -> Behaviour:
    """Status 200 with any body: bytes as they are, anything else as JSON."""
    return lambda exchange: exchange.reply(200, value)


def garbage() -> Behaviour:
    """Status 200 with a page of HTML, as proxies send it."""
    return body(b"<html><body>Bad gateway</body></html>")


def error_body() -> Behaviour:
    """Status 200 whose body is an error object."""
    return body({"error": {"message": "the engine is gone", "type": "server_error", "param": None, "code": 500}})


def wrong_types() -> Behaviour:
    """Return a completion whose fields have other types than the API says."""
    return body({"id": 1, "object": "chat.completion", "choices": [{"message": {"content": 17}}], "usage": "none"})


def no_choices() -> Behaviour:
    return body({"id": "x", "object": "chat.completion", "choices": [], "usage": None})


def drop() -> Behaviour:
    """Closes the connection without a byte."""
    return lambda exchange: exchange.connection.close()


def die() -> Behaviour:
    """The whole server goes away: nothing listens any more and every open connection breaks."""
    return lambda exchange: exchange.server.stop_listening()


class ScriptedConnection(asyncio.Protocol):
    """A client connection: collects requests by Content-Length and hands them to the server one by one."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            first, *lines = self.buffer[:end].decode("latin-1").split("\r\n")
            pairs = (line.split(":", 1) for line in lines)
            headers = {name.strip().lower(): value.strip() for name, value in pairs}
            whole = end + 4 + int(headers.get("content-length", 0))
            if len(self.buffer) < whole:
                return
            content, self.buffer = self.buffer[end + 4 : whole], self.buffer[whole:]
            method, path, _ = first.split(" ", 2)
            parsed = orjson.loads(content) if content else {}
            self.server.take(Exchange(self.server, self, method, path, headers, parsed))

    def send(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        self.transport.close()


@dataclass
class ScriptedServer:
    """The server; a context manager that is ready when entered. `url` ends in `/v1`."""

    script: Sequence[Behaviour] = ()
    then: Behaviour = field(default_factory=ok)
    model: str = "scripted"
    api_key: str | None = None
    """If set, requests without this bearer token get 401."""
    port: int = 0
    """Where it listens; 0 becomes a free port when it is entered."""
    slots: int | None = None
    service_s: float | Callable[[Exchange], float] = 0.0
    requests: list[JsonObject] = field(default_factory=list)
    """Bodies of the chat requests in order of arrival."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Headers of every request of any kind, their names in lower case."""
    connections: set[ScriptedConnection] = field(default_factory=set)
    busy: int = field(default=0, init=False)
    most_busy: int = field(default=0, init=False)
    """The largest number of chat requests that were open at the same time."""

    def __enter__(self) -> ScriptedServer:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True, name="scripted-server")
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._free_at = [0.0] * (self.slots or 0)
        self._listener = await self._loop.create_server(
            lambda: ScriptedConnection(self), "127.0.0.1", self.port, backlog=1024
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        self.stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop_listening(self) -> None:
        """Close the port and break every connection, as a killed server does."""
        self._listener.close()
        for connection in list(self.connections):
            connection.transport.abort()

    def take(self, exchange: Exchange) -> None:
        """Answer one request; chat requests take the script's next behaviour."""
        self.headers.append(exchange.headers)
        if self.api_key is not None and exchange.headers.get("authorization") != f"Bearer {self.api_key}":
            exchange.error(401, "Incorrect API key provided.")
        elif (exchange.method, exchange.path) == ("POST", "/v1/chat/completions"):
            exchange.number = len(self.requests)
            self.requests.append(exchange.body)
            behaviour = self.script[exchange.number] if exchange.number < len(self.script) else self.then
            task = self._loop.create_task(self._serve(exchange, behaviour))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._other(exchange)

    async def _serve(self, exchange: Exchange, behaviour: Behaviour) -> None:
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            if self._free_at:
                seconds = self.service_s(exchange) if callable(self.service_s) else self.service_s
                await self._take_a_slot(seconds)
            if (waits := behaviour(exchange)) is not None:
                await waits
        finally:
            self.busy -= 1

    async def _take_a_slot(self, seconds: float) -> None:
        """Wait until the slot that is free first has served this request for so long.

        Slots follow a schedule, not timers in a row: a timer that fires late would make every later request late, and
        a server that is busier than it says would be billed to its clients.
        """
        now = self._loop.time()
        done = max(now, heapq.heappop(self._free_at)) + seconds
        heapq.heappush(self._free_at, done)
        await asyncio.sleep(done - now)

    def _other(self, exchange: Exchange) -> None:
        """Health and the list of models."""
        match exchange.method, exchange.path:
            case "GET", "/health":
                exchange.reply(200, b"")
            case "GET", "/v1/models":
                card = {"id": self.model, "object": "model", "created": CREATED, "owned_by": "trainyard"}
                exchange.reply(200, {"object": "list", "data": [{**card, "root": self.model, "parent": None}]})
            case _:
                exchange.error(404, "Not Found")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="An OpenAI-compatible server with a fixed service time.")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--service-ms", type=float, default=50)
    parser.add_argument("--text", default="Reply.")
    options = parser.parse_args(arguments)
    with ScriptedServer(then=ok(options.text), slots=options.slots, service_s=options.service_ms / 1000) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
