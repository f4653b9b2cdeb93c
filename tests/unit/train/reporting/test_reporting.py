"""Reports of a run: everybody hears everything, and nobody holds training up."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from trainyard.compute.child import Events
from trainyard.errors import Unavailable
from trainyard.spec.model_schema import flatten_settings
from trainyard.train.reporting import ProgressBar, memory_bytes, reporting, summary
from trainyard.train.trackers import (
    TRACKERS,
    TrackedRun,
    Tracker,
    TrackerFeed,
    TrackerRow,
    is_installed,
    load_object,
    numbers,
    open_tracker,
)

CONFIG = {"stage": "sft", "hyperparameters": {"learning_rate": 1e-4}}


def make_record(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "total_steps": 100,
        "loss": 2.0 / step,
        "learning_rate": 1e-4,
        "grad_norm": 0.5,
        "tokens_per_second": 1234.5,
        "memory_bytes": 1 << 30,
        "padding_ratio": 0.1,
        "skipped": 0,
        "reward_accuracy": None,
        "note": "text",
    }


class Recorded:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.logged.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


class Broken(Recorded):
    def log(self, step: int, values: Mapping[str, float]) -> None:
        raise ConnectionError("no route")


class Hanging(Recorded):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        assert self.go.wait(120)
        super().log(step, values)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_steps_go_to_the_events_file_as_they_are(tmp_path: Path) -> None:
    events = Events(tmp_path / "events.jsonl")
    with reporting(events.emit, TrackedRun(tmp_path, "project", "run"), terminal=None) as report:
        report.on_step(make_record(1))
        report.on_step(make_record(2))
    events.close()
    lines = [orjson.loads(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    assert [{name: line[name] for name in make_record(1)} for line in lines] == [make_record(1), make_record(2)]
    assert {line["event"] for line in lines} == {"progress"}


def test_numbers_are_what_a_chart_can_show() -> None:
    assert numbers({"step": 3, "total_steps": 9, "loss": 1, "flag": True, "none": None, "text": "x"}) == {
        "train/loss": 1.0
    }
    assert numbers({"step": 3, "loss": 1.0, "eval_loss": 2.0}) == {"train/loss": 1.0, "eval/loss": 2.0}
    assert flatten_settings({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}


def test_every_tracker_gets_every_step_in_order_and_is_closed() -> None:
    tracker, other, reports = Recorded(), Recorded(), list[dict[str, str]]()
    feed = TrackerFeed({"one": tracker, "other": other}, reports.append)
    for step in range(1, 50):
        feed.on_step(make_record(step))
    feed.close()
    feed.close()
    assert [step for step, _ in tracker.logged] == list(range(1, 50))
    assert tracker.logged == other.logged
    assert tracker.logged[0][1]["train/loss"] == 2.0
    assert (tracker.closed, other.closed, reports) == (True, True, [])


def test_broken_tracker_is_told_once_and_counted_and_the_others_go_on() -> None:
    whole, reports = Recorded(), list[dict[str, str]]()
    feed = TrackerFeed({"broken": Broken(), "whole": whole}, reports.append)
    for step in range(1, 6):
        feed.on_step(make_record(step))
    feed.close()
    assert len(whole.logged) == 5
    assert [warning["code"] for warning in reports] == ["E-TRACKER"] * 2
    assert reports[0]["text"] == "broken failed: ConnectionError: no route. The training continues."
    assert reports[1]["text"] == "broken did not take 5 records."


def test_slow_tracker_holds_nobody_up_and_what_it_missed_is_told() -> None:
    hanging, reports = Hanging(), list[dict[str, str]]()
    feed = TrackerFeed({"slow": hanging}, reports.append, waiting=10)
    started = time.perf_counter()
    for step in range(1, 101):
        feed.on_step(make_record(step))
    assert time.perf_counter() - started < 60
    hanging.go.set()
    feed.close()
    assert len(hanging.logged) + feed.left_out == 100
    assert feed.left_out >= 89
    assert reports[-1]["text"] == f"The trackers were too slow: {feed.left_out} records were left out."


def test_tracker_that_hangs_at_the_end_does_not_keep_the_run() -> None:
    hanging, reports = Hanging(), list[dict[str, str]]()
    feed = TrackerFeed({"slow": hanging}, reports.append, close_s=0.05)
    for step in (1, 2, 3):
        feed.on_step(make_record(step))
    feed.close()
    assert reports[0]["text"].startswith("The trackers did not take the last ")
    hanging.go.set()


def test_bar_only_on_a_terminal(tmp_path: Path) -> None:
    run = TrackedRun(tmp_path, "project", "run")
    terminal, file = Terminal(), io.StringIO()
    with reporting(lambda *_, **__: None, run, terminal=terminal) as on_terminal:
        for step in (1, 50, 100):
            on_terminal.on_step(make_record(step))
    with reporting(lambda *_, **__: None, run, terminal=file) as in_file:
        in_file.on_step(make_record(1))
    assert any(isinstance(reporter, ProgressBar) for reporter in on_terminal.reporters)
    assert "100/100" in terminal.getvalue()
    assert file.getvalue() == ""
    assert summary(make_record(4)) == "loss 0.5000  lr 1.00e-04  1,234 tokens/s"
    assert summary({"step": 1}) == ""
    assert summary({"loss": 0.5, "eval_loss": 0.75}) == "loss 0.5000  eval loss 0.7500"


def test_a_step_costs_less_than_a_millisecond(tmp_path: Path) -> None:
    """CPU time of the training thread, with everything on and a tracker that is far behind."""
    events = Events(tmp_path / "events.jsonl")
    hanging = Hanging()
    with reporting(events.emit, TrackedRun(tmp_path, "project", "run"), terminal=Terminal()) as report:
        feed = TrackerFeed({"slow": hanging}, lambda fields: events.emit("warning", **fields), waiting=64)
        started = time.thread_time()
        for step in range(1, 1001):
            report.on_step({**make_record(step), "memory_bytes": memory_bytes("cpu")})
            feed.on_step(make_record(step))
        spent_s = (time.thread_time() - started) / 1000
        hanging.go.set()
        feed.close()
    events.close()
    assert spent_s < 1e-3


def test_memory_is_that_of_this_process() -> None:
    assert 1 << 24 < memory_bytes("cpu") < 1 << 40


@pytest.mark.parametrize("name", TRACKERS)
def test_missing_tracker_says_how_to_install_it(tmp_path: Path, name: str) -> None:
    if is_installed(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(Unavailable, match=f"E-PACKAGE-MISSING: The tracker {name} is not .* pip install {name}"):
        reporting(lambda *_, **__: None, TrackedRun(tmp_path, "project", "run"), trackers=(name,), terminal=None)


TRACKER_VARIABLES = ("WANDB_MODE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "TRACKIO_DIR")


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `open_tracker` sets is taken back."""
    for name in TRACKER_VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("own_environment")
@pytest.mark.filterwarnings("ignore")  # of other people's programs
@pytest.mark.parametrize("name", TRACKERS)
def test_real_tracker_keeps_a_run_and_continues_it_without_a_network(tmp_path: Path, name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")
    reports: list[dict[str, Any]] = []

    def emit(event: str, **fields: Any) -> None:
        reports.extend([fields] if event == "warning" else [])

    for first in (1, 3):
        with reporting(
            emit, TrackedRun(tmp_path / "t", "project", "run/1", CONFIG), trackers=(name,), terminal=None
        ) as report:
            for step in range(first, first + 3):
                report.on_step(make_record(step))
    assert reports == []
    assert any(path.is_file() for path in (tmp_path / "t").rglob("*"))
    if name == "tensorboard":
        accumulator = load_object("tensorboard.backend.event_processing.event_accumulator")
        events = accumulator.EventAccumulator(str(tmp_path / "t" / "tensorboard" / "run-1")).Reload()
        losses = [(scalar.step, scalar.value) for scalar in events.Scalars("train/loss")]
        assert losses == [(step, pytest.approx(2.0 / step)) for step in range(1, 6)]


def test_tracker_that_cannot_begin_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ModuleType, run: TrackedRun) -> Tracker:
        raise ConnectionError(f"no server for {run.project}")

    monkeypatch.setitem(TRACKERS, "wandb", TrackerRow("json", "json", refuse, lambda _: {}))
    with pytest.raises(Unavailable, match=r"E-TRACKER: .*'run'\. Why: ConnectionError: no server for project"):
        open_tracker("wandb", TrackedRun(tmp_path, "project", "run"))
