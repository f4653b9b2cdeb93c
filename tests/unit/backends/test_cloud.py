"""Jobs at doubles of cloud providers: one remote job for each run, whatever is lost between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.providers import DOUBLES
from tests.conftest import REPOSITORY
from trainyard import CloudFineTuneConfig, FineTuneProviderFactory, TrainingHyperparams, TrainingManager
from trainyard.backends.manager import Options
from trainyard.errors import Conflict, InvalidInput, Refused
from trainyard.settings import settings
from trainyard.spec.axes.providers import RETIRED
from trainyard.spec.states import JobState
from trainyard.testing.providers.double import COST_USD, KEY, ProviderDouble
from trainyard.testing.providers.faults import CreateFault, Faults

for package in ("together", "fireworks", "openai", "boto3"):
    pytest.importorskip(package)
pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]
TURNS = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A node."}]
PAIR = {"input": {"messages": TURNS[:1]}, "preferred_output": TURNS[1:], "non_preferred_output": TURNS[1:]}
WITH_V1 = ("together", "openai")
LLAMA, GPT = "meta-llama/Llama-3-8b", "gpt-4o-mini-2024-07-18"
Open = Callable[..., ProviderDouble]


def test_seeded_faults_and_kills_leave_one_job_and_every_event() -> None:
    """The short form of `python -m benchmarks.providers`."""
    command = [sys.executable, "-m", "benchmarks.providers", "--runs", "4"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "0"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=REPOSITORY)
    assert finished.returncode == 0, finished.stdout + finished.stderr[-2000:]
    assert finished.stdout.count(" 0 wrong") == len(DOUBLES)


def finish(manager: TrainingManager, job: str) -> tuple[JobState, str]:
    status = manager.wait(job, 60)
    return status.state, status.reason


def wait_for_job(server: ProviderDouble) -> None:
    deadline = time.monotonic() + 60
    while not server.jobs:
        assert time.monotonic() < deadline, "no job was submitted"
        time.sleep(0.02)


def test_a_job_at_openai_is_a_job_of_the_manager(provider: Open, rows: Path, tmp_path: Path) -> None:
    server = provider("openai", Faults(creates=[CreateFault.STORED_THEN_LOST], events=15))
    rows.with_name("eval.jsonl").write_text(json.dumps({"messages": TURNS}) + "\n")
    config = CloudFineTuneConfig(
        model=GPT, training_file="train.jsonl", validation_file="eval.jsonl",
        hyperparams=TrainingHyperparams(epochs=3, batch_size=4), suffix="guide",
    )  # fmt: skip
    manager = TrainingManager(options=Options(poll_s=0.05))
    job = manager.submit_cloud("openai", config, name="guide")
    assert finish(manager, "guide") == (JobState.COMPLETED, "")
    (remote,) = server.jobs.values()
    assert remote.body["method"]["supervised"]["hyperparameters"] == {"n_epochs": 3, "batch_size": 4}
    assert remote.body["validation_file"] in server.files
    assert manager.progress(job).step == 15
    assert [record.name for record in manager.list_jobs("completed")] == ["guide"]
    assert manager.download("guide", tmp_path / "out").served_model.startswith("ft:gpt-4o-mini")


def test_a_cancelled_job_is_cancelled_at_its_provider(provider: Open) -> None:
    server = provider("together", Faults(unknown_word="rebalancing"))
    server.walk = ("running",) * 1000 + ("completed",)
    manager = TrainingManager(options=Options(poll_s=0.05))
    manager.submit_cloud("together", CloudFineTuneConfig(model=LLAMA, training_file="train.jsonl"), name="long")
    wait_for_job(server)
    manager.cancel("long")
    assert finish(manager, "long")[0] is JobState.CANCELED
    assert [job.word for job in server.jobs.values()] == ["cancelled"]


@pytest.mark.parametrize("stopped", ["pause", "failure"])
def test_a_job_that_only_its_provider_still_trains_is_cancelled_there(
    stopped: str, provider: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = provider("openai")
    server.walk = ("running",) * 1000 + ("succeeded",)
    manager = TrainingManager(options=Options(poll_s=0.05))
    if stopped == "failure":
        monkeypatch.setenv("TRAINYARD_FAULT", "provider.created")
    manager.submit_cloud("openai", CloudFineTuneConfig(model=GPT, training_file="train.jsonl"), name="left")
    wait_for_job(server)
    if stopped == "pause":
        manager.pause("left")
    state = JobState.PAUSED if stopped == "pause" else JobState.FAILED
    assert finish(manager, "left")[0] is state
    assert [job.word for job in server.jobs.values()] == ["running"]
    monkeypatch.delenv("TRAINYARD_FAULT", raising=False)
    manager.cancel("left")
    assert finish(manager, "left") == (JobState.CANCELED, "cancel")
    assert [job.word for job in server.jobs.values()] == ["cancelled"]
    with pytest.raises(Conflict, match="E-JOB-STATE"):
        manager.cancel("left")


def test_a_process_that_is_killed_after_its_submission_finds_its_job(
    provider: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = provider("openai", Faults(list_lag=1))
    manager = TrainingManager(options=Options(poll_s=0.05))
    config = CloudFineTuneConfig(model=GPT, training_file="train.jsonl")
    monkeypatch.setenv("TRAINYARD_FAULT", "provider.created")
    manager.submit_cloud("openai", config, name="killed")
    assert finish(manager, "killed")[0] is JobState.FAILED
    assert len(server.jobs) == 1
    monkeypatch.delenv("TRAINYARD_FAULT")
    manager.resume("killed")
    assert finish(manager, "killed") == (JobState.COMPLETED, "")
    assert len(server.jobs) == 1


def test_a_wrong_key_is_said_and_not_logged(provider: Open) -> None:
    wrong = "sk-this-is-the-wrong-key"
    provider("openai", key=wrong)
    manager = TrainingManager(options=Options(poll_s=0.05))
    manager.submit_cloud("openai", CloudFineTuneConfig(model=GPT, training_file="train.jsonl"), name="wrong")
    state, reason = finish(manager, "wrong")
    assert state is JobState.FAILED
    assert "answered 401" in reason
    written = [path for path in settings().home.rglob("*") if path.is_file() and path.stat().st_size < 1_000_000]
    assert wrong.encode() not in b"".join(path.read_bytes() for path in written)


@pytest.mark.parametrize("name", ["openai", "together"])
def test_the_loop_of_a_program_ends_and_twice_is_once(name: str, provider: Open, rows: Path) -> None:
    server = provider(name)
    client = FineTuneProviderFactory.create(name, KEY)
    config = CloudFineTuneConfig(model=LLAMA, training_file=str(rows))
    job = client.submit(config)
    assert client.submit(config) == job
    for _ in range(20):
        if client.status(job).state is JobState.COMPLETED:
            break
    assert client.status(job).state is JobState.COMPLETED
    assert len(server.jobs) == 1


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_provider_names_its_replacement(name: str) -> None:
    with pytest.raises(InvalidInput, match="trains no more") as raised:
        FineTuneProviderFactory.create(name, KEY)
    assert raised.value.code == "R-PROVIDER"


def test_what_a_provider_has_no_place_for_is_refused_at_submit(provider: Open) -> None:
    provider("openai")
    config = CloudFineTuneConfig(model=GPT, training_file="train.jsonl", hyperparams=TrainingHyperparams(epochs=1.5))
    with pytest.raises(Refused, match="a whole number"):
        TrainingManager().submit_cloud("openai", config)


def test_pairs_go_to_the_provider_as_pairs(provider: Open, rows: Path) -> None:
    server = provider("together")
    rows.write_text((json.dumps(PAIR) + "\n") * 3)
    client = FineTuneProviderFactory.create("together", KEY)
    client.submit(CloudFineTuneConfig(model=LLAMA, training_file=str(rows), alignment="dpo"))  # type: ignore[arg-type]
    assert next(iter(server.jobs.values())).body["training_method"]["method"] == "dpo"


def test_a_job_that_fails_at_its_provider_is_not_submitted_again_by_itself(provider: Open) -> None:
    server = provider("together", Faults(ends="failed"))
    manager = TrainingManager(options=Options(poll_s=0.05))
    manager.submit_cloud("together", CloudFineTuneConfig(model=LLAMA, training_file="train.jsonl"), name="failing")
    state, reason = finish(manager, "failing")
    assert (state, "is error" in reason) == (JobState.FAILED, True)
    assert len(server.jobs) == 1
    manager.resume("failing")
    assert finish(manager, "failing")[0] is JobState.FAILED
    assert len(server.jobs) == 2
    assert manager.list_jobs()[0].work
    events = (Path(manager.list_jobs()[0].work) / "events.jsonl").read_text().splitlines()
    costs = [json.loads(line)["amount_usd"] for line in events if '"cost"' in line]
    assert costs == [COST_USD, 2 * COST_USD]
