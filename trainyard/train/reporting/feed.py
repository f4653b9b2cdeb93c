"""Trackers are fed from a thread of their own, so that a slow network costs training nothing.

What waits is bounded: when a tracker is that far behind, records are left out and counted, and the count is reported.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from trainyard.json_types import JsonMapping
from trainyard.train.reporting.trackers import Tracker

WAITING = 4096
"""Records that may wait; at ten steps a second almost seven minutes of a tracker's silence."""
CLOSE_S = 30.0
"""How long the end of a run waits for the trackers to take what is left."""


class TrackerFeed:
    """Send every record to every tracker; `warn` gets a warning {code, text} when something is lost."""

    def __init__(
        self,
        trackers: Mapping[str, Tracker],
        warn: Callable[[dict[str, str]], None],
        *,
        waiting: int = WAITING,
        close_s: float = CLOSE_S,
    ) -> None:
        self.trackers, self.close_s = dict(trackers), close_s
        self.left_out, self.failures = 0, Counter[str]()
        self._report = warn
        self._queue: queue.Queue[tuple[int, dict[str, float]]] = queue.Queue(waiting)
        self._ended = threading.Event()
        # A daemon: a tracker that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._deliver, name="trackers", daemon=True)
        self._thread.start()

    def on_step(self, record: JsonMapping) -> None:
        try:
            self._queue.put_nowait((int(record["step"]), numbers(record)))
        except queue.Full:
            self.left_out += 1

    def close(self) -> None:
        """Deliver what waits, for a limited time, and report what was lost."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join(self.close_s)
        if self._thread.is_alive():
            self._warn(f"The trackers did not take the last {self._queue.qsize()} records in {self.close_s:g} s.")
        if self.left_out:
            self._warn(f"The trackers were too slow: {self.left_out} records were left out.")
        for name, count in self.failures.items():
            self._warn(f"{name} did not take {count} records.")

    def _deliver(self) -> None:
        while not (self._ended.is_set() and self._queue.empty()):
            try:
                step, values = self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
            for name, tracker in self.trackers.items():
                self._attempt(name, tracker.log, step, values)
        for name, tracker in self.trackers.items():
            self._attempt(name, tracker.close)

    def _attempt(self, name: str, act: Callable[..., None], *arguments: Any) -> None:
        """Call a tracker, which is external code: its first error is reported, every further one is counted."""
        try:
            act(*arguments)
        except Exception as error:
            self.failures[name] += 1
            if self.failures[name] == 1:
                self._warn(f"{name} failed: {type(error).__name__}: {error}. The training continues.")

    def _warn(self, text: str) -> None:
        self._report({"code": "E-TRACKER", "text": text})


def numbers(record: JsonMapping) -> dict[str, float]:
    """Return the fields that a chart can show, under the names that trackers group by: train/loss, eval/loss."""
    return {
        f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}": float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in ("step", "total_steps")
    }
