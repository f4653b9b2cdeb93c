"""The toys of `make bench-rl`, shorter: what each has to show is the same, the bars are lower."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from benchmarks.rl.__main__ import BARS, SEEDS


def make_measured(task: str, share: float) -> dict[str, Any]:
    result: dict[str, Any] = importlib.import_module(f"benchmarks.rl.{task}").measure(0, share=share)
    return result


def test_every_task_has_a_bar() -> None:
    named: set[str] = set()

    class Asked(dict[str, list[dict[str, float]]]):
        def __getitem__(self, task: str) -> list[dict[str, float]]:
            named.add(task)
            return [AnyMetric()]

    class AnyMetric(dict[str, float]):
        def __getitem__(self, name: str) -> float:
            return 1.0

    for bar in BARS.values():
        bar(Asked())  # type: ignore[arg-type]
    assert named == set(SEEDS)


@pytest.mark.slow
def test_ppo_with_a_reward_model_raises_what_the_model_never_saw() -> None:
    result = make_measured("rlhf", 0.5)
    assert result["accuracy"] > 0.9
    assert result["kl_0.3_utility"] > result["sft_utility"] + 0.1
    assert result["kl_0_nats"] > result["kl_0.3_nats"] > 0
    assert result["kl_0_score"] > result["sft_score"]


@pytest.mark.slow
def test_grpo_with_a_verifier_improves_sums() -> None:
    result = make_measured("grpo_addition", 0.15)
    assert result["sft"] <= 0.3
    assert result["grpo"] > result["sft"] + 0.15


@pytest.mark.slow
def test_rollouts_are_faster_than_generate() -> None:
    assert make_measured("rollout_speed", 0.34)["least"] > 1.1
