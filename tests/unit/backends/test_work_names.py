"""Whose work folder a training has: its run's and its tenant's alone."""

from __future__ import annotations

from trainyard.backends.job import TrainingJob
from trainyard.spec.axes.data import Port
from trainyard.spec.training import TrainerConfig, resolve_trainer


def job_with(**given: str) -> TrainingJob:
    config = resolve_trainer(TrainerConfig(), "starter")
    return TrainingJob(config=config, data={Port.SFT: "rows"}, base="starter", locks="locks", **given)  # type: ignore[arg-type]


def test_equal_jobs_of_runs_and_tenants_share_no_folder() -> None:
    jobs = [job_with(), job_with(run="a"), job_with(run="b"), job_with(run="a", tenant="acme")]
    assert len({job.digest for job in jobs}) == 1
    assert len({job.work_name for job in jobs}) == len(jobs)


def test_a_resumed_run_finds_its_folder_and_equal_jobs_of_a_tenant_their_turn() -> None:
    assert job_with(run="a", tenant="acme").work_name == job_with(run="a", tenant="acme").work_name
    assert job_with(run="a", tenant="acme").turn_name == job_with(run="b", tenant="acme").turn_name
    assert job_with(run="a", tenant="acme").turn_name != job_with(run="a", tenant="default").turn_name
