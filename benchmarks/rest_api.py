"""How quickly does the REST API answer with 10,000 jobs, and what do streams cost?

A service of its own with an index of 10,000 jobs, and a real client on loopback. Lists and details are asked idle, and
while a training of this machine's engine computes next to it. Events: a line that is appended to a training's
`events.jsonl` until it reaches a client. Streams: 200 clients that follow a job in which nothing happens.

    python -m benchmarks.rest_api
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.harness import Row, Sample, finish, size
from tests.api_process import keep_in_step
from trainyard.app.live.trainings import add_files
from trainyard.app.run_records import RunRecord
from trainyard.compute.services import free_port, is_healthy
from trainyard.settings import Settings, load_settings
from trainyard.spec.states import JobState
from trainyard.stores.auth_string import keep_auth
from trainyard.stores.live.job_index import JobIndex

JOBS, ASKS, STREAMS, EVENTS = size(10_000, 100), size(600, 30), size(200, 5), size(200, 10)
WATCHED = "job-000000000000"
BURN = "import torch\ntorch.set_num_threads(1)\na = torch.randn(512, 512)\nwhile True: a = torch.tanh(a @ a)"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rest-api-") as name:
        root = Path(name)
        settings = load_settings(home=root / "home", threads=1)
        with keep_in_step(fill(settings)), service(settings) as (url, process):
            headers = {"authorization": f"Bearer {keep_auth(settings)}"}
            figures: dict[str, list[float]] = {}
            with httpx.Client(base_url=f"{url}/api/v1", headers=headers) as client:
                figures |= ask(client, "idle")
                with burning():
                    figures |= ask(client, "busy")
            figures["event"] = asyncio.run(follow(settings, url, headers))
            share = asyncio.run(idle_streams(url, headers, process))
    report(figures, share)


# The home


def fill(settings: Settings) -> JobIndex:
    """An index of 10,000 jobs, one of them with a training that runs."""
    rows = []
    for number in range(JOBS):
        run_id = f"{number:08x}-0000-4000-8000-{number:012x}"
        rows.append({
            "run_id": run_id, "id": f"job-{run_id[-12:]}", "name": f"guide-{number}", "tenant": "default",
            "state": JobState.COMPLETED if number else JobState.RUNNING, "created": 1000.0 - number,
            "backend": "native", "stage": "sft", "method": "lora", "base_model": "starter", "tags": ["job"],
            "detail": "", "message": "Done.", "started": 1000.0, "seconds": 60.0, "attempts": 1, "pid": None, "url": "",
            "parameters": {}, "trainings": [],
        })  # fmt: skip
    training = settings.runs / "training" / "0"
    training.mkdir(parents=True)
    record = RunRecord(settings.runs / rows[0]["run_id"])
    record.begin({})
    record.emit("trainer", "job", folder=str(training))
    write_step(training, 0)
    rows[0] = add_files(rows[0], settings)
    index = JobIndex(settings.home / "live" / "jobs.sqlite3")
    index.put(rows, time.time())
    return index


def write_step(training: Path, step: int) -> None:
    event = {"event": "progress", "step": step, "loss": 1.0, "time": time.time()}
    with (training / "events.jsonl").open("a") as stream:
        stream.write(json.dumps(event) + "\n")


@contextmanager
def service(settings: Settings) -> Iterator[tuple[str, psutil.Process]]:
    port = free_port(18_898)
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "TRAINYARD_"))}
    environment = {**variables, "TRAINYARD_HOME": str(settings.home), "TRAINYARD_API_REQUESTS_PER_S": "100000"}
    argv = [sys.executable, "-m", "trainyard", "serve", "--port", str(port)]
    child = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while not is_healthy(url):
            time.sleep(0.2)
        yield url, psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait()


@contextmanager
def burning() -> Iterator[None]:
    """Compute on one core, as a training does that was given one thread."""
    child = subprocess.Popen([sys.executable, "-c", BURN])
    time.sleep(3)
    try:
        yield
    finally:
        child.kill()
        child.wait()


# What is measured


def ask(client: httpx.Client, name: str) -> dict[str, list[float]]:
    """Milliseconds of lists and details."""
    times: dict[str, list[float]] = {f"list, {name}": [], f"detail, {name}": []}
    for number in range(ASKS):
        paths = {"list": "/jobs?limit=50", "detail": f"/jobs/job-{number * 16 % JOBS:012x}"}
        for kind, path in paths.items():
            began = time.perf_counter()
            answer = client.get(path)
            times[f"{kind}, {name}"].append((time.perf_counter() - began) * 1000)
            assert answer.status_code == 200, answer.text
    return {name: values[20:] for name, values in times.items()}


async def follow(settings: Settings, url: str, headers: dict[str, str]) -> list[float]:
    """Milliseconds from the line in the file to the client."""
    times: list[float] = []
    stream_headers = {**headers, "accept": "text/event-stream"}
    address = f"{url}/api/v1/jobs/{WATCHED}/metrics"
    async with (
        httpx.AsyncClient(headers=stream_headers, timeout=60) as client,
        client.stream("GET", address) as answer,
    ):
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        await wait_for(lines, "curve")
        for step in range(1, EVENTS + 1):
            await asyncio.sleep(0.02)
            began = time.perf_counter()
            write_step(settings.runs / "training" / "0", step)
            await wait_for(lines, "points")
            times.append((time.perf_counter() - began) * 1000)
    return times


async def wait_for(lines: Any, event: str) -> None:
    async for line in lines:
        if line == f"event: {event}":
            break
    async for line in lines:
        if not line:
            return


async def idle_streams(url: str, headers: dict[str, str], process: psutil.Process) -> float:
    """The share of a core that 200 streams cost in which nothing happens, beyond the service without them."""
    before = await cpu_share(process)
    stream_headers = {**headers, "accept": "text/event-stream"}
    limits = httpx.Limits(max_connections=STREAMS + 10)
    async with httpx.AsyncClient(
        base_url=f"{url}/api/v1", headers=stream_headers, timeout=120, limits=limits
    ) as client:
        ready = [asyncio.Event() for _ in range(STREAMS)]
        readers = [asyncio.create_task(read_stream(client, event)) for event in ready]
        await asyncio.gather(*(event.wait() for event in ready))
        await asyncio.sleep(3)
        share = await cpu_share(process)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    print(f"service: {before:.2%} of a core without streams, {share:.2%} with {STREAMS}")
    return share - before


async def cpu_share(process: psutil.Process, seconds: float = size(200, 10) / 10) -> float:
    used = process.cpu_times()
    await asyncio.sleep(seconds)
    now = process.cpu_times()
    return (now.user + now.system - used.user - used.system) / seconds


async def read_stream(client: httpx.AsyncClient, ready: asyncio.Event) -> None:
    async with client.stream("GET", f"/jobs/{WATCHED}/metrics") as answer:
        async for _ in answer.aiter_lines():
            ready.set()


def report(figures: dict[str, list[float]], share: float) -> None:
    p50 = {name: statistics.median(values) for name, values in figures.items()}
    p99 = {name: statistics.quantiles(values, n=100)[98] for name, values in figures.items()}
    for name in figures:
        print(f"{name}: p50 {p50[name]:.2f} ms, p99 {p99[name]:.2f} ms")
    rows = [Row.at_most(f"{kind} of {JOBS:,} jobs (ms, p50)", p50[f"{kind}, idle"], 5.0) for kind in ("list", "detail")]
    rows += [
        Row.at_most(f"{kind} of {JOBS:,} jobs (ms, p99)", p99[f"{kind}, idle"], 30.0) for kind in ("list", "detail")
    ]
    rows += [
        Row.at_most(f"{kind} next to a training (p99, x idle)", p99[f"{kind}, busy"] / p99[f"{kind}, idle"], 3.0)
        for kind in ("list", "detail")
    ]
    rows.append(Row.at_most("event to client (ms, p99)", p99["event"], 250.0))
    rows.append(Row.at_most(f"{STREAMS} idle streams (share of a core)", share, 0.03))
    samples = {
        name: [Sample(1, value_ms / 1000, value_ms / 1000) for value_ms in values] for name, values in figures.items()
    }
    sys.exit(finish("rest_api", rows, samples))


if __name__ == "__main__":
    main()
