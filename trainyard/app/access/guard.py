"""A guard in front of a server: it refuses requests unless a program sent them, or a page of the server's own.

It is an ASGI app around another, and checks HTTP requests and websockets first, without an answer of that app:

    Host              a loopback name, one that the operator named, or that of an origin that the operator named: a page
                      may point a name of its own at 127.0.0.1, but cannot choose the Host header
    Origin            that of the page's own server, or one that the operator named
    Sec-Fetch-Site    requests of other origins without an Origin (pictures, scripts, frames); a link may be followed
    Content-Type      JSON for every body, or another type that no form can send: browsers send other types without
                      asking the server first

It is in front of Prefect's server and of the service; each gives the shape of its refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
READING = frozenset({"GET", "HEAD", "OPTIONS"})
JSON_TYPE = "application/json"
FORM_TYPE = "multipart/form-data"
POLICY_VIOLATION = 1008
"""Close code of a websocket (RFC 6455, 7.4.1)."""
ANSWER_HEADERS = (
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""A page of another origin may neither show these pages in a frame nor load their parts."""
ONLY_TLS = (b"strict-transport-security", b"max-age=31536000")
"""Of an answer over TLS: a browser uses nothing else from now on."""
Rows = Iterable[tuple[bytes, bytes]]


class Refusal(NamedTuple):
    """The answer instead of the app's."""

    status: int
    code: str
    text: str


class RefusalBody(NamedTuple):
    """A body, and its media type."""

    body: bytes
    media_type: str


class Guard:
    """An ASGI app that refuses requests unless a program sent them, or a page of one of its own origins."""

    def __init__(
        self,
        app: ASGIApp,
        origins: Iterable[str],
        worded: Callable[[Refusal], RefusalBody],
        *,
        names: Iterable[str] = (),
        types: Iterable[str] = (JSON_TYPE,),
        headers: Rows = ANSWER_HEADERS,
        takes_forms: Callable[[str], bool] = lambda path: False,
    ) -> None:
        """`worded` is the shape of a refusal; `names` are allowed in the Host header, `types` for bodies.

        Forms are taken at paths that `takes_forms` returns true for, and only with a header that no page can give one.
        """
        self.app, self.worded = app, worded
        self.origins = frozenset(origins)
        called = {parse_host_name(urlsplit(origin).netloc) for origin in self.origins}
        self.names = LOOPBACK_NAMES | called | {name.lower() for name in names}
        self.types, self.headers, self.takes_forms = tuple(types), tuple(headers), takes_forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        refusal = self.refusal(scope)
        if refusal is None:
            return await self.app(scope, receive, self.with_headers(send, scope) if scope["type"] == "http" else send)
        if scope["type"] == "websocket":
            await receive()
            return await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": refusal.code})
        await send_answer(self.with_headers(send, scope), refusal.status, self.worded(refusal))

    def refusal(self, scope: Scope) -> Refusal | None:
        """Return why a request is not passed on; None if it is."""
        headers = Headers(scope)
        host = headers.get_single("host")
        if host is None or parse_host_name(host) not in self.names:
            return Refusal(
                400, "E-REQUEST-REFUSED", "This server is not called so. Open it as 127.0.0.1, or add the name."
            )
        if headers.has("origin"):
            origin = headers.get_single("origin")
            if origin not in self.origins and origin != f"{read_scheme(scope)}://{host.lower()}":
                return Refusal(403, "E-REQUEST-REFUSED", "A page of another origin may not speak with this server.")
        elif headers.get_single("sec-fetch-site") in ("cross-site", "same-site") and not follows_link(scope, headers):
            return Refusal(403, "E-REQUEST-REFUSED", "A page of another site may not load this.")
        has_body = headers.has("transfer-encoding") or headers.get_single("content-length") not in (None, "0")
        if scope["type"] == "http" and scope["method"] not in READING and has_body:
            content_type = (headers.get_single("content-type") or "").partition(";")[0].strip().lower()
            is_form = content_type == FORM_TYPE and self.takes_forms(scope["path"]) and headers.has("authorization")
            if content_type not in self.types and not is_form:
                allowed_types = " or ".join(self.types)
                return Refusal(415, "E-REQUEST-REFUSED", f"Send JSON with the header Content-Type: {allowed_types}.")
        return None

    def with_headers(self, send: Send, scope: Scope) -> Send:
        """Add our headers to an answer, unless the app has set them itself."""
        rows = (*self.headers, ONLY_TLS) if read_scheme(scope) == "https" else self.headers

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                names = {key.lower() for key, _ in headers}
                more = [row for row in rows if row[0] not in names]
                message = {**message, "headers": [*headers, *more]}
            await send(message)

        return sending


class Headers:
    """The headers of a request; one that occurs twice counts as unusable."""

    def __init__(self, scope: Scope) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        for key, value in scope["headers"]:
            self.rows[key] = None if key in self.rows else value

    def has(self, name: str) -> bool:
        return name.encode() in self.rows

    def get_single(self, name: str) -> str | None:
        value = self.rows.get(name.encode())
        return value.decode("latin-1") if value is not None else None


def parse_host_name(host: str) -> str:
    """Return the name in a Host header, without its port: `[::1]:4200` is `[::1]`."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()


def read_scheme(scope: Scope) -> str:
    """Return the scheme of a page of this server: that of the connection, or of the proxy's."""
    return "https" if scope.get("scheme") in ("https", "wss") else "http"


def follows_link(scope: Scope, headers: Headers) -> bool:
    """Return whether a browser opens a page because a link was followed: the other page is gone then."""
    opens = headers.get_single("sec-fetch-mode") == "navigate" and headers.get_single("sec-fetch-dest") == "document"
    return opens and scope.get("method") == "GET"


async def send_answer(send: Send, status: int, answer: RefusalBody, headers: Rows = ()) -> None:
    """Send a whole answer, as an ASGI app does."""
    rows = [(b"content-type", answer.media_type.encode()), (b"content-length", str(len(answer.body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*rows, *headers]})
    await send({"type": "http.response.body", "body": answer.body})
