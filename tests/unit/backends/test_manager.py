"""Jobs from Python: the manager, its records, and what a job without its trainer says."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.small_jobs import Jobs
from trainyard.backends.manager import MARKER_ONLY, WAITING, LocalBackend, Options, TrainingManager
from trainyard.backends.states import CANCELED, COMPLETED, FAILED, PAUSED, PENDING, RUNNING
from trainyard.compute.events import read_events
from trainyard.compute.lease import device_lock, slot_lock
from trainyard.errors import Conflict, NotFound, Refused
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.backends import BackendName


@pytest.fixture
def manager(home: Path) -> TrainingManager:
    return TrainingManager(load_settings(home=home), Options(poll_s=0.05))


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_job_runs_pauses_resumes_and_completes(manager: TrainingManager, jobs: Jobs) -> None:
    job_id = manager.submit_local(jobs(hyperparameters={"max_steps": 60}), name="first")
    wait_until(lambda: manager.progress(job_id).step >= 3)
    status = manager.status(job_id)
    assert (status.state, status.progress.total_steps) == (RUNNING, 60)
    with pytest.raises(Conflict, match="E-JOB-STATE"):
        manager.submit_local(jobs(hyperparameters={"max_steps": 60}))
    manager.pause(job_id)
    paused = manager.wait(job_id, 60)
    assert (paused.state, paused.reason) == (PAUSED, "pause")
    with pytest.raises(Conflict, match=r"E-JOB-STATE: A job that is paused cannot become paused"):
        manager.pause(job_id)
    manager.resume(job_id)
    done = manager.wait(job_id, 120)
    assert (done.state, done.progress.step) == (COMPLETED, 60)
    assert done.metrics.train_loss is not None
    assert done.metrics.duration_s > 0
    assert [point.step for point in manager.curve(job_id)] == list(range(1, 61))
    (record,) = manager.list_jobs(COMPLETED)
    assert (record.id, record.name) == (job_id, "first")
    assert (Path(record.result) / "adapter_model.safetensors").is_file()
    with pytest.raises(Conflict, match="E-JOB-STATE: A job that is completed cannot become canceled"):
        manager.cancel(job_id)


def test_a_job_waits_for_the_device_and_can_be_cancelled_there(manager: TrainingManager, jobs: Jobs) -> None:
    with device_lock(slot_lock(manager.settings, 0), run="another"):
        job_id = manager.submit_local(jobs())
        assert manager.status(job_id).reason == WAITING
        manager.cancel(job_id)
        assert manager.wait(job_id, 10).state is CANCELED
    assert not (manager.settings.runs / "training").exists()
    with pytest.raises(Conflict, match="E-JOB-STATE"):
        manager.resume(job_id)


@pytest.mark.slow
def test_jobs_on_different_devices_overlap_and_on_the_same_one_never(manager: TrainingManager, jobs: Jobs) -> None:
    ids = [
        manager.submit_local(
            jobs(hyperparameters={"max_steps": 150, "seed": seed}).model_copy(update={"devices": devices})
        )
        for seed, devices in enumerate([(0,), (1,), (0, 1)])
    ]
    for job_id in ids:
        assert manager.wait(job_id, 300).state is COMPLETED
    spans = []
    for job_id in ids:
        times = [event["time"] for event in read_events(manager.events_file(job_id)) if event["event"] == "progress"]
        spans.append((min(times), max(times)))
    first, second, wide = spans
    assert max(first[0], second[0]) < min(first[1], second[1]), "they took turns"
    assert all(wide[0] > ended or wide[1] < began for began, ended in (first, second)), "two trained at once"


@pytest.mark.slow
def test_the_same_job_on_two_devices_is_trained_by_one_after_the_other(home: Path, jobs: Jobs) -> None:
    managers = [TrainingManager(load_settings(home=home), Options(poll_s=0.05)) for _ in range(2)]
    job = jobs(hyperparameters={"max_steps": 30})
    ids = [manager.submit_local(job.model_copy(update={"devices": (n,)})) for n, manager in enumerate(managers)]
    assert [manager.wait(job_id, 200).state for manager, job_id in zip(managers, ids, strict=True)] == [
        COMPLETED,
        COMPLETED,
    ]
    names = [
        event["event"]
        for event in read_events(managers[0].events_file(ids[0]))
        if event["event"] in ("started", "done")
    ]
    assert names == ["started", "done"] * 2


def test_paused_before_the_first_step_it_is_paused(manager: TrainingManager, jobs: Jobs) -> None:
    with device_lock(slot_lock(manager.settings, 0), run="another"):
        job_id = manager.submit_local(jobs())
        manager.pause(job_id)
        assert manager.wait(job_id, 10).state is PAUSED


@pytest.mark.slow
def test_a_failure_is_told_in_the_record(manager: TrainingManager, jobs: Jobs, tmp_path: Path) -> None:
    job = jobs().model_copy(update={"base": str(tmp_path / "absent")})
    status = manager.wait(manager.submit_local(job), 60)
    assert status.state is FAILED
    assert status.reason.startswith("E-")


def test_without_its_trainer_a_job_is_recorded_and_left_pending(manager: TrainingManager, jobs: Jobs) -> None:
    job_id = manager.submit_local(jobs(backend="unsloth"))
    status = manager.status(job_id)
    assert status.state is PENDING
    assert status.reason.startswith(f"{MARKER_ONLY}: unsloth is not installed")
    assert status.reason.endswith("Run `trainyard backends install unsloth`.")
    assert [record.id for record in manager.list_jobs(PENDING)] == [job_id]
    manager.resume(job_id)  # still not there: it says so again
    assert manager.status(job_id).state is PENDING
    manager.cancel(job_id)
    assert manager.status(job_id).state is CANCELED


def test_what_a_backend_cannot_do_is_refused_and_not_recorded(manager: TrainingManager, jobs: Jobs) -> None:
    with pytest.raises(Refused, match="R-BACKEND-SETTING"):
        manager.submit_local(jobs(stage="cpt"))
    assert manager.list_jobs() == []


def test_a_job_of_another_process_is_listed_and_not_steered(manager: TrainingManager, jobs: Jobs) -> None:
    job_id = manager.submit_local(jobs(backend="unsloth"))
    other = TrainingManager(manager.settings)
    assert other.status(job_id).state is PENDING
    with pytest.raises(NotFound, match=r"E-JOB-NOT-FOUND: The job .* was not submitted by this process"):
        other.cancel(job_id)
    with pytest.raises(NotFound, match="E-JOB-NOT-FOUND: There is no job 'nothing'"):
        other.status("nothing")


@pytest.mark.slow
def test_the_protocol_of_a_local_backend(home: Path, jobs: Jobs) -> None:
    """Submit, look, fetch; from a second process only its events speak."""
    settings: Settings = load_settings(home=home)
    backend = LocalBackend(BackendName.NATIVE, settings, Options(poll_s=0.05))
    job = jobs(backend="native", hyperparameters={"max_steps": 2})
    assert backend.probe().available
    handle = backend.submit(job, home / "made")
    with pytest.raises(Conflict, match="it has no result yet"):
        backend.fetch(handle, home / "out")
    wait_until(lambda: backend.status(handle).state is COMPLETED)
    other = LocalBackend(BackendName.NATIVE, settings)
    assert other.status(handle) == backend.status(handle)
    assert other.status(handle).progress.step == 2
    with pytest.raises(NotFound, match="E-JOB-NOT-FOUND"):
        other.cancel(handle)
    produced = backend.fetch(handle, home / "out")
    assert produced.facts["tool_version"]
    assert (home / "out" / "adapter" / "adapter_model.safetensors").is_file()
