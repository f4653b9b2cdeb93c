"""Reports of a training: its progress, metrics and loss curve, from the events of its work folder.

The file is append-only and belongs to the trainer; nothing is copied. A restart trains some steps again: the later
word on a step counts, and steps beyond the checkpoint that it continued from are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

Event = dict[str, Any]


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainingProgress(Frozen):
    """Progress of a training; None before the first report."""

    step: int = 0
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    loss: float | None = None
    learning_rate: float | None = None


class TrainingMetrics(Frozen):
    """Totals of a training so far."""

    train_loss: float | None = None
    eval_loss: float | None = None
    duration_s: float = 0.0
    """Time in which it worked; pauses do not count."""
    energy_j: float | None = None
    """Joules of its GPUs in all starts; None before its end, and where the driver measures none."""


class StageMeasures(Frozen):
    """Metrics of a step that only some stages and backends measure."""

    reward_accuracy: float | None = None
    """Share of the pairs whose chosen answer is above the rejected one (dpo, reward, kto)."""
    reward_margin: float | None = None
    kl: float | None = None
    """Nats a token from the reference (grpo, ppo)."""
    clipped: float | None = None
    """Share of the tokens whose ratio was clipped (grpo, ppo)."""
    policy_loss: float | None = None
    value_loss: float | None = None
    """Of the critic (ppo)."""
    thought_gain: float | None = None
    """What a thought adds to the likelihood of the next tokens (quiet_star)."""
    memory_bytes: float | None = None
    """Of the training process: its peak on a GPU, else its resident memory."""


class Point(StageMeasures):
    """A step of the curve."""

    step: int
    loss: float | None = None
    learning_rate: float | None = None
    eval_loss: float | None = None
    eval_reward_accuracy: float | None = None
    eval_reward_margin: float | None = None
    eval_reward: float | None = None
    """Mean of one completion of each held-out prompt (grpo, ppo)."""
    reward: float | None = None
    """Mean of the completions that were drawn (grpo)."""
    grad_norm: float | None = None
    """Of all gradients together, before they are clipped."""
    tokens_per_second: float | None = None
    time: float = 0.0


MEASURED = tuple(name for name in Point.model_fields if name not in ("step", "time"))


def read_curve(events: Iterable[Event], since: float = 0.0) -> list[Point]:
    """Return the loss curve across restarts, by step; without values reported before `since` (seconds of the epoch)."""
    points: dict[int, Point] = {}
    for event in select_since(events, since):
        if event["event"] == "begin":
            points = keep_up_to_restart(points, event.get("restarted_from"))
        step = event.get("step")
        if event["event"] == "progress" and isinstance(step, int):
            values = {name: number(event.get(name)) for name in MEASURED}
            points[step] = Point(step=step, **values, time=number(event.get("time")) or 0.0)
    return [points[step] for step in sorted(points)]


def keep_up_to_restart(points: dict[int, Point], restarted_from: object) -> dict[int, Point]:
    """Return what a restart leaves of the curve: the steps up to its checkpoint."""
    if isinstance(restarted_from, dict) and isinstance(step := restarted_from.get("step"), int):
        return {at: point for at, point in points.items() if at <= step}
    return {}


@dataclass
class TrainingPace:
    """Puts a training's progress into words, with the time that is left at the mean pace since its last start."""

    first: tuple[int, float] | None = None
    """The first step since then, and when it was done."""

    def line(self, event: Event) -> str:
        """`step 12/400, loss 4.3100, 1,234 tokens/s, about 3 min left`, as far as the event says it."""
        step, total = int(number(event.get("step")) or 0), number(event.get("total_steps"))
        loss, speed = number(event.get("loss")), number(event.get("tokens_per_second"))
        held_out = number(event.get("eval_loss"))
        left = self.estimate_remaining_s(step, total, number(event.get("time")))
        parts = [
            f"step {step}/{total:.0f}" if total else f"step {step}",
            "" if loss is None else f"loss {loss:.4f}",
            "" if held_out is None else f"eval loss {held_out:.4f}",
            "" if speed is None else f"{speed:,.0f} tokens/s",
            "" if left is None else f"about {format_duration(left)} left",
        ]
        return ", ".join(part for part in parts if part)

    def estimate_remaining_s(self, step: int, total: float | None, time: float | None) -> float | None:
        """Seconds to the last step; None before the second step, and at the last."""
        if time is None or total is None or step >= total:
            return None
        if self.first is None or step <= self.first[0]:
            self.first = (step, time)
            return None
        since, began = self.first
        return (total - step) * (time - began) / (step - since)


def format_duration(seconds: float) -> str:
    """`45 s`, `12 min`, `2 h 5 min`."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def number(value: object) -> float | None:
    """Return a number that a trainer wrote; None for anything else."""
    return float(value) if isinstance(value, int | float) else None


def select_since(events: Iterable[Event], since: float) -> Iterator[Event]:
    """Return the events from a time on: an identical job that ran before has left its own in the same file."""
    return (event for event in events if (time_s := number(event.get("time"))) is None or time_s >= since)


def read_progress(events: Iterable[Event], since: float = 0.0) -> TrainingProgress:
    """Return the newest progress since a time; `begin` says the totals."""
    return last_progress(select_since(events, since))


def last_progress(events: Iterable[Event]) -> TrainingProgress:
    newest = TrainingProgress()
    for event in events:
        newest = apply_progress(newest, event)
    return newest


def apply_progress(before: TrainingProgress, event: Event) -> TrainingProgress:
    """Return the progress after one event; a pure function, so that a follower and a reader see the same."""
    if event["event"] not in ("begin", "progress"):
        return before
    numbers = {name: event[name] for name in TrainingProgress.model_fields if isinstance(event.get(name), int | float)}
    if event["event"] == "begin":
        numbers = {name: value for name, value in numbers.items() if name.startswith("total")}
    return before.model_copy(update=numbers)


def metrics(events: Iterable[Event]) -> TrainingMetrics:
    """Train loss, evaluation loss and working time."""
    newest, worked, last = TrainingMetrics(), 0.0, 0.0
    for event in events:
        newest = apply_losses(newest, event)
        now = number(event.get("time")) or 0.0
        if event["event"] != "started" and last and now > last:  # a clock that was set back counts for nothing
            worked += now - last
        last = now or last
    return newest.model_copy(update={"duration_s": round(worked, 3)})


def apply_losses(before: TrainingMetrics, event: Event) -> TrainingMetrics:
    """Return the losses after one event."""
    names = {"progress": ("loss", "eval_loss"), "metrics": ("final_loss", "eval_loss")}.get(event["event"])
    if names is None:
        return before
    losses = {name: event.get(key) for name, key in zip(("train_loss", "eval_loss"), names, strict=True)}
    return before.model_copy(update={name: value for name, value in losses.items() if isinstance(value, int | float)})
