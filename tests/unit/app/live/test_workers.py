"""What `/health` says of the worker: from a server's answers, kept for a moment, and never waited for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from trainyard.app.live import service_threads
from trainyard.app.live.service_threads import WorkerState, WorkerWatch, find_worker
from trainyard.app.services import worker_name
from trainyard.settings import settings


class PoolServer:
    """Answers as a Prefect server does when it is asked for the workers of a pool."""

    def __init__(self) -> None:
        self.status, self.workers, self.num_asked = 200, list[dict[str, str]](), 0
        self.go_on = threading.Event()
        self.go_on.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == f"/api/work_pools/{settings().work_pool}/workers/filter"
                outer.num_asked += 1
                self.rfile.read(int(self.headers["content-length"]))
                outer.go_on.wait(120)
                body = json.dumps(outer.workers).encode()
                self.send_response(outer.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/api"


@pytest.fixture
def prefect(monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolServer]:
    pool_server = PoolServer()
    thread = threading.Thread(target=pool_server.server.serve_forever)
    thread.start()
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.setenv("PREFECT_API_URL", pool_server.url)
    yield pool_server
    pool_server.go_on.set()
    pool_server.server.shutdown()
    pool_server.server.server_close()
    thread.join()


def test_without_a_server_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert find_worker(settings()) is WorkerState.UNKNOWN
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert find_worker(settings()) is WorkerState.UNKNOWN


def test_a_worker_is_found_by_its_heartbeat(prefect: PoolServer) -> None:
    assert find_worker(settings()) is WorkerState.ABSENT
    prefect.workers = [
        {"name": "elsewhere", "status": "OFFLINE"},
        {"name": worker_name(settings()), "status": "ONLINE"},
    ]
    assert find_worker(settings()) is WorkerState.ABSENT, "this home's own is known by its process"
    prefect.workers.append({"name": "another", "status": "ONLINE"})
    assert find_worker(settings()) is WorkerState.RUNNING
    for status, expected in ((404, WorkerState.ABSENT), (401, WorkerState.UNKNOWN), (500, WorkerState.UNKNOWN)):
        prefect.status = status
        assert find_worker(settings()) is expected


def test_many_who_ask_are_one_look(prefect: PoolServer) -> None:
    watch = WorkerWatch(settings())
    assert [watch.state() for _ in range(50)] == [WorkerState.ABSENT] * 50
    assert prefect.num_asked == 1


def test_a_server_that_does_not_answer_keeps_nobody_waiting(
    prefect: PoolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefect.go_on.clear()
    watch = WorkerWatch(settings())
    began = time.monotonic()
    assert watch.state() is WorkerState.UNKNOWN
    assert time.monotonic() - began < 60
    prefect.go_on.set()
    watch.begin_look().join()
    assert watch.state() is WorkerState.ABSENT
    monkeypatch.setattr(service_threads, "FRESH_S", -1.0)
    monkeypatch.setattr(service_threads, "KNOWN_S", -1.0)
    assert watch.state() is WorkerState.UNKNOWN, "what was found long ago is not repeated"
