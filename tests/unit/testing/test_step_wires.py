"""The wires of Together and Fireworks as their doubles speak them, by plain requests: no SDK, no model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.conftest import REPOSITORY
from tests.small_jobs import Jobs
from tests.unit.backends.test_remote_steps import ADDRESS, Words
from trainyard.backends.job import find_step_service
from trainyard.backends.remote_steps.addresses import find_address
from trainyard.backends.remote_steps.child import ChildService
from trainyard.backends.remote_steps.client import TinkerService
from trainyard.errors import Unavailable
from trainyard.inherited import STEP_KEYS, child_environment, key_variables
from trainyard.settings import settings
from trainyard.spec.axes.backends import SERVICE_VARIABLES
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.testing.step_service import StepServiceDouble
from trainyard.testing.step_services import fireworks, together
from trainyard.testing.step_services.compute import ALPHA, Computer
from trainyard.testing.step_services.wire import WireFault
from trainyard.workers.trainyard_worker.step_service import REFUSED, UNAVAILABLE, Memory, ServiceError

pytest.importorskip("tinker")
pytestmark = pytest.mark.integration
BASE = "acme/tiny"
ENVIRONMENTS = REPOSITORY / ".trainyard" / "envs"
ADAM = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "grad_clip_norm": 1.0}
TOKENS, TARGETS, WEIGHTS = [1, 2, 3], [2, 3, 4], [0.0, 0.5, -0.25]


@pytest.fixture
def table() -> StepServiceDouble:
    """The model that the doubles compute: a table of bigrams."""
    return StepServiceDouble()


@pytest.fixture
def computer(table: StepServiceDouble) -> Computer:
    config = resolve_trainer(TrainerConfig.model_validate({"backend": "tinker", "method": "lora"}), "base")
    return Computer(lambda *_: TinkerService(ADDRESS, config, Words(), "job", service=table), BASE)


class Client:
    """Requests of one service."""

    def __init__(self, url: str, **headers: str) -> None:
        self.http = httpx.Client(base_url=url, headers=headers)

    def post(self, path: str, body: Mapping[str, Any], **headers: str) -> httpx.Response:
        return self.http.post(path, json=body, headers=headers)

    def value(self, path: str, body: Mapping[str, Any], **headers: str) -> Any:
        answer = self.post(path, body, **headers)
        assert answer.status_code == 200, answer.text
        return answer.json()


# Together


@pytest.fixture
def at_together(computer: Computer, tmp_path: Path) -> Iterator[tuple[together.TogetherStepsDouble, Client, str]]:
    """The double, a client, and the path of the operations of an open session."""
    double = together.TogetherStepsDouble(computer, tmp_path)
    with double.serve() as url:
        client = Client(url, Authorization=f"Bearer {double.key}")
        resource = client.value("/v1/rl/model-resources", {"base_model": BASE})["id"]
        lora = {"rank": 4, "alpha": ALPHA, "seed": 0, "train_unembed": False}
        session = client.value("/v1/rl/training-sessions", {"model_resources_id": resource, "lora_config": lora})
        yield double, client, f"/v1/rl/training-sessions/{session['id']}/operations"
        client.http.close()


def together_sample(**inputs: Any) -> dict[str, Any]:
    targets = {"target_tokens": {"data": TARGETS, "dtype": "int64"}}
    return {"model_input": {"chunks": [{"encoded_text": {"tokens": TOKENS}}]}, "loss_fn_inputs": targets | inputs}


def run_operation(client: Client, path: str, body: Mapping[str, Any], key: str) -> Any:
    operation = client.value(path, body, **{"Idempotency-Key": key})
    return client.http.get(f"{path}/{operation['id']}").json()


def test_together_computes_a_gradient_and_repeats_nothing(
    at_together: tuple[together.TogetherStepsDouble, Client, str], table: StepServiceDouble
) -> None:
    _, client, path = at_together
    (adapter,) = table.clients
    logits = adapter.logits_VV.detach().clone().requires_grad_()
    logprobs_T = logits[TOKENS].log_softmax(-1).gather(1, torch.tensor(TARGETS)[:, None])[:, 0]
    (-(torch.tensor(WEIGHTS) * logprobs_T).sum()).backward()  # type: ignore[no-untyped-call]
    body = {"samples": [together_sample()], "gradients": [{"data": [-value for value in WEIGHTS]}]}
    first, again = (run_operation(client, f"{path}/custom-forward-backward", body, "one") for _ in range(2))
    assert first == again
    torch.testing.assert_close(adapter.logits_VV.grad, logits.grad)
    ones = {"weights": {"data": [1.0, 0.0, 1.0], "dtype": "float32"}}
    scoring = {"loss": {"type": "LOSS_TYPE_CROSS_ENTROPY"}, "samples": [together_sample(**ones)], "forward_only": True}
    answer = run_operation(client, f"{path}/forward-backward", {**scoring, "return_loss_fn_outputs": True}, "two")
    values = answer["output"]["loss_fn_outputs"][0]["tensors"]["logprobs"]["data"]
    assert values == pytest.approx([logprobs_T[0].item(), 0.0, logprobs_T[2].item()])
    assert run_operation(client, f"{path}/optim-step", {"adam_params": ADAM}, "three")["output"] == {"step": 1}
    assert not torch.equal(adapter.logits_VV, logits)


def test_together_refuses_what_its_types_do_not_have(
    at_together: tuple[together.TogetherStepsDouble, Client, str],
) -> None:
    double, client, path = at_together
    step = {"adam_params": {**ADAM, "learning_rat": 1.0}}
    assert "unknown field learning_rat" in client.post(f"{path}/optim-step", step, **{"Idempotency-Key": "a"}).text
    assert "Idempotency-Key" in client.post(f"{path}/optim-step", {"adam_params": ADAM}).text
    client.value(f"{path}/optim-step", {"adam_params": ADAM}, **{"Idempotency-Key": "a"})
    other = client.post(f"{path}/optim-step", {"adam_params": {**ADAM, "eps": 1.0}}, **{"Idempotency-Key": "a"})
    assert other.status_code == 409
    assert client.post("/v1/rl/model-resources", {"base_model": "acme/other"}).status_code == 400
    assert client.post("/v1/rl/model-resources", {}, Authorization="Bearer no").status_code == 401
    client.value(f"/v1/rl/model-resources/{double.running[0]}/stop?force=true", {})
    expired = run_operation(client, f"{path}/optim-step", {"adam_params": ADAM}, "late")
    assert expired["error"]["code"].endswith("SESSION_NOT_ACTIVE")


# Fireworks

API = "/training/v1/serverless/api/v1"


@pytest.fixture
def at_fireworks(computer: Computer, tmp_path: Path) -> Iterator[tuple[fireworks.FireworksStepsDouble, Client, str]]:
    """The double, a client, and the id of an open model."""
    double = fireworks.FireworksStepsDouble(computer, tmp_path)
    with double.serve() as url:
        client = Client(url, **{"X-API-Key": double.key})
        body = {"tags": [], "user_metadata": None, "sdk_version": "0.23.0", "type": "create_session"}
        session = client.value(f"{API}/create_session", body)["session_id"]
        lora = {"rank": 4, "alpha": ALPHA, "train_unembed": False, "train_mlp": True, "train_attn": True}
        model = {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": BASE,
            "lora_config": lora,
            "type": "create_model",
        }
        yield double, client, retrieve(client, client.value(f"{API}/create_model", model))["model_id"]
        client.http.close()


def retrieve(client: Client, future: Mapping[str, Any]) -> Any:
    return client.value(f"{API}/retrieve_future", {"request_id": future["request_id"], "allow_metadata_only": False})


def pass_body(model: str, number: int) -> dict[str, Any]:
    weights = {"data": WEIGHTS, "dtype": "float32", "shape": [3]}
    inputs = {"target_tokens": {"data": TARGETS, "dtype": "int64", "shape": [3]}, "weights": weights}
    datum = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}, "loss_fn_inputs": inputs}
    return {
        "forward_backward_input": {"data": [datum], "loss_fn": "cross_entropy"}, "model_id": model, "seq_id": number,
    }  # fmt: skip


def test_fireworks_takes_each_number_once_and_in_order(
    at_fireworks: tuple[fireworks.FireworksStepsDouble, Client, str], table: StepServiceDouble
) -> None:
    double, client, model = at_fireworks
    body = pass_body(model, 1)
    first, again = (client.value(f"{API}/forward_backward", body) for _ in range(2))
    assert first == again
    assert table.calls["forward_backward"] == 1
    assert retrieve(client, first)["loss_fn_outputs"][0]["logprobs"]["shape"] == [3]
    changed = pass_body(model, 1)
    changed["forward_backward_input"]["data"][0]["loss_fn_inputs"]["weights"]["data"] = [1.0, 1.0, 1.0]
    assert client.post(f"{API}/forward_backward", changed).status_code == 409
    client.value(f"{API}/forward_backward", pass_body(model, 4))
    assert client.post(f"{API}/forward_backward", pass_body(model, 3)).status_code == 409
    double.faults["optim_step"].extend([WireFault.LIMITED, WireFault.BROKEN])
    step = {"adam_params": ADAM, "model_id": model, "seq_id": 5, "type": "optim_step"}
    assert [client.post(f"{API}/optim_step", step).status_code for _ in range(3)] == [429, 500, 200]


def test_fireworks_refuses_what_its_types_do_not_have(
    at_fireworks: tuple[fireworks.FireworksStepsDouble, Client, str],
) -> None:
    double, client, model = at_fireworks
    assert "unknown field ttl" in client.post(f"{API}/forward_backward", {**pass_body(model, 1), "ttl": 1}).text
    assert client.post(f"{API}/create_session", {}, **{"X-API-Key": "no"}).status_code == 401
    (session,) = double.open_sessions
    client.http.delete(f"/v1/accounts/{fireworks.ACCOUNT}/trainingSessions/{session}")
    assert client.post(f"{API}/forward_backward", pass_body(model, 1)).status_code == 404


# The other end


class Creations:
    """A service that creates things, whose replies are lost where `lost` says so."""

    def __init__(self, *lost: bool) -> None:
        self.ids, self.lost = ["old"], list(lost)

    def list_ids(self) -> list[str]:
        return list(self.ids)

    def create(self) -> str:
        self.ids.append(f"new-{len(self.ids)}")
        if self.lost and self.lost.pop(0):
            raise ServiceError(UNAVAILABLE, "The connection broke.")
        return self.ids[-1]


def test_a_lost_creation_is_found_and_not_repeated(tmp_path: Path) -> None:
    service = Creations(True)
    assert Memory(tmp_path).create_once("resource", service.list_ids, service.create) == "new-1"
    assert service.ids == ["old", "new-1"]
    assert Memory(tmp_path).values == {"resource": {"id": "new-1"}}


def test_a_later_process_finds_what_a_killed_one_requested(tmp_path: Path) -> None:
    service = Creations()
    Memory(tmp_path).write("resource", before=["old"])
    service.ids.append("orphan")
    assert Memory(tmp_path).create_once("resource", service.list_ids, service.create) == "orphan"
    service.ids.append("stranger")
    Memory(tmp_path).write("resource", before=["old"])
    with pytest.raises(ServiceError, match="2 new: orphan, stranger") as error:
        Memory(tmp_path).create_once("resource", service.list_ids, service.create)
    assert error.value.kind == REFUSED


def test_keys_of_step_services_reach_the_worker_and_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {variables.key for variables in SERVICE_VARIABLES.values()} == STEP_KEYS <= key_variables(settings())
    for name in STEP_KEYS:
        monkeypatch.setenv(name, "secret")
    for variables in SERVICE_VARIABLES.values():
        monkeypatch.setenv(variables.url, "http://service")
    passed = child_environment()
    assert not STEP_KEYS & passed.keys()
    assert all(passed[variables.url] == "http://service" for variables in SERVICE_VARIABLES.values())


def test_an_environment_without_its_sdk_ends_in_words(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")
    monkeypatch.setenv("TRAINYARD_BACKEND_ENVS", json.dumps({"together_steps": str(tmp_path)}))
    settings.cache_clear()
    job = jobs(backend="together_steps", hyperparameters={"precision": "auto"})
    job = job.model_copy(update={"service": find_step_service(job.config, job.base, settings())})
    service = ChildService(job, find_address(job), Words(), tmp_path)
    with pytest.raises(Unavailable, match="together_steps backend ended during open, with exit code 1"):
        service.open()
    service.close("errored")


FIELDS = """
import json
from fireworks.training.sdk import types as t
names = lambda kind: sorted(getattr(kind, "model_fields", None) or kind.__dataclass_fields__)
print(json.dumps({name: names(getattr(t, name)) for name in %r}))
"""
TYPES = {
    "CreateSessionRequest": fireworks.SESSION, "LoraConfig": fireworks.LORA, "AdamParams": fireworks.ADAM,
    "SaveWeightsRequest": {**fireworks.SAVE, "overwrite": bool},
}  # fmt: skip


def test_fields_are_those_of_the_fireworks_sdk() -> None:
    python = ENVIRONMENTS / "fireworks_steps" / "bin" / "python"
    if not python.exists():
        pytest.skip("no environment for fireworks_steps: run `trainyard backends install fireworks_steps`")
    ran = subprocess.run([str(python), "-c", FIELDS % (list(TYPES),)], capture_output=True, text=True, check=True)
    fields = {name: sorted(key.removesuffix("?") for key in schema) for name, schema in TYPES.items()}
    assert json.loads(ran.stdout) == fields


PARAMS = """
import json, typing, together.types.post_training as t
print(json.dumps({name: sorted(getattr(t, name).__annotations__) for name in %r}))
"""


def test_fields_are_among_those_of_the_together_sdk() -> None:
    python = ENVIRONMENTS / "together_steps" / "bin" / "python"
    if not python.exists():
        pytest.skip("no environment for together_steps: run `trainyard backends install together_steps`")
    schemas = {
        "ModelResourceCreateParams": together.RESOURCE_FIELDS, "SessionCreateParams": together.SESSION_FIELDS,
        "LoraConfigParam": together.LORA, "AdamParams": together.OPERATIONS["optim-step"]["adam_params"],
        "SamplingParams": together.OPERATIONS["sample"]["sampling_params?"], "TensorDataParam": together.TENSOR,
    }  # fmt: skip
    ran = subprocess.run([str(python), "-c", PARAMS % (list(schemas),)], capture_output=True, text=True, check=True)
    for name, names in json.loads(ran.stdout).items():
        assert {key.removesuffix("?") for key in schemas[name]} <= set(names), name
