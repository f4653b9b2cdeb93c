"""A bar on a terminal: how far, how fast, how well."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from trainyard.json_types import JsonMapping, JsonObject

SHOWN = {
    "loss": "loss {:.4f}",
    "eval_loss": "eval loss {:.4f}",
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
