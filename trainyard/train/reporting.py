"""Reporters of each step: the events file, a bar on a terminal, and the trackers that were requested.

    with reporting(events.emit, Place(folder, project, run, config), trackers=("tensorboard",)) as report:
        report.on_step({"step": 1, "total_steps": 300, "loss": 2.1, ...})

A record is the content of a `progress` event: plain numbers, no tensors. Nothing here may block training: a step costs
one line in the events file and one entry in a queue.

A bar on a terminal: how far, how fast, how well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TextIO

import psutil
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.train.trackers import TrackedRun, TrackerFeed, open_tracker

SHOWN = {
    "loss": "loss {:.4f}",
    "eval_loss": "eval loss {:.4f}",
    "eval_reward": "eval reward {:.3f}",
    "learning_rate": "lr {:.2e}",
    "tokens_per_second": "{:,.0f} tokens/s",
}
"""Field -> its format next to the bar."""


class ProgressBar:
    """Draw a few times a second from the last reported record; a step only stores its record."""

    def __init__(self, terminal: TextIO) -> None:
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, TextColumn("{task.fields[text]}"), console=Console(file=terminal))
        self.task: TaskID | None = None
        self.evaluated: JsonObject = {}
        """The newest evaluation, which stays in sight until the next one."""

    def on_step(self, record: JsonMapping) -> None:
        if self.task is None:
            self.task = self.bar.add_task("training", total=record.get("total_steps"), text="")
            self.bar.start()
        self.evaluated |= {name: value for name, value in record.items() if name.startswith("eval_")}
        self.bar.update(self.task, completed=record["step"], text=summary({**record, **self.evaluated}))

    def close(self) -> None:
        self.bar.stop()


def summary(record: JsonMapping) -> str:
    """Return the few numbers that are worth a glance."""
    return "  ".join(form.format(record[name]) for name, form in SHOWN.items() if record.get(name) is not None)


Record = Mapping[str, Any]
Emit = Callable[..., None]
"""`emit(event, **fields)`, such as `Events.emit`."""


class Reporter(Protocol):
    """Receiver of each step."""

    def on_step(self, record: Record) -> None:
        """Take note; at once, and without looking at a tensor."""

    def close(self) -> None:
        """Called at the end of the run: show or deliver the rest."""


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
