"""Completions by vLLM next to a training: which weights it draws with, what it is asked, and what the training reads.

The server is a double with vLLM's rules: no name is loaded twice, nothing is drawn while it sleeps, and level 2 of its
sleep drops the weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig

from benchmarks.rl.ppo_toy import WORDS
from benchmarks.rl.toy import toy_config, toy_policy, toy_tokenizer
from tests.small_jobs import Jobs, train_here
from trainyard.backends.native.policy_server import PolicyServer, context_needed
from trainyard.errors import Unavailable
from trainyard.settings import settings
from trainyard.spec.axes.rewards import RolloutSettings
from trainyard.spec.training import TrainerConfig
from trainyard.testing.vllm_program import REQUESTS_FILE, vllm_program
from trainyard.testing.vllm_server import VllmDouble, vllm_server
from trainyard.train.contracts import Sampling, StopReason
from trainyard.train.model.sampling import token_logprobs

TOKENIZER = toy_tokenizer(WORDS)
STAGE: dict[str, Any] = {
    "type": "grpo", "rewards": [{"type": "contains", "text": "e"}], "num_generations": 2,
    "max_completion_length": 5, "rollouts": {"engine": "vllm", "memory": 0.3},
}  # fmt: skip
HYPER = {"batch_size": 4, "max_steps": 3, "learning_rate": 1e-2}


def policy_server(double: VllmDouble, folder: Path, model: Any, *, adapter: bool = True) -> PolicyServer:
    """A client of the double; what is saved is an adapter's config, or nothing."""

    def save(target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        (target / "adapter_config.json").write_text('{"r": 4}')

    return PolicyServer(double, save, folder, TOKENIZER, model, adapter, asleep=False)  # as the double begins


def next_logprobs(model: Any) -> Any:
    def score_row(ids: list[int]) -> list[list[float]]:
        with torch.no_grad():
            row_logprobs: list[list[float]] = (
                model(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1).tolist()
            )
        return row_logprobs

    return score_row


def list_paths(double: VllmDouble) -> list[str]:
    return [path for path, _ in double.requests]


def test_tokens_come_back_with_the_log_probabilities_of_the_sampling(tmp_path: Path) -> None:
    model = toy_policy(toy_config(8), 0).eval()
    prompts = [[2, 3], [4], [2, 3], [4], [5, 6, 7]]
    with vllm_server("policy", logprobs=next_logprobs(model), sleep_mode=True) as double:
        with policy_server(double, tmp_path, model).drawing(None) as writer:  # type: ignore[arg-type]
            completions = writer.generate(prompts, Sampling(6, temperature=0.5, seed=3))
            again = writer.generate(prompts, Sampling(6, temperature=0.5, seed=3))
        bodies = [body for path, body in double.requests if path == "/v1/completions"]
    assert [completion.ids for completion in completions] == [completion.ids for completion in again]
    assert sorted((tuple(body["prompt"]), body["n"]) for body in bodies[:3]) == [((2, 3), 2), ((4,), 2), ((5, 6, 7), 1)]
    assert completions[0].ids != completions[2].ids
    for completion, prompt in zip(completions, prompts, strict=True):
        assert completion.stop_reason is (StopReason.END if completion.ids[-1] == 1 else StopReason.LENGTH)
        row = [*prompt, *completion.ids]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row])).logits[0, len(prompt) - 1 : -1] / 0.5
        expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.ids)[:, None])[:, 0].tolist()
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    assert token_logprobs(model, TOKENIZER, [[2, 3]])


def test_each_rollout_has_an_adapter_of_its_own_and_the_server_sleeps_between(tmp_path: Path) -> None:
    model = toy_policy(toy_config(8), 0)
    with vllm_server("policy", logprobs=next_logprobs(model), sleep_mode=True) as double:
        server = policy_server(double, tmp_path, model)
        for name in ("policy-1", "policy-2"):
            with server.drawing(None) as writer:  # type: ignore[arg-type]
                assert set(double.adapters) == {name}
                writer.generate([[2]], Sampling(2))
            assert (double.adapters, double.awake) == ({}, set())
            assert not (tmp_path / name).exists()
        assert list_paths(double) == [
            "/v1/load_lora_adapter", "/v1/completions", "/v1/unload_lora_adapter", "/sleep?level=1", "/wake_up",
            "/v1/load_lora_adapter", "/v1/completions", "/v1/unload_lora_adapter", "/sleep?level=1",
        ]  # fmt: skip


def test_whole_weights_are_read_again_before_each_rollout(tmp_path: Path) -> None:
    model = toy_policy(toy_config(8), 0)
    with vllm_server("policy", logprobs=next_logprobs(model), sleep_mode=True) as double:
        server = policy_server(double, tmp_path, model, adapter=False)
        for _ in range(2):
            with server.drawing(None) as writer:  # type: ignore[arg-type]
                writer.generate([[2]], Sampling(2))
        reading = ["/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache"]
        assert list_paths(double) == ["/sleep?level=2", *[*reading, "/v1/completions", "/sleep?level=2"] * 2]


def test_of_the_weights_that_were_served_no_file_and_no_index_stays(tmp_path: Path) -> None:
    """A base in several files has an index, by which a server would choose among the new files."""
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")
    served = tmp_path / "served"
    served.mkdir()
    for name in (*names, "config.json"):
        (served / name).write_text("{}")
    with (
        vllm_server("policy", logprobs=next_logprobs(toy_policy(toy_config(8), 0)), sleep_mode=True) as double,
        policy_server(double, tmp_path, None, adapter=False).drawing(None),  # type: ignore[arg-type]
    ):
        assert {path.name for path in served.iterdir()} == {"config.json", "adapter_config.json"}


def test_the_double_draws_nothing_asleep_or_with_dropped_weights(tmp_path: Path) -> None:
    model = toy_policy(toy_config(8), 0)
    with vllm_server("policy", logprobs=next_logprobs(model), sleep_mode=True) as double:
        server = policy_server(double, tmp_path, model)
        server.post("/sleep", params={"level": 2})
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"E-SERVER-UNREACHABLE: .*did not do /v1/completions.*asleep"):
                server.complete("policy", [[2]], Sampling(2))
            server.post("/wake_up")
        server.post("/collective_rpc", {"method": "reload_weights"})
        assert len(server.complete("policy", [[2]], Sampling(2))) == 1
        with pytest.raises(Unavailable, match="The model `other` does not exist"):
            server.complete("other", [[2]], Sampling(2))


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_training_draws_by_the_server_and_learns_from_its_own_probabilities(
    method: str, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = vllm_program(tmp_path / "home" / "envs" / "vllm" / "bin", "draw")
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    job = jobs(backend="native", stage=STAGE, hyperparameters=HYPER, method=method)
    ran = train_here(job, tmp_path / "work")
    steps = ran.of("progress")
    assert len(steps) == 3
    assert all(step["sampling_gap"] > 0 for step in steps)  # the double draws evenly, the model does not
    assert ran.record["rollouts"]["at_end"]["sampling_gap"] > 0
    requests = json.loads((program.parent / REQUESTS_FILE).read_text())
    loaded = [request["body"]["lora_name"] for request in requests if request["path"] == "/v1/load_lora_adapter"]
    assert loaded == (["policy-1", "policy-2", "policy-3"] if method == "lora" else [])
    assert sum(request["path"].startswith("/sleep") for request in requests) == 4
    if method == "full":
        served = load_file(tmp_path / "work" / "rollouts" / "served" / "model.safetensors")
        base, result = load_file(jobs.model / "model.safetensors"), load_file(ran.folder / "model.safetensors")
        assert any(not torch.equal(served[name], base[name]) for name in served)
        assert any(not torch.equal(served[name], result[name]) for name in served)


@pytest.mark.parametrize(
    ("positions", "more", "expected"),
    [
        (131_072, {}, 1029),  # 1,024 of the prompt and 5 of the completion
        (1029, {}, None),
        (256, {}, None),
        (131_072, {"environment": {"type": "calculator", "max_turns": 2}}, None),
    ],
)
def test_the_server_keeps_room_for_the_rows_and_not_for_the_whole_context(
    positions: int, more: dict[str, Any], expected: int | None, tmp_path: Path
) -> None:
    LlamaConfig(max_position_embeddings=positions).save_pretrained(tmp_path)
    hyper = {**HYPER, "max_length": 1024}
    config = TrainerConfig.model_validate({"backend": "native", "stage": {**STAGE, **more}, "hyperparameters": hyper})
    assert context_needed(str(tmp_path), config) == expected


def test_only_vllm_reads_its_share_of_the_memory() -> None:
    assert RolloutSettings().model_dump() == {"engine": "native"}
    with pytest.raises(ValueError, match="memory is read with engine vllm only"):
        RolloutSettings(memory=0.5)
