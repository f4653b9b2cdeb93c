"""Bodies of requests without a caller: short ones, soon, and few at a time.

A client that logs in sends its body together with the head. A client that sends half of one waits at most five
seconds, and gives way to newer ones when there are many: it takes no place that a login, a page or another caller
needs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from starlette.types import Message, Receive

from trainyard.errors import InvalidInput, LimitExceeded

MAX_LOGIN_BYTES = 4 << 10
BODY_S = 5.0
MOST = 64


class LateBody(InvalidInput):
    """A body that did not arrive in time, or gave way to others."""


class StrangerBodies:
    """The bodies that are arriving; the oldest gives way when there are more than `most`."""

    def __init__(self, most: int = MOST, seconds: float = BODY_S) -> None:
        self.most, self.seconds = most, seconds
        self.arriving = OrderedDict[int, asyncio.Timeout]()
        self.number = 0

    async def receive(self, receive: Receive) -> bytes:
        """Return a whole body. Raises `LateBody` (`E-JSON`), and `LimitExceeded` (`E-BODY-LENGTH`) for a long one."""
        self.number = number = self.number + 1
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                self.arriving[number] = deadline
                self.make_room()
                return await read_short(receive)
        except TimeoutError as error:
            raise LateBody(
                f"The body did not arrive within {self.seconds:g} s.", do="Send it together with the head.",
                code="E-JSON",
            ) from error  # fmt: skip
        finally:
            self.arriving.pop(number, None)

    def make_room(self) -> None:
        while len(self.arriving) > self.most:
            _, oldest = self.arriving.popitem(last=False)
            oldest.reschedule(asyncio.get_running_loop().time())


async def read_short(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise InvalidInput("The connection ended before the body did.", code="E-JSON")
        body += message.get("body", b"")
        if len(body) > MAX_LOGIN_BYTES:
            raise LimitExceeded(
                f"The body is longer than {MAX_LOGIN_BYTES:,} bytes.", do="Send the token alone.", code="E-BODY-LENGTH"
            )
        if not message.get("more_body"):
            return bytes(body)


def whole_body(body: bytes, receive: Receive) -> Receive:
    """Receive a body that has arrived, then what comes after it."""
    rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return rest.pop() if rest else await receive()

    return receiving
