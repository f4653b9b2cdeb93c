"""Which way of training is chosen for which memory: golden rows of real models, and what is never changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.spec.chains import node, reasons, source
from tests.unit.spec.test_estimate import LLAMA_2_7B, LLAMA_3_8B, LLAMA_3_70B, TINY
from trainyard.errors import InvalidInput, LimitExceeded
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.estimate.cascade import FitResult, choose, turned, usual_rungs
from trainyard.spec.estimate.memory import GIB
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.training import TrainerConfig, resolve_trainer

GB = 10**9


def wanted(**config: Any) -> TrainerConfig:
    return resolve_trainer(TrainerConfig.model_validate({"backend": "native", **config}), "org/base")


def long_rows(**config: Any) -> TrainerConfig:
    hyper = {"batch_size": 1, "max_length": 2048, **config.pop("hyperparameters", {})}
    return wanted(hyperparameters=hyper, **{"method": {"type": "lora", "rank": 16}, **config})


def on_gpu(shape: ModelShape, config: TrainerConfig, free_gb: float) -> FitResult:
    return choose(shape, config, int(free_gb * GB), Device.CUDA)


CHECKPOINTING, PAGED = "gradient checkpointing", "optimizer paged_adamw_8bit"


@pytest.mark.parametrize(
    ("shape", "free_gb", "rung", "knobs"),
    [
        (LLAMA_2_7B, 141, Method.FULL, (CHECKPOINTING,)),
        (LLAMA_2_7B, 80, Method.LORA, ()),
        (LLAMA_2_7B, 24, Method.LORA, (CHECKPOINTING,)),
        (LLAMA_2_7B, 16, Method.QLORA, (CHECKPOINTING,)),
        (LLAMA_2_7B, 8, Method.QLORA, (CHECKPOINTING, PAGED, "chunked output layer")),
        (LLAMA_3_8B, 141, Method.FULL, (CHECKPOINTING, PAGED)),
        (LLAMA_3_8B, 24, Method.LORA, (CHECKPOINTING,)),
        (LLAMA_3_8B, 16, Method.QLORA, (CHECKPOINTING,)),
        (LLAMA_3_70B, 180, Method.LORA, (CHECKPOINTING,)),
        (LLAMA_3_70B, 141, Method.QLORA, ()),
        (LLAMA_3_70B, 80, Method.QLORA, (CHECKPOINTING,)),
    ],
)
def test_golden_rows(shape: ModelShape, free_gb: float, rung: Method, knobs: tuple[str, ...]) -> None:
    found = on_gpu(shape, long_rows(), free_gb)
    assert (found.rung, found.knobs) == (rung, knobs)


def test_7b_qlora_at_512_tokens_fits_a_24_gb_card_as_asked() -> None:
    config = wanted(method={"type": "qlora", "rank": 16}, hyperparameters={"batch_size": 4, "max_length": 512})
    found = choose(LLAMA_2_7B, config, 24 * GB, Device.CUDA, rungs=[Method.QLORA])
    assert (found.knobs, found.changes) == ((), ())
    assert found.needed_bytes < 15 * GB


def test_70b_qlora_fits_an_80_gb_card_with_four_rows() -> None:
    config = long_rows(
        method={"type": "qlora", "rank": 16}, hyperparameters={"batch_size": 4, "gradient_checkpointing": True}
    )
    assert choose(LLAMA_3_70B, config, 80 * GB, Device.CUDA, rungs=[Method.QLORA]).knobs == ()


def every_knob(config: TrainerConfig, device: Device) -> list[tuple[str, TrainerConfig]]:
    """Every knob in its order: what is tried when nothing ever fits."""
    return list(turned(config, device))


def test_knobs_come_in_one_order() -> None:
    config = wanted(hyperparameters={"batch_size": 12, "gradient_accumulation": 2})
    assert [name for name, _ in every_knob(config, Device.CUDA)] == [
        "gradient checkpointing",
        "optimizer paged_adamw_8bit",
        "micro-batches of 6, 4 a step",
        "micro-batches of 3, 8 a step",
        "micro-batches of 1, 24 a step",
        "chunked output layer",
    ]
    assert every_knob(config, Device.CPU)[1][0] == "optimizer adamw_8bit"


def test_knobs_that_do_not_apply_are_left_out() -> None:
    asked = {"batch_size": 1, "gradient_checkpointing": True, "optimizer": "lion"}
    assert every_knob(wanted(hyperparameters=asked, engine={"head": "liger"}), Device.CUDA) == []
    trl = wanted(backend="trl", hyperparameters={"batch_size": 2})
    assert [name for name, _ in every_knob(trl, Device.MPS)] == [
        "gradient checkpointing",
        "micro-batches of 1, 2 a step",
    ]


CHANGING = [
    ({"latent": latent}, {"type": "lora"}, {})
    for latent in ("quiet_star", "dsa", "pause", "coconut", "hidden_cot", "codi")
]
DRAWN = {"rewards": [{"type": "contains", "text": "a"}], "num_generations": 2}


@pytest.mark.parametrize(
    ("stage", "method", "launch"),
    [
        *CHANGING,
        ({"latent": {"type": "coconut", "reset_optimizer": False}}, {"type": "lora"}, {}),
        ({"type": "ppo", **DRAWN}, {"type": "lora"}, {}),
        ({"type": "grpo", **DRAWN}, {"type": "lora"}, {}),
        ({"type": "dpo"}, {"type": "lora"}, {}),
        ({"type": "distill", "teacher": "larger"}, {"type": "lora"}, {}),
        ({}, {"type": "freeze", "interval": 5}, {}),
        ({}, {"type": "full"}, {"strategy": "fsdp_hybrid", "processes": 2}),
    ],
)
def test_no_knob_is_refused_with_what_is_trained(
    stage: dict[str, Any], method: dict[str, Any], launch: dict[str, Any]
) -> None:
    asked = {"stage": {"type": "sft", **stage}, "method": method, **({"launch": launch} if launch else {})}
    config = wanted(**asked, hyperparameters={"batch_size": 4})
    tried = every_knob(config, Device.CUDA)
    assert tried
    for _, made in [("", config), *tried]:
        hyper = made.hyperparameters.model_dump(mode="json")
        given = {name: hyper[name] for name in ("gradient_checkpointing", "optimizer", "batch_size")}
        trainer = node("trainer", backend="native", **asked, hyperparameters=given, engine={"head": made.engine.head})
        setting = ("hyperparameters.gradient", "hyperparameters.opt", "engine.head")
        found = [one for one in reasons(source(), trainer) if any(name in one.field for name in setting)]
        assert found == []


@pytest.mark.parametrize(
    ("stage", "knobs"),
    [
        ({"latent": "coconut"}, []),
        ({"latent": {"type": "coconut", "reset_optimizer": False}}, [PAGED]),
        ({"latent": "codi"}, [PAGED]),
        ({"latent": "hidden_cot"}, [CHECKPOINTING]),
        ({"latent": "pause"}, [CHECKPOINTING, PAGED]),
        ({"type": "ppo", **DRAWN}, [PAGED]),
    ],
)
def test_recomputing_and_8_bit_states_are_tried_where_they_are_allowed(stage: dict[str, Any], knobs: list[str]) -> None:
    config = wanted(stage={"type": "sft", **stage}, hyperparameters={"batch_size": 1})
    assert [name for name, _ in every_knob(config, Device.CUDA) if "layer" not in name] == knobs


def test_kto_keeps_two_rows_to_compare() -> None:
    config = wanted(stage="kto", hyperparameters={"batch_size": 4})
    assert min(made.hyperparameters.batch_size for _, made in every_knob(config, Device.CPU)) == 2


def test_a_budget_of_positions_shrinks_with_the_batch() -> None:
    config = wanted(hyperparameters={"batch_size": 4}, engine={"token_budget": 1000})
    assert [made.engine.token_budget for _, made in every_knob(config, Device.CPU)] == [1000, 1000, 500, 250, 250]


@given(st.integers(1, 64), st.integers(1, 8), st.sampled_from(["sft", "dpo", "kto", "reward"]))
@settings(max_examples=60, deadline=None)
def test_length_rank_and_rows_of_a_step_never_change(batch: int, accumulation: int, stage: str) -> None:
    hyper = {"batch_size": batch + (stage == "kto"), "gradient_accumulation": accumulation}
    config = wanted(stage=stage, hyperparameters=hyper)
    rows = config.hyperparameters.batch_size * accumulation
    for _, made in every_knob(config, Device.CUDA):
        assert made.hyperparameters.batch_size * made.hyperparameters.gradient_accumulation == rows
        assert made.hyperparameters.max_length == config.hyperparameters.max_length
        assert made.method == config.method


@given(st.sampled_from([LLAMA_2_7B, LLAMA_3_8B, LLAMA_3_70B]), st.integers(5 * GB, 2000 * GB), st.integers(0, 500 * GB))
@settings(max_examples=80, deadline=None)
def test_more_memory_never_gives_a_lower_rung(shape: ModelShape, free: int, more: int) -> None:
    config = long_rows(hyperparameters={"batch_size": 4})
    order = usual_rungs(config, Device.CUDA)
    try:
        less = choose(shape, config, free, Device.CUDA)
    except LimitExceeded:
        return
    found = choose(shape, config, free + more, Device.CUDA)
    place = (order.index(found.rung), len(found.knobs))
    assert place <= (order.index(less.rung), len(less.knobs))
    assert found.needed_bytes <= found.memory_bytes


@given(st.integers(8, 300))
@settings(max_examples=40, deadline=None)
def test_what_was_rejected_really_did_not_fit(free_gb: int) -> None:
    found = on_gpu(LLAMA_2_7B, long_rows(), free_gb)
    assert all(one.needed_bytes - found.memory_bytes == one.missing_bytes > 0 for one in found.rejected)


def test_every_change_is_told() -> None:
    config = wanted(method="full", hyperparameters={"batch_size": 8, "max_length": 2048})
    found = choose(LLAMA_3_8B, config, 16 * GB, Device.CUDA)
    assert found.changes == (
        "method: full → qlora",
        "hyperparameters.learning_rate: 2e-05 → 0.0002",
        "hyperparameters.optimizer: adamw → paged_adamw_8bit",
        "hyperparameters.gradient_checkpointing: False → True",
    )
    printed = "\n".join(found.lines())
    assert printed.startswith(f"qlora on cuda: {found.memory.total / GIB:.2f} GiB and the reserve make ")
    assert "in GiB: weights " in printed
    assert "does not fit: full (as asked): " in printed
    smallest = "full (gradient checkpointing, optimizer paged_adamw_8bit, micro-batches of 1, 8 a step): 89.84 GiB"
    assert f"does not fit: {smallest}, 74.94 too much" in printed
    assert printed.count("does not fit: ") == len(found.rejected) == 16


def test_a_chosen_learning_rate_stays() -> None:
    config = wanted(method="full", hyperparameters={"learning_rate": 3e-5})
    found = choose(LLAMA_2_7B, config, 40 * GB, Device.CUDA)
    assert (found.rung, found.config.hyperparameters.learning_rate) == (Method.LORA, 3e-5)


def test_the_asked_kind_of_adapter_and_freeze_are_rungs() -> None:
    assert usual_rungs(wanted(), Device.CUDA) == (Method.FULL, Method.LORA, Method.QLORA)
    assert usual_rungs(wanted(method="dora"), Device.CUDA) == (Method.FULL, Method.DORA, Method.QLORA)
    assert usual_rungs(wanted(method="freeze"), Device.CUDA) == (
        Method.FULL,
        Method.FREEZE,
        Method.LORA,
        Method.QLORA,
    )
    assert usual_rungs(wanted(), Device.MPS) == (Method.FULL, Method.LORA)


def test_full_training_carries_no_settings_of_adapters_or_formats() -> None:
    config = wanted(method={"type": "qlora", "rank": 8}, quantization="fp4")
    found = choose(TINY, config, 2**40, Device.CPU)
    assert (found.rung, found.config.quantization, found.config.method) == (Method.FULL, None, Method.FULL.settings())
    kept = choose(TINY, config, 2**40, Device.CPU, rungs=[Method.QLORA]).config
    assert (kept.quantization, kept.method.rank) == (Quantization.FP4, 8)


def test_the_deficit_is_told_when_nothing_fits() -> None:
    with pytest.raises(LimitExceeded, match=r"6\.56 GiB are missing") as caught:
        on_gpu(LLAMA_3_70B, long_rows(), 48)
    assert caught.value.code == "E-MEMORY-FIT"
    assert "the least is qlora (gradient checkpointing, optimizer paged_adamw_8bit): 51.26 GiB" in caught.value.why
    assert "max_length" in caught.value.do


@pytest.mark.parametrize(("device", "rungs"), [(Device.AUTO, None), (Device.CPU, [])])
def test_a_choice_needs_a_device_and_a_method(device: Device, rungs: list[Method] | None) -> None:
    with pytest.raises(InvalidInput, match="certain device") as caught:
        choose(TINY, wanted(), GB, device, rungs=rungs)
    assert caught.value.code == "E-DEVICE"
