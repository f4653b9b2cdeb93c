"""How long does an event of a job take to its client, and what do two hundred idle streams cost?

    python -m benchmarks.live_streams [--streams 200] [--seconds 20] [--out results.json]

The bars: p99 of a step from its line in the file to its client at most 250 ms, with the others open; all of them idle
at most 3 % of a core, each on a job of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import SHORT, size
from trainyard.app.context import Context
from trainyard.app.live.jobs import open_index
from trainyard.operations.jobs import LogsInput, MetricsInput
from trainyard.settings import load_settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_ids import derive_job_id
from trainyard.stores.live.job_index import JobIndex
from trainyard.surfaces.streams import follow_logs, follow_metrics

P99_MS, SHARE = 250.0, 0.03
STEPS = size(200, 10)


def row(number: int, folder: Path) -> dict[str, Any]:
    run_id = f"{number:08x}-0000-4000-8000-{number:012x}"
    work = folder / "work" / str(number)
    work.mkdir(parents=True)
    (work / "child.log").write_text("loading\n")
    (work / "events.jsonl").write_text('{"event": "begin", "time": 1.0}\n')
    return {
        "run_id": run_id, "id": derive_job_id(run_id), "name": f"guide-{number}", "tenant": "default", "detail": "",
        "state": JobState.RUNNING, "message": "", "created": 1.0, "parameters": {}, "pid": None,
        "trainings": [{"node": "trainer", "folder": str(work), "since": 0.0}],
    }  # fmt: skip


async def keep(index: JobIndex) -> None:
    """Note each second that the index is in step, as a synchroniser does."""
    while True:
        await asyncio.to_thread(index.note_success, time.time())
        await asyncio.to_thread(index.note_try, time.time())
        await asyncio.sleep(1.0)


async def measure(rows: list[dict[str, Any]], context: Context, seconds: float) -> dict[str, float]:
    index = open_index(context.settings)
    index.put(rows, 1.0)
    index.note_success(time.time())
    index.note_try(time.time())
    keeping = asyncio.create_task(keep(index))

    async def idle(job: str) -> None:
        async for _ in follow_logs(LogsInput(job=job), context, None):
            pass

    clients = [asyncio.create_task(idle(row["id"])) for row in rows]
    await asyncio.sleep(3.0)
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - used) / (time.perf_counter() - began)
    delays = sorted(await step_delays(rows[0], context))
    for client in (*clients, keeping):
        client.cancel()
    await asyncio.gather(*clients, keeping, return_exceptions=True)
    return {
        "idle_share_of_a_core": round(share, 4),
        "event_p50_ms": round(delays[len(delays) // 2], 1),
        "event_p99_ms": round(delays[len(delays) * 99 // 100], 1),
    }


async def step_delays(row: dict[str, Any], context: Context) -> list[float]:
    """Milliseconds from each step's line to its client."""
    delays: list[float] = []
    path = Path(row["trainings"][0]["folder"]) / "events.jsonl"

    async def write() -> None:
        for step in range(1, STEPS + 1):
            await asyncio.sleep(0.037)
            with path.open("a") as file:
                file.write(json.dumps({"event": "progress", "step": step, "time": time.time(), "loss": 1.0}) + "\n")

    writing: asyncio.Task[None] | None = None
    events = follow_metrics(MetricsInput(job=row["id"]), context, None)
    async for event in events:
        if event.event == "curve":
            writing = asyncio.create_task(write())
        if event.event == "points":
            delays += [1000 * (time.time() - point["time"]) for point in json.loads(event.data)["points"]]
        if len(delays) >= STEPS:
            break
    await events.aclose()
    if writing is not None:
        await writing
    return delays


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        context = Context(load_settings(home=Path(folder) / "home"))
        rows = [row(number, Path(folder)) for number in range(1, args.streams + 1)]
        result = {"streams": args.streams, **asyncio.run(measure(rows, context, args.seconds))}
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if SHORT:
        return 0
    return 0 if result["event_p99_ms"] <= P99_MS and result["idle_share_of_a_core"] <= SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
