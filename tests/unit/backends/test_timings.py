"""What trainings took: read from events, kept under the home, measured by a probe."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from tests.small_jobs import Jobs, conversation
from trainyard.backends.timings import (
    Stopwatch,
    TrainingClock,
    add_timing,
    make_key,
    read_measurement,
    read_timings,
    run_probe,
)
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import read_events
from trainyard.compute.monitor import ProcessorTime, read_processor_time
from trainyard.data.rows import ROWS_FILE, Row, write_rows
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.estimate.timing import StepTiming, Timings, estimate_slowdown
from trainyard.stores.artifacts import Produced

ONE = StepTiming(source="run", time=1.0, max_length=8, rows_per_batch=1, rows_per_step=1, seconds_per_step=0.5)


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home", threads=1)


def test_measurements_are_kept(here: Settings) -> None:
    assert read_timings("k", here).measured == ()
    add_timing("k", ONE, here)
    add_timing("k", ONE.model_copy(update={"time": 2.0}), here)
    assert [measurement.time for measurement in read_timings("k", here).measured] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "note"),
    [("{", "cannot be read"), ('{"measured": 3}', "cannot be read"), ('{"schema_version": 99}', "newer Trainyard")],
)
def test_a_file_that_cannot_be_used_is_no_measurement(here: Settings, text: str, note: str) -> None:
    here.timings.mkdir(parents=True)
    (here.timings / "k.json").write_text(text)
    timings = read_timings("k", here)
    assert timings.measured == ()
    assert note in timings.note
    add_timing("k", ONE, here)
    assert read_timings("k", here).measured == (ONE,)


def make_watch(*steps: float, **begin: Any) -> Stopwatch:
    watch = Stopwatch(began=0.0)
    watch({"event": "started", "time": 1.0})
    watch({"event": "begin", "time": 5.0, "total_steps": 30, "total_epochs": 2.0, "restarted_from": None, **begin})
    for number, time in enumerate(steps, 1):
        watch({"event": "progress", "step": number, "time": time, "tokens": 40 * number})
    return watch


def test_the_time_of_a_training_is_read_from_its_events(jobs: Jobs) -> None:
    job = jobs(hyperparameters={"batch_size": 4, "save_steps": 5})
    # a second a step, but for the first ones and the one with the checkpoint of step 5
    watch = make_watch(9.0, 11.0, 12.0, 13.0, 14.0, 15.5, 16.5, 17.5)
    measurement = read_measurement(job, watch, 20.0, "run", "abc")
    assert measurement is not None
    assert (measurement.seconds_per_step, measurement.save_s, measurement.start_s, measurement.end_s) == (
        1.0,
        0.5,
        1.0,
        2.5,
    )
    assert (measurement.load_s, measurement.steps_per_epoch, measurement.tokens_per_row, measurement.data) == (
        7.0,
        15.0,
        10.0,
        "abc",
    )


def test_a_training_that_continued_or_was_short_measures_nothing(jobs: Jobs) -> None:
    assert read_measurement(jobs(), make_watch(9.0, 10.0, 11.0), 20.0, "run", "") is None
    continued = make_watch(*map(float, range(9, 20)), restarted_from={"step": 3})
    assert read_measurement(jobs(), continued, 30.0, "run", "") is None


LEDGER = {"event": "ledger", "time": 2.0, "trained": 100, "masked": 150, "rows": {"read": 25, "trained": 25}}


def clock_after_another_set(jobs: Jobs, here: Settings, **begin: Any) -> tuple[TrainingClock, float | None]:
    """The clock of a job whose kind was measured on other rows, after its first events; and what it expected before."""
    job = jobs(backend="native", device="cpu", hyperparameters={"max_length": 2048, "batch_size": 2, "max_steps": 10})
    size = {"max_length": 2048, "rows_per_batch": 2, "rows_per_step": 2, "tokens_per_row": 10.0}
    add_timing(make_key(job, here), ONE.model_copy(update={"data": "other rows", "rows": 9, **size}), here)
    clock = TrainingClock(job, here)
    before = clock.expected
    for event in ({"event": "started", "time": 1.0}, LEDGER, {"event": "begin", "time": 3.0, **begin}):
        clock(event)
    return clock, before


def stop_clock(clock: TrainingClock) -> dict[str, Any]:
    return clock.stop(Produced(outputs={})).facts["time"]


def test_a_training_of_short_rows_is_expected_to_be_short(jobs: Jobs, here: Settings) -> None:
    """Its rows have 10 tokens, as the measured ones, and may have 2,048: that says nothing of the time."""
    clock, before = clock_after_another_set(jobs, here)
    assert before is None
    assert stop_clock(clock)["expected"] == pytest.approx(10 * 0.5, abs=1.0)


def test_nothing_is_expected_of_the_rest_of_a_training(jobs: Jobs, here: Settings) -> None:
    clock, _ = clock_after_another_set(jobs, here, restarted_from=3)
    assert "expected" not in stop_clock(clock)


def test_an_evaluation_is_no_part_of_a_step(jobs: Jobs) -> None:
    watch = make_watch(9.0, 10.0, 11.0, 12.0)
    watch({"event": "evaluation", "time": 40.0})
    for number, time in enumerate((42.0, 43.0, 44.0), 5):
        watch({"event": "progress", "step": number, "time": time})
    measurement = read_measurement(jobs(), watch, 50.0, "run", "")
    assert measurement is not None
    assert measurement.seconds_per_step == 1.0


def test_a_probe_measures_and_leaves_nothing_else(jobs: Jobs, here: Settings, tmp_path: Path) -> None:
    messages: list[str] = []
    job = jobs(backend="native", device="cpu")
    assert run_probe(job, tmp_path / "out", here, messages.append) is None
    (measurement,) = read_timings(make_key(job, here), here).measured
    assert (measurement.source, measurement.max_length) == ("probe", 40)
    assert measurement.seconds_per_step > 0
    assert measurement.load_s > 0
    assert measurement.tokens_per_row > 0
    assert list((here.runs / "training").iterdir()) == []


@pytest.mark.slow
def test_two_measurements_at_once_wait_for_each_other(jobs: Jobs, here: Settings, tmp_path: Path) -> None:
    job = jobs(backend="native", device="cpu")
    messages: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        probes = [pool.submit(run_probe, job, tmp_path / f"out-{index}", here, messages.append) for index in range(2)]
        assert [probe.result() for probe in probes] == [None, None]
    first, second = read_timings(make_key(job, here), here).measured
    computed_s = second.load_s + second.end_s + 10 * second.seconds_per_step
    assert second.time - first.time >= computed_s, "they had the device one after the other"


@pytest.mark.slow
def test_a_probe_without_memory_is_remembered_as_that(tiny_model: Path, here: Settings, tmp_path: Path) -> None:
    """The kernel refuses the child what its first step takes."""
    rows: list[Row] = [conversation(f"Tell {n}", "the node reads documents and pairs " * 60) for n in range(64)]
    data = {Port.SFT: tmp_path / "data"}
    write_rows(data[Port.SFT] / ROWS_FILE, Port.SFT, rows)
    hyper = {"batch_size": 64, "max_length": 512}
    job = Jobs(tiny_model, data, tmp_path / "locks")(backend="native", device="cpu", hyperparameters=hyper)
    with ThreadPoolExecutor(1) as pool:
        probe = pool.submit(run_probe, job, tmp_path / "out", here, lambda text: None)
        resource.prlimit(*make_limit(wait_for_pid(here)))
        problem = probe.result()
    assert problem is not None
    assert (problem.max_length, problem.rows_per_batch) == (512, 64)
    assert problem.why.startswith("ten steps ran out of memory")
    assert read_timings(make_key(job, here), here).find_problem(job.config) == problem


def wait_for_pid(here: Settings, wait_s: float = 60.0) -> int:
    """The process of the training, once it is loading its model."""
    ends = monotonic() + wait_s
    while monotonic() < ends:
        for path in (here.runs / "training").glob(f"*/{EVENTS_FILE}"):
            for event in read_events(path):
                if event["event"] == "prepared":
                    return next(int(event["pid"]) for event in read_events(path) if event["event"] == "started")
        sleep(0.01)
    raise TimeoutError("no training began")


def make_limit(pid: int) -> tuple[int, int, tuple[int, int]]:
    """64 MiB more address space than it has now."""
    size = psutil.Process(pid).memory_info().vms + (64 << 20)
    return pid, resource.RLIMIT_AS, (size, size)


def test_the_load_of_a_measurement_is_left_out() -> None:
    busy = ONE.model_copy(
        update={"seconds_per_step": 2.0, "step_cpu_share": 0.25, "load_s": 9.0, "load_cpu_share": 0.5}
    )
    alone = busy.alone()
    assert (alone.seconds_per_step, alone.load_s) == (0.5, 4.5)
    assert alone.alone() == alone


def test_a_slowdown_is_at_most_that_of_the_measurements() -> None:
    busy = ONE.model_copy(update={"step_cpu_share": 0.5})
    assert estimate_slowdown(Timings((busy,), slowdown=9.0)) == (1 / busy.load_cpu_share, 2.0)
    assert estimate_slowdown(Timings((busy,), slowdown=1.0)) == (1.0, 1.0)
    assert estimate_slowdown(Timings((ONE,), slowdown=9.0)) == (1.0, 1.0)
    assert estimate_slowdown(Timings()) == (1.0, 1.0)


def test_the_start_of_a_training_is_slowed_more_than_its_steps() -> None:
    shares = {"load_cpu_share": 0.2, "step_cpu_share": 0.5}
    run = ONE.model_copy(update={**shares, "source": "run"})
    assert estimate_slowdown(Timings((run,), slowdown=9.0)) == (5.0, 2.0)
    assert estimate_slowdown(Timings((run,), slowdown=3.0)) == (3.0, 2.0)
    moment = run.model_copy(update={"source": "probe", "load_cpu_share": 0.25, "step_cpu_share": 0.1})
    assert estimate_slowdown(Timings((moment,), slowdown=9.0)) == (4.0, 4.0)


def test_the_kernel_says_how_long_a_process_waited(tmp_path: Path) -> None:
    folder = tmp_path / "7" / "task" / "7"
    folder.mkdir(parents=True)
    (folder / "schedstat").write_text("300 100 5\n")
    used = read_processor_time(7, tmp_path)
    assert used == ProcessorTime(300, 100)
    assert used is not None
    assert used.share_since(ProcessorTime(0, 0)) == 0.75
    assert read_processor_time(8, tmp_path) is None
