"""What does a verb of a session cost beyond its computation?

One session of a tiny model: the same forward in this process (`Session.forward`), through the session's socket, and
through the operation that REST calls. Each call is timed alone, the three in turn, so that a busy moment hits all.

    python -m benchmarks.step_verbs
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, Sample, finish
from tests.unit.api.session_surface import surface_of
from tests.unit.backends.session_host import ROWS, hosted, record_of
from tests.unit.backends.session_in_process import batch_here, open_here
from trainyard.settings import load_settings
from trainyard.testing.tiny import build_tiny_model

CALLS, WARM = 300, 20
BAR_MS = 5.0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="step-verbs-") as folder:
        root = Path(folder)
        build_tiny_model(root / "model")
        settings = load_settings(home=root / "home", threads=1)
        record = record_of(root / "model")
        with hosted(settings, record) as session:
            own = open_here(settings.home, record.id, root / "own")
            batch, surface = batch_here(own), surface_of(settings).sessions
            lists = {name: value.tolist() for name, value in batch.items()}
            times = measure(
                {
                    "in process": lambda: float(own.forward(batch).loss),
                    "socket": lambda: session.call("forward", batch=lists)["loss"],
                    "socket, rows": lambda: session.call("forward", rows=ROWS)["loss"],
                    "operation": lambda: surface.forward(session=record.id, batch=lists).loss,
                    "empty verb": lambda: session.call("zero_grad"),
                }
            )
    report(times)


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
    rows = []
    for name in ("socket", "operation", "empty verb"):
        base = 0.0 if name == "empty verb" else p50["in process"]
        overhead = p50[name] - base
        print(f"{name}: p50 {p50[name]:.2f} ms, p99 {p99[name]:.2f} ms; overhead p50 {overhead:.2f} ms")
        rows.append(Row.at_most(f"overhead of a call, {name} (ms, p50)", overhead, BAR_MS))
    print(f"in process: p50 {p50['in process']:.2f} ms, p99 {p99['in process']:.2f} ms")
    samples = {name: [Sample(1, value / 1000, value / 1000) for value in values] for name, values in times.items()}
    sys.exit(finish("step_verbs", rows, samples))


if __name__ == "__main__":
    main()
