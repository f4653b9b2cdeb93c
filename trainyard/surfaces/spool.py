"""Bodies of requests as they arrive: in memory while they are small, then in a file without a name.

A body of 256 MiB is read before anything is done with it, so what it takes meanwhile is a file: memory is for those
that are worked on, a few at a time.
"""

from __future__ import annotations

import asyncio
import ctypes
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self
from weakref import WeakKeyDictionary, WeakSet

import anyio.to_thread
from starlette.requests import ClientDisconnect, Request

from trainyard.app.access.limits import OpenRequests
from trainyard.errors import InvalidInput, LimitExceeded

SPOOL_BYTES = 1 << 20
"""A longer body becomes a file, which is written in pieces of this size."""
INLINE_BYTES = 16 << 10
"""A shorter body is decoded in the event loop: a thread takes longer to wake up."""
LARGE_BYTES = 8 << 20
SPOOLED = OpenRequests(8, 16)
"""Places for bodies over `LARGE_BYTES`, for one caller and for all: 4 GiB of disk at most."""
UPLOADING = OpenRequests(2, 4)
"""The same for files that are uploaded, each with up to `upload_mb` MiB."""
MOST_DECODED, MOST_TENSORS = 1, 4
"""Bodies that are decoded at a time, and those of tensors that are in memory."""
Places = dict[bool, asyncio.Semaphore]
TRIM_S = 2.0
TRIMMING: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
PLACES: WeakKeyDictionary[asyncio.AbstractEventLoop, Places] = WeakKeyDictionary()


class Body:
    """The bytes of a body. A context manager: its file is gone at the end."""

    def __init__(self, folder: Path | None = None) -> None:
        """Large bodies are written below `folder`, by default into the system's folder of temporary files."""
        self.folder, self.memory, self.size = folder, bytearray(), 0
        self.file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.memory = bytearray()
        if self.file is not None:
            self.file.close()
            trim_later()

    def spill(self) -> None:
        """Move the bytes in memory to the file."""
        if self.file is None:
            self.file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - closed with this body
        self.file.write(self.memory)
        self.memory = bytearray()

    def open(self) -> BinaryIO:
        """Return the file with the body, at its beginning; it is closed with the body."""
        self.spill()
        assert self.file is not None, "spilled"
        self.file.seek(0)
        return self.file

    def read(self) -> bytes:
        """Return all of it."""
        if self.file is None:
            return bytes(self.memory)
        self.spill()
        self.file.seek(0)
        return self.file.read()


@asynccontextmanager
async def receive_body(
    request: Request, most_bytes: int, caller: str = "", folder: Path | None = None, slots: OpenRequests = SPOOLED
) -> AsyncIterator[Body]:
    """Receive a whole body; a large one takes one of the places.

    Raises `LimitExceeded` (`E-BODY-LENGTH`, `E-RATE`), and `InvalidInput` (`E-JSON`) for a client that left.
    """
    length = request.headers.get("content-length", "")
    expected = int(length) if length.isdecimal() else most_bytes
    if length and expected > most_bytes:
        raise body_too_long(most_bytes)
    is_large = min(expected, most_bytes) > LARGE_BYTES
    with slots.reserve_slot(caller) if is_large else nullcontext(), Body(folder) as body:
        try:
            async for part in request.stream():
                body.memory += part
                body.size += len(part)
                if body.size > most_bytes:
                    raise body_too_long(most_bytes)
                if len(body.memory) >= SPOOL_BYTES:
                    await anyio.to_thread.run_sync(body.spill)
        except ClientDisconnect as error:
            raise InvalidInput("The connection ended before the body did.", code="E-JSON") from error
        yield body


def trim_later() -> None:
    """Give what large bodies took back to the system, once their requests are over: the C library keeps it else."""
    loop = asyncio.get_running_loop()
    if loop not in TRIMMING:
        TRIMMING.add(loop)
        loop.call_later(TRIM_S, trim_in_thread, loop)


def trim_in_thread(loop: asyncio.AbstractEventLoop) -> None:
    TRIMMING.discard(loop)
    loop.run_in_executor(None, trim_memory)


def trim_memory() -> None:
    """Call `malloc_trim(3)`, which glibc has."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def body_too_long(most_bytes: int) -> LimitExceeded:
    return LimitExceeded(
        f"The body is longer than {most_bytes:,} bytes.", do="Send less at a time.", code="E-BODY-LENGTH"
    )


def find_slots(*, tensors: bool) -> asyncio.Semaphore:
    """Return the places of the running loop for bodies that are decoded, or for tensors in memory."""
    slots = PLACES.setdefault(asyncio.get_running_loop(), {})
    if tensors not in slots:
        slots[tensors] = asyncio.Semaphore(MOST_TENSORS if tensors else MOST_DECODED)
    return slots[tensors]
