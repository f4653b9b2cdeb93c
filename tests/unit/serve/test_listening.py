"""The socket on which our servers listen."""

from __future__ import annotations

import asyncio
import socket

import pytest

from trainyard.errors import LimitExceeded
from trainyard.serve.listening import bind


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
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(LimitExceeded, match=r"E-PORT: Port \d+ of 127.0.0.1 cannot be used"):
            bind("127.0.0.1", taken.getsockname()[1])
