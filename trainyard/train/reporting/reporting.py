"""Reporters of each step: the events file, a bar on a terminal, and the trackers that were requested.

    with reporting(events.emit, Place(folder, project, run, config), trackers=("tensorboard",)) as report:
        report.on_step({"step": 1, "total_steps": 300, "loss": 2.1, ...})

A record is the content of a `progress` event: plain numbers, no tensors. Nothing here may block training: a step costs
one line in the events file and one entry in a queue.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TextIO

import psutil
import torch

from trainyard.train.reporting.bar import ProgressBar
from trainyard.train.reporting.feed import TrackerFeed
from trainyard.train.reporting.trackers import TrackedRun, open_tracker

Record = Mapping[str, Any]
Emit = Callable[..., None]
"""`emit(event, **fields)`, such as `Events.emit`."""


class Reporter(Protocol):
    """Receiver of each step."""

    def on_step(self, record: Record) -> None:
        """Take note; at once, and without looking at a tensor."""

    def close(self) -> None:
        """The run is over: show or deliver what is left."""


class EventLog:
    """Each step as a `progress` event."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit

    def on_step(self, record: Record) -> None:
        self.emit("progress", **record)

    def close(self) -> None:
        """Do nothing: no record is buffered."""


class Reporting:
    """All reporters of a run as one."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self.reporters = tuple(reporters)

    def on_step(self, record: Record) -> None:
        for reporter in self.reporters:
            reporter.on_step(record)

    def close(self) -> None:
        for reporter in self.reporters:
            reporter.close()

    def __enter__(self) -> Reporting:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def reporting(
    emit: Emit, run: TrackedRun, *, trackers: Sequence[str] = (), terminal: TextIO | None = sys.stderr
) -> Reporting:
    """Return the reporters of a run: events always, a bar if `terminal` is one, and each tracker of `trackers`.

    A tracker that fails later is a `warning` event (`E-TRACKER`), not the end of the training. Raises
    `Unavailable` (`E-PACKAGE-MISSING`, `E-TRACKER`) now for one that cannot begin.
    """
    reporters: list[Reporter] = [EventLog(emit)]
    if terminal is not None and terminal.isatty():
        reporters.append(ProgressBar(terminal))
    if trackers:
        opened = {name: open_tracker(name, run) for name in dict.fromkeys(trackers)}
        reporters.append(TrackerFeed(opened, lambda fields: emit("warning", **fields)))
    return Reporting(reporters)


def memory_bytes(device: str) -> int:
    """Return the memory in use: this process's peak on a CUDA device, else its resident memory now."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    return int(psutil.Process().memory_info().rss)
