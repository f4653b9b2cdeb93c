"""What a plan tells without refusing."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.spec.axes.devices import Device
from trainyard.spec.compat.advice import advice
from trainyard.spec.training import TrainerConfig, resolve_trainer


def advice_on(**settings: Any) -> list[str]:
    return advice(resolve_trainer(TrainerConfig.model_validate(settings), "starter"))


@pytest.mark.parametrize(("rank", "warned"), [(1, True), (7, True), (8, False), (64, False), (65, True), (256, True)])
def test_a_rank_outside_the_usual_ones_is_told(rank: int, warned: bool) -> None:
    assert advice_on(method={"type": "lora", "rank": rank}) == (
        [f"method.rank is {rank}; ranks from 8 to 64 are usual."] if warned else []
    )


def test_a_method_without_a_rank_has_no_unusual_one() -> None:
    assert advice_on(method="full") == []


@pytest.mark.parametrize(("method", "count"), [("lora", 1), ("dora", 1), ("full", 0)])
def test_muon_on_an_adapter_is_told(method: str, count: int) -> None:
    assert len(advice_on(method=method, hyperparameters={"optimizer": "muon"})) == count


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"stage": "kto"}, 1),
        ({"stage": {"type": "dpo", "loss": "kto_pair"}}, 1),
        ({"stage": "dpo"}, 0),
        ({"stage": "kto", "backend": "trl"}, 0),
    ],
)
def test_a_loss_that_depends_on_the_micro_batch_is_told_under_accumulation(
    settings: dict[str, Any], count: int
) -> None:
    hyper = {"batch_size": 4, "gradient_accumulation": 2}
    assert len(advice_on(**settings, hyperparameters=hyper)) == count
    assert advice_on(**settings, hyperparameters={**hyper, "gradient_accumulation": 1}) == []


@pytest.mark.parametrize(
    ("device", "here", "count"),
    [
        ("cpu", None, 1),
        ("cpu", "cuda", 1),
        ("auto", "cpu", 1),
        ("auto", "cuda", 0),
        ("auto", None, 0),
        ("cuda", "cpu", 0),
    ],
)
@pytest.mark.parametrize("backend", ["native", "trl"])
def test_paged_states_on_a_cpu_are_reported(device: str, here: str | None, count: int, backend: str) -> None:
    settings = {"device": device, "backend": backend, "hyperparameters": {"optimizer": "paged_adamw_8bit"}}
    config = resolve_trainer(TrainerConfig.model_validate(settings), "starter")
    expected = ["Paged memory is CUDA's: on a CPU paged_adamw_8bit runs as adamw_8bit."]
    assert advice(config, Device(here) if here else None) == expected * count
