"""The curve of a training at every resolution: parity with `read_curve`, restarts, other files and other readers."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.app.live.trainings import read_new_steps
from trainyard.app.training_logs import TrainingLogs
from trainyard.compute.events import read_events
from trainyard.stores.live.curves import FACTOR, CurveStore, Position
from trainyard.stores.metrics import MEASURED, Point, read_curve, read_progress

Event = dict[str, Any]


def progress(step: int, **more: Any) -> Event:
    return {"event": "progress", "time": 100.0 + step, "step": step, **more}


def write(path: Path, events: list[Event]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


@pytest.fixture
def work(tmp_path: Path) -> TrainingLogs:
    return TrainingLogs("trainer", tmp_path)


def read(work: TrainingLogs) -> CurveStore:
    return read_new_steps(work, work.folder / "curves")


values = st.one_of(st.none(), st.integers(-5, 5), st.floats(-9, 9, allow_nan=False), st.just("no number"))
events = st.one_of(
    st.builds(
        lambda step, loss, rate: progress(step, loss=loss, learning_rate=rate), st.integers(0, 90), values, values
    ),
    st.builds(lambda step, loss: progress(step, eval_loss=loss, total_steps=90), st.integers(0, 90), values),
    st.builds(lambda step: {"event": "begin", "restarted_from": {"step": step}, "total_steps": 90}, st.integers(0, 90)),
    st.sampled_from(
        [{"event": "begin"}, {"event": "progress"}, {"event": "warning"}, progress(3, time=50.0), {"event": "done"}]
    ),
)


@settings(max_examples=80, deadline=None)
@given(batches=st.lists(st.lists(events, max_size=12), max_size=5), since=st.sampled_from([0.0, 120.0]))
def test_the_curve_is_that_of_read_curve_after_every_batch(batches: list[list[Event]], since: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = TrainingLogs("trainer", Path(folder), since)
        for batch in batches:
            write(work.folder / "events.jsonl", batch)
            store, path = read(work), work.folder / "events.jsonl"
            assert list(store.read().points) == read_curve(read_events(path), since)
            assert store.progress() == read_progress(read_events(path), since)
            assert_levels_agree(store)
        read(work).close()


def assert_levels_agree(store: CurveStore) -> None:
    """Compare every resolution with the same groups of the whole curve."""
    whole = store.read().points
    for most in (1, 2, 3, 5, 8, 13):
        curve = store.read(most)
        assert len(curve.points) <= most
        if curve.steps_per_point == 1:
            assert curve.points == whole
            continue
        groups: dict[int, list[Point]] = {}
        for point in whole:
            groups.setdefault(point.step // curve.steps_per_point, []).append(point)
        assert [point.step for point in curve.points] == [group[-1].step for _, group in sorted(groups.items())]
        for name in MEASURED:
            for at, (_, group) in enumerate(sorted(groups.items())):
                values = [value for point in group if (value := getattr(point, name)) is not None]
                mean = getattr(curve.points[at], name)
                if not values:
                    assert mean is None
                    continue
                assert mean == pytest.approx(sum(values) / len(values), abs=1e-9)
                assert (curve.low[name][at], curve.high[name][at]) == (min(values), max(values))
                assert curve.last[name][at] == values[-1]


def test_a_spike_is_in_every_resolution(work: TrainingLogs) -> None:
    write(work.folder / "events.jsonl", [progress(step, loss=2.0 if step != 1234 else 99.0) for step in range(1, 5001)])
    for most in (3, 10, 100, 700):
        curve = read(work).read(most)
        assert len(curve.points) <= most
        assert max(value for value in curve.high["loss"] if value is not None) == 99.0
        assert curve.steps_per_point >= 5000 / most / FACTOR


def test_a_curve_from_a_step_on(work: TrainingLogs) -> None:
    write(work.folder / "events.jsonl", [progress(step, loss=float(step)) for step in range(1, 1001)])
    store = read(work)
    assert [point.step for point in store.read(since_step=998).points] == [998, 999, 1000]
    curve = store.read(10, since_step=900)
    assert curve.points[-1].step == 1000
    assert 5 <= len(curve.points) <= 10
    assert curve.points[0].step >= 900
    assert store.read(10, since_step=2000).points == ()


def test_a_part_of_a_curve(work: TrainingLogs) -> None:
    write(work.folder / "events.jsonl", [progress(step, loss=float(step)) for step in range(1, 1001)])
    store = read(work)
    assert [point.step for point in store.read(since_step=10, until_step=12).points] == [10, 11, 12]
    assert store.read(until_step=10**30).points == store.read().points
    assert store.read(since_step=10**30).points == ()
    curve = store.read(20, since_step=200, until_step=400)
    assert curve.steps_per_point < 1000 // 20  # finer than the whole curve
    assert len(curve.points) <= 20
    assert curve.points[0].step >= 200
    assert 400 <= curve.points[-1].step < 400 + curve.steps_per_point


def test_a_restart_cuts_every_level(work: TrainingLogs) -> None:
    path = work.folder / "events.jsonl"
    write(path, [progress(step, loss=1.0) for step in range(1, 2001)])
    assert read(work).read(10).points[-1].step == 2000
    write(path, [{"event": "begin", "restarted_from": {"step": 777}}, progress(778, loss=5.0)])
    curve = read(work).read(10)
    assert curve.points[-1].step == 778
    assert curve.last["loss"][-1] == 5.0
    assert_levels_agree(read(work))
    write(path, [{"event": "begin"}])
    assert read(work).read().points == ()
    assert read(work).read(5).points == ()


def test_a_half_written_line_waits_for_its_rest(work: TrainingLogs) -> None:
    path = work.folder / "events.jsonl"
    write(path, [progress(1, loss=1.0)])
    with path.open("a") as file:
        file.write('{"event": "progress", "st')
    assert [point.step for point in read(work).read().points] == [1]
    with path.open("a") as file:
        file.write('ep": 2}\n')
    assert [point.step for point in read(work).read().points] == [1, 2]


def test_a_replaced_file_is_read_from_its_start(work: TrainingLogs) -> None:
    path = work.folder / "events.jsonl"
    write(path, [progress(step, loss=1.0) for step in range(1, 50)])
    read(work)
    path.rename(path.with_name("earlier.jsonl"))
    write(path, [progress(step, loss=2.0) for step in range(1, 100)])
    assert [point.loss for point in read(work).read().points] == [2.0] * 99
    path.write_text(json.dumps(progress(7)) + "\n")
    assert [point.step for point in read(work).read().points] == [7]


def test_a_lost_or_damaged_store_is_made_again(work: TrainingLogs) -> None:
    path = work.folder / "events.jsonl"
    write(path, [progress(step, loss=1.0) for step in range(1, 50)])
    store = read(work)
    store.path.unlink()
    assert len(read(work).read().points) == 49
    store.close()
    for ending in ("-wal", "-shm"):
        store.path.with_name(store.path.name + ending).unlink(missing_ok=True)
    store.path.write_bytes(b"no database" * 999)
    assert len(read(work).read().points) == 49
    database = sqlite3.connect(store.path)
    database.execute("pragma user_version = 99")
    database.close()
    store.close()
    assert len(read(work).read().points) == 49


def test_of_two_readers_one_adds_the_steps(tmp_path: Path) -> None:
    first, second = CurveStore(tmp_path / "c.sqlite3"), CurveStore(tmp_path / "c.sqlite3")
    assert first.position() == second.position() == Position()
    assert first.extend([progress(1, loss=1.0)], Position(), Position(80, 5))
    assert not second.extend([progress(1, loss=1.0)], Position(), Position(80, 5))
    assert second.extend([progress(2, loss=1.0)], Position(80, 5), Position(160, 5))
    assert [point.step for point in first.read().points] == [1, 2]


def test_numbers_that_are_no_steps_and_no_numbers(work: TrainingLogs) -> None:
    write(work.folder / "events.jsonl", [progress(2**60), progress(1, loss=None), progress(2, loss="x")])
    assert [(point.step, point.loss) for point in read(work).read().points if point.step < 9] == [(1, None), (2, None)]


def test_steps_far_apart_have_few_points(work: TrainingLogs) -> None:
    write(work.folder / "events.jsonl", [progress(10**n, loss=1.0) for n in range(13)])
    assert len(read(work).read().points) == 13
    for most in (1, 2, 5, 12):
        assert 1 <= len(read(work).read(most).points) <= most
