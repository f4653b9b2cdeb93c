"""The socket on which our servers listen."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard.app.access.listeners import SecondServer
from trainyard.errors import LimitExceeded
from trainyard.serve import listening
from trainyard.serve.listening import bind, server_config


async def test_answers_do_not_wait_for_the_acknowledgement_of_the_client() -> None:
    undelayed: asyncio.Queue[int] = asyncio.Queue()

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        await undelayed.put(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(note, sock=bind("127.0.0.1", 0)) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await undelayed.get() == 1
        writer.close()
        await writer.wait_closed()


def test_a_taken_port_is_refused() -> None:
    with bind("127.0.0.1", 0) as busy:
        busy.listen()
        with pytest.raises(LimitExceeded, match=r"E-PORT: Port \d+ of 127.0.0.1 cannot be used"):
            bind("127.0.0.1", busy.getsockname()[1])


@asynccontextmanager
async def running_server(app: ASGIApp) -> AsyncIterator[tuple[SecondServer, tuple[str, int]]]:
    """A server of an application, and its address."""
    with bind("127.0.0.1", 0) as listener:
        server = SecondServer(server_config(app, graceful_s=1))
        running = asyncio.create_task(server.serve([listener]))
        async with asyncio.timeout(20):
            while not server.started:
                await asyncio.sleep(0.01)
        yield server, listener.getsockname()
        server.should_exit = True
        await running


async def answer_request(scope: Scope, _receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a"})


async def test_half_a_head_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEAD_S", 0.3)
    async with running_server(answer_request) as (_, address), asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 408")
        writer.close()
        await writer.wait_closed()


async def test_an_idle_connection_outlives_what_clients_keep() -> None:
    """httpx reuses a connection for up to five seconds; one that ends then resets a request that it just sent."""
    async with running_server(answer_request) as (_, address), asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address)
        for pause_s in (0.0, 5.5):
            await asyncio.sleep(pause_s)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without end waits for its reader as long as a part of it is read now and then, and no longer."""
    monkeypatch.setattr(listening, "UNREAD_S", 0.5)
    ended = asyncio.Event()

    async def endless(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while not client_left.is_set():
                await send({"type": "http.response.body", "body": b"a" * 65_536, "more_body": True})
                await asyncio.sleep(0)
        finally:
            ended.set()

    client_left = asyncio.Event()
    async with running_server(endless) as (server, address):
        _, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(20):
            while not any(connection.unread for connection in server.server_state.connections):
                await asyncio.sleep(0.05)
            while server.server_state.connections:
                await asyncio.sleep(0.05)
        client_left.set()
        await asyncio.wait_for(ended.wait(), 120)
        writer.transport.abort()


async def test_head_and_body_of_an_answer_arrive_together() -> None:
    """In one packet for one recv; what is sent later in a packet of its own, and all of it in its order."""
    go_on = asyncio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        if scope["path"] == "/parts":
            await send({"type": "http.response.body", "body": b"abcd", "more_body": True})
            await go_on.wait()
            await send({"type": "http.response.body", "body": b"efgh"})
        else:
            await send({"type": "http.response.body", "body": b"abcdefgh"})

    async with running_server(app) as (_, address), asyncio.timeout(20):
        loop = asyncio.get_running_loop()
        with socket.create_connection(address) as client:
            client.setblocking(False)
            for _ in range(3):
                await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                whole = await loop.sock_recv(client, 65_536)
                assert whole.endswith(b"\r\n\r\nabcdefgh")
            await loop.sock_sendall(client, b"GET /parts HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await loop.sock_recv(client, 65_536)).endswith(b"\r\n\r\nabcd"), "it does not wait for the rest"
            go_on.set()
            assert await loop.sock_recv(client, 65_536) == b"efgh"


async def test_a_connection_that_closes_has_sent_what_was_written() -> None:
    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [(b"connection", b"close"), (b"content-length", b"300000")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"a" * 200_000, "more_body": True})
            await send({"type": "http.response.body", "body": b"b" * 100_000})

    async with running_server(app) as (_, address), asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert body == b"a" * 200_000 + b"b" * 100_000
        writer.close()
        await writer.wait_closed()


LENGTH = 1 << 20
POST = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n".encode()


async def refuse_early(scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer without reading the body."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 500, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": b"a"})


async def test_the_rest_of_an_answered_body_may_come_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads nothing before it has sent its body gets the answer, and its connection goes on."""
    monkeypatch.setattr(listening, "REST_S", 0.4)
    async with running_server(refuse_early) as (_, address), asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(POST)
        for _ in range(8):
            await asyncio.sleep(0.15)
            writer.write(bytes(LENGTH // 8))
            await writer.drain()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).count(b"HTTP/1.1 500") == 2
        writer.close()
        await writer.wait_closed()


async def test_the_rest_of_an_answered_body_has_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "REST_S", 0.2)
    async with running_server(refuse_early) as (_, address), asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(POST + b"abc")
        assert (await reader.read()).count(b"HTTP/1.1 500") == 1
        writer.close()
        await writer.wait_closed()


async def test_the_rest_of_an_answered_body_has_a_minute_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "REST_S", 0.2)
    monkeypatch.setattr(listening, "BODY_S", 0.5)
    async with running_server(refuse_early) as (_, address), asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(POST)
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b"a")
            await asyncio.sleep(0.1)
        assert (await reading).count(b"HTTP/1.1 500") == 1
        writer.close()
