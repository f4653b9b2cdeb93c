"""httpx's transport for many small requests to one server: a fixed set of kept-alive HTTP/1.1 connections.

A general connection pool looks through all of its connections on every request: with 96 under way that costs 6 ms of
CPU a request. Here a slot is one connection, h11 speaks HTTP over asyncio's streams, and a request leaves in one write:
0.2 ms. Redirects, proxies and the API stay httpx's.
"""

from __future__ import annotations

import asyncio
import ssl

import h11
import httpx

MOST_BODY_BYTES = 64 << 20
READ_BYTES = 65_536
CLOSE_S = 1.0


class HttpConnection:
    """One connection to one server; opened by its first request and again when the server closed it meanwhile."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext | None, *, connect_s: float, most_bytes: int
    ) -> None:
        self.host, self.port, self.context = host, port, context
        self.connect_s, self.most_bytes = connect_s, most_bytes
        self.writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Raises `ConnectTimeout` or `ConnectError`."""
        try:
            async with asyncio.timeout(self.connect_s):
                self.reader, self.writer = await asyncio.open_connection(self.host, self.port, ssl=self.context)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {self.connect_s:g} s") from error
        except OSError as error:
            raise httpx.ConnectError(str(error) or type(error).__name__) from error
        self.protocol = h11.Connection(h11.CLIENT)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    async def exchange(self, request: httpx.Request, content: bytes) -> httpx.Response:
        """Send one request and read the whole answer. After any failure the connection is closed."""
        if self.writer is not None and (self.reader.at_eof() or self.writer.is_closing()):
            self.close()
        if self.writer is None:
            await self.open()
        try:
            return await self._exchange(request, content)
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        except OSError as error:
            raise httpx.ReadError(str(error) or type(error).__name__) from error
        finally:
            # What is left of a broken or cancelled exchange would be taken for the next one's answer.
            if self.protocol.our_state is self.protocol.their_state is h11.DONE and not self.protocol.trailing_data[0]:
                self.protocol.start_next_cycle()
            else:
                self.close()

    async def _exchange(self, request: httpx.Request, content: bytes) -> httpx.Response:
        assert self.writer is not None
        protocol = self.protocol
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        parts = [protocol.send(head), protocol.send(h11.Data(data=content)), protocol.send(h11.EndOfMessage())]
        self.writer.write(b"".join(part for part in parts if part))
        await self.writer.drain()
        response, pieces, size = None, [], 0
        while True:
            event = protocol.next_event()
            if event is h11.NEED_DATA:
                data = await self.reader.read(READ_BYTES)
                if not data and protocol.their_state is h11.SEND_RESPONSE:
                    raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
                protocol.receive_data(data)
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
                size += len(event.data)
                if size > self.most_bytes:
                    raise httpx.RemoteProtocolError(f"the answer is longer than {self.most_bytes:,} bytes")
            elif isinstance(event, h11.EndOfMessage):
                break
        assert response is not None
        body = httpx.ByteStream(b"".join(pieces))
        return httpx.Response(response.status_code, headers=response.headers.raw_items(), stream=body)


class SlotTransport(httpx.AsyncBaseTransport):
    """`slots` connections to the server of `url`; the most recently used (warmest) free one is taken.

    The caller has at most `slots` requests under way.
    """

    def __init__(self, url: httpx.URL, slots: int, *, connect_s: float, most_bytes: int = MOST_BODY_BYTES) -> None:
        secure = url.scheme == "https"
        context = httpx.create_ssl_context() if secure else None
        port = url.port or (443 if secure else 80)
        self.connections = [
            HttpConnection(url.host, port, context, connect_s=connect_s, most_bytes=most_bytes) for _ in range(slots)
        ]
        self.free = list(self.connections)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        connection = self.free.pop()
        try:
            return await connection.exchange(request, await request.aread())
        finally:
            self.free.append(connection)

    async def aclose(self) -> None:
        writers = [connection.writer for connection in self.connections if connection.writer is not None]
        for connection in self.connections:
            connection.close()
        if not writers:
            return
        # A peer that never ends its side of TLS is not waited for.
        done, late = await asyncio.wait(
            [asyncio.ensure_future(each.wait_closed()) for each in writers], timeout=CLOSE_S
        )
        for task in late:
            task.cancel()
        await asyncio.gather(*done, *late, return_exceptions=True)
