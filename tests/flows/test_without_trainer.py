"""A job whose trainer is not installed is recorded and left pending; `resume` starts it once the trainer is there."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import Pause
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

from flows.training_job import training_job
from trainyard.app import services as stack
from trainyard.app.context import Context
from trainyard.app.jobs import jobs
from trainyard.app.run_records import RunResult
from trainyard.backends.environments import ENVIRONMENTS, pins
from trainyard.compute.services import Service, record_path, write_record
from trainyard.errors import Conflict, Unavailable
from trainyard.prefect_api import listing, server, states
from trainyard.settings import settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.job import JobSpec
from trainyard.spec.states import JobState
from trainyard.stores.auth_string import keep_auth
from trainyard.stores.live.job_index import JobQuery
from trainyard.surfaces.cli.command import render

pytestmark = pytest.mark.usefixtures("prefect")

JOB = {"dataset": {"path": "data.jsonl"}, "backend": "mlx"}
INSTALL = "Run `trainyard backends install mlx`"


@pytest.fixture
def context(home: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A server that knows `training-job/local`, and a home without any trainer's environment."""
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_DEFAULT_BASE_MODEL", str(tiny_model))
    settings.cache_clear()
    url = str(PREFECT_API_URL.value())
    for name, value in stack.prefect_environment(settings(), url).items():
        monkeypatch.setenv(name, value)  # operations set them, too
    me = Service(os.getpid(), psutil.Process().create_time(), url)
    write_record(record_path(settings(), "server"), me)
    keep_auth(settings(), str(PREFECT_API_AUTH_STRING.value()))
    server.bootstrap(settings())
    deployment = training_job.to_deployment(name="local", work_pool_name=settings().work_pool, tags=["job"])
    deployment.entrypoint = "flows/training_job.py:training_job"
    deployment.apply(work_pool_name=settings().work_pool)
    return Context(settings(), say=lambda _text: None)


def copy_data(context: Context, tenant: str) -> None:
    """Give another tenant the rows of the working folder, from which it may not read, in its own folder."""
    folder = context.settings.tenant_folder(tenant)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(context.settings.working_folder / "data.jsonl", folder)


def create_job(context: Context, **more: Any) -> RunResult:
    return jobs.create_job(jobs.requests.CreateInput(parameters=JOB, **more), context)


def read_state(run_id: str) -> State[Any]:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run_id).state  # type: ignore[arg-type]
    assert state is not None
    return state


def due(run_id: str) -> bool:
    """Whether a worker of the pool would take the run within the next day."""
    with get_client(sync_client=True) as client:
        body = {"scheduled_before": (datetime.now(UTC) + timedelta(days=1)).isoformat()}
        answer = client.request(
            "POST", "/work_pools/{name}/get_scheduled_flow_runs", path_params={"name": settings().work_pool}, json=body
        )
    return run_id in [row["flow_run"]["id"] for row in answer.json()]


def install_mlx(home: Path) -> None:
    """What an installation leaves that a look from outside sees."""
    site = home / "envs" / "mlx" / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True)
    distribution = ENVIRONMENTS[BackendName.MLX].distribution
    (site / f"{distribution.replace('-', '_')}-{pins(BackendName.MLX)[distribution]}.dist-info").mkdir()
    python = home / "envs" / "mlx" / "bin" / "python"
    python.parent.mkdir()
    python.touch()


@pytest.mark.parametrize("watch", [False, True])
def test_a_job_without_its_trainer_is_recorded_and_says_what_it_waits_for(context: Context, watch: bool) -> None:
    answer = create_job(context, watch=watch)
    assert (answer.state, answer.exit_code) == (JobState.PENDING, 0)
    text = render("jobs create", answer)
    assert "no trainer installed: mlx is not installed" in text
    assert INSTALL in text
    row = jobs.show_job(jobs.requests.JobInput(job=answer.run_id), context)
    assert (row.state, row.detail) == (JobState.PENDING, "no trainer installed")
    assert INSTALL in row.message
    assert answer.run_id in [
        job.run_id for job in jobs.list_jobs(jobs.requests.JobsInput(state=JobState.PENDING), context).jobs
    ]
    assert not due(answer.run_id)


def test_it_is_started_by_resume_once_the_trainer_is_there(context: Context, home: Path) -> None:
    run_id = create_job(context).run_id
    with pytest.raises(Unavailable, match=f"R-BACKEND-MISSING: The job .* still waits.*{INSTALL}") as answer:
        jobs.resume_job(jobs.requests.ResumeInput(job=run_id), context)
    assert answer.value.exit_code == 7
    assert states.waits_for_trainer(read_state(run_id))
    install_mlx(home)
    jobs.resume_job(jobs.requests.ResumeInput(job=run_id), context)
    assert states.run_state(read_state(run_id)) == (JobState.PENDING, "resuming")
    assert due(run_id)


def test_it_can_be_cancelled_and_not_paused(context: Context) -> None:
    run_id = create_job(context).run_id
    with pytest.raises(Conflict, match=r"cannot be paused: it is pending \(no trainer installed\)"):
        jobs.pause_job(jobs.requests.StopInput(job=run_id), context)
    jobs.cancel_job(jobs.requests.StopInput(job=run_id), context)
    assert read_state(run_id).type is StateType.CANCELLED


def test_the_server_takes_a_body_in_the_words_of_other_tools_and_gets_ours(context: Context) -> None:
    foreign_fields = {"hyperparams": {"epochs": 1}, "device": "wgpu", "method": "sft"}
    run_id = jobs.create_job(jobs.requests.CreateInput(parameters={**JOB, **foreign_fields}), context).run_id
    with get_client(sync_client=True) as client:
        job = client.read_flow_run(run_id).parameters["job"]  # type: ignore[arg-type]
    axes = {"stage": {"type": "sft"}, "method": {"type": "lora"}}
    our_fields = {"hyperparameters": {"epochs": 1.0}, "device": "auto", **axes}
    assert job == {**JOB, **our_fields}


async def test_a_run_whose_machine_has_no_trainer_goes_back_to_pending(context: Context) -> None:
    with pytest.raises(Pause) as error:
        await training_job(JobSpec.model_validate(JOB), return_state=True)
    assert error.value.state is not None
    rows = listing.select_jobs(JobQuery(state=JobState.PENDING), settings().runs).rows
    pending = [row for row in rows if row["waits_for_trainer"] and row["attempts"] == 1]
    assert len(pending) == 1
    assert pending[0]["name"]
    assert INSTALL in pending[0]["message"]
    assert not due(pending[0]["run_id"])
