"""A run that a notebook follows: its state, its nodes and its loss, in one output that changes while it runs.

In this process the events of the run say what changes, and its trainers' files
have the curves; with a service, the stream of the job's state has both.
"""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

from trainyard.app.notebook_views import format_table
from trainyard.app.run_records import NodeState
from trainyard.app.training_logs import TrainingLogs
from trainyard.backends.oom import follow_restarts
from trainyard.compute.events import Event
from trainyard.evals.curves import loss_curves
from trainyard.json_types import JsonObject

EVERY_S = 1.0
"""Least time between two pictures."""
STATES = {
    "started": NodeState.RUNNING, "finished": NodeState.COMPLETED, "reused": NodeState.REUSED,
    "failed": NodeState.FAILED, "skipped": NodeState.SKIPPED, "stopped": NodeState.CANCELED,
}  # fmt: skip
TRAINER = "trainer"
"""Name of the trainer where an older service does not name its node."""
Points = list[tuple[int, float | None]]


class LiveRun:
    """Known state of a run, as Markdown."""

    def __init__(self, handle: Any, now: Any = time.monotonic) -> None:
        self.handle, self.now, self.last_draw = handle, now, float("-inf")
        self.name, self.state = "", "starting"
        self.nodes: dict[str, tuple[str, str]] = {}
        """Node -> its state, and what it says."""
        self.folders: dict[str, tuple[str, float]] = {}
        """Node -> the work folder of its trainer, and since when it counts."""
        self.points: dict[str, Points] = {}
        """Node -> (step, loss), where a service says them."""

    def note_event(self, event: Event) -> None:
        """An event of a run of this machine."""
        node, kind = str(event.get("node", "")), event["event"]
        if not node and kind == "state":
            self.name, self.state = str(event.get("name", "")), str(event["text"])
        elif kind == "job":
            self.folders.setdefault(node, (str(event["folder"]), float(event["time"])))
        elif kind in STATES:
            self.nodes[node] = (STATES[kind].value, str(event.get("message", "")))
        elif kind == "progress":
            self.nodes[node] = (NodeState.RUNNING.value, str(event.get("text", "")))
        self.show()

    def note_job(self, job: Any) -> None:
        """The state of a job as a service streams it, with the step and the loss of its last trainer."""
        self.name, self.state = job.name, " ".join(filter(None, (job.state.value, job.detail)))
        if job.step:
            of = f" of {job.total_steps}" if job.total_steps else ""
            node = job.node or TRAINER
            self.nodes[node] = (job.state.value, f"step {job.step}{of}")
            points = self.points.setdefault(node, [])
            if job.loss is not None and (not points or points[-1][0] < job.step):
                points.append((job.step, job.loss))
        self.show()

    def show(self) -> None:
        """Draw it again, if the last picture is not too new."""
        now = self.now()
        if now - self.last_draw >= EVERY_S:
            self.last_draw = now
            self.handle.update(self)

    def end(self, result: Any) -> None:
        """Show how it ended in the place of the last picture."""
        self.handle.update(result)

    def curves(self) -> dict[str, JsonObject]:
        """Return the losses of the trainers so far."""
        points = dict(self.points)
        for node, (folder, since) in self.folders.items():
            curve = TrainingLogs(node, follow_restarts(Path(folder)), since).curve()
            points[node] = [(point.step, point.loss) for point in curve]
            points[f"{node} eval"] = [(point.step, point.eval_loss) for point in curve]
        return {name: {"losses": value} for name, value in points.items() if any(loss is not None for _, loss in value)}

    def _repr_markdown_(self) -> str:
        rows = [(node, state, text) for node, (state, text) in self.nodes.items()]
        curves = self.curves()
        picture = base64.b64encode(loss_curves(curves).encode()).decode() if curves else ""
        parts = [
            f"**{self.name or 'run'}**: {self.state}",
            format_table(("node", "state", "progress"), rows) if rows else "",
            f"![loss](data:image/svg+xml;base64,{picture})" if picture else "",
        ]
        return "\n\n".join(part for part in parts if part)
