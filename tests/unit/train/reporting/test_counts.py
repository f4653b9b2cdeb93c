"""What a run says that it trained on is what a recount of the labels in its batches gives."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.train.session.engines import make_config, make_feed, make_session
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.stages import Stage
from trainyard.train.contracts import Batch
from trainyard.train.loop import train
from trainyard.train.progress import Counted, Origin, SavedProgress, account_fields
from trainyard.train.rows.tokens import IGNORED, TokenLedger
from trainyard.train.session.session import Session


def record_batches(session: Session, given_batches: list[Batch]) -> Session:
    """The session, noting each batch that it is given."""
    forward = session.forward

    def noting(batch: Batch, **more: Any) -> Any:
        given_batches.append(batch)
        return forward(batch, **more)

    session.forward = noting  # type: ignore[method-assign]
    return session


def recount(batches: list[Batch], stage: Stage) -> Counted:
    """Label by label, the slow and obvious way."""
    total = Counted()
    for batch in batches:
        labels = [label for row in batch["labels"].tolist() for label in row[1:]]
        learned = sum(label != IGNORED for label in labels)
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).flatten().tolist()
        packed = batch["position_ids"].flatten().tolist().count(0) if "position_ids" in batch else 0
        rows = packed or batch["input_ids"].shape[0] // (2 if stage is Stage.DPO else 1)
        total.add(Counted(learned, sum(mask) - learned, rows))
    return total


@given(
    stage=st.sampled_from([Stage.SFT, Stage.DPO, Stage.KTO]),
    batching=st.sampled_from(["padded", "buckets", "packed"]),
    shape=st.tuples(st.integers(2, 3), st.integers(1, 3), st.integers(1, 3)),
    steps=st.integers(1, 6),
    stops=st.lists(st.integers(0, 5), max_size=2),
)
@settings(max_examples=12, deadline=None)
def test_account_is_a_recount_of_the_labels_in_the_batches(
    stage: Stage, batching: str, shape: tuple[int, int, int], steps: int, stops: list[int]
) -> None:
    """Below an epoch and above it, paused anywhere, packed, and with the steps of several processes."""
    size, accumulation, processes = shape
    mode = batching if stage is Stage.SFT else "padded"
    config = make_config(
        stage, batch_size=size, gradient_accumulation=accumulation, max_steps=steps, engine={"batching": mode}
    )
    launch = config.launch.model_copy(update={"processes": processes})
    feed, progress, batches = make_feed(config.model_copy(update={"launch": launch}), 9), SavedProgress(), []
    with tempfile.TemporaryDirectory() as folder:
        session = record_batches(make_session(Path(folder), config), batches)
        for number, stop in enumerate([*stops, None]):
            calls = itertools.count()
            snapshots: list[str] = []

            def save(
                running: Session, at: SavedProgress, number: int = number, snapshots: list[str] = snapshots
            ) -> None:
                running.save(f"save-{number}")
                snapshots.append(json.dumps(at.as_values()))

            ended = train(
                session, feed, progress, total_steps=steps, save=save, save_steps=100,
                stop=lambda stop=stop, calls=calls: stop is not None and next(calls) >= stop,
            )  # fmt: skip
            if ended:
                break
            session = record_batches(make_session(Path(folder), config, seed=number), batches)
            session.load(f"save-{number}")
            progress = SavedProgress.from_values(json.loads(snapshots[-1]))
    assert ended
    assert progress.counted == recount(batches, stage)


def test_below_an_epoch_less_is_trained_than_the_data_has(tmp_path: Path) -> None:
    config = make_config(batch_size=2, max_steps=2, engine={"batching": "padded"})
    feed, progress = make_feed(config, 20), SavedProgress()
    session = make_session(tmp_path, config)
    train(session, feed, progress, total_steps=2, save=lambda *_: None, save_steps=9, stop=lambda: False)
    labels = [label for row in feed.examples for label in row["labels"] if label != IGNORED]
    assert progress.counted.rows == 4
    assert 0 < progress.counted.trained < len(labels) / 2


def test_steps_that_move_nothing_are_counted_apart(tmp_path: Path) -> None:
    config = make_config(batch_size=2, precision="fp16", max_steps=1, engine={"batching": "padded"})
    session = make_session(tmp_path, config, precision=Precision.FP16)
    session.scaler._init_scale = 2.0**30  # overflows in the first step
    feed, progress = make_feed(config, 4), SavedProgress()
    train(session, feed, progress, total_steps=1, save=lambda *_: None, save_steps=9, stop=lambda: False)
    assert session.skipped == 1
    assert (progress.counted.trained, progress.counted.rows) == (0, 0)
    assert progress.counted.skipped > 0
    assert progress.counted.record(TokenLedger())["tokens"]["skipped"] == progress.counted.skipped


@pytest.mark.parametrize("origin", Origin)
def test_record_says_how_it_is_known(origin: Origin) -> None:
    ledger = TokenLedger(read=9, trained=4, masked=5)
    ledger.rows["trained"] = 2
    assert Counted(8, 10, 4).record(ledger, origin) == {
        "tokens": {"trained": 8, "masked": 10},
        "rows": {"trained": 4},
        "counted": origin.value,
        "data": {"tokens": ledger.tokens(), "rows": {"trained": 2}},
    }
    assert account_fields({"trained": 1, "masked": 0, "rows": 1}, origin)["tokens"] == {"trained": 1, "masked": 0}
