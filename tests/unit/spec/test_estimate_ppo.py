"""What the models next to a policy take, and how many rows PPO sees."""

from __future__ import annotations

from typing import Any

from tests.unit.spec.test_estimate_rollouts import LLAMA_3_8B
from trainyard.spec.axes.devices import Device
from trainyard.spec.estimate.memory import estimate_memory, rows_seen
from trainyard.spec.training import TrainerConfig, resolve_trainer


def ppo(method: str = "lora", **stage: Any) -> TrainerConfig:
    stage_settings = {"type": "ppo", "rewards": [{"type": "exact_match"}], **stage}
    config = TrainerConfig.model_validate(
        {"stage": stage_settings, "method": method, "hyperparameters": {"batch_size": 8}}
    )
    return resolve_trainer(config, "base")


def test_a_critic_is_a_second_model_and_a_reward_model_a_third() -> None:
    none, critic, both = (
        estimate_memory(LLAMA_3_8B, config, Device.CUDA).critic
        for config in (ppo(advantage="group"), ppo(), ppo(rewards=[{"type": "reward_model"}]))
    )
    weights = 2 * LLAMA_3_8B.parameters
    assert none == 0
    assert weights < critic < 1.5 * weights
    assert both == critic + weights
    full = estimate_memory(LLAMA_3_8B, ppo("full"), Device.CUDA).critic
    assert full == 16 * LLAMA_3_8B.parameters


def test_a_pass_sees_each_completion_as_often_as_it_is_learned_from() -> None:
    # Eight completions a step, two minibatches: four prompts a rollout of sixteen, each used three times.
    config = ppo(num_generations=4, minibatches=2, num_iterations=3)
    assert rows_seen(config, 10) == 8 * 4 * 3
