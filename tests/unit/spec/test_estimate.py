"""The arithmetic of a plan, held against published figures of real models."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.spec.chains import chain, node, resolve_nodes, source
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.estimate.estimate import Estimate, Known, count_steps, estimate
from trainyard.spec.estimate.memory import (
    GIB,
    count_reached_blocks,
    count_trainable,
    estimate_memory,
    half_copies,
    positions,
)
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.estimate.timing import NOT_MEASURED, StepTiming, Timings
from trainyard.spec.estimate.verdict import describe_small_sets, rows_to_generate, tiny_sets
from trainyard.spec.graph import resolve
from trainyard.spec.nodes import HoldoutRules
from trainyard.spec.training import Hyperparameters, TrainerConfig, resolve_trainer


def shape(*sizes: int) -> ModelShape:
    """hidden, layers, feed-forward, vocabulary, heads and key-value heads."""
    names = ("hidden", "layers", "feed_forward", "vocabulary", "heads", "key_value_heads")
    size_by_name = dict(zip(names, sizes, strict=True))
    return ModelShape(**size_by_name, head_size=size_by_name["hidden"] // size_by_name["heads"])


LLAMA_2_7B = shape(4096, 32, 11008, 32000, 32, 32)
LLAMA_2_70B = shape(8192, 80, 28672, 32000, 64, 8)
LLAMA_3_8B = shape(4096, 32, 14336, 128256, 32, 8)
LLAMA_3_70B = shape(8192, 80, 28672, 128256, 64, 8)
QWEN3_600M, QWEN3_4B = (
    ModelShape(
        hidden=hidden, layers=layers, feed_forward=forward, vocabulary=151936, heads=heads, key_value_heads=8,
        head_size=128, tied=True, head_norms=True,
    )
    for hidden, layers, forward, heads in ((1024, 28, 3072, 16), (2560, 36, 9728, 32))
)  # fmt: skip
TINY = shape(64, 2, 128, 600, 4, 2)


def trainer(**config: Any) -> TrainerConfig:
    return resolve_trainer(TrainerConfig.model_validate({"backend": "trl", **config}), "starter")


def with_rank(method: str, rank: int) -> dict[str, Any]:
    return {"type": method} | ({"rank": rank} if method != "full" else {})


def small_batch(**config: Any) -> TrainerConfig:
    hyper = {"batch_size": 1, "max_length": 2048, "gradient_checkpointing": True}
    return trainer(hyperparameters=hyper, **config)


@pytest.mark.parametrize(("model", "billions"), [(LLAMA_2_7B, 6.738), (LLAMA_3_8B, 8.030), (LLAMA_3_70B, 70.554)])
def test_parameters_are_those_of_the_published_models(model: ModelShape, billions: float) -> None:
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.001)


@pytest.mark.parametrize(
    ("model", "method", "gib"),
    [
        (LLAMA_2_7B, "full", 108), (LLAMA_2_7B, "lora", 16.6), (LLAMA_2_7B, "qlora", 7.3),
        (LLAMA_3_8B, "full", 130), (LLAMA_3_8B, "lora", 21.1), (LLAMA_3_8B, "qlora", 11.1),
        (LLAMA_3_70B, "full", 1111), (LLAMA_3_70B, "lora", 148), (LLAMA_3_70B, "qlora", 50),
    ],
)  # fmt: skip
def test_memory_agrees_with_the_known_table(model: ModelShape, method: str, gib: float) -> None:
    config = small_batch(method=with_rank(method, 16))
    assert estimate_memory(model, config, Device.CUDA).total / GIB == pytest.approx(gib, rel=0.01)


MEASURED_GIB: list[tuple[ModelShape, dict[str, Any], dict[str, Any], float]] = [
    (QWEN3_600M, {"type": "full"}, {"batch_size": 4, "max_length": 1024}, 18.99),
    (
        QWEN3_600M, {"type": "full"},
        {"batch_size": 4, "max_length": 1024, "gradient_checkpointing": True, "optimizer": "paged_adamw_8bit"}, 7.85,
    ),
    (QWEN3_4B, {"type": "lora", "profile": "nightly"}, {"batch_size": 2, "max_length": 1024}, 22.71),
    (
        QWEN3_4B, {"type": "lora", "profile": "nightly"},
        {"batch_size": 4, "max_length": 2048, "gradient_checkpointing": True}, 14.04,
    ),
]  # fmt: skip
"""Peaks of three steps on an NVIDIA H200 with torch 2.11 (docs/performance.md)."""


@pytest.mark.parametrize(("model", "method", "hyper", "gib"), MEASURED_GIB)
def test_memory_agrees_with_trainings_on_a_card(
    model: ModelShape, method: dict[str, Any], hyper: dict[str, Any], gib: float
) -> None:
    settings = {"backend": "native", "engine": {"batching": "padded"}, "method": method, "hyperparameters": hyper}
    config = resolve_trainer(TrainerConfig.model_validate(settings), "starter")
    assert estimate_memory(model, config, Device.CUDA).total / GIB == pytest.approx(gib, rel=0.10)


@pytest.mark.parametrize(("batch", "gib"), [(1, 21.3), (2, 29.1)])
def test_memory_agrees_with_a_measured_run_on_one_gpu(batch: int, gib: float) -> None:
    """LitGPT's table: Llama 2 7B, LoRA rank 8, no checkpointing, about 1,304 tokens, one A100."""
    config = trainer(
        hyperparameters={"batch_size": batch, "max_length": 1304},
        method={"type": "lora", "rank": 8, "target_modules": ["q_proj", "v_proj"]},
    )
    assert estimate_memory(LLAMA_2_7B, config, Device.CUDA).total / GIB == pytest.approx(gib, rel=0.15)


PUBLISHED_GB = [
    (LLAMA_2_7B, "full", None, 120), (LLAMA_2_7B, "lora", None, 16), (LLAMA_2_7B, "qlora", "int8", 10),
    (LLAMA_2_7B, "qlora", "nf4", 6), (LLAMA_2_70B, "full", None, 1200), (LLAMA_2_70B, "lora", None, 160),
    (LLAMA_2_70B, "qlora", "int8", 80), (LLAMA_2_70B, "qlora", "nf4", 48),
]  # fmt: skip
"""LLaMA-Factory's table, in GB. It names no length; 512 tokens and one row are its examples' settings."""


@pytest.mark.parametrize(("model", "method", "quantization", "gb"), PUBLISHED_GB)
def test_memory_is_near_the_published_rows(model: ModelShape, method: str, quantization: str | None, gb: float) -> None:
    hyper = {"batch_size": 1, "max_length": 512, "gradient_checkpointing": True}
    config = trainer(method=with_rank(method, 8), quantization=quantization, hyperparameters=hyper)
    assert estimate_memory(model, config, Device.CUDA).total / 1e9 == pytest.approx(gb, rel=0.15)


def test_memory_of_qlora_is_near_a_measured_run() -> None:
    """LitGPT's table: Llama 2 7B, nf4 with double quantisation, rank 8, about 1,304 tokens: 13.8 GB."""
    config = trainer(
        method={"type": "qlora", "rank": 8, "target_modules": ["q_proj", "v_proj"]},
        hyperparameters={"batch_size": 1, "max_length": 1304},
    )
    assert estimate_memory(LLAMA_2_7B, config, Device.CUDA).total / 1e9 == pytest.approx(13.8, rel=0.15)


def test_each_part_of_the_memory_on_a_gpu() -> None:
    hyper = {"batch_size": 2, "max_length": 100}
    full = estimate_memory(TINY, trainer(method="full", hyperparameters=hyper), Device.CUDA)
    total = TINY.parameters
    assert (full.weights, full.gradients, full.optimizer) == (4 * total, 4 * total, 8 * total)
    copies = 2 * (TINY.linear + 600 * 64)
    assert full.activations == (26 * 64 + 8 * 128 + 4 * 96) * 2 * 200 + copies
    assert full.logits == 10 * 600 * 200
    assert (full.dequantised, full.context) == (0, int(0.8 * GIB))
    assert full.fragments == int(0.05 * (16 * total + full.activations + full.logits))
    assert full.total == 16 * total + full.activations + full.logits + full.fragments + full.context
    lora = trainer(hyperparameters=hyper)
    moved = count_trainable(TINY, lora)
    adapter = estimate_memory(TINY, lora, Device.CUDA)
    assert (adapter.weights, adapter.gradients) == (2 * total + 4 * moved, 4 * moved)
    assert adapter.activations == (18 * 64 + 8 * 128 + 4 * 96 + 2 * 64) * 2 * 200
    quantised = estimate_memory(TINY, trainer(method="qlora"), Device.CUDA)
    assert quantised.dequantised == 2 * 64 * 128


def test_each_part_of_the_memory_on_a_cpu() -> None:
    hyper = {"batch_size": 2, "max_length": 100}
    full = estimate_memory(TINY, native(method="full", hyperparameters=hyper), Device.CPU)
    total = TINY.parameters
    assert (full.weights, full.gradients, full.optimizer) == (4 * total, 4 * total, 8 * total)
    assert full.activations == (40 * 64 + 16 * 128) * (2 + 1) * 100
    assert full.logits == 12 * 600 * 100
    assert full.fragments == int(0.25 * full.activations + 0.15 * full.logits)
    assert full.context == int(0.45 * GIB)
    trl = estimate_memory(TINY, trainer(method="full", hyperparameters=hyper), Device.CPU)
    assert trl.context == full.context + int(0.1 * GIB)
    adapter = estimate_memory(TINY, native(hyperparameters=hyper), Device.CPU)
    moved = count_trainable(TINY, native())
    assert adapter.weights == 4 * total + 4 * moved
    assert adapter.activations == (34 * 64 + 16 * 128) * (2 + 1) * 100
    assert adapter.fragments == adapter.activations + int(0.15 * adapter.logits)
    quantised = estimate_memory(TINY, native(method="qlora"), Device.CPU)
    rest = total - TINY.linear
    assert quantised.weights == int(TINY.linear * (4 + 8 / 64 + 32 / 16384) / 8) + 4 * rest + 4 * moved
    assert quantised.dequantised == 4 * 64 * 128


def native(**config: Any) -> TrainerConfig:
    return trainer(backend="native", **config)


def test_islands_take_their_outer_state_next_to_a_training() -> None:
    """Two islands of two: 8 T bytes that both divide; the copies of an exchange fit where activations were."""
    launch = {"strategy": "ddp", "processes": 4, "diloco": {"num_islands": 2}}
    hyper = {"batch_size": 1, "max_length": 100}
    together = estimate_memory(TINY, native(hyperparameters=hyper, launch={**launch, "diloco": None}), Device.CUDA)
    apart = estimate_memory(TINY, native(hyperparameters=hyper, launch=launch), Device.CUDA)
    trained = together.gradients // 4
    assert (together.outer, apart.outer) == (0, 4 * trained)
    assert apart.total - together.total == apart.outer
    assert "outer" in apart.in_words()
    full = estimate_memory(TINY, native(method="full", hyperparameters=hyper, launch=launch), Device.CUDA)
    assert full.outer == 4 * TINY.parameters + max(0, 8 * TINY.parameters - full.activations - full.logits)


@pytest.mark.parametrize(("device", "copies"), [(Device.CUDA, 1), (Device.CPU, 2)])
def test_torchft_keeps_its_outer_weights_in_the_memory_of_the_host(device: Device, copies: int) -> None:
    diloco = {"type": "torchft", "num_islands": 2}
    memory = estimate_memory(TINY, native(launch={"strategy": "ddp", "processes": 2, "diloco": diloco}), device)
    assert memory.outer == copies * memory.gradients


def test_lora_dropout_keeps_its_inputs_again() -> None:
    hyper = {"batch_size": 1, "max_length": 100}
    lora = {"target_modules": ["q_proj", "down_proj"]}
    plain = estimate_memory(TINY, native(method={"type": "lora", **lora}, hyperparameters=hyper), Device.CUDA)
    dropped = estimate_memory(
        TINY, native(method={"type": "lora", **lora, "dropout": 0.1}, hyperparameters=hyper), Device.CUDA
    )
    assert dropped.activations - plain.activations == (64 + 128) * 3 * 2 * 100


def test_frozen_blocks_keep_no_activations() -> None:
    hyper = {"batch_size": 1, "max_length": 100}
    freeze = native(method={"type": "freeze", "blocks": 1}, hyperparameters=hyper)
    full = native(method="full", hyperparameters=hyper)
    for device, shared in ((Device.CUDA, half_copies(TINY.model_copy(update={"layers": 0}), full)), (Device.CPU, 0)):
        blocks = [estimate_memory(TINY, config, device).activations - shared for config in (freeze, full)]
        once = 0 if device is Device.CUDA else (40 * 64 + 16 * 128) * 100  # gradients of one block
        assert 2 * (blocks[0] - once) == blocks[1] - once


def test_eager_attention_keeps_its_scores() -> None:
    hyper = {"batch_size": 1, "max_length": 100}
    kernel = native(method="full", hyperparameters=hyper)
    eager = native(method="full", hyperparameters=hyper, engine={"attention": "eager"})
    more = (
        estimate_memory(TINY, eager, Device.CUDA).activations - estimate_memory(TINY, kernel, Device.CUDA).activations
    )
    assert more == 2 * 4 * 100 * 100 * 6


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"hyperparameters": {"batch_size": 8, "max_length": 100}}, 400),
        ({"hyperparameters": {"batch_size": 1, "max_length": 100}}, 100),
        ({"hyperparameters": {"batch_size": 8, "max_length": 100}, "stage": "dpo"}, 400),
        ({"hyperparameters": {"batch_size": 1, "max_length": 100}, "stage": "dpo"}, 200),
        ({"hyperparameters": {"batch_size": 8, "max_length": 100}, "stage": "kto"}, 1088),
        (
            {"hyperparameters": {"batch_size": 8, "max_length": 100}, "stage": {"type": "kto", "shared_prompt": True}},
            1600,
        ),
        (
            {"hyperparameters": {"batch_size": 8, "max_length": 100}, "stage": {"type": "kto", "shared_prompt": False}},
            800,
        ),
        ({"hyperparameters": {"batch_size": 8, "max_length": 100}, "engine": {"batching": "padded"}}, 800),
        ({"hyperparameters": {"batch_size": 8, "max_length": 100}, "engine": {"token_budget": 250}}, 250),
        ({"hyperparameters": {"batch_size": 8, "max_length": 100}, "engine": {"token_budget": 9999}}, 800),
        ({"hyperparameters": {"batch_size": 8, "max_length": 100}, "backend": "trl"}, 800),
    ],
)
def test_positions_of_a_micro_batch(config: dict[str, Any], expected: int) -> None:
    assert positions(trainer(**{"backend": "native", **config}), Device.CPU) == expected


def test_a_chunked_head_holds_one_chunk_of_logits() -> None:
    hyper = {"batch_size": 2, "max_length": 2048}
    plain = native(hyperparameters=hyper, engine={"head": "full"})
    assert estimate_memory(LLAMA_3_8B, plain, Device.CUDA).logits == 10 * 128256 * 2048
    for head in ("chunked", "auto"):
        config = native(hyperparameters=hyper, engine={"head": head})
        assert estimate_memory(LLAMA_3_8B, config, Device.CUDA).logits == 10 * 2**25
    assert estimate_memory(TINY, native(hyperparameters=hyper), Device.CUDA).logits == 10 * 600 * 2048


def test_checkpointing_keeps_the_borders_and_two_blocks() -> None:
    hyper = {"batch_size": 1, "max_length": 10, "gradient_checkpointing": True}
    memory = estimate_memory(TINY, trainer(method="full", hyperparameters=hyper), Device.CUDA)
    assert memory.activations == (4 * 64 * 2 + 2 * (26 * 64 + 8 * 128 + 4 * 96)) * 10
    on_cpu = estimate_memory(TINY, trainer(method="full", hyperparameters=hyper), Device.CPU)
    assert on_cpu.activations == (4 * 64 * 2 + 3 * (40 * 64 + 16 * 128)) * 10


def test_pairs_take_two_sequences_and_full_dpo_a_reference() -> None:
    sft = estimate_memory(TINY, trainer(), Device.CPU)
    dpo = estimate_memory(TINY, trainer(stage="dpo"), Device.CPU)
    assert (dpo.logits, dpo.weights) == (2 * sft.logits, sft.weights)
    full = estimate_memory(TINY, trainer(method="full"), Device.CPU)
    reference = estimate_memory(TINY, trainer(method="full", stage="dpo"), Device.CPU)
    assert reference.weights == full.weights + 4 * TINY.parameters
    free = estimate_memory(TINY, trainer(method="full", stage={"type": "dpo", "loss": "simpo"}), Device.CPU)
    assert free.weights == full.weights
    kto = estimate_memory(TINY, trainer(method="full", stage="kto"), Device.CPU)
    assert (kto.weights, kto.logits) == (reference.weights, sft.logits)
    reward = estimate_memory(TINY, trainer(stage="reward"), Device.CPU)
    assert (reward.logits, reward.activations) == (0, dpo.activations)


@pytest.mark.parametrize(
    ("optimizer", "per_parameter"),
    [("adamw", 8), ("sgd", 4), ("adamw_8bit", 2), ("paged_adamw_8bit", 2), ("adafactor", 0), ("lion", 4),
     ("ademamix", 12), ("muon", 4), ("galore", 2), ("schedule_free_adamw", 8)],
)  # fmt: skip
def test_optimizer_states(optimizer: str, per_parameter: int) -> None:
    config = trainer(method="full", hyperparameters={"optimizer": optimizer})
    assert estimate_memory(TINY, config, Device.CPU).optimizer == per_parameter * TINY.parameters
    assert Optimizer(optimizer) is config.hyperparameters.optimizer


def test_what_moves() -> None:
    assert count_trainable(TINY, trainer(method="full")) == TINY.parameters
    per_rank = 2 * sum(rows + columns for rows, columns in TINY.projections.values())
    assert count_trainable(TINY, trainer(method={"type": "lora", "rank": 3})) == 3 * per_rank
    assert count_trainable(
        TINY, trainer(method={"type": "lora", "rank": 3, "target_modules": "attention-only"})
    ) == 3 * 2 * (128 + 96 + 96 + 128)
    two = trainer(method={"type": "lora", "rank": 3, "target_modules": ["q_proj", "v_proj", "nowhere"]})
    assert count_trainable(TINY, two) == 3 * 2 * (128 + 96)
    some = trainer(method={"type": "lora", "rank": 3, "target_modules": ["q_proj"], "layers": [0, 7]})
    assert count_trainable(TINY, some) == 3 * 128
    outputs = 2 * sum(columns for _, columns in TINY.projections.values())
    assert count_trainable(TINY, trainer(method={"type": "dora", "rank": 3})) == 3 * per_rank + outputs
    assert count_trainable(TINY, native(method="freeze")) == 2 * TINY.block + 64
    assert count_trainable(LLAMA_2_7B, native(method={"type": "freeze", "blocks": 5})) == 5 * LLAMA_2_7B.block + 4096
    lisa = native(method={"type": "freeze", "blocks": 5, "interval": 20})
    blocks = LLAMA_2_7B.layers * LLAMA_2_7B.block
    assert count_trainable(LLAMA_2_7B, lisa) == LLAMA_2_7B.parameters - blocks + 5 * LLAMA_2_7B.block
    assert count_reached_blocks(LLAMA_2_7B, lisa) == LLAMA_2_7B.layers  # the embeddings are below every block
    pissa = native(method={"type": "lora", "rank": 8, "init": "pissa"})
    assert count_trainable(TINY, pissa) == count_trainable(TINY, native(method={"type": "lora", "rank": 8}))
    head = native(method={"type": "freeze", "head": True})
    assert count_trainable(TINY, head) == 2 * TINY.block + 64 + 600 * 64
    rotated = native(method={"type": "oft", "target_modules": ["q_proj"], "block_size": 16})
    assert count_trainable(TINY, rotated) == 2 * 4 * (16 * 15 // 2)
    saved = trainer(
        method={"type": "lora", "rank": 3, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "score"]}
    )
    assert count_trainable(TINY, saved) == 3 * 2 * 128 + 600 * 64


def test_shapes_are_read_from_config_json() -> None:
    config = {
        "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 600,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    assert ModelShape.from_config(config) == TINY
    other = ModelShape.from_config({**config, "num_key_value_heads": None, "head_dim": 32, "tie_word_embeddings": True})
    assert other is not None
    assert (other.key_value_heads, other.head_size, other.tied) == (4, 32, True)
    assert other.parameters == 600 * 64 + 2 * other.block + 64
    assert ModelShape.from_config({"n_embd": 64}) is None
    assert ModelShape.from_config({**config, "vocab_size": "many"}) is None


@pytest.mark.parametrize(
    ("hyper", "rows", "steps"),
    [
        ({"epochs": 1, "batch_size": 4}, 100, 25), ({"epochs": 1, "batch_size": 4}, 101, 26),
        ({"epochs": 3, "batch_size": 8, "gradient_accumulation": 4}, 100, 12), ({"epochs": 0.5, "batch_size": 1}, 5, 3),
        ({"max_steps": 7}, 100, 7), ({"batch_size": 1}, 10, 30), ({"epochs": 2}, 0, 2), ({"epochs": 0.1}, 1, 1),
    ],
)  # fmt: skip
def test_steps(hyper: dict[str, Any], rows: int, steps: int) -> None:
    assert count_steps(Hyperparameters.model_validate(hyper), rows) == steps


def estimate_nodes(*nodes: dict[str, Any], **facts: Any) -> dict[str, Estimate]:
    return {node_estimate.node: node_estimate for node_estimate in estimate(resolve_nodes(*nodes), Known(**facts))}


SIX = [
    source("docs"), node("ai_generator", count=200), node("validator"), node("trainer"), node("evaluator"),
    node("deployer"),
]  # fmt: skip


def test_rows_follow_the_chain_as_bounds() -> None:
    estimates = estimate_nodes(*SIX, shapes={"starter": TINY})
    assert [(name, node_estimate.rows, node_estimate.steps) for name, node_estimate in estimates.items()] == [
        ("data-source", None, None), ("ai-generator", 390, None), ("validator", 200, None), ("trainer", 200, 500),
        ("evaluator", None, None), ("deployer", None, None),
    ]  # fmt: skip
    assert estimates["data-source"].basis == ("rows: not known before the files are read",)
    assert estimates["ai-generator"].basis == (
        "rows: about 200 to train on, 30 of unseen documents, 100 of unseen wording, 60 spare wordings; "
        "at most what the texts give",
    )
    assert estimates["validator"].basis == (
        "rows: the count of the generator, which writes what is held out on top; filters drop more",
    )
    assert estimates["evaluator"].basis == estimates["deployer"].basis == ()
    assert estimates["trainer"].basis[0] == "steps: at most 200 rows, 4 a step, 10 epochs"


def test_a_generator_without_a_validator_writes_its_count() -> None:
    estimates = estimate_nodes(source("docs"), node("ai_generator", count=60), node("trainer"))
    assert (estimates["ai-generator"].rows, estimates["trainer"].rows) == (60, 60)
    assert estimates["ai-generator"].basis == ("rows: at most the count of 60",)


@given(
    count=st.integers(1, 3000),
    documents=st.none() | st.integers(1, 400),
    wordings=st.integers(1, 5),
    rules=st.builds(HoldoutRules, documents=st.floats(0, 0.9), min_rows=st.integers(0, 200), wording=st.booleans()),
)
def test_what_is_generated_is_the_least_that_leaves_the_count(
    count: int, documents: int | None, wordings: int, rules: HoldoutRules
) -> None:
    shares = rows_to_generate(count, documents, wordings, rules)
    assert shares.trained >= count
    assert shares.generated >= shares.trained + shares.unseen_documents + shares.unseen_wording
    assert shares.generated % wordings == 0
    assert shares.generated <= 2 * wordings * (count + (documents or 0) + wordings + 2)  # at most half is held out


@pytest.mark.parametrize(
    ("eval_settings", "rows", "share"),
    [
        ({}, 950, 0.04),
        ({"share": 0.2, "max_rows": 100}, 900, 0.04),
        ({"share": 0.1, "steps": "epoch"}, 900, 0.5 * 100 / 904),
        ({"steps": 10}, 950, 72 * 0.5 * 50 / (714 * 4)),
        ({"steps": 714}, 950, 0.5 * 50 / (714 * 4)),
    ],
)
def test_an_evaluation_takes_rows_from_the_training_and_time(
    eval_settings: dict[str, Any], rows: int, share: float
) -> None:
    """1,000 rows in three epochs of four rows a step; a row's evaluation takes half of the time of its training."""
    measured = StepTiming(
        source="run", time=1.0, max_length=512, rows_per_batch=4, rows_per_step=4, seconds_per_step=0.5
    )
    facts: dict[str, Any] = {"rows": {"data-source": {Port.SFT: 1000}}, "shapes": {"starter": TINY}}
    facts["timings"] = {"trainer": Timings((measured,))}
    trainer = node("trainer", eval=eval_settings, hyperparameters={"epochs": 3})
    trainer_estimate = estimate_nodes(source("rows.jsonl"), trainer, **facts)["trainer"]
    same = {"hyperparameters": {"max_steps": trainer_estimate.steps}}
    without = estimate_nodes(source("rows.jsonl"), node("trainer", **same), **facts)["trainer"]
    assert (trainer_estimate.rows, without.rows) == (rows, 1000)
    assert trainer_estimate.seconds is not None
    assert without.seconds is not None
    assert trainer_estimate.seconds / without.seconds - 1 == pytest.approx(share, rel=0.02)
    assert "for the evaluations" in trainer_estimate.basis[-1]


def test_tiny_sets_are_warned_about() -> None:
    assert describe_small_sets(50, 30) == describe_small_sets(None, None) == []
    assert describe_small_sets(49, 29) == [
        "Fewer than 50 rows to train on (49): little but form is learned.",
        "Fewer than 30 rows to evaluate on (29): a verdict rests on little.",
    ]
    chain = resolve_nodes(source("docs"), node("ai_generator", count=20), node("validator"), node("trainer"))
    assert tiny_sets(chain.node("trainer").config, 20) == describe_small_sets(20, None)
    assert tiny_sets(chain.node("ai-generator").config, 87) == describe_small_sets(None, 10)
    assert tiny_sets(chain.node("validator").config, 20) == []


def test_counted_rows_win() -> None:
    rows = {"validator": {Port.SFT: 50}, "data-source": {Port.DOCUMENTS: 9}}
    estimates = estimate_nodes(*SIX, rows=rows)
    assert (estimates["data-source"].rows, estimates["validator"].rows, estimates["trainer"].rows) == (9, 50, 50)
    assert estimates["validator"].basis == ("rows: counted",)
    assert estimates["trainer"].steps == 130


def test_a_set_of_unknown_kind_counts_where_it_turned_out() -> None:
    rows = {"data-source": {Port.PREFERENCE: 40}}
    assert estimate_nodes(source(), node("trainer"), rows=rows)["trainer"].rows == 40
    assert estimate_nodes(source(), node("validator"), node("trainer"), rows=rows)["trainer"].rows == 36
    assert estimate_nodes(source(), node("validator"), rows={})["validator"].rows is None
    assert estimate_nodes(source(), node("validator"), rows={})["validator"].basis == ()


def test_an_unknown_model_leaves_figures_out_and_says_so() -> None:
    trainer_estimate = estimate_nodes(source(), node("trainer", base_model="org/far"))["trainer"]
    assert trainer_estimate == Estimate(
        node="trainer",
        basis=("steps: not known without the rows", "memory, disk and time: the shape of 'org/far' is not known here"),
    )


def test_a_known_model_has_memory_and_disk_even_without_rows() -> None:
    trainer_estimate = estimate_nodes(source(), node("trainer", backend="native"), shapes={"starter": TINY})["trainer"]
    moved = trainer_estimate.trainable_parameters
    assert moved == count_trainable(TINY, native())
    assert trainer_estimate.disk_bytes == 4 * moved + 2 * 12 * moved
    keeper = node("trainer", backend="native", engine={"keep_checkpoints": 5})
    assert (
        estimate_nodes(source(), keeper, shapes={"starter": TINY})["trainer"].disk_bytes == 4 * moved + 5 * 12 * moved
    )
    assert trainer_estimate.memory_bytes == estimate_memory(TINY, native(), Device.CPU).total
    assert (trainer_estimate.steps, trainer_estimate.seconds) == (None, None)
    assert trainer_estimate.basis[-1] == "time: not known without the rows"
    assert trainer_estimate.basis[1].startswith(
        "memory on cpu in GiB for rows of 512 tokens: weights 0.00, gradients 0.00"
    )
    assert trainer_estimate.basis[1].endswith("context 0.45")
    assert "dequantised" not in trainer_estimate.basis[1]
    assert trainer_estimate.basis[2] == f"disk: {moved:,} parameters in float32, and 2 checkpoints with optimizer state"


def test_max_steps_need_no_rows() -> None:
    trainer_estimate = estimate_nodes(
        source(), node("trainer", hyperparameters={"max_steps": 11}), shapes={"starter": TINY}
    )["trainer"]
    assert (trainer_estimate.steps, trainer_estimate.seconds) == (11, None)
    assert trainer_estimate.basis[-1] == NOT_MEASURED
    assert trainer_estimate.basis[0] == "steps: max_steps 11"


def test_the_device_of_the_config_wins_over_that_of_the_machine() -> None:
    shapes = {"starter": TINY}
    on_cpu = estimate_nodes(source(), node("trainer", device="cpu"), shapes=shapes, device=Device.CUDA)["trainer"]
    assert "memory on cpu" in on_cpu.basis[1]
    auto = estimate_nodes(source(), node("trainer"), shapes=shapes, device=Device.CUDA)["trainer"]
    assert "memory on cuda" in auto.basis[1]


def test_every_node_has_a_line_in_the_order_of_the_run() -> None:
    resolved_chain = resolve(chain(*SIX))
    assert tuple(node_estimate.node for node_estimate in estimate(resolved_chain)) == resolved_chain.order


@given(
    st.sampled_from([Method.FULL, Method.LORA, Method.DORA]), st.integers(1, 64), st.integers(8, 4096), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_more_work_never_takes_less(method: Method, batch: int, length: int, checkpointing: bool) -> None:
    hyper = {"batch_size": batch, "max_length": length, "gradient_checkpointing": checkpointing}
    more = {**hyper, "batch_size": batch + 1}
    smaller, two = trainer(method=method, hyperparameters=hyper), trainer(method=method, hyperparameters=more)
    assert estimate_memory(TINY, two, Device.CPU).total > estimate_memory(TINY, smaller, Device.CPU).total
    saved = trainer(method=method, hyperparameters={**hyper, "gradient_checkpointing": True})
    assert (
        estimate_memory(LLAMA_2_7B, saved, Device.CUDA).total <= estimate_memory(LLAMA_2_7B, smaller, Device.CUDA).total
    )


# Several processes
