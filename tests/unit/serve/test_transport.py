"""The client's connections against raw bytes: what is reused, what is thrown away, and what never gets mixed up."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from trainyard.serve.client.transport import SlotTransport

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Raw:
    """A server that answers each request with the next of some raw texts; None closes, a float waits."""

    def __init__(self, *replies: bytes | float | None) -> None:
        self.replies = list(replies)
        self.connections = 0
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.replies:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
                )
                await reader.readexactly(length)
                reply = self.replies.pop(0)
                if isinstance(reply, float):
                    await asyncio.sleep(reply)
                elif reply is None:
                    break
                else:
                    writer.write(reply)
                    await writer.drain()
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def talking_to(
    raw: Raw, *, scheme: str = "http", slots: int = 1, most_bytes: int = 1 << 20
) -> AsyncIterator[httpx.AsyncClient]:
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    url = httpx.URL(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    transport = SlotTransport(url, slots, connect_s=5, most_bytes=most_bytes)
    async with server, httpx.AsyncClient(transport=transport, base_url=url, timeout=None, trust_env=False) as client:
        yield client


async def test_a_connection_is_reused_and_a_request_is_one_message() -> None:
    raw = Raw(OK, OK)
    async with talking_to(raw) as client:
        for _ in range(2):
            assert (await client.post("/v1/x?y=1", content=b"question")).text == "ok"
    assert raw.connections == 1
    assert raw.heads[0].startswith(b"POST /v1/x?y=1 HTTP/1.1\r\n")


async def test_chunks_compression_and_early_hints_are_understood() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    hinted = b"HTTP/1.1 100 Continue\r\n\r\n" + OK
    packed = gzip.compress(b"ok")
    zipped = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed
    async with talking_to(Raw(chunked, hinted, zipped)) as client:
        assert (await client.get("/")).text == "hello"
        assert (await client.get("/")).text == "ok"
        assert (await client.get("/")).text == "ok"


@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
    ],
    ids=["close", "http-1.0", "a second answer that nobody asked for"],
)
async def test_a_connection_that_cannot_be_trusted_is_not_reused(first: bytes) -> None:
    raw = Raw(first, OK)
    async with talking_to(raw) as client:
        assert (await client.get("/")).text == "ok"
        assert (await client.get("/")).text == "ok"
    assert raw.connections == 2


async def test_an_answer_that_came_too_late_is_not_taken_for_the_next() -> None:
    raw = Raw(0.5, OK)
    async with talking_to(raw) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.get("/slow")
        assert (await client.get("/next")).text == "ok"
    assert raw.connections == 2


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (None, r"Server disconnected without sending a response\."),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok",
            r"without sending complete message body \(received 2 bytes, expected 9\)",
        ),
        (b"SMTP ready\r\n\r\n", "illegal status line"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3000\r\n\r\n" + b"x" * 3000, "the answer is longer than 1,000 bytes"),
    ],
    ids=["nothing", "half", "another protocol", "too long"],
)
async def test_answers_that_break_the_protocol(reply: bytes | None, message: str) -> None:
    raw = Raw(reply)
    async with talking_to(raw, most_bytes=1000) as client:
        with pytest.raises(httpx.RemoteProtocolError, match=message):
            await client.get("/")


async def test_a_header_that_cannot_be_sent() -> None:
    async with talking_to(Raw(OK)) as client:
        with pytest.raises(httpx.LocalProtocolError):
            await client.get("/", headers={"x": "a\nb"})


async def test_no_tls_on_the_other_side() -> None:
    async with talking_to(Raw(), scheme="https") as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/")


async def test_nobody_listens_and_nobody_answers() -> None:
    nobody = httpx.URL("http://127.0.0.1:1")
    async with httpx.AsyncClient(
        transport=SlotTransport(nobody, 1, connect_s=5), base_url=nobody, trust_env=False
    ) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/")
    # 192.0.2.0/24 is reserved for documentation: packets to it go nowhere, or there is no route at all.
    nowhere = httpx.URL("http://192.0.2.1")
    async with httpx.AsyncClient(
        transport=SlotTransport(nowhere, 1, connect_s=0.2), base_url=nowhere, trust_env=False
    ) as client:
        with pytest.raises((httpx.ConnectTimeout, httpx.ConnectError)):
            await client.get("/")
