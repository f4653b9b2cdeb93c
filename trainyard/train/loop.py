"""The training loop. It calls verbs, moves a cursor and reports events; everything else is in other modules.

From a pause to a checkpoint: `prefect_api/operating.py` pauses the run, `prefect_api/states.py` reads its desired
state, `compute/supervise.py` sends SIGTERM to the child, `compute/child.py` notes it (`Events.stop_requested`),
`train` below checks `stop` between micro-batches and calls `save`, `backends/native/program.py` writes it through
`train/checkpoint/writer.py` and raises `Stopped`: exit status 75. A run that is paused inside an accumulation loses
at most one micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trainyard.train.contracts import StepRecord
from trainyard.train.history import require_finite_loss
from trainyard.train.progress import SavedProgress
from trainyard.train.rows.batching import Feed
from trainyard.train.session.verbs import StepSession

Save = Callable[[Any, SavedProgress], None]
"""(session, progress) -> a checkpoint of both."""


class Hook(Protocol):
    """Called after every step; may add metrics for later hooks."""

    def on_step(self, record: StepRecord) -> None: ...


def train(
    session: StepSession,
    feed: Feed,
    progress: SavedProgress,
    *,
    total_steps: int,
    save: Save,
    save_steps: int,
    stop: Callable[[], bool],
    hooks: Sequence[Hook] = (),
) -> bool:
    """Train up to `total_steps` optimizer steps (skipped ones included); False when it was stopped before.

    An evaluation among the hooks may end it early. A stopped run has been saved. Raises `TrainyardError`
    (`E-NON-FINITE`) and whatever the verbs raise.
    """
    while count_done(session) < total_steps and not progress.evaluations.ended:
        started = time.perf_counter()
        if begins_again(session, progress):
            session.reset_optimizer()
        batches = feed.draw_batches(progress.cursor, session, session.engine.config, progress.kept)
        rows = feed.plan.at(progress.cursor)
        units = sum(map(feed.stage.units, batches))
        for batch in batches[progress.cursor.micro :]:
            if stop():
                save(session, progress)
                return False
            forward = session.forward(batch, normalizer=units)
            session.backward(forward.forward_id, measure=False)
            for name, value in {"loss": forward.loss, **forward.metrics}.items():
                progress.partial[name] = progress.partial.get(name, 0.0) + float(value)
            progress.cursor = feed.plan.after(progress.cursor)
        record = finish_step(session, progress, batches, units, started)
        progress.counted.add_step(batches, rows, skipped=record.skipped)
        for hook in hooks:
            hook.on_step(record)
        if count_done(session) % save_steps == 0 and count_done(session) < total_steps:
            save(session, progress)
    return True


def count_done(session: StepSession) -> int:
    """Steps that were taken or skipped."""
    return session.global_step + session.skipped


def begins_again(session: StepSession, progress: SavedProgress) -> bool:
    """Return whether the states of the optimizer begin again before the step at the cursor, where rows change their
    form.
    """
    technique, cursor = session.engine.config.stage.technique, progress.cursor
    return technique is not None and not cursor.step and not cursor.micro and technique.begins_again(cursor.epoch)


def finish_step(
    session: StepSession, progress: SavedProgress, batches: list[Any], units: int, started: float
) -> StepRecord:
    """Apply the optimizer step and record it."""
    loss, metrics = progress.partial.pop("loss"), progress.partial
    require_finite_loss(count_done(session) + 1, loss)
    stepped = session.step(metric=loss)
    session.zero_grad()
    progress.losses.append([count_done(session), loss, stepped.learning_rate])
    progress.partial = {}
    masks = [batch.get("attention_mask", batch["input_ids"] >= 0) for batch in batches]
    return StepRecord(
        step=count_done(session),
        loss=loss,
        learning_rate=stepped.learning_rate,
        grad_norm=float(stepped.grad_norm),
        skipped=stepped.skipped,
        units=units,
        tokens=sum(int(mask.count_nonzero()) for mask in masks),
        positions=sum(mask.numel() for mask in masks),
        seconds=time.perf_counter() - started,
        metrics={name: value / units for name, value in metrics.items()},
    )
