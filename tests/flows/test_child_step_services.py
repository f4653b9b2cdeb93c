"""Chains whose trainer computes at Together or Fireworks: their SDKs, against doubles of their wires.

Each test runs where the SDK's environment is (`trainyard backends install together_steps fireworks_steps`). The wires
themselves are tested without it, in tests/unit/testing/test_step_wires.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.flows.chain_runs import complete_nodes, fill_working_folder, read_record, twice
from tests.flows.step_service import METHOD, open_step_session, serving_steps
from tests.small_jobs import Jobs, Ran, train_as_child
from trainyard.backends.job import TrainingJob, find_step_service
from trainyard.backends.results import TrainingStopped
from trainyard.compute.supervise import DesiredState
from trainyard.data.renderers.tokenizer import load_tokenizer
from trainyard.errors import Denied, InvalidInput, TrainyardError
from trainyard.settings import settings
from trainyard.spec.axes.backends import SERVICE_VARIABLES, BackendName
from trainyard.spec.axes.data import Port
from trainyard.stores.adapters import AdapterRegistry
from trainyard.testing.step_services.compute import Computer
from trainyard.testing.step_services.fireworks import FireworksStepsDouble
from trainyard.testing.step_services.json_client import JsonStepClient
from trainyard.testing.step_services.together import TogetherStepsDouble
from trainyard.testing.step_services.wire import WireFault

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
DOUBLES = {"together_steps": TogetherStepsDouble, "fireworks_steps": FireworksStepsDouble}
BASE = "acme/tiny"
ENVIRONMENTS = REPOSITORY / ".trainyard" / "envs"
HYPER = {"max_steps": 6, "batch_size": 4, "learning_rate": 5e-3, "max_length": 64, "save_steps": 2}
CLOSE = 1e-5
Double = TogetherStepsDouble | FireworksStepsDouble


@pytest.fixture(scope="module")
def step_home(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Path]:
    """The home of an open step session, where the doubles compute."""
    home = tmp_path_factory.mktemp("service")
    with open_step_session(home, tiny_model):
        yield home


@pytest.fixture(params=DOUBLES)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend with the environment of the checkout, named as an operator would name his own."""
    name: str = request.param
    if not (ENVIRONMENTS / name / "bin" / "python").exists():
        pytest.skip(f"no environment for {name}: run `trainyard backends install {name}`")
    monkeypatch.setenv("TRAINYARD_BACKEND_ENVS", json.dumps({name: str(ENVIRONMENTS / name)}))
    return name


@pytest.fixture
def double(
    backend: str, step_home: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Double]:
    """The service, at the address where its SDK looks, with its key."""
    tokenizer = load_tokenizer(str(tiny_model))
    with serving_steps(step_home, tiny_model) as url:

        def connect(rank: int, seed: int) -> JsonStepClient:
            return JsonStepClient(url, "tml-owner", str(tiny_model), rank, seed, tokenizer=tokenizer)

        computer = Computer(connect, BASE)
        made = DOUBLES[backend](computer, tmp_path / "weights")
        with made.serve() as service:
            variables = SERVICE_VARIABLES[BackendName(backend)]
            monkeypatch.setenv(variables.url, service)
            monkeypatch.setenv(variables.key, made.key)
            settings.cache_clear()
            yield made
        computer.close()


def require_nothing_paid(double: Double) -> None:
    """Fail where the double still has something that costs money."""
    assert not (double.running if isinstance(double, TogetherStepsDouble) else double.open_sessions)


@pytest.mark.usefixtures("prefect")
def test_a_chain_ends_as_on_the_native_engine(
    backend: str, double: Double, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    fill_working_folder(folder, tiny_model, monkeypatch, {"rows.jsonl": twice(60)})
    records = {}
    for name in ("native", backend):
        trainer: dict[str, Any] = {"backend": name, "method": METHOD, "hyperparameters": HYPER}
        trainer |= {"eval": {"share": 0.1, "steps": 3, "samples": 1, "sample_tokens": 4}}
        trainer |= {} if name == "native" else {"service": {"base_model": BASE}}
        result = complete_nodes(
            {"type": "data_source", "config": {"path": "rows.jsonl"}},
            {"type": "validator", "config": {"holdout": {"documents": 0.2}}},
            {"type": "trainer", "config": trainer},
            {"type": "evaluator"},
            {"type": "deployer", "config": {"role": name.replace("_", "-"), "few_rows": "allow"}},
        )
        records[name] = read_record(result)
        role = name.replace("_", "-")
        assert AdapterRegistry(settings().adapters).show(f"default/{role}").name == f"default/{role}/v1"
    native, remote = ([point[1] for point in records[name]["losses"]] for name in ("native", backend))
    assert native == pytest.approx(remote, abs=CLOSE)
    evaluations = [[point["loss"] for point in records[name]["evaluation"]["found"]] for name in ("native", backend)]
    assert evaluations[0] == pytest.approx(evaluations[1], abs=CLOSE)
    require_nothing_paid(double)


def job_at(jobs: Jobs, backend: str, stage: Any = "sft", **hyper: Any) -> TrainingJob:
    """A job on the native engine or at the service."""
    port = Port.PREFERENCE if stage == "dpo" else Port.SFT
    hyper = {"max_steps": 6, "learning_rate": 5e-3, "precision": "fp32" if backend == "native" else "auto", **hyper}
    service = {} if backend == "native" else {"service": {"base_model": BASE}}
    job = jobs(port, stage=stage, backend=backend, method=METHOD, hyperparameters=hyper, **service)
    if backend == "native":
        return job
    return job.model_copy(update={"service": find_step_service(job.config, job.base, settings())})


def losses_of(ran: Ran) -> list[float]:
    return [point[1] for point in ran.record["losses"]]


def test_a_preference_loss_is_that_of_the_native_engine(
    backend: str, double: Double, jobs: Jobs, tmp_path: Path
) -> None:
    native, remote = (train_as_child(job_at(jobs, name, "dpo"), tmp_path / name) for name in ("native", backend))
    assert losses_of(native) == pytest.approx(losses_of(remote), abs=CLOSE)
    require_nothing_paid(double)


def test_a_policy_samples_at_the_service(backend: str, double: Double, jobs: Jobs, tmp_path: Path) -> None:
    stage = {
        "type": "grpo", "num_generations": 4, "max_completion_length": 8, "beta": 0.1,
        "rewards": [{"type": "contains", "text": "e"}],
    }  # fmt: skip
    ran = train_as_child(job_at(jobs, backend, stage, max_steps=2, batch_size=8), tmp_path / "policy")
    assert ran.record["rollouts"]["count"] == 2
    require_nothing_paid(double)


def test_a_paused_and_a_killed_training_go_on(backend: str, double: Double, jobs: Jobs, tmp_path: Path) -> None:
    job = job_at(jobs, backend, max_steps=9, save_steps=3)
    whole = train_as_child(job, tmp_path / "whole")
    folder, state = tmp_path / "twice", [DesiredState.RUN]

    def pause(event: dict[str, Any]) -> None:
        if event.get("event") == "progress" and event["step"] == 4:
            state[0] = DesiredState.PAUSE

    with pytest.raises(TrainingStopped, match="at step"):
        train_as_child(job, folder, pause, desired_state=lambda: state[0], poll_s=0.02)
    require_nothing_paid(double)

    def kill(event: dict[str, Any]) -> None:
        if event.get("event") == "progress" and event["step"] == 8:
            children = psutil.Process().children()
            (child,) = (process for process in children if str(folder) in " ".join(process.cmdline()))
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(TrainyardError):
        train_as_child(job, folder, kill, poll_s=0.02)
    resumed = train_as_child(job, folder)
    assert losses_of(resumed) == pytest.approx(losses_of(whole), abs=CLOSE)
    assert resumed.record["steps"] == 9
    require_nothing_paid(double)


PAID = {"together_steps": ("create_resource", "create_session"), "fireworks_steps": ("create_model",)}
STEPS = {
    "together_steps": ("forward-backward", "custom-forward-backward", "optim-step", "training-checkpoint"),
    "fireworks_steps": ("forward_backward", "optim_step", "save_weights"),
}


@pytest.mark.parametrize("fault", WireFault)
def test_faults_change_no_loss_and_pay_nothing_twice(
    backend: str, fault: WireFault, double: Double, jobs: Jobs, tmp_path: Path
) -> None:
    native = train_as_child(job_at(jobs, "native", max_steps=2), tmp_path / "native")
    for route in (*PAID[backend], *STEPS[backend]):
        double.faults[route].append(fault)
    double.calls.clear()
    ran = train_as_child(job_at(jobs, backend, max_steps=2), tmp_path / "remote")
    assert losses_of(ran) == pytest.approx(losses_of(native), abs=CLOSE)
    assert not any(double.faults.values())
    if isinstance(double, TogetherStepsDouble):
        assert (len(double.resources), len(double.sessions)) == (1, 1)
    else:
        assert len(double.adapters) == 1
    require_nothing_paid(double)


def test_a_step_without_logprobs_is_scored_by_a_forward_pass(
    backend: str, double: Double, jobs: Jobs, tmp_path: Path
) -> None:
    if isinstance(double, FireworksStepsDouble):
        double.omit_logprobs = True
    native, remote = (train_as_child(job_at(jobs, name, max_steps=2), tmp_path / name) for name in ("native", backend))
    assert losses_of(native) == pytest.approx(losses_of(remote), abs=CLOSE)


def test_a_wrong_key_and_a_wrong_base_are_refused_by_name(
    backend: str, double: Double, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SERVICE_VARIABLES[BackendName(backend)].key, "a-secret-that-is-wrong")
    with pytest.raises(Denied, match="E-API-KEY: The service at http") as denied:
        train_as_child(job_at(jobs, backend), tmp_path / "key")
    monkeypatch.setenv(SERVICE_VARIABLES[BackendName(backend)].key, double.key)
    job = job_at(jobs, backend)
    assert job.service is not None
    job = job.model_copy(update={"service": job.service.model_copy(update={"model": "acme/other"})})
    with pytest.raises(InvalidInput, match="acme/other is not supported"):
        train_as_child(job, tmp_path / "base")
    written = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert "a-secret-that-is-wrong" not in written + str(denied.value)
    assert double.key not in written
    require_nothing_paid(double)
