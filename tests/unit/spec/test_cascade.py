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
from trainyard.spec.estimate.cascade import FitResult, choose, usual_rungs, vary_settings
from trainyard.spec.estimate.memory import GIB
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.training import TrainerConfig, resolve_trainer

GB = 10**9


def trainer_config(**config: Any) -> TrainerConfig:
    return resolve_trainer(TrainerConfig.model_validate({"backend": "native", **config}), "org/base")


def long_rows(**config: Any) -> TrainerConfig:
    hyper = {"batch_size": 1, "max_length": 2048, **config.pop("hyperparameters", {})}
    return trainer_config(hyperparameters=hyper, **{"method": {"type": "lora", "rank": 16}, **config})


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
    choice = on_gpu(shape, long_rows(), free_gb)
    assert (choice.rung, choice.knobs) == (rung, knobs)


def test_7b_qlora_at_512_tokens_fits_a_24_gb_card_as_asked() -> None:
    config = trainer_config(method={"type": "qlora", "rank": 16}, hyperparameters={"batch_size": 4, "max_length": 512})
    choice = choose(LLAMA_2_7B, config, 24 * GB, Device.CUDA, rungs=[Method.QLORA])
    assert (choice.knobs, choice.changes) == ((), ())
    assert choice.needed_bytes < 15 * GB


def test_70b_qlora_fits_an_80_gb_card_with_four_rows() -> None:
    config = long_rows(
        method={"type": "qlora", "rank": 16}, hyperparameters={"batch_size": 4, "gradient_checkpointing": True}
    )
    assert choose(LLAMA_3_70B, config, 80 * GB, Device.CUDA, rungs=[Method.QLORA]).knobs == ()


def list_knobs(config: TrainerConfig, device: Device) -> list[tuple[str, TrainerConfig]]:
    """Every knob in its order: what is tried when nothing ever fits."""
    return list(vary_settings(config, device))


def test_knobs_come_in_one_order() -> None:
    config = trainer_config(hyperparameters={"batch_size": 12, "gradient_accumulation": 2})
    assert [name for name, _ in list_knobs(config, Device.CUDA)] == [
        "gradient checkpointing",
        "optimizer paged_adamw_8bit",
        "micro-batches of 6, 4 a step",
        "micro-batches of 3, 8 a step",
        "micro-batches of 1, 24 a step",
        "chunked output layer",
    ]
    assert list_knobs(config, Device.CPU)[1][0] == "optimizer adamw_8bit"


def test_knobs_that_do_not_apply_are_left_out() -> None:
    hyper = {"batch_size": 1, "gradient_checkpointing": True, "optimizer": "lion"}
    assert list_knobs(trainer_config(hyperparameters=hyper, engine={"head": "liger"}), Device.CUDA) == []
    trl = trainer_config(backend="trl", hyperparameters={"batch_size": 2})
    assert [name for name, _ in list_knobs(trl, Device.MPS)] == [
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
    trainer_settings = {"stage": {"type": "sft", **stage}, "method": method, **({"launch": launch} if launch else {})}
    config = trainer_config(**trainer_settings, hyperparameters={"batch_size": 4})
    tried = list_knobs(config, Device.CUDA)
    assert tried
    for _, changed in [("", config), *tried]:
        hyper = changed.hyperparameters.model_dump(mode="json")
        hyper_settings = {name: hyper[name] for name in ("gradient_checkpointing", "optimizer", "batch_size")}
        trainer = node(
            "trainer",
            backend="native",
            **trainer_settings,
            hyperparameters=hyper_settings,
            engine={"head": changed.engine.head},
        )
        setting = ("hyperparameters.gradient", "hyperparameters.opt", "engine.head")
        refusals = [reason for reason in reasons(source(), trainer) if any(name in reason.field for name in setting)]
        assert refusals == []


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
    config = trainer_config(stage={"type": "sft", **stage}, hyperparameters={"batch_size": 1})
    assert [name for name, _ in list_knobs(config, Device.CUDA) if "layer" not in name] == knobs


def test_kto_keeps_two_rows_to_compare() -> None:
    config = trainer_config(stage="kto", hyperparameters={"batch_size": 4})
    assert min(changed.hyperparameters.batch_size for _, changed in list_knobs(config, Device.CPU)) == 2


def test_a_budget_of_positions_shrinks_with_the_batch() -> None:
    config = trainer_config(hyperparameters={"batch_size": 4}, engine={"token_budget": 1000})
    assert [changed.engine.token_budget for _, changed in list_knobs(config, Device.CPU)] == [1000, 1000, 500, 250, 250]


@given(st.integers(1, 64), st.integers(1, 8), st.sampled_from(["sft", "dpo", "kto", "reward"]))
@settings(max_examples=60, deadline=None)
def test_length_rank_and_rows_of_a_step_never_change(batch: int, accumulation: int, stage: str) -> None:
    hyper = {"batch_size": batch + (stage == "kto"), "gradient_accumulation": accumulation}
    config = trainer_config(stage=stage, hyperparameters=hyper)
    rows = config.hyperparameters.batch_size * accumulation
    for _, changed in list_knobs(config, Device.CUDA):
        assert changed.hyperparameters.batch_size * changed.hyperparameters.gradient_accumulation == rows
        assert changed.hyperparameters.max_length == config.hyperparameters.max_length
        assert changed.method == config.method


@given(st.sampled_from([LLAMA_2_7B, LLAMA_3_8B, LLAMA_3_70B]), st.integers(5 * GB, 2000 * GB), st.integers(0, 500 * GB))
@settings(max_examples=80, deadline=None)
def test_more_memory_never_gives_a_lower_rung(shape: ModelShape, free: int, more: int) -> None:
    config = long_rows(hyperparameters={"batch_size": 4})
    order = usual_rungs(config, Device.CUDA)
    try:
        less = choose(shape, config, free, Device.CUDA)
    except LimitExceeded:
        return
    choice = choose(shape, config, free + more, Device.CUDA)
    rank = (order.index(choice.rung), len(choice.knobs))
    assert rank <= (order.index(less.rung), len(less.knobs))
    assert choice.needed_bytes <= choice.memory_bytes


@given(st.integers(8, 300))
@settings(max_examples=40, deadline=None)
def test_what_was_rejected_really_did_not_fit(free_gb: int) -> None:
    choice = on_gpu(LLAMA_2_7B, long_rows(), free_gb)
    assert all(
        rejection.needed_bytes - choice.memory_bytes == rejection.missing_bytes > 0 for rejection in choice.rejected
    )


def test_every_change_is_told() -> None:
    config = trainer_config(method="full", hyperparameters={"batch_size": 8, "max_length": 2048})
    choice = choose(LLAMA_3_8B, config, 16 * GB, Device.CUDA)
    assert choice.changes == (
        "method: full → qlora",
        "hyperparameters.learning_rate: 2e-05 → 0.0002",
        "hyperparameters.optimizer: adamw → paged_adamw_8bit",
        "hyperparameters.gradient_checkpointing: False → True",
    )
    printed = "\n".join(choice.lines())
    assert printed.startswith(f"qlora on cuda: {choice.memory.total / GIB:.2f} GiB and the reserve make ")
    assert "in GiB: weights " in printed
    assert "does not fit: full (as asked): " in printed
    smallest = "full (gradient checkpointing, optimizer paged_adamw_8bit, micro-batches of 1, 8 a step): 89.84 GiB"
    assert f"does not fit: {smallest}, 74.94 too much" in printed
    assert printed.count("does not fit: ") == len(choice.rejected) == 16


def test_a_chosen_learning_rate_stays() -> None:
    config = trainer_config(method="full", hyperparameters={"learning_rate": 3e-5})
    choice = choose(LLAMA_2_7B, config, 40 * GB, Device.CUDA)
    assert (choice.rung, choice.config.hyperparameters.learning_rate) == (Method.LORA, 3e-5)


def test_the_asked_kind_of_adapter_and_freeze_are_rungs() -> None:
    assert usual_rungs(trainer_config(), Device.CUDA) == (Method.FULL, Method.LORA, Method.QLORA)
    assert usual_rungs(trainer_config(method="dora"), Device.CUDA) == (Method.FULL, Method.DORA, Method.QLORA)
    assert usual_rungs(trainer_config(method="freeze"), Device.CUDA) == (
        Method.FULL,
        Method.FREEZE,
        Method.LORA,
        Method.QLORA,
    )
    assert usual_rungs(trainer_config(), Device.MPS) == (Method.FULL, Method.LORA)


def test_full_training_carries_no_settings_of_adapters_or_formats() -> None:
    config = trainer_config(method={"type": "qlora", "rank": 8}, quantization="fp4")
    choice = choose(TINY, config, 2**40, Device.CPU)
    assert (choice.rung, choice.config.quantization, choice.config.method) == (
        Method.FULL,
        None,
        Method.FULL.settings(),
    )
    qlora_config = choose(TINY, config, 2**40, Device.CPU, rungs=[Method.QLORA]).config
    assert (qlora_config.quantization, qlora_config.method.rank) == (Quantization.FP4, 8)


def test_the_deficit_is_told_when_nothing_fits() -> None:
    with pytest.raises(LimitExceeded, match=r"6\.56 GiB are missing") as caught:
        on_gpu(LLAMA_3_70B, long_rows(), 48)
    assert caught.value.code == "E-MEMORY-FIT"
    assert "the least is qlora (gradient checkpointing, optimizer paged_adamw_8bit): 51.26 GiB" in caught.value.why
    assert "max_length" in caught.value.do


@pytest.mark.parametrize(("device", "rungs"), [(Device.AUTO, None), (Device.CPU, [])])
def test_a_choice_needs_a_device_and_a_method(device: Device, rungs: list[Method] | None) -> None:
    with pytest.raises(InvalidInput, match="certain device") as caught:
        choose(TINY, trainer_config(), GB, device, rungs=rungs)
    assert caught.value.code == "E-DEVICE"
