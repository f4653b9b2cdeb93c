"""Bases that are changed before they are trained: scaled positions and added tokens, as a saved model has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig

from tests.unit.train.methods.conftest import IDS_BT, Request, logits, steps
from trainyard.errors import InvalidInput
from trainyard.spec.training import RopeScaling, TrainerConfig
from trainyard.train.methods.loading import add_tokens
from trainyard.train.methods.table import build, save
from trainyard.train.model.positions import find_context, position_options

TOKENS = ["<|plan|>", "<|act|>"]


@pytest.mark.parametrize("rope", [{"type": "yarn", "factor": 4}, {"type": "linear", "factor": 2.5}])
def test_a_saved_model_has_the_positions_that_it_was_trained_with(
    rope: dict[str, Any], request_of: Request, tmp_path: Path
) -> None:
    request = request_of("full", rope=rope)
    policy, plain = build(request, with_reference=True), build(request_of("full"), with_reference=False)
    before = find_context(plain.model.config)
    assert before is not None
    assert find_context(policy.model.config) == int(before * rope["factor"])
    assert not torch.allclose(logits(policy.model), logits(plain.model), atol=1e-4)
    assert policy.reference is not None
    with policy.reference() as reference:  # the reference is the scaled base
        torch.testing.assert_close(reference(input_ids=IDS_BT).logits, logits(policy.model))
    steps(policy, request)
    save(policy, request, tmp_path)
    served = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert served.config.rope_parameters["rope_type"] == rope["type"]
    assert find_context(served.config) == int(before * rope["factor"])
    torch.testing.assert_close(logits(served), logits(policy.model))


def test_an_original_length_is_taken_in_place_of_the_configs(tiny_model: Path) -> None:
    options = position_options(str(tiny_model), RopeScaling(factor=4, original_length=128))
    assert options["rope_parameters"]["original_max_position_embeddings"] == 128
    assert options["max_position_embeddings"] == 512


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=16), "no rotary positions"),
        (LlamaConfig(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}), "already"),
    ],
)
def test_positions_that_cannot_be_scaled_are_refused(config: Any, why: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(InvalidInput, match=f"E-MODEL-INVALID: .*{why}"):
        position_options(str(tmp_path), RopeScaling(factor=2))


def test_without_scaling_nothing_is_asked(tmp_path: Path) -> None:
    assert position_options(str(tmp_path / "nothing"), None) == {}
    assert find_context(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=16)).config) == 1024


@pytest.mark.parametrize("method", [{"type": "full"}, {"type": "freeze", "blocks": 1, "interval": 2}])
def test_added_tokens_begin_at_the_mean_and_are_trained_and_saved(
    method: dict[str, Any], request_of: Request, tiny_model: Path, tmp_path: Path
) -> None:
    request = request_of(method["type"], settings=method, added_tokens=TOKENS)
    policy = build(request, with_reference=False)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    old_size = len(tokenizer)
    ids = add_tokens(tokenizer, TOKENS)
    assert ids == [old_size, old_size + 1]
    assert add_tokens(tokenizer, TOKENS) == []  # they are there now
    for layer in (policy.model.get_input_embeddings(), policy.model.get_output_embeddings()):
        torch.testing.assert_close(layer.weight[ids], layer.weight[:old_size].mean(0).expand(2, -1))
        assert layer.weight.requires_grad
    plain = build(request_of("full"), with_reference=False)
    torch.testing.assert_close(logits(policy.model)[..., :old_size], logits(plain.model)[..., :old_size])
    start = policy.model.get_input_embeddings().weight[ids].detach().clone()
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-2)
    rows_BT = torch.tensor([[5, *ids, 6]])
    policy.model(input_ids=rows_BT, labels=rows_BT).loss.backward()
    optimizer.step()
    assert not torch.equal(start, policy.model.get_input_embeddings().weight[ids])
    save(policy, request, tmp_path)
    served = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert served.config.vocab_size == policy.model.config.vocab_size >= old_size + 2
    torch.testing.assert_close(logits(served), logits(policy.model))


def test_the_same_tokens_give_the_same_bits(request_of: Request) -> None:
    first, other = (build(request_of("full", added_tokens=TOKENS), with_reference=False).model for _ in range(2))
    assert all(torch.equal(value, dict(other.named_parameters())[name]) for name, value in first.named_parameters())


def test_neither_is_written_where_it_is_not_used() -> None:
    assert {"rope", "added_tokens"} & TrainerConfig().model_dump(mode="json").keys() == set()
    config = TrainerConfig.model_validate({"method": "full", "rope": {"factor": 4}, "added_tokens": ["<a>"]})
    assert {"rope", "added_tokens"} <= config.model_dump(mode="json").keys()
