"""Trainings that do not fit the memory: told apart, tried once more, answered with figures."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.small_jobs import Jobs, conversation
from trainyard.backends.base import work_folder
from trainyard.backends.job import TrainingJob
from trainyard.backends.oom import REMEMBERED_FILE, halve_batch, train_within_memory
from trainyard.compute.supervise import keep_running, kernel_kills, ran_out_of_memory
from trainyard.data.rows import Row, write_rows
from trainyard.errors import LimitExceeded, TrainyardError
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.stores.artifacts import Produced, ProducedSet


def native(jobs: Jobs, batch_size: int = 8, accumulation: int = 1, **config: Any) -> TrainingJob:
    hyper = {"batch_size": batch_size, "gradient_accumulation": accumulation, "max_steps": 3}
    return jobs(backend="native", hyperparameters=hyper, **config)


def sizes(job: TrainingJob) -> tuple[int, int]:
    hyper = job.config.hyperparameters
    return hyper.batch_size, hyper.gradient_accumulation


@pytest.mark.parametrize(
    ("batch", "expected"),
    [((8, 1), (4, 2)), ((8, 3), (4, 6)), ((2, 1), (1, 2)), ((6, 1), (3, 2)), ((5, 1), (1, 5)), ((3, 4), (1, 12))],
)
def test_a_smaller_job_sees_the_same_rows_a_step(jobs: Jobs, batch: tuple[int, int], expected: tuple[int, int]) -> None:
    smaller = halve_batch(native(jobs, *batch))
    assert smaller is not None
    assert sizes(smaller) == expected
    assert batch[0] * batch[1] == expected[0] * expected[1]


@pytest.mark.parametrize(("rows", "smaller"), [(8, 4), (4, 2), (3, None), (2, None)])
def test_stage_kto_keeps_two_rows_to_compare(rows: int, smaller: int | None, jobs: Jobs) -> None:
    smaller_job = halve_batch(jobs(Port.LABELLED, stage="kto", hyperparameters={"batch_size": rows}))
    assert (smaller_job and smaller_job.config.hyperparameters.batch_size) == smaller


def test_a_token_budget_is_halved_too_and_one_row_cannot_be(jobs: Jobs) -> None:
    smaller = halve_batch(native(jobs, engine={"token_budget": 320}))
    assert smaller is not None
    assert smaller.config.engine.token_budget == 160
    assert halve_batch(native(jobs, 1)) is None


@pytest.mark.parametrize(
    ("error", "log", "kernel", "expected"),
    [
        (TrainyardError("The device ran out of memory.", code="E-DEVICE-MEMORY"), "", False, True),
        (TrainyardError("This machine ran out of memory.", code="E-MEMORY"), "", False, True),
        (TrainyardError("The program was ended from outside by SIGKILL.", code="E-KILLED"), "", True, True),
        (TrainyardError("The program was ended from outside by SIGKILL.", code="E-KILLED"), "", False, False),
        (TrainyardError("The program was ended from outside by SIGSEGV.", code="E-KILLED"), "", True, False),
        (TrainyardError("It ended with exit code 1.", code="E-CRASH"), "CUDA out of memory. Tried to", False, True),
        (TrainyardError("It ended with exit code 1.", code="E-CRASH"), "std::bad_alloc", False, True),
        (TrainyardError("It ended with exit code 1.", code="E-CRASH"), "KeyError: 'text'", False, False),
        (TrainyardError("RuntimeError: DefaultCPUAllocator: can't allocate memory", code="E-CRASH"), "", False, True),
        (TrainyardError("CUDA out of memory, said a row of the data.", code="E-DATA-UNREADABLE"), "", False, False),
    ],
)
def test_want_of_memory_is_told_apart(error: TrainyardError, log: str, kernel: bool, expected: bool) -> None:
    assert ran_out_of_memory(error, log, killed_by_kernel=kernel) is expected


def test_the_kernel_s_counters_are_read(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 3\n")
    (tmp_path / "events").write_text("low 0\noom 5\noom_kill 2\noom_group_kill 0\n")
    assert kernel_kills((tmp_path / "vmstat", tmp_path / "events", tmp_path / "absent")) == 5
    assert kernel_kills() >= 0


class Trainer:
    """Stands for `run_training`: fits only below a number of rows at a time."""

    def __init__(self, fits: int) -> None:
        self.fits, self.batches = fits, list[tuple[int, int]]()

    def __call__(self, job: TrainingJob, folder: Path, *, settings: Settings, **_: Any) -> Produced:
        self.batches.append(sizes(job))
        work_folder(job, settings).mkdir(parents=True, exist_ok=True)
        if sizes(job)[0] > self.fits:
            raise TrainyardError("The device ran out of memory.", why="Tried 20 GiB.", code="E-DEVICE-MEMORY")
        (folder / "adapter").mkdir(parents=True)
        (folder / "adapter" / "training.json").write_text(json.dumps({"steps": 3}))
        return Produced(outputs={Port.ADAPTER: ProducedSet(folder="adapter")}, facts={"steps": 3})


def train_job(job: TrainingJob, folder: Path, trainer: Any, events: list[dict[str, Any]] | None = None) -> Produced:
    on_event = (events if events is not None else []).append
    here = load_settings(home=folder / "home")
    return train_within_memory(
        job, folder / "out", desired_state=keep_running, on_event=on_event, settings=here, train=trainer
    )


def test_one_more_try_with_half_is_recorded_and_remembered(jobs: Jobs, tmp_path: Path) -> None:
    job, events, trainer = native(jobs), list[dict[str, Any]](), Trainer(fits=4)
    produced = train_job(job, tmp_path, trainer, events)
    assert trainer.batches == [(8, 1), (4, 2)]
    note = {"batch_size": [8, 4], "gradient_accumulation": [1, 2]}
    assert produced.facts["out_of_memory"] == note
    assert json.loads((tmp_path / "out" / "adapter" / "training.json").read_text())["out_of_memory"] == note
    (warning,) = events
    assert warning["event"] == "warning"
    assert "batch_size 4 instead of 8 and gradient_accumulation 2" in warning["text"]
    again = Trainer(fits=4)
    (tmp_path / "out").rename(tmp_path / "first")
    train_job(job, tmp_path, again)
    assert again.batches == [(4, 2)], "a resumed run does not run out of memory first"


def test_it_is_tried_once_only_and_answered_with_figures(jobs: Jobs, tmp_path: Path) -> None:
    trainer = Trainer(fits=2)
    pattern = (
        r"E-DEVICE-MEMORY: The training does not fit the memory\. Why: Tried 20 GiB\. Do: Estimated are \d+\.\d\d GiB"
    )
    with pytest.raises(LimitExceeded, match=pattern) as error:
        train_job(native(jobs), tmp_path, trainer)
    assert trainer.batches == [(8, 1), (4, 2)]
    assert "`batch_size: 1` takes " in error.value.do
    assert "`max_length: 20` takes " in error.value.do


def test_no_second_try_when_it_is_not_wanted(jobs: Jobs, tmp_path: Path) -> None:
    trainer = Trainer(fits=4)
    with pytest.raises(LimitExceeded, match="E-DEVICE-MEMORY"):
        train_job(native(jobs, launch={"on_oom": "fail"}), tmp_path, trainer)
    assert trainer.batches == [(8, 1)]


def test_another_failure_is_left_as_it_is(jobs: Jobs, tmp_path: Path) -> None:
    def raise_broken(*_: Any, **__: Any) -> Produced:
        raise TrainyardError("Every label is masked.", code="E-DATA-EMPTY")

    with pytest.raises(TrainyardError, match="E-DATA-EMPTY"):
        train_job(native(jobs), tmp_path, raise_broken)


def read_most_address_space(pid: int) -> int:
    """Bytes at the highest so far (`VmPeak` of proc(5)); 0 of a process that has ended."""
    path = Path(f"/proc/{pid}/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmPeak:")), 0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_training_without_room_is_tried_with_half(tiny_model: Path, tmp_path: Path) -> None:
    """The first child may take what lies between a batch of 64 and one of 32; the kernel refuses the rest."""
    data = {Port.SFT: tmp_path / "data"}
    rows: list[Row] = [conversation(f"Tell {n}", "the node reads documents and pairs " * 60) for n in range(128)]
    write_rows(data[Port.SFT] / "rows.arrow", Port.SFT, rows)
    jobs = Jobs(tiny_model, data, tmp_path / "locks")

    def make_job(batch_size: int) -> TrainingJob:
        return jobs(backend="native", hyperparameters={"batch_size": batch_size, "max_steps": 2, "max_length": 512})

    def measure_address_space(batch_size: int) -> int:
        """The address space of a training that may take all."""
        peaks = [0]

        def look(event: dict[str, Any]) -> None:
            pids.extend([event["pid"]] if event["event"] == "started" else [])
            peaks.append(read_most_address_space(pids[0]))

        pids: list[int] = []
        home_settings = load_settings(home=tmp_path / f"home-{batch_size}")
        out = tmp_path / f"out-{batch_size}"
        train_within_memory(
            make_job(batch_size), out, desired_state=keep_running, on_event=look, settings=home_settings
        )
        return max(peaks)

    between = (measure_address_space(32) + measure_address_space(64)) // 2
    events: list[dict[str, Any]] = []

    def on_event(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "started" and len([started for started in events if started["event"] == "started"]) == 1:
            resource.prlimit(event["pid"], resource.RLIMIT_AS, (between, between))

    job, here = make_job(64), load_settings(home=tmp_path / "home")
    produced = train_within_memory(job, tmp_path / "out", desired_state=keep_running, on_event=on_event, settings=here)
    (warning,) = [event for event in events if event.get("code") == "E-DEVICE-MEMORY"]
    assert "batch_size 32 instead of 64" in warning["text"]
    assert produced.facts["out_of_memory"]["gradient_accumulation"] == [1, 2]
    assert produced.facts["steps"] == 2
    assert (work_folder(job, here) / REMEMBERED_FILE).is_file()
