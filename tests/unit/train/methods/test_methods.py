"""Every method: where it starts, what it moves, what it leaves alone, and what can be loaded again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.selection import choose_by_default
from tests.unit.train.methods.conftest import IDS_BT, Request, logits, steps
from trainyard.errors import InvalidInput
from trainyard.spec.axes.methods import TRAINED_METHODS, Method
from trainyard.spec.axes.quantization import Quantization
from trainyard.train.methods.loading import load_base
from trainyard.train.methods.table import METHODS, build, parameter_groups, save

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers


def digest(model: Any, *, trainable: bool) -> str:
    """SHA-256 over the parameters that move or those that stay, quantised bytes included."""
    sha256 = hashlib.sha256()
    for name, value in sorted(model.named_parameters()):
        if value.requires_grad is trainable:
            sha256.update(name.encode() + value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()


def modes(model: Any) -> list[tuple[str, bool]]:
    return [(name, module.training) for name, module in model.named_modules()]


def trainable(model: Any) -> set[str]:
    return {name for name, value in model.named_parameters() if value.requires_grad}


def test_every_method_has_a_row() -> None:
    assert METHODS.keys() == set(TRAINED_METHODS)
    assert all((row.adapter_config is None) is (row.choose is not None) for row in METHODS.values())


@pytest.mark.parametrize("method", TRAINED_METHODS)
def test_starts_as_the_base_and_moves_only_what_it_may(method: Method, request_of: Request) -> None:
    request = request_of(method)
    base = METHODS[method].load(request, request.base)
    policy = build(request, with_reference=True)
    assert policy.model.training
    # DoRA divides by the norm that it multiplies with, and OFT solves for a rotation of nothing: rounding remains.
    torch.testing.assert_close(logits(policy.model), logits(base), atol=2e-6, rtol=0)
    staying, went = digest(policy.model, trainable=False), digest(policy.model, trainable=True)
    steps(policy, request)
    assert digest(policy.model, trainable=False) == staying
    assert digest(policy.model, trainable=True) != went
    assert (logits(policy.model) - logits(base)).abs().max() > 1e-3


@pytest.mark.parametrize("method", choose_by_default([Method.LORA, Method.FULL, Method.OFT], Method))
def test_reference_is_the_start_and_leaves_no_trace(method: Method, request_of: Request) -> None:
    request = request_of(method, settings={"dropout": 0.1})
    policy = build(request, with_reference=True)
    assert policy.reference is not None
    start = logits(policy.model)
    steps(policy, request)
    policy.model(input_ids=IDS_BT, labels=IDS_BT).loss.backward()
    gradients = {name: value.grad.clone() for name, value in policy.model.named_parameters() if value.grad is not None}
    before = modes(policy.model), trainable(policy.model)
    moved = logits(policy.model)
    with policy.reference() as reference:
        assert not any(module.training for module in reference.modules() if type(module).__name__ == "Dropout")
        reference_logits = reference(input_ids=IDS_BT).logits
        assert not reference_logits.requires_grad
    torch.testing.assert_close(reference_logits, start, atol=2e-6, rtol=0)
    assert (modes(policy.model), trainable(policy.model)) == before
    assert torch.equal(logits(policy.model), moved)
    now = {name: value.grad for name, value in policy.model.named_parameters() if value.grad is not None}
    assert all(torch.equal(gradients[name], now[name]) for name in gradients | now)


def test_reference_is_put_back_after_an_error(request_of: Request) -> None:
    policy = build(request_of("lora"), with_reference=True)
    assert policy.reference is not None
    before = modes(policy.model), trainable(policy.model)
    with pytest.raises(RuntimeError, match="inside"), policy.reference():
        raise RuntimeError("inside")
    assert (modes(policy.model), trainable(policy.model)) == before


@pytest.mark.parametrize("method", choose_by_default([Method.LORA, Method.QLORA], Method))
def test_same_request_gives_the_same_bits(method: Method, request_of: Request) -> None:
    request = request_of(method)
    first = build(request, with_reference=False)
    assert first.reference is None
    torch.rand(7)
    second = build(request, with_reference=False)
    assert digest(first.model, trainable=True) == digest(second.model, trainable=True)
    assert digest(first.model, trainable=False) == digest(second.model, trainable=False)


@pytest.mark.parametrize("method", choose_by_default([Method.LORA, Method.QLORA, Method.FULL], Method))
def test_saved_and_loaded_says_the_same(method: Method, request_of: Request, tmp_path: Path) -> None:
    request = request_of(method)
    policy = build(request, with_reference=False)
    steps(policy, request)
    save(policy, request, tmp_path / "out")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    base = METHODS[method].load(request, request.base)
    loaded: Any
    if method.facts.adapter:
        assert files == {"adapter_config.json", "adapter_model.safetensors"}
        loaded = PeftModel.from_pretrained(base, str(tmp_path / "out"))
    else:
        assert files == {"config.json", "generation_config.json", "model.safetensors"}
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(logits(loaded), logits(policy.model), atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", choose_by_default([Method.LORA, Method.FREEZE], Method))
def test_reward_head_is_trained_and_saved(method: Method, request_of: Request, tmp_path: Path) -> None:
    request = request_of(method, head="reward", stage="reward", settings={"rank": 8})
    policy = build(request, with_reference=False)
    score = [name for name in trainable(policy.model) if "score" in name]
    assert len(score) == 1
    optimizer = torch.optim.AdamW(parameter_groups(policy, request.config), lr=1e-2)
    policy.model(input_ids=IDS_BT).logits.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    save(policy, request, tmp_path / "out")
    loaded: Any
    if method.facts.adapter:
        loaded = PeftModel.from_pretrained(METHODS[method].load(request, request.base), str(tmp_path / "out"))
    else:
        loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert logits(policy.model).shape == (2, 1)
    torch.testing.assert_close(logits(loaded), logits(policy.model), atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA, Method.QLORA, Method.OFT, Method.FREEZE])
def test_gradient_checkpointing_changes_no_gradient(method: Method, request_of: Request) -> None:
    gradients = []
    for checkpointing in (False, True):
        policy = build(
            request_of(method, hyperparameters={"gradient_checkpointing": checkpointing}), with_reference=False
        )
        policy.model(input_ids=IDS_BT, labels=IDS_BT).loss.backward()
        gradients.append([value.grad for value in policy.model.parameters() if value.requires_grad])
    assert all(torch.equal(plain, again) for plain, again in zip(*gradients, strict=True))


@pytest.mark.parametrize("method", TRAINED_METHODS)
def test_groups_hold_every_moving_weight_once(method: Method, request_of: Request) -> None:
    request = request_of(method, hyperparameters={"weight_decay": 0.1})
    policy = build(request, with_reference=False)
    groups = parameter_groups(policy, request.config)
    named = dict(policy.model.named_parameters())
    assert sorted(name for group in groups for name in group["names"]) == sorted(trainable(policy.model))
    for group in groups:
        assert [id(value) for value in group["params"]] == [id(named[name]) for name in group["names"]]
        matrices = {value.ndim > 1 for value in group["params"]}
        assert matrices == {group["weight_decay"] > 0}
    assert policy.facts["trainable_parameters"] == sum(named[name].numel() for name in trainable(policy.model))


def test_full_moves_every_tensor(request_of: Request) -> None:
    request = request_of("full")
    policy = build(request, with_reference=False)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    steps(policy, request)
    assert all(not torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())


@pytest.mark.parametrize(("head", "also"), [(False, set()), (True, {"model.embed_tokens.weight"})])
def test_freeze_moves_the_last_blocks_and_the_norm(head: bool, also: set[str], request_of: Request) -> None:
    """The tiny model's output layer shares its weights with the embedding."""
    request = request_of("freeze", settings={"blocks": 1, "head": head})
    policy = build(request, with_reference=False)
    before = {name: value.clone() for name, value in policy.model.named_parameters()}
    steps(policy, request)
    changed = {name for name, value in policy.model.named_parameters() if not torch.equal(value, before[name])}
    last = {name for name in before if name.startswith("model.layers.1.")}
    assert changed == last | {"model.norm.weight"} | also
    assert policy.warnings == (
        ["The output layer shares its weights with the input embedding, so both move."] if head else []
    )


def test_freezes_reference_shares_what_does_not_move(request_of: Request) -> None:
    policy = build(request_of("freeze", settings={"blocks": 1}), with_reference=True)
    assert policy.reference is not None
    with policy.reference() as reference:
        pairs = list(zip(policy.model.named_parameters(), reference.parameters(), strict=True))
        assert all((parameter is twin) is not parameter.requires_grad for (_, parameter), twin in pairs)
        assert not any(twin.requires_grad for _, twin in pairs)


def test_freeze_refuses_more_blocks_than_there_are(request_of: Request) -> None:
    with pytest.raises(InvalidInput, match=r"E-TRAINABLE: .* is 3, and the model has 2 blocks"):
        build(request_of("freeze", settings={"blocks": 3}), with_reference=False)


@pytest.mark.parametrize("block", [8, 16])
def test_oft_rotates(block: int, request_of: Request) -> None:
    """The merged weight is the old one times an orthogonal matrix: angles between neurons stay."""
    request = request_of("oft", settings={"block_size": block})
    policy = build(request, with_reference=False)
    layer: Any = policy.model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    before = layer.base_layer.weight.clone()
    steps(policy, request, rate=1e-3)
    after = layer.base_layer.weight @ layer.get_delta_weight("default").detach().T
    assert not torch.allclose(after, before, atol=1e-4)
    # A truncated series is orthogonal up to its first left-out term.
    torch.testing.assert_close(after @ after.T, before @ before.T, atol=1e-5, rtol=0)


def test_oft_refuses_blocks_that_do_not_fill_a_layer(request_of: Request) -> None:
    with pytest.raises(InvalidInput, match=r"E-TRAINABLE: method.block_size is 48, .* has 64 inputs"):
        build(request_of("oft", settings={"block_size": 48}), with_reference=False)


@pytest.mark.parametrize("format", [Quantization.NF4, Quantization.FP4, Quantization.INT8])
def test_qlora_holds_the_base_in_few_bits(format: Quantization, request_of: Request) -> None:
    request = request_of("qlora", quantization=format, hyperparameters={"precision": "fp32"})
    policy = build(request, with_reference=True)
    staying = digest(policy.model, trainable=False)
    packed = torch.int8 if format is Quantization.INT8 else torch.uint8
    assert {value.dtype for value in policy.model.parameters()} == {packed, torch.float32}
    assert {value.dtype for value in policy.model.parameters() if value.requires_grad} == {torch.float32}
    start = logits(policy.model)
    steps(policy, request)
    assert digest(policy.model, trainable=False) == staying
    assert policy.reference is not None
    with policy.reference() as reference:
        assert torch.equal(reference(input_ids=IDS_BT).logits.float(), start)


def test_base_is_float32_on_a_cpu(request_of: Request) -> None:
    request = request_of("lora")
    assert {value.dtype for value in load_base(request, request.base).parameters()} == {torch.float32}


def test_attention_kernel_is_the_one_asked_for(request_of: Request) -> None:
    request = request_of("lora")
    eager = type(request)(**{**vars(request), "attention": "eager"})
    assert build(eager, with_reference=False).model.config._attn_implementation == "eager"
