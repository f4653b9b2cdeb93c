"""A session at a step service: our losses, rates and rules over the SDK's own types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.small_jobs import Jobs
from trainyard.backends.job import TeacherServer
from trainyard.backends.remote_steps.addresses import ServiceAddress, find_address
from trainyard.backends.remote_steps.backend import StepProgram
from trainyard.backends.remote_steps.client import TinkerService, require_own_host, service_errors
from trainyard.backends.remote_steps.session import RemoteSession, RemoteState
from trainyard.errors import Conflict, Corrupt, Denied, TrainyardError
from trainyard.inherited import KEYS_ELSEWHERE, is_key_missing, service_environment
from trainyard.settings import load_settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.testing.step_service import StepServiceDouble
from trainyard.train.contracts import Head, Sampling
from trainyard.train.losses.table import STAGES
from trainyard.train.model.head import LabelLogprobs

tinker = pytest.importorskip("tinker")
ADDRESS = ServiceAddress("https://service.example", "base", "tml-secret", is_operators=False)
TOTAL = 10


@dataclass
class Words:
    """A tokenizer of numbers."""

    pad_token_id: int = 0
    eos_token_id: int = 0

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def open_session(stage: Any = "sft", **hyper: Any) -> tuple[RemoteSession, StepServiceDouble]:
    """A session at a double, with its adapter open."""
    body = {"backend": "tinker", "stage": stage, "method": {"type": "lora", "rank": 4}, "hyperparameters": hyper}
    config = resolve_trainer(TrainerConfig.model_validate(body), "base")
    double = StepServiceDouble()
    service = TinkerService(ADDRESS, config, Words(), "job", service=double)
    service.open()
    spec = STAGES[config.stage.type].chosen(config)
    return RemoteSession(RemoteState.build(config, spec, Words(), TOTAL, 64), service), double


def batch_of(stage: str) -> dict[str, torch.Tensor]:
    """Four rows of unequal lengths; of stage dpo two pairs."""
    rows = [[1, 2, 3, 4, 5], [6, 7, 8], [1, 2, 9, 10], [6, 7, 11]]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    labels = torch.where((mask == 1) & (torch.arange(width) > 1), ids, -100)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if stage == "kto":
        batch |= {f"kl_{name}": value.roll(1, 0) for name, value in batch.items()}
        batch["desirable_B"] = torch.tensor([True, False, True, False])
    return batch


class TableModel:
    """The double's table as a model of this process: what the service computes, with a graph through all of it."""

    def __init__(self, logits_VV: torch.Tensor) -> None:
        self.logits_VV = logits_VV

    def score_labels(self, batch: dict[str, torch.Tensor]) -> LabelLogprobs:
        target_BT = batch["labels"][:, 1:]
        rows_N, positions_N = (target_BT != -100).nonzero(as_tuple=True)
        logprobs_NV = self.logits_VV[batch["input_ids"][rows_N, positions_N]].log_softmax(-1)
        return LabelLogprobs(logprobs_NV.gather(1, target_BT[rows_N, positions_N][:, None])[:, 0], rows_N)


STAGE_BODIES = {
    "sft": "sft", "rows": {"type": "sft", "average": "row"}, "dpo": "dpo", "ipo": {"type": "dpo", "loss": "ipo"},
    "simpo": {"type": "dpo", "loss": "simpo"}, "kto": "kto",
}  # fmt: skip


@pytest.mark.parametrize("name", STAGE_BODIES)
def test_the_gradient_at_the_service_is_that_of_the_loss(name: str) -> None:
    session, double = open_session(STAGE_BODIES[name])
    (client,), config, stage = double.clients, session.engine.config, session.engine.stage
    with torch.no_grad():
        client.logits_VV.mul_(1.5)  # a policy that is no longer its reference
    batch = batch_of(config.stage.type.value)
    table = client.logits_VV.detach().clone().requires_grad_()
    reference = session.reference_scores(batch) if stage.needs_reference(config) else None
    loss, _ = stage.loss(batch, stage.score(TableModel(table), batch, Head.FULL), reference, config)
    (loss / stage.units(batch)).backward()
    forward = session.forward(batch)
    session.backward(forward.forward_id)
    assert float(forward.loss) == pytest.approx(float(loss.detach()) / stage.units(batch), abs=1e-6)
    torch.testing.assert_close(client.logits_VV.grad, table.grad, atol=1e-7, rtol=1e-5)


def test_a_step_of_a_linear_loss_is_one_pass_and_of_another_two() -> None:
    for stage, passes in (("sft", 0), ("dpo", 1)):
        session, double = open_session(stage)
        batch = batch_of(stage) | ({} if stage == "sft" else reference_of(session))
        double.calls.clear()
        session.backward(session.forward(batch).forward_id)
        assert (double.calls["forward"], double.calls["forward_backward"]) == (passes, 1)


def reference_of(session: RemoteSession) -> dict[str, torch.Tensor]:
    return {f"reference/{name}": value for name, value in session.reference_scores(batch_of("dpo")).items()}


def test_steps_are_those_of_torch_at_the_rates_of_the_schedule() -> None:
    session, double = open_session("sft", learning_rate=0.1, weight_decay=0.01, max_grad_norm=0.05)
    (client,), batch = double.clients, batch_of("sft")
    table = torch.nn.Parameter(client.logits_VV.detach().clone())
    optimizer, rates = torch.optim.AdamW([table], weight_decay=0.01), []
    for _ in range(3):
        session.backward(session.forward(batch).forward_id)
        rates.append(session.step().learning_rate)
        session.zero_grad()
        loss, _ = STAGES[session.engine.config.stage.type].loss(
            batch, {"logprobs_N": TableModel(table).score_labels(batch).logprobs_N}, None, session.engine.config
        )
        (loss / 7).backward()
        optimizer.param_groups[0]["lr"] = rates[-1]
        torch.nn.utils.clip_grad_norm_([table], 0.05)
        optimizer.step()
        optimizer.zero_grad()
    assert rates == pytest.approx([0.05, 0.1, 0.1 * 8 / 9])  # one step of warm-up, then linearly down
    torch.testing.assert_close(client.logits_VV.detach(), table.detach(), atol=1e-6, rtol=1e-5)


def test_gradients_that_nothing_counts_are_not_left_at_the_service() -> None:
    session, _ = open_session("sft")
    forward = session.forward(batch_of("sft"))
    with pytest.raises(Conflict, match="no backward has counted"):
        session.forward(batch_of("sft"))
    session.backward(forward.forward_id)
    with pytest.raises(Conflict, match="cannot clear gradients"):
        session.zero_grad()
    with pytest.raises(Conflict, match="not there any more"):
        session.backward(forward.forward_id)


def test_a_state_continues_to_the_same_numbers() -> None:
    session, double = open_session("sft", learning_rate=0.1)
    batch = batch_of("sft")

    def step() -> float:
        forward = session.forward(batch)
        session.backward(forward.forward_id)
        session.step()
        return float(forward.loss)

    step()
    path, values = session.save("first"), session.state()
    before = [step(), step()]
    session.load(path, values)
    assert [step(), step()] == before
    assert len(double.clients) == 2


def test_completions_of_one_prompt_are_sampled_together() -> None:
    session, double = open_session("sft")
    first = session.generate([[1, 2], [1, 2], [3]], Sampling(max_new_tokens=5, seed=7))
    again = session.generate([[1, 2], [1, 2], [3]], Sampling(max_new_tokens=5, seed=7))
    assert [row.ids for row in first] == [row.ids for row in again]
    assert first[0].ids != first[1].ids
    assert double.calls["sampler"] == 1
    assert first[0].text == " ".join(map(str, first[0].ids))
    assert session.logprobs([[3, *first[2].ids]])[0][1:] == pytest.approx(first[2].logprobs, abs=1e-6)


def test_a_key_is_in_no_message_and_no_text() -> None:
    request = tinker._client.httpx.Request("GET", "https://service.example")
    response = tinker._client.httpx.Response(401, request=request)
    with pytest.raises(Denied) as caught, service_errors(tinker, ADDRESS.base_url):
        raise tinker.AuthenticationError("denied", response=response, body=None)
    assert caught.value.code == "E-API-KEY"
    assert "secret" not in f"{caught.value} {caught.value.do} {ADDRESS!r}"
    with pytest.raises(TrainyardError, match="cannot be used"), service_errors(tinker, ADDRESS.base_url):
        raise tinker.APIConnectionError(request=request)


def test_weights_come_from_the_service_that_was_named() -> None:
    require_own_host("https://service.example/files/x", ADDRESS)
    with pytest.raises(Corrupt, match="links to 10"):
        require_own_host("http://10.0.0.1/x", ADDRESS)
    with pytest.raises(Corrupt, match="links to store"):
        require_own_host("https://store.example/x", ADDRESS)
    require_own_host("https://store.example/x", ServiceAddress("https://a", "base", "k", is_operators=True))


def test_a_missing_key_and_an_earlier_adapter_are_refused(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = TeacherServer(base_url="", model="m", api_key_env="TINKER_API_KEY")
    job = jobs(backend="tinker", hyperparameters={"precision": "auto"}).model_copy(update={"service": server})
    program = StepProgram(BackendName.TINKER)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    (reason,) = program.reasons(job)
    assert reason.code == "R-ENDPOINT"
    assert "TINKER_API_KEY" in reason.because
    monkeypatch.setenv("TINKER_API_KEY", "tml-1")
    assert program.reasons(job) == []
    assert program.environment(job)["TINKER_API_KEY"] == "tml-1"
    assert "tml-1" not in job.model_dump_json()
    assert find_address(job).key == "tml-1"
    (reason,) = program.reasons(job.model_copy(update={"adapter": str(tmp_path)}))
    assert reason.code == "R-ADAPTER"


def test_the_key_reaches_the_worker_and_no_other_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-1")
    worker, api = (service_environment(name, load_settings(home=tmp_path)) for name in ("worker", "api"))
    assert worker["TINKER_API_KEY"] == "tml-1"
    assert "tml-1" not in api.values()
    monkeypatch.delenv("TINKER_API_KEY")
    assert is_key_missing("TINKER_API_KEY")
    monkeypatch.setenv(KEYS_ELSEWHERE, api[KEYS_ELSEWHERE])  # the API cannot know, and does not refuse
    assert not is_key_missing("TINKER_API_KEY")
