"""How long does the first reading of a curve of a million steps take, and then queries at each resolution?

    python -m benchmarks.metric_levels [--steps 1000000] [--out results.json]

The bar: at most 50 ms for a query of 1,000 points after the first reading, and for one that continues while the
training continues (100 new steps).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import SHORT, size
from trainyard.app.live.trainings import read_new_steps
from trainyard.app.training_logs import TrainingLogs

BAR_MS = 50.0
REPEATS = size(15, 2)


def write_events(path: Path, first: int, steps: int) -> None:
    with path.open("a", encoding="utf-8") as file:
        for step in range(first, first + steps):
            loss = 2.0 + math.sin(step / 1000) * 0.5 + (step % 97) / 97
            held_out = f', "eval_loss": {loss + 0.1:.6f}' if step % 1000 == 0 else ""
            file.write(
                f'{{"event": "progress", "time": {1e9 + step}, "step": {step}, "loss": {loss:.6f}, '
                f'"learning_rate": 0.0002{held_out}}}\n'
            )


def milliseconds(query: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        query()
        times.append(1000 * (time.perf_counter() - started))
    return round(statistics.median(times), 2)


def measure(steps: int, folder: Path) -> dict[str, float]:
    work = TrainingLogs("trainer", folder)
    write_events(folder / "events.jsonl", 1, steps)
    started = time.perf_counter()
    store = read_new_steps(work, folder / "curves")
    timings = {"first_reading_s": round(time.perf_counter() - started, 2)}

    def query(points: int) -> object:
        return read_new_steps(work, folder / "curves").read(points)

    for points in (100, 1000, 5000):
        timings[f"query_{points}_ms"] = milliseconds(partial(query, points))
    timings["query_1000_of_the_last_tenth_ms"] = milliseconds(lambda: store.read(1000, steps - steps // 10))
    written = steps

    def continued() -> None:
        nonlocal written
        write_events(folder / "events.jsonl", written + 1, 100)
        written += 100
        read_new_steps(work, folder / "curves").read(1000)

    timings["continue_100_steps_ms"] = milliseconds(continued)
    timings["file_mb"] = round(store.path.stat().st_size / 2**20, 1)
    return timings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = {"steps": args.steps, **measure(args.steps, Path(folder))}
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if SHORT:
        return 0
    return 0 if max(result["query_1000_ms"], result["continue_100_steps_ms"]) <= BAR_MS else 1


if __name__ == "__main__":
    sys.exit(main())
