"""The loop: as many steps as requested, stopped between any two micro-batches, continued to the same bits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.train.session.engines import copy_weights, make_config, make_feed, make_session, same
from trainyard.errors import TrainyardError
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train import loop
from trainyard.train.contracts import Cursor, StepRecord
from trainyard.train.loop import count_done, train
from trainyard.train.progress import SavedProgress
from trainyard.train.rows.batching import Feed
from trainyard.train.session.session import Session

STEPS = 5
MICRO_BATCHES = 13
"""Ten rows, two a micro-batch, three of those a step: an epoch is a step of three and one of two."""


def settings(stage: Stage = Stage.SFT, **hyper: Any) -> TrainerConfig:
    fields = {"batch_size": 2, "gradient_accumulation": 3, "warmup_ratio": 0.4, "engine": {"batching": "padded"}}
    return make_config(stage, **{**fields, **hyper})


class Kept:
    """Remembers records, and saves with where the run stands, as a checkpoint does."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.saved: list[tuple[str, str]] = []

    def on_step(self, record: StepRecord) -> None:
        self.records.append(record)

    def save(self, session: Session, progress: SavedProgress) -> None:
        name = f"save-{len(self.saved)}"
        session.save(name)
        self.saved.append((name, json.dumps(progress.as_values())))


def stop_after(calls: int | None) -> Callable[[], bool]:
    """Asks to stop when it is called for the time after `calls`."""
    count = itertools.count()
    return lambda: calls is not None and next(count) >= calls


def run(
    session: Session,
    feed: Feed,
    history: Kept,
    progress: SavedProgress,
    stop: int | None = None,
    *,
    save_steps: int = 100,
) -> bool:
    return train(
        session,
        feed,
        progress,
        total_steps=STEPS,
        save=history.save,
        save_steps=save_steps,
        stop=stop_after(stop),
        hooks=[history],
    )


def test_it_takes_as_many_steps_as_asked_for_and_tells_each(tmp_path: Path) -> None:
    config = settings()
    session, feed, history, progress = make_session(tmp_path, config), make_feed(config, 10), Kept(), SavedProgress()
    assert run(session, feed, history, progress)
    assert session.global_step == count_done(session) == STEPS
    assert [record.step for record in history.records] == [1, 2, 3, 4, 5]
    assert progress.losses == [[record.step, record.loss, record.learning_rate] for record in history.records]
    assert progress.losses[-1][1] < progress.losses[0][1]
    assert progress.cursor == Cursor(2, 1, 0)
    assert progress.partial == {}
    assert not history.saved
    rates = [record.learning_rate for record in history.records]
    # Of six steps in the schedule three warm up.
    assert rates == pytest.approx([1e-3 / 4, 2e-3 / 4, 3e-3 / 4, 1e-3, 2e-3 / 3])
    tokens = sum(map(len, (example["input_ids"] for example in feed.examples)))
    targets = sum(label != -100 for example in feed.examples for label in example["labels"])
    for record in history.records:
        assert record.tokens < record.positions
        assert record.grad_norm > 0
        assert record.seconds > 0
        assert not record.skipped
    for epoch in (history.records[:2], history.records[2:4]):
        assert sum(record.tokens for record in epoch) == tokens
        assert sum(record.units for record in epoch) == targets


def test_packed_rows_have_no_padding_in_the_record(tmp_path: Path) -> None:
    config = settings(engine={"batching": "packed"})
    history, feed = Kept(), make_feed(config, 10)
    assert run(make_session(tmp_path, config), feed, history, SavedProgress())
    assert all(record.tokens == record.positions for record in history.records)
    assert sum(record.tokens for record in history.records[:2]) == sum(feed.plan.widths)


def test_metrics_are_means_over_the_units(tmp_path: Path) -> None:
    config = settings(Stage.DPO)
    history = Kept()
    assert run(make_session(tmp_path, config), make_feed(config, 10), history, SavedProgress())
    assert [record.units for record in history.records] == [6, 4, 6, 4, 6]  # pairs
    assert all(0 <= record.metrics["reward_accuracy"] <= 1 for record in history.records)


@pytest.mark.parametrize("stop", range(MICRO_BATCHES))
def test_stopped_between_any_two_micro_batches_it_goes_on_to_the_same_bits(stop: int, tmp_path: Path) -> None:
    config = settings()
    feed, whole, progress = make_feed(config, 10), make_session(tmp_path / "whole", config), SavedProgress()
    assert run(whole, feed, Kept(), progress)

    first, history = make_session(tmp_path / "parts", config), Kept()
    assert not run(first, feed, history, SavedProgress(), stop)
    ((name, where),) = history.saved
    second = make_session(tmp_path / "parts", config, seed=9)
    second.load(name)
    continued = SavedProgress.from_values(json.loads(where))
    assert run(second, make_feed(config, 10), history, continued)
    assert continued == progress
    assert same(copy_weights(second), copy_weights(whole))
    assert [record.step for record in history.records] == [1, 2, 3, 4, 5]


def test_the_last_step_is_not_asked_whether_it_should_stop(tmp_path: Path) -> None:
    config = settings()
    assert run(make_session(tmp_path, config), make_feed(config, 10), Kept(), SavedProgress(), MICRO_BATCHES)


def test_it_saves_every_so_many_steps_but_not_at_the_end(tmp_path: Path) -> None:
    config = settings()
    history = Kept()
    assert run(make_session(tmp_path, config), make_feed(config, 10), history, SavedProgress(), save_steps=1)
    steps = [len(json.loads(where)["losses"]) for _, where in history.saved]
    assert steps == [1, 2, 3, 4]


def test_a_loss_that_is_not_finite_ends_the_run_before_the_weights_move(tmp_path: Path) -> None:
    config = settings()
    session, history = make_session(tmp_path, config), Kept()
    with torch.no_grad():
        session.engine.model.lm_head.weight[7] = torch.inf
    before = copy_weights(session)
    with pytest.raises(TrainyardError, match=r"E-NON-FINITE: The loss of step 1 is (nan|inf)\. .*learning_rate"):
        run(session, make_feed(config, 10), history, SavedProgress(), save_steps=1)
    assert same(before, copy_weights(session))
    assert not history.saved
    assert not history.records


def test_a_skipped_step_is_told_counted_and_moves_no_schedule(tmp_path: Path) -> None:
    config = settings(warmup_ratio=0.0)
    session, history, progress = make_session(tmp_path, config, precision=Precision.FP16), Kept(), SavedProgress()
    session.scaler.load_state_dict({**session.scaler.state_dict(), "scale": 2.0**40})  # overflows for some steps
    assert run(session, make_feed(config, 10), history, progress)
    skipped = [record.skipped for record in history.records]
    assert skipped == sorted(skipped, reverse=True)  # the first ones
    assert sum(skipped) == session.skipped > 0
    assert session.global_step == STEPS - session.skipped == session.engine.rate.steps
    assert count_done(session) == STEPS
    assert {record.learning_rate for record in history.records if record.skipped} == {1e-3}


def test_the_loop_is_short() -> None:
    assert len(Path(loop.__file__).read_text().splitlines()) <= 120
