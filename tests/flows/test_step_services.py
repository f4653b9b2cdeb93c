"""Chains whose trainer computes at our own Tinker wire, next to the same chains on the native engine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.flows.chain_runs import complete_nodes, fill_working_folder, read_record, twice
from tests.flows.step_service import METHOD, open_step_session, serving_steps
from tests.small_jobs import Jobs, Ran, train_as_child, train_here
from trainyard.app.run_records import NodeState
from trainyard.backends.job import TrainingJob, find_step_service
from trainyard.backends.results import TrainingStopped
from trainyard.compute.supervise import DesiredState
from trainyard.errors import TrainyardError
from trainyard.settings import settings
from trainyard.spec.axes.data import Port
from trainyard.stores.adapters import AdapterRegistry

pytest.importorskip("tinker")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
HYPER = {"max_steps": 8, "batch_size": 4, "learning_rate": 5e-3, "max_length": 64, "save_steps": 3}
CLOSE = 1e-5
DEPLOYED = ({"type": "evaluator"}, {"type": "deployer", "config": {"role": "tinker", "few_rows": "allow"}})
"""What follows the trainer at the service; flows/test_nodes.py has it for the native engine."""


@pytest.fixture(scope="module")
def step_home(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Path]:
    """The home of an open step session."""
    home = tmp_path_factory.mktemp("service")
    with open_step_session(home, tiny_model):
        yield home


@pytest.fixture
def service(step_home: Path, tiny_model: Path) -> Iterator[str]:
    with serving_steps(step_home, tiny_model) as url:
        yield url


@pytest.fixture
def key(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", service)
    monkeypatch.setenv("TINKER_API_KEY", "tml-owner")


@pytest.mark.usefixtures("prefect", "key")
def test_a_chain_at_a_service_ends_as_on_the_native_engine(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_working_folder(tmp_path, tiny_model, monkeypatch, {"rows.jsonl": twice(100)})
    records = {}
    for backend in ("native", "tinker"):
        trainer: dict[str, Any] = {"backend": backend, "method": METHOD, "hyperparameters": HYPER}
        trainer |= {"eval": {"share": 0.1, "steps": 4, "samples": 1, "sample_tokens": 4}}
        result = complete_nodes(
            {"type": "data_source", "config": {"path": "rows.jsonl"}},
            {"type": "validator", "config": {"holdout": {"documents": 0.2}}},
            {"type": "trainer", "config": trainer},
            *(DEPLOYED if backend == "tinker" else ()),
        )
        assert {node.state for node in result.nodes} <= {NodeState.COMPLETED, NodeState.REUSED}
        assert result.node("trainer").state is NodeState.COMPLETED
        records[backend] = read_record(result)
    assert AdapterRegistry(settings().adapters).show("default/tinker").name == "default/tinker/v1"
    native, remote = ([point[1] for point in records[name]["losses"]] for name in ("native", "tinker"))
    assert native == pytest.approx(remote, abs=CLOSE)
    found = [[point["loss"] for point in records[name]["evaluation"]["found"]] for name in ("native", "tinker")]
    assert found[0] == pytest.approx(found[1], abs=CLOSE)
    assert native[-1] < native[0]


STAGES = {"dpo": Port.PREFERENCE, "kto": Port.LABELLED, "cpt": Port.TEXT}


def job_at(jobs: Jobs, backend: str, stage: Any = "sft", **config: Any) -> TrainingJob:
    """A job on the native engine or at the service."""
    port = STAGES.get(stage, Port.SFT) if isinstance(stage, str) else Port.SFT
    hyper = {"epochs": 2, "learning_rate": 5e-3, "precision": "fp32" if backend == "native" else "auto"}
    hyper |= config.pop("hyperparameters", {})
    job = jobs(port, stage=stage, backend=backend, method=METHOD, hyperparameters=hyper, **config)
    if backend == "native":
        return job
    return job.model_copy(update={"service": find_step_service(job.config, job.base, settings())})


def losses_of(ran: Ran) -> list[float]:
    return [point[1] for point in ran.record["losses"]]


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    "stage", [stage if stage == "dpo" else pytest.param(stage, marks=pytest.mark.slow) for stage in STAGES]
)
def test_losses_are_those_of_the_native_engine(stage: str, jobs: Jobs, tmp_path: Path) -> None:
    native = train_here(job_at(jobs, "native", stage), tmp_path / "native")
    remote = train_as_child(job_at(jobs, "tinker", stage), tmp_path / "tinker")
    assert losses_of(native) == pytest.approx(losses_of(remote), abs=CLOSE)


@pytest.mark.usefixtures("key")
def test_a_paused_and_a_killed_training_go_on_from_the_state_at_the_service(jobs: Jobs, tmp_path: Path) -> None:
    hyper = {"max_steps": 9, "save_steps": 3}
    job = job_at(jobs, "tinker", hyperparameters=hyper)
    whole = train_here(job_at(jobs, "native", hyperparameters=hyper), tmp_path / "whole")
    folder, state = tmp_path / "twice", [DesiredState.RUN]

    def pause(event: dict[str, Any]) -> None:
        if event.get("event") == "progress" and event["step"] == 4:
            state[0] = DesiredState.PAUSE

    with pytest.raises(TrainingStopped, match="at step"):
        train_as_child(job, folder, pause, desired_state=lambda: state[0], poll_s=0.02)

    def kill(event: dict[str, Any]) -> None:
        if event.get("event") == "progress" and event["step"] == 8:
            (child,) = (
                process for process in psutil.Process().children() if str(folder) in " ".join(process.cmdline())
            )
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(TrainyardError):
        train_as_child(job, folder, kill, poll_s=0.02)
    resumed = train_as_child(job, folder)
    assert losses_of(resumed) == pytest.approx(losses_of(whole), abs=CLOSE)
    assert resumed.record["steps"] == 9
    assert resumed.record["tokens"] == whole.record["tokens"]  # what was trained twice counts once


def test_another_trainyard_trains_a_policy(
    jobs: Jobs, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_ENDPOINTS", json.dumps({"lab": {"base_url": service, "api_key_env": "LAB_TOKEN"}}))
    monkeypatch.setenv("LAB_TOKEN", "owner")
    settings.cache_clear()
    stage = {
        "type": "grpo", "num_generations": 4, "max_completion_length": 8, "beta": 0.1,
        "rewards": [{"type": "contains", "text": "e"}],
    }  # fmt: skip
    job = job_at(
        jobs, "remote", stage, service={"endpoint": "lab"}, hyperparameters={"max_steps": 2, "batch_size": 8},
        eval={"share": 0.3, "steps": 2},
    )  # fmt: skip
    ran = train_as_child(job, tmp_path / "policy")
    assert ran.record["steps"] == 2
    assert ran.record["rollouts"]["count"] == 2
    assert ran.record["evaluation"]["best"]["reward"] == ran.record["evaluation"]["best"]["reward_contains"]
