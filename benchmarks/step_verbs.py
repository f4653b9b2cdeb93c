"""What does a verb of a session cost beyond its computation, and how much is that against a bare HTTP call?

One session of a tiny model: the same forward in this process (`Session.forward`), through the session's socket, through
the operation that REST calls, and over HTTP by the Python client; `zero_grad`, which computes nothing, over HTTP. The
peer is a bare FastAPI application in a process of its own, and httpx: it parses the same bytes and sends them back.
Each call is timed alone, all in turn, so that a busy moment hits all.

    python -m benchmarks.step_verbs
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness import Row, Sample, finish, size
from benchmarks.rest_api import service
from tests.session_surface import make_surface
from tests.unit.backends.session_host import ROWS, host_session, make_record
from tests.unit.backends.session_in_process import batch_here, open_here
from trainyard import connect
from trainyard.compute.services import free_port, is_healthy
from trainyard.settings import load_settings
from trainyard.stores.secret_files import TokenFile
from trainyard.testing.tiny import build_tiny_model

CALLS, WARM = size(300, 5), size(20, 1)
MOST_ECHOES = 2.0
"""A verb over HTTP, without its computation, takes at most as many times a bare call with the same bytes."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="step-verbs-") as folder:
        root = Path(folder)
        build_tiny_model(root / "model")
        settings = load_settings(home=root / "home", threads=1)
        record = make_record(root / "model")
        token = TokenFile(settings.home).create("bench", "run", "", 1)
        with (
            host_session(settings, record) as session,
            service(settings) as (url, _),
            connect(url, token) as remote,
            echo_service() as echo_url,
            httpx.Client(base_url=echo_url) as client,
        ):
            local_session = open_here(settings.home, record.id, root / "own")
            batch, surface = batch_here(local_session), make_surface(settings).sessions
            lists = {name: value.tolist() for name, value in batch.items()}
            times = measure(
                {
                    "in process": lambda: float(local_session.forward(batch).loss),
                    "socket": lambda: session.call("forward", batch=lists)["loss"],
                    "socket, rows": lambda: session.call("forward", rows=ROWS)["loss"],
                    "operation": lambda: surface.forward(session=record.id, batch=lists).loss,
                    "HTTP": lambda: remote.sessions.forward(session=record.id, batch=lists).loss,
                    "echo": lambda: client.post("/echo", json={"batch": lists}).json(),
                    "empty verb, socket": lambda: session.call("zero_grad"),
                    "empty verb, HTTP": lambda: remote.sessions.zero_grad(session=record.id),
                    "empty echo": lambda: client.post("/echo", json={}).json(),
                }
            )
    report(times)


@contextmanager
def echo_service() -> Iterator[str]:
    """Return the URL of an application that sends back what it receives; it ends with the block."""
    port = free_port(18_950)
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.echo_service", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        while not is_healthy(url):
            time.sleep(0.2)
        yield url
    finally:
        child.terminate()
        child.wait()


def measure(variants: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Milliseconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(CALLS + WARM):
        for name, call in variants.items():
            started = time.perf_counter()
            call()
            if round_ >= WARM:
                times[name].append((time.perf_counter() - started) * 1000)
    return times


def report(times: dict[str, list[float]]) -> None:
    p50 = {name: statistics.median(values) for name, values in times.items()}
    p99 = {name: statistics.quantiles(values, n=100)[98] for name, values in times.items()}
    for name in times:
        computes = "echo" not in name and "empty" not in name and name != "in process"
        beyond = f"; beyond the computation p50 {p50[name] - p50['in process']:.2f} ms" if computes else ""
        print(f"{name}: p50 {p50[name]:.2f} ms, p99 {p99[name]:.2f} ms{beyond}")
    rows = [
        Row.ratio_at_most("forward over HTTP", p50["HTTP"] - p50["in process"], p50["echo"], "echo", MOST_ECHOES),
        Row.ratio_at_most("empty verb over HTTP", p50["empty verb, HTTP"], p50["empty echo"], "echo", MOST_ECHOES),
    ]
    samples = {name: [Sample(1, value / 1000, value / 1000) for value in values] for name, values in times.items()}
    sys.exit(finish("step_verbs", rows, samples))


if __name__ == "__main__":
    main()
