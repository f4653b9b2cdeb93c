"""An HTTP server for doubles: a thread for each connection, and none left when it is closed.

A client keeps its connection open for the next request, and the thread that serves it would outlive the server. Closing
the server breaks the connections and waits for their threads.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NO_HEADERS: Mapping[str, str] = {}
CONNECTION = "loopback-connection"
"""Name of the thread of a connection."""


class LoopbackServer(ThreadingHTTPServer):
    """Listens on a port of the loopback interface; 0 picks a free one."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        threading.current_thread().name = CONNECTION
        super().process_request_thread(request, client_address)

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().close_request(request)

    def server_close(self) -> None:
        """Stop listening, break open connections, and return when the threads have ended."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # the client has broken it first
                    connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


@contextmanager
def serving(server: LoopbackServer) -> Iterator[LoopbackServer]:
    """Serve in a thread of its own while the block runs."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="loopback-server")
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class LoopbackHandler(BaseHTTPRequestHandler):
    """Reads whole bodies, answers in one piece, and prints nothing: the doubles keep what they were asked."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def body(self) -> bytes:
        """Return the body, whole or in chunks (RFC 9112, section 7.1): files are sent as they are read."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def send(self, status: int, value: Any, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Send bytes and texts as they are, and other values as JSON; a text that begins like JSON is called JSON."""
        kind = "text/plain" if isinstance(value, str) and not value.startswith("{") else "application/json"
        text = value if isinstance(value, str | bytes) else json.dumps(value)
        content = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        for name, line in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, line)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a test's output is its own."""


Answer = tuple[int, object] | tuple[int, object, Mapping[str, str]]
"""Status, body and perhaps headers."""


@contextmanager
def answering(answer: Callable[[LoopbackHandler, bytes], Answer], port: int = 0) -> Iterator[str]:
    """Serve what `answer` makes of each request and its body, on a port, a free one for 0; the value is the URL."""

    class AnsweringHandler(LoopbackHandler):
        def reply(self) -> None:
            self.send(*answer(self, self.body()))

        do_GET = do_POST = do_DELETE = do_HEAD = reply

    with serving(LoopbackServer(AnsweringHandler, port)) as server:
        yield server.url
