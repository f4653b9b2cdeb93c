"""The shape of an adapter is the one that was requested, and LoRA+ has PEFT's groups."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft.optimizers import create_loraplus_optimizer
from transformers import GPT2Config, GPT2LMHeadModel

from tests.unit.train.methods.conftest import IDS_BT, Request, logits
from trainyard.errors import InvalidInput
from trainyard.spec.axes.methods import Method
from trainyard.train.methods.table import build, parameter_groups
from trainyard.train.methods.targets import attention_modules

SEVEN = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def list_adapted(model: Any) -> set[str]:
    """`block.module` of every module with an adapter."""
    matches = (re.search(r"layers\.(\d+)\.\w+\.(\w+)\.lora_A", name) for name, _ in model.named_parameters())
    return {f"{match[1]}.{match[2]}" for match in matches if match}


@pytest.mark.parametrize(
    ("profile", "shape"),
    [
        ("platform", (32, 64.0, 0.0, SEVEN)),
        ("classic", (8, 16.0, 0.05, ["q_proj", "v_proj"])),
        ("nightly", (16, 32.0, 0.0, SEVEN)),
    ],
)
def test_profiles(profile: str, shape: tuple[int, float, float, list[str]], request_of: Request) -> None:
    rank, alpha, dropout, modules = shape
    policy = build(request_of("lora", settings={"profile": profile}), with_reference=False)
    expected = {"profile": profile, "rank": rank, "alpha": alpha, "dropout": dropout, "target_modules": modules}
    assert {name: policy.facts[name] for name in expected} == expected
    assert policy.facts["kind"] == "adapter"
    assert policy.facts["earlier"] is None
    assert policy.warnings == []
    sizes = {value.shape for name, value in policy.model.named_parameters() if "lora_A" in name}
    assert {size[0] for size in sizes} == {rank}


@pytest.mark.parametrize("rank", [1, 256])
def test_unusual_ranks_are_used(rank: int, request_of: Request) -> None:
    policy = build(request_of("lora", settings={"rank": rank}), with_reference=False)
    assert policy.facts["rank"] == rank


@pytest.mark.parametrize("method", ["lora", "oft"])
def test_attention_only(method: str, request_of: Request) -> None:
    policy = build(request_of(method, settings={"target_modules": "attention-only"}), with_reference=False)
    assert policy.facts["target_modules"] == ["k_proj", "o_proj", "q_proj", "v_proj"]


def test_attention_of_gpt2_is_told_from_its_mlp() -> None:
    """Both have a `c_proj` there."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=8, n_layer=1, n_head=2))
    assert attention_modules(model) == ["attn.c_proj", "c_attn"]


def test_named_modules_in_chosen_blocks(request_of: Request) -> None:
    policy = build(
        request_of("lora", settings={"target_modules": ("q_proj", "up_proj"), "layers": (1,)}), with_reference=False
    )
    assert list_adapted(policy.model) == {"1.q_proj", "1.up_proj"}
    assert policy.facts["layers"] == [1]


def test_rslora_scales_by_the_root_of_the_rank(request_of: Request) -> None:
    policy = build(request_of("lora", settings={"rank": 16, "alpha": 8.0, "rslora": True}), with_reference=False)
    layer: Any = policy.model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    assert layer.scaling["default"] == pytest.approx(8 / math.sqrt(16))
    assert policy.facts["rslora"]


def test_dora_has_a_magnitude_for_every_output(request_of: Request) -> None:
    policy = build(request_of(Method.DORA), with_reference=False)
    sizes = {value.shape for name, value in policy.model.named_parameters() if "lora_magnitude_vector" in name}
    assert sizes == {torch.Size([64]), torch.Size([128])}
    assert policy.facts["dora"]


def test_whole_modules_train_and_are_saved(request_of: Request) -> None:
    policy = build(request_of("lora", settings={"modules_to_save": ("norm",)}), with_reference=True)
    assert policy.facts["modules_to_save"] == ["norm"]
    start = logits(policy.model)
    with torch.no_grad():
        policy.model.get_submodule("base_model.model.model.norm").modules_to_save["default"].weight.mul_(2.0)
    assert not torch.equal(logits(policy.model), start)
    assert policy.reference is not None
    with policy.reference() as reference:
        assert torch.equal(reference(input_ids=IDS_BT).logits, start)


@pytest.mark.parametrize(
    ("lora", "match"),
    [
        ({"target_modules": ("q_proj", "v_porj")}, "E-TRAINABLE: The adapter .* has no module 'v_porj'.* q_proj"),
        ({"target_modules": ("q_proj",), "layers": (0, 2)}, "E-TRAINABLE: .* blocks 0 to 1, and method.layers names 2"),
        ({"target_modules": ("norm",)}, "E-TRAINABLE: The adapter does not fit the model"),
    ],
)
def test_bad_shapes_are_refused(lora: dict[str, Any], match: str, request_of: Request) -> None:
    with pytest.raises(InvalidInput, match=match):
        build(request_of("lora", settings=lora), with_reference=False)


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings:UserWarning")  # the adapted embedding is the output
def test_lora_plus_has_pefts_groups(request_of: Request) -> None:
    request = request_of(
        "lora_plus",
        settings={"target_modules": ("q_proj", "embed_tokens"), "modules_to_save": ("norm",), "ratio": 8.0},
        hyperparameters={"learning_rate": 1e-4, "weight_decay": 0.1},
    )
    policy = build(request, with_reference=False)
    make: Callable[..., torch.optim.Optimizer] = create_loraplus_optimizer
    reference = make(policy.model, torch.optim.AdamW, lr=1e-4, loraplus_lr_ratio=8.0, loraplus_weight_decay=0.1)

    def settings(groups: list[dict[str, Any]]) -> dict[int, tuple[float, float]]:
        return {id(value): (group["lr"], group["weight_decay"]) for group in groups for value in group["params"]}

    groups = parameter_groups(policy, request.config)
    vectors = {id(value) for value in policy.model.parameters() if value.ndim == 1}
    expected = {
        key: (rate, 0.0 if key in vectors else decay) for key, (rate, decay) in settings(reference.param_groups).items()
    }
    assert settings(groups) == expected  # PEFT decays the norms of models whose norm is no LayerNorm
    assert vectors & expected.keys()
    assert sorted({group["lr"] for group in groups}) == pytest.approx([1e-6, 1e-4, 8e-4])
