"""An HTTP server for doubles: a thread for each connection, and none left when it is closed.

A client keeps its connection open for the next request, and the thread that serves it would outlive the server. Closing
the server breaks the connections and waits for their threads.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().close_request(request)

    def server_close(self) -> None:
        """Stop listening, break what is open, and return when its threads have ended."""
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
