"""What `plan` says of stage grpo: its steps, the cache that completions are drawn with, and the reference."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.chains import node, source
from tests.unit.spec.test_estimate import LLAMA_3_8B, TINY, estimate_nodes, trainer
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.estimate.memory import cache_bytes, estimate_memory, positions, rows_seen
from trainyard.spec.training import TrainerConfig


def grpo(hyper: dict[str, Any] | None = None, method: str = "lora", **rollouts: Any) -> TrainerConfig:
    hyper_settings = {"batch_size": 8, "max_length": 512, **(hyper or {})}
    rollout_settings = {"rewards": [{"type": "exact_match"}], **rollouts}
    return trainer(stage={"type": "grpo", **rollout_settings}, method=method, hyperparameters=hyper_settings)


def test_cache_of_a_published_model() -> None:
    """Llama 3 8B keeps 128 KiB a position in half precision: 8 heads of 128, keys and values, 32 blocks."""
    config = grpo({"gradient_accumulation": 4})
    assert cache_bytes(LLAMA_3_8B, config, Device.CUDA) == 128 * 1024 * 32 * 1024
    assert cache_bytes(LLAMA_3_8B, grpo(method="full"), Device.CUDA) == 256 * 1024 * 8 * 1024
    assert cache_bytes(LLAMA_3_8B, trainer(), Device.CUDA) == 0


def test_the_native_engine_draws_at_most_64_together_as_a_server_does_with_its_own_weights() -> None:
    def count_positions(batch: int, accumulation: int, **stage: Any) -> float:
        stage_settings = {"type": "grpo", "rewards": [{"type": "exact_match"}], **stage}
        hyper = {"batch_size": batch, "gradient_accumulation": accumulation, "max_length": 512}
        config = trainer(stage=stage_settings, backend="native", hyperparameters=hyper)
        return cache_bytes(LLAMA_3_8B, config, Device.CUDA) / (128 * 1024 * 1024)

    assert [count_positions(8, 4), count_positions(8, 64), count_positions(128, 2)] == [32, 64, 128]
    weights = 2 * LLAMA_3_8B.parameters / (128 * 1024 * 1024)
    assert count_positions(8, 4, rollouts={"engine": "vllm"}) == 32 + weights


def test_completions_make_rows_longer() -> None:
    assert positions(grpo(max_completion_length=100), Device.CUDA) == 8 * 612


def test_only_what_does_not_fit_the_place_of_activations_counts() -> None:
    assert estimate_memory(LLAMA_3_8B, grpo(), Device.CUDA).rollouts == 0
    config = grpo({"batch_size": 1, "gradient_accumulation": 256, "gradient_checkpointing": True})
    memory = estimate_memory(LLAMA_3_8B, config, Device.CUDA)
    assert memory.rollouts == cache_bytes(LLAMA_3_8B, config, Device.CUDA) - memory.activations - memory.logits > 0
    assert "rollouts" in memory.in_words()


def test_a_distance_needs_a_second_model_of_whole_weights_only() -> None:
    weights = [
        estimate_memory(TINY, grpo(method=m, beta=b), Device.CUDA).weights for m in ("full", "lora") for b in (0, 0.1)
    ]
    assert weights[1] == weights[0] + 2 * TINY.parameters
    assert weights[2] == weights[3]


def test_each_iteration_is_another_step_over_the_same_rows() -> None:
    once, thrice = (grpo({"batch_size": 8}, num_iterations=n) for n in (1, 3))
    assert rows_seen(thrice, 100) == 3 * rows_seen(once, 100)


@pytest.mark.parametrize(
    ("hyper", "prompts", "rows", "steps"),
    [
        ({"batch_size": 8}, 100, 800, 300),
        ({"batch_size": 8, "gradient_accumulation": 3}, 100, 99 * 8, 99),
        ({"batch_size": 4, "gradient_accumulation": 2, "max_steps": 7}, 100, 800, 7),
    ],
)
def test_steps_answer_whole_groups(hyper: dict[str, Any], prompts: int, rows: int, steps: int) -> None:
    config = grpo(hyper)
    assert rows_seen(config, prompts) == rows
    settings = config.model_dump(mode="json", include={"stage", "backend", "hyperparameters", "rollouts"})
    trainer_estimate = estimate_nodes(source(), node("trainer", **settings), rows={"data-source": {Port.SFT: prompts}})[
        "trainer"
    ]
    assert (trainer_estimate.rows, trainer_estimate.steps) == (prompts, steps)
