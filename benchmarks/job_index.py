"""How long do `jobs list` and `jobs show` take with 10,000 jobs?

    python -m benchmarks.job_index [--jobs 10000] [--load] [--out results.json]

The bar: p50 at most 5 ms, p99 at most 30 ms; with `--load`, while a process per core computes as a training does, p99
at most three times that of the idle machine. No server is asked: a synchroniser's last words are what answers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson

from benchmarks.harness import SHORT, size
from trainyard.app.context import Caller, Context
from trainyard.app.jobs.jobs import list_jobs, show_job
from trainyard.app.live.jobs import open_index
from trainyard.operations.jobs import JobInput, JobsInput
from trainyard.settings import Settings, load_settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_ids import derive_job_id

P50_MS, P99_MS, BUSY_RATIO = 5.0, 30.0, 3.0
QUERIES = size(1000, 20)
TENANTS = 20
BUSY = "import torch\na = torch.randn(512, 512)\nwhile True: a = (a @ a).tanh()"
"""Products of matrices, as a CPU training has."""


def fill(settings: Settings, jobs: int) -> list[dict[str, Any]]:
    """An index of so many jobs, one in fifty of them running, each with a folder as a run leaves it."""
    chance, rows = random.Random(15), []
    for number in range(jobs):
        run_id = str(UUID(int=chance.getrandbits(128), version=4))
        folder, work = settings.runs / run_id, settings.runs / "training" / run_id[:8]
        folder.mkdir(parents=True)
        state = JobState.RUNNING if number % 50 == 0 else chance.choice([JobState.COMPLETED, JobState.FAILED])
        training = {
            "node": "trainer", "folder": str(work), "since": 1e9, "step": 300, "total_steps": 300, "epoch": 1.0,
            "total_epochs": 1.0, "loss": 1.5, "learning_rate": 0.0002,
        }  # fmt: skip
        rows.append({
            "run_id": run_id, "id": derive_job_id(run_id), "name": f"guide-{number % 97}-{number}",
            "tenant": f"tenant-{number % TENANTS}",
            "state": state, "detail": "", "message": "2 nodes finished.", "created": 1e9 + number, "started": 1e9,
            "seconds": 60.0, "attempts": 1, "pid": None, "url": "http://127.0.0.1:4200/runs/flow-run/" + run_id,
            "parameters": {"job": {"dataset": {"path": "data.jsonl"}, "name": "guide"}},
            "waits_for_trainer": False, "tags": ("job", derive_job_id(run_id)), "stage": "sft", "method": "lora",
            "backend": "native", "base_model": "starter", "step": 300, "total_steps": 300, "loss": 1.5,
            "trainings": [training],
        })  # fmt: skip
        result = {"schema": 1, "run_id": run_id, "name": "guide", "state": "completed", "message": "", "nodes": []}
        (folder / "result.json").write_bytes(orjson.dumps(result))
    open_index(settings).put(rows, 1.0)
    return rows


def percentiles(work: Callable[[], object]) -> dict[str, float]:
    times = []
    for _ in range(QUERIES):
        started = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - started))
    times.sort()
    return {"p50_ms": round(times[QUERIES // 2], 2), "p99_ms": round(times[QUERIES * 99 // 100], 2)}


@contextmanager
def busy_cores() -> Iterator[None]:
    """A computing process per core."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    time.sleep(5.0)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(settings: Settings, rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    context, chance = Context(settings), random.Random(1)
    tenant = Context(settings, caller=Caller("t", tenant="tenant-3"))
    index = open_index(settings)

    def keep() -> None:
        index.note_try(time.time())
        index.note_success(time.time())

    cursors = [None, *walk(context, keep)]
    calls: dict[str, Callable[[], object]] = {
        "list": lambda: list_jobs(JobsInput(), context),
        "list, a later page": lambda: list_jobs(JobsInput(cursor=chance.choice(cursors)), context),
        "list, running": lambda: list_jobs(JobsInput(state=JobState.RUNNING), context),
        "list, of a tenant": lambda: list_jobs(JobsInput(), tenant),
        "list, by text": lambda: list_jobs(JobsInput(text="guide-42-"), context),
        "show by id": lambda: show_job(JobInput(job=chance.choice(rows)["id"]), context),
        "show by name": lambda: show_job(JobInput(job=chance.choice(rows)["name"]), context),
    }
    results = {}
    for name, work in calls.items():
        keep()
        results[name] = percentiles(work)
    return results


def walk(context: Context, keep: Callable[[], None]) -> Iterator[str]:
    """The cursors of a walk through all pages."""
    cursor = None
    for _ in range(50):
        keep()
        cursor = list_jobs(JobsInput(cursor=cursor), context).next
        if cursor is None:
            return
        yield cursor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(home=Path(folder) / "home")
        rows = fill(settings, args.jobs)
        result: dict[str, Any] = {"jobs": args.jobs, "idle": measure(settings, rows)}
        if args.load:
            with busy_cores():
                result["busy"] = measure(settings, rows)
    passed = all(timing["p50_ms"] <= P50_MS and timing["p99_ms"] <= P99_MS for timing in result["idle"].values())
    if args.load:
        ratios = {name: timing["p99_ms"] / result["idle"][name]["p99_ms"] for name, timing in result["busy"].items()}
        result["busy_ratio_of_p99"] = {name: round(ratio, 2) for name, ratio in ratios.items()}
        passed = passed and max(ratios.values()) <= BUSY_RATIO
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if passed or SHORT else 1


if __name__ == "__main__":
    sys.exit(main())
