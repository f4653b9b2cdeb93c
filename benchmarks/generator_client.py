"""Does the client keep a model server busy? 64 slots at 50 ms a request can serve 1,280 requests a second.

The server is the scripted one, in a process and on a core of its own. All clients send the same chat request of about
2,000 characters and parse the reply; ours and the gathered one have 128 under way (twice the slots).
`gathered` is what one would write first: one `httpx.AsyncClient` with a pool of that size, a semaphore and
`asyncio.gather`. `serial` asks one after the other.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from benchmarks.harness import Row, alternate, finish, median, size
from trainyard.serve.client.client import ChatClient

SLOTS, SERVICE_MS, CONCURRENCY = 64, 50, 128
CAPACITY = SLOTS * 1000 / SERVICE_MS
REQUESTS, GATHERED_REQUESTS, SERIAL_REQUESTS = size(6400, 256), size(640, 128), size(20, 3)
MESSAGES = [{"role": "user", "content": "What does this document say? " + "word " * 400}]
LEAST_SHARE, MOST_CPU_MS = 0.95, 1.0


@contextmanager
def server() -> Iterator[str]:
    """The scripted server's URL; with two cores or more it has the last one to itself."""
    command = [sys.executable, "-m", "trainyard.testing.scripted_server"]
    command += ["--slots", str(SLOTS), "--service-ms", str(SERVICE_MS)]
    cores = sorted(os.sched_getaffinity(0))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if len(cores) > 1:
            os.sched_setaffinity(process.pid, cores[-1:])
            os.sched_setaffinity(0, cores[:-1])
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait()


def run_ours(url: str) -> float:
    """As the generator node feeds its client: the next request is made when there is room for it, not all at once."""

    async def run() -> None:
        room = asyncio.Semaphore(CONCURRENCY)
        async with ChatClient(url, "scripted", concurrency=CONCURRENCY) as client, asyncio.TaskGroup() as tasks:
            for _ in range(REQUESTS):
                await room.acquire()
                tasks.create_task(client.complete(MESSAGES)).add_done_callback(lambda _: room.release())

    asyncio.run(run())
    return REQUESTS


def gathered(url: str) -> float:
    async def run() -> None:
        limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
        slots = asyncio.Semaphore(CONCURRENCY)

        async def ask(client: httpx.AsyncClient) -> str:
            async with slots:
                reply = await client.post(f"{url}/chat/completions", json={"model": "scripted", "messages": MESSAGES})
            return str(reply.json()["choices"][0]["message"]["content"])

        async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False) as client:
            await asyncio.gather(*(ask(client) for _ in range(GATHERED_REQUESTS)))

    asyncio.run(run())
    return GATHERED_REQUESTS


def serial(url: str) -> float:
    with httpx.Client(timeout=60, trust_env=False) as client:
        for _ in range(SERIAL_REQUESTS):
            reply = client.post(f"{url}/chat/completions", json={"model": "scripted", "messages": MESSAGES})
            assert reply.json()["choices"]
    return SERIAL_REQUESTS


def main() -> int:
    with server() as url:
        samples = alternate(
            {"ours": lambda: run_ours(url), "gathered": lambda: gathered(url), "serial": lambda: serial(url)}, rounds=5
        )
    rate = {name: median(variant_samples, "per_second") for name, variant_samples in samples.items()}
    cpu_ms = 1000 / median(samples["ours"], "per_cpu_second")
    peer_cpu_ms = 1000 / median(samples["gathered"], "per_cpu_second")
    rows = [
        Row.at_least("share of slots x rate", rate["ours"] / CAPACITY, LEAST_SHARE),
        Row.at_most("CPU ms a request", cpu_ms, MOST_CPU_MS),
        Row.ratio_at_most("CPU ms a request", cpu_ms, peer_cpu_ms, "gathered httpx", 1.0),
        Row.ratio_at_least("requests a second", rate["ours"], rate["gathered"], "gathered httpx", 1.0),
        Row.ratio_at_least("requests a second", rate["ours"], rate["serial"], "serial httpx", 10.0),
    ]
    return finish("generator_client", rows, samples)


if __name__ == "__main__":
    sys.exit(main())
