"""Jobs of `TrainingManager` in the lists of `trainyard jobs`, next to the runs of a server."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.small_jobs import Jobs
from trainyard.app.context import Context
from trainyard.app.jobs.jobs import cancel_job, list_jobs, show_job, show_metrics
from trainyard.app.jobs.logs import show_logs
from trainyard.app.live.jobs import open_index
from trainyard.backends.base import work_folder
from trainyard.backends.manager import Options, TrainingManager
from trainyard.compute.energy import keep_energy, read_energy
from trainyard.errors import Conflict
from trainyard.operations.jobs import JobInput, JobsInput, LogsInput, MetricsInput, StopInput
from trainyard.settings import load_settings
from trainyard.spec.states import JobState
from trainyard.stores.jobs import JobStore, SubmittingProcess

pytestmark = pytest.mark.integration

RUN = "0190d3c2-1f2e-4a3b-8c4d-5e6f70819203"


@pytest.fixture
def context(home: Path) -> Context:
    """A home whose index of jobs is kept, with one run of a server in it."""
    context = Context(load_settings(home=home), say=lambda _text: None)
    row = {
        "run_id": RUN, "id": "job-5e6f70819203", "name": "guide", "tenant": "default", "state": JobState.COMPLETED,
        "detail": "", "message": "", "created": time.time() - 60, "started": 1.0, "seconds": 1.0, "attempts": 1,
        "pid": None, "url": "http://x", "parameters": {}, "tags": ["job"], "stage": "sft", "method": "lora",
        "backend": "native", "base_model": "", "trainings": [],
    }  # fmt: skip
    index = open_index(context.settings)
    index.note_success(time.time())
    index.note_try(time.time())
    index.put([row], time.time())
    return context


def test_a_managers_job_is_listed_shown_and_left_to_its_program(context: Context, jobs: Jobs) -> None:
    manager = TrainingManager(context.settings, Options(poll_s=0.05))
    job = jobs(backend="native", hyperparameters={"max_steps": 3})
    work = work_folder(job, context.settings)
    work.mkdir(parents=True)
    keep_energy(work, 1234.5)  # of an earlier start
    run_id = manager.submit_local(job, name="mine")
    assert manager.wait(run_id, 120).state is JobState.COMPLETED
    assert manager.metrics(run_id).energy_j == 1234.5
    assert read_energy(work) == 0
    listed = list_jobs(JobsInput(), context).jobs
    assert [job.name for job in listed] == ["mine", "guide"]
    assert (listed[0].run_id, listed[0].state, listed[0].step) == (run_id, JobState.COMPLETED, 3)
    first = list_jobs(JobsInput(limit=1), context)
    second = list_jobs(JobsInput(limit=1, cursor=first.next), context)
    assert [job.name for job in (*first.jobs, *second.jobs)] == ["mine", "guide"]
    assert [job.name for job in list_jobs(JobsInput(state=JobState.FAILED), context).jobs] == []
    assert list_jobs(JobsInput(since=datetime(2020, 1, 1)), context).jobs == listed
    assert list_jobs(JobsInput(since=datetime(2999, 1, 1)), context).jobs == ()
    for word in ("mine", run_id, listed[0].id, run_id[:8]):
        assert show_job(JobInput(job=word), context).trainings[0].step == 3
    assert [point.step for point in show_metrics(MetricsInput(job="mine"), context).trainings[0].points] == [1, 2, 3]
    assert show_logs(LogsInput(job="mine"), context).next_offset["trainer"] > 0
    with pytest.raises(Conflict, match="through TrainingManager"):
        cancel_job(StopInput(job="mine"), context)


def test_a_job_whose_program_died_has_failed(context: Context, jobs: Jobs) -> None:
    manager = TrainingManager(context.settings, Options(poll_s=0.05))
    run_id = manager.submit_local(jobs(backend="native", hyperparameters={"max_steps": 1}))
    manager.wait(run_id, 120)
    store = JobStore(context.settings.home / "jobs")
    store.put(
        store.get(run_id).model_copy(
            update={"state": JobState.RUNNING, "process": SubmittingProcess(pid=1, started=1.0)}
        )
    )
    job = show_job(JobInput(job=run_id), context)
    assert (job.state, job.detail, job.pid) == (JobState.FAILED, "crashed", None)
