"""Progress on stderr while an operation works: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from trainyard.json_types import JsonObject
from trainyard.operations.tables import short_reason

LINE_EVERY_S = 10.0
"""Least time between two plain progress lines of one node: a log is read later, by people."""
ENDS = {"finished": "done", "reused": "reused", "failed": "failed", "skipped": "skipped", "stopped": "stopped"}


class Progress:
    """Progress on stderr while an operation works. rich honours NO_COLOR and a dumb terminal automatically."""

    def __init__(self, console: Console | None = None) -> None:
        # A notebook sets FORCE_COLOR, which rich takes for a terminal; a pipe gets plain lines all the same.
        forced = None if sys.stderr.isatty() else False
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=forced)
        self.bars: RichProgress | None = None
        self.tasks: dict[str, TaskID] = {}
        self.report_times: dict[str, float] = {}
        self.answers: dict[str, str] = {}
        self.live: Live | None = None
        """Answers while they are written; only on a terminal."""

    def close(self) -> None:
        self.end_answers()
        if self.bars is not None:
            self.bars.stop()

    def say(self, text: str) -> None:
        """One line about what happens now."""
        self.console.print(text, markup=False)

    def event(self, event: JsonObject) -> None:
        """One event of a run."""
        node, kind = event["node"], event["event"]
        if kind in ("answer", "answered"):
            self.answer(node, kind, str(event["text"]))
            return
        if not node:
            self.say(f"run {event.get('name', '')}: {event['text']}")
        elif kind in ENDS:
            self.end(node, kind, event)
        elif kind in ("note", "warning", "waiting"):
            self.say(f"{node}: {event['text']}")
        elif self.console.is_terminal:
            self.bar(node, float(event.get("fraction", 0.0)), str(event.get("text", "")))
        else:
            self.line(node, event)

    def answer(self, node: str, kind: str, text: str) -> None:
        """Show answers as far as they are written, below each other; the finished turn replaces them."""
        if not self.console.is_terminal:
            return
        if kind == "answered":
            self.end_answers()
            return
        self.answers[node] = text
        answers_text = Text("\n".join(f"{name}: {answer}" for name, answer in self.answers.items()))
        if self.live is None:
            self.live = Live(answers_text, console=self.console, transient=True, vertical_overflow="ellipsis")
            self.live.start()
        self.live.update(answers_text)

    def end_answers(self) -> None:
        if self.live is not None:
            self.live.stop()
        self.live, self.answers = None, {}

    def end(self, node: str, kind: str, event: JsonObject) -> None:
        if self.bars is not None and node in self.tasks:
            self.bars.remove_task(self.tasks.pop(node))
        rows = ", ".join(f"{count:,} {port}" for port, count in event.get("rows", {}).items())
        detail = short_reason(str(event.get("message") or "")) or rows  # an error is shown whole when the run has ended
        self.say(f"{node}: {ENDS[kind]}" + (f" ({detail})" if detail else ""))

    def line(self, node: str, event: JsonObject) -> None:
        """A plain line, at most one every ten seconds for each node."""
        if event["event"] == "started":
            self.report_times[node] = time.monotonic()
            self.say(f"{node}: started")
        elif time.monotonic() - self.report_times.get(node, 0.0) >= LINE_EVERY_S:
            self.report_times[node] = time.monotonic()
            self.say(f"{node}: {event.get('text', '')} ({100 * float(event.get('fraction', 0.0)):.0f} %)")

    def bar(self, node: str, fraction: float, text: str) -> None:
        if self.bars is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            self.bars = RichProgress(
                *columns, TimeElapsedColumn(), TextColumn("{task.fields[text]}"), console=self.console, transient=True
            )
            self.bars.start()
        if node not in self.tasks:
            self.tasks[node] = self.bars.add_task(node, total=1.0, text=text)
        self.bars.update(self.tasks[node], completed=fraction, text=text)
