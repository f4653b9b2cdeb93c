"""Callers that have left: what works for them ends, and closing it raises nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from trainyard.cancellation import CALLER_HOOKS, CallerLeft, Departure, bind_departure


class EndlessAnswer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"a" * 65_536)
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), EndlessAnswer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_answer_that_is_dropped_after_its_caller_raises_nothing(url: str) -> None:
    """A generator that raises while it is closed is an error of the interpreter, which pytest reports."""
    departure = Departure()
    with bind_departure(departure), httpx.Client(event_hooks=CALLER_HOOKS) as client:
        with client.stream("GET", url) as response:
            chunks = response.iter_raw(1024)
            assert next(chunks) == b"a" * 1024
            departure.note()
            del chunks
            gc.collect()
        with pytest.raises(CallerLeft):
            client.get(url)
