"""Whose work folder a training has: its run's and its tenant's alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.small_jobs import Jobs
from trainyard.backends.base import run_training, work_folder
from trainyard.backends.job import (
    TrainingJob,
    adopt_earlier_work,
    complete_tenant,
    mirror_address,
    work_folders_of_earlier_versions,
)
from trainyard.backends.manager import Options, TrainingManager
from trainyard.backends.results import TrainingStopped
from trainyard.compute.child import EVENTS_FILE, LOG_FILE, SPEC_FILE
from trainyard.compute.events import Event, read_events
from trainyard.compute.supervise import DesiredState
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.states import JobState
from trainyard.spec.training import TrainerConfig, resolve_trainer


def job_with(**fields: str) -> TrainingJob:
    config = resolve_trainer(TrainerConfig.model_validate({"engine": {"mirror": "file:///mirror"}}), "starter")
    return TrainingJob(config=config, data={Port.SFT: "rows"}, base="starter", locks="locks", **fields)


def test_equal_jobs_of_runs_and_tenants_share_no_folder() -> None:
    jobs = [job_with(), job_with(run="a"), job_with(run="b"), job_with(run="a", tenant="acme")]
    assert len({job.digest for job in jobs}) == 1
    assert len({job.work_name for job in jobs}) == len(jobs)
    assert len({mirror_address(job) for job in jobs}) == len(jobs)


def test_a_resumed_run_finds_its_folder_and_equal_jobs_of_a_tenant_their_turn() -> None:
    assert job_with(run="a", tenant="acme").work_name == job_with(run="a", tenant="acme").work_name
    assert job_with(run="a", tenant="acme").turn_name == job_with(run="b", tenant="acme").turn_name
    assert job_with(run="a", tenant="acme").turn_name != job_with(run="a", tenant="default").turn_name


def test_a_retried_job_continues_the_work_of_the_first_one_and_of_no_other_tenant() -> None:
    first = job_with(run="a", tenant="acme")
    assert job_with(run="b", tenant="acme", continues="a").work_name == first.work_name
    assert job_with(run="c", tenant="beta", continues="a").work_name != first.work_name


def write_earlier_work(settings: Settings, run: str) -> Path:
    """A work folder of a version that named neither run nor tenant in it."""
    job = job_with(run=run)
    work = settings.runs / "training" / job.digest[:32]
    work.mkdir(parents=True)
    (work / SPEC_FILE).write_bytes(orjson.dumps(job.model_dump(mode="json")))
    return work


@pytest.mark.parametrize("continues", ["", "a-sweep"])
def test_a_run_of_an_earlier_version_finds_its_work(tmp_path: Path, continues: str) -> None:
    settings = load_settings(home=tmp_path)
    earlier = write_earlier_work(settings, "a")
    other_jobs = [
        job_with(run="b", tenant="acme"),
        job_with(tenant="acme"),
        job_with(run="b", tenant="acme", continues="a"),
    ]
    for other in other_jobs:
        assert adopt_earlier_work(work_folder(other, settings), other, settings) is None
    today = job_with(run="a", tenant="acme", continues=continues)
    assert adopt_earlier_work(work_folder(today, settings), today, settings) == earlier
    assert work_folder(today, settings).is_dir()


@pytest.mark.parametrize("run", ["a", ""])
def test_migrated_work_has_the_tenant_of_its_run_or_of_the_machine(tmp_path: Path, run: str) -> None:
    settings = load_settings(home=tmp_path)
    earlier = write_earlier_work(settings, run)
    if run:
        (settings.runs / run).mkdir()
        (settings.runs / run / "chain.json").write_bytes(orjson.dumps({"tenant": "acme", "nodes": []}))
    today = work_folder(job_with(run=run, tenant="acme" if run else "default"), settings)
    folders = list(work_folders_of_earlier_versions(settings.runs / "training", partial(complete_tenant, settings)))
    assert folders == [(earlier, today)]


@dataclass
class Training:
    """A training in a child that is cancelled after some steps, with its events."""

    job: TrainingJob
    settings: Settings
    until: int = 1_000
    events: list[Event] = field(default_factory=list)

    def note(self, event: Event) -> None:
        self.events.append(event)

    def steps(self) -> list[int]:
        return [event["step"] for event in self.events if event["event"] == "progress"]

    def read_desired_state(self) -> DesiredState:
        return DesiredState.CANCEL if max(self.steps(), default=0) >= self.until else DesiredState.RUN

    def run(self, folder: Path) -> bytes:
        run_training(
            self.job,
            folder,
            desired_state=self.read_desired_state,
            on_event=self.note,
            settings=self.settings,
            poll_s=0.02,
        )
        return (folder / "adapter" / "adapter_model.safetensors").read_bytes()

    @property
    def restarted_from(self) -> Any:
        """The checkpoint that its last start continued from."""
        return [event["restarted_from"] for event in self.events if event["event"] == "begin"][-1]


@pytest.mark.slow
def test_a_cancelled_training_continues_in_its_own_run_to_the_same_bits_and_in_no_other(
    home: Path, jobs: Jobs, tmp_path: Path
) -> None:
    job, settings = (
        jobs(backend="native", hyperparameters={"max_steps": 60, "save_steps": 5, "seed": 7}),
        load_settings(home=home),
    )

    def make_training(run: str, tenant: str, until: int = 1_000) -> Training:
        return Training(job.model_copy(update={"run": run, "tenant": tenant}), settings, until)

    cancelled = make_training("cancelled-run", "acme", until=12)
    with pytest.raises(TrainingStopped, match="its checkpoint is kept"):
        cancelled.run(tmp_path / "cancelled")
    stopped, log = max(cancelled.steps()), work_folder(cancelled.job, settings) / LOG_FILE
    assert 12 <= stopped < 60
    lines = log.read_text()
    other_trainings = [make_training("of-another-tenant", "beta"), make_training("of-the-same", "acme")]
    weights = {training.run(tmp_path / training.job.run) for training in other_trainings}
    for training in other_trainings:
        assert training.restarted_from is None
        assert training.steps() == list(range(1, 61))
        work = work_folder(training.job, settings)
        assert not [path for path in (work / LOG_FILE, work / EVENTS_FILE) if "cancelled-run" in path.read_text()]
    assert log.read_text() == lines
    resumed = make_training("cancelled-run", "acme")
    weights.add(resumed.run(tmp_path / "resumed"))
    assert resumed.restarted_from["step"] == stopped
    assert resumed.steps() == list(range(stopped + 1, 61))
    assert len(weights) == 1


@pytest.mark.slow
def test_a_run_continues_on_another_machine_from_its_mirror(home: Path, jobs: Jobs, tmp_path: Path) -> None:
    mirror = {"mirror": (tmp_path / "mirror").as_uri()}
    job = jobs(backend="native", hyperparameters={"max_steps": 60, "save_steps": 5}, engine=mirror)
    tenant_job = job.model_copy(update={"run": "20270101-acme-engineering", "tenant": "acme"})
    here = Training(tenant_job, load_settings(home=home), until=12)
    with pytest.raises(TrainingStopped, match="its checkpoint is kept"):
        here.run(tmp_path / "here")
    there = Training(tenant_job.model_copy(update={"node": "nightly"}), load_settings(home=tmp_path / "there"))
    there.run(tmp_path / "out")
    assert there.restarted_from["step"] == max(here.steps())
    assert there.steps() == list(range(max(here.steps()) + 1, 61))


@pytest.mark.slow
def test_a_job_that_another_program_submits_again_continues(home: Path, jobs: Jobs) -> None:
    job = jobs(backend="native", hyperparameters={"max_steps": 60, "save_steps": 5})
    first, second = (TrainingManager(load_settings(home=home), Options(poll_s=0.02)) for _ in range(2))
    job_id = first.submit_local(job)
    deadline = time.monotonic() + 60
    while first.progress(job_id).step < 6:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.pause(job_id)
    assert first.wait(job_id, 60).state is JobState.PAUSED
    again = second.submit_local(job)
    assert second.wait(again, 120).state is JobState.COMPLETED
    restarts = [
        event["restarted_from"] for event in read_events(second.events_file(again)) if event["event"] == "begin"
    ]
    assert restarts[0] is None
    assert restarts[-1]["step"] >= 6
