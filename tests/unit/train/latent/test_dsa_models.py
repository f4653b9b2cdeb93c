"""Sparse attention on models of transformers: equal to dense where nothing is left out, cached as uncached."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from trainyard.errors import InvalidInput
from trainyard.spec.axes.latent import GRANULARITY_SETTINGS, LATENT_SETTINGS, Granularity, Latent
from trainyard.train.latent.dsa.attention import AttentionPhase, Selection
from trainyard.train.latent.dsa.technique import SparseAttention

IDS = torch.tensor([[5, 9, 3, 7, 1, 8, 2, 6], [4, 4, 2, 9, 9, 1, 3, 5]])


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=11, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64,
        )
    ).eval()  # fmt: skip


def gpt2(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=11, n_embd=16, n_layer=2, n_head=4, n_positions=64,
            attn_pdrop=dropout, resid_pdrop=dropout, embd_pdrop=dropout,
        )
    ).eval()  # fmt: skip


def with_choice(model: Any, granularity: Granularity, **fields: Any) -> Selection:
    torch.manual_seed(1)
    choice = GRANULARITY_SETTINGS[granularity](type=granularity, **fields)
    technique = SparseAttention(model, LATENT_SETTINGS[Latent.DSA](type=Latent.DSA, granularity=choice))
    technique.attach(model)
    return technique.shared


def with_tokens(model: Any, k: int) -> Selection:
    return with_choice(model, Granularity.TOKEN, top_k=k, index_heads=2, index_dim=8)


def with_heads(model: Any, active: int) -> Selection:
    return with_choice(model, Granularity.HEAD, shared=1, active=active)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_as_many_tokens_as_there_are_equal_dense_attention(make: Any) -> None:
    model = make()
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    dense = model(input_ids=IDS, attention_mask=mask, position_ids=positions).logits
    with_tokens(model, 8)
    sparse = model(input_ids=IDS, attention_mask=mask, position_ids=positions).logits
    assert torch.allclose(dense[1], sparse[1], atol=1e-6)
    assert torch.allclose(dense[0, 2:], sparse[0, 2:], atol=1e-6)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_fewer_tokens_change_late_positions_alone(make: Any) -> None:
    model = make()
    dense = model(input_ids=IDS).logits
    shared = with_tokens(model, 3)
    sparse = model(input_ids=IDS).logits
    assert torch.allclose(dense[:, :3], sparse[:, :3], atol=1e-6)
    assert not torch.allclose(dense[:, 3:], sparse[:, 3:], atol=1e-4)
    with shared.measured(AttentionPhase.DENSE):
        assert torch.allclose(dense, model(input_ids=IDS).logits, atol=1e-6)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_tokens_one_by_one_are_the_row_at_once(make: Any) -> None:
    model = make()
    with_tokens(model, 3)
    whole = model(input_ids=IDS).logits
    cache, parts = DynamicCache(), []
    for part in (IDS[:, :4], IDS[:, 4:5], IDS[:, 5:7], IDS[:, 7:]):
        parts.append(model(input_ids=part, past_key_values=cache, use_cache=True).logits)
    assert torch.allclose(whole, torch.cat(parts, dim=1), atol=1e-6)


@torch.no_grad()
def test_a_cropped_cache_continues_as_if_the_tokens_were_never_there() -> None:
    model = llama()
    with_tokens(model, 3)
    cache = model(input_ids=IDS[:, :4], use_cache=True).past_key_values
    expected = model(input_ids=IDS[:, 4:5], past_key_values=copy.deepcopy(cache), use_cache=True).logits
    model(input_ids=IDS[:, 6:8], past_key_values=cache, use_cache=True)
    cache.crop(-2)
    logits = model(input_ids=IDS[:, 4:5], past_key_values=cache, use_cache=True).logits
    assert torch.allclose(logits, expected, atol=1e-6)


def test_a_cache_without_index_keys_is_an_error() -> None:
    model = llama()
    cache = model(input_ids=IDS[:, :4], use_cache=True).past_key_values
    with_tokens(model, 3)
    with pytest.raises((InvalidInput, ValueError), match=r"index"):
        model(input_ids=IDS[:, 4:5], past_key_values=cache, use_cache=True)


def test_left_padding_changes_no_selection() -> None:
    model = llama()
    with_tokens(model, 3)
    alone = model(input_ids=IDS[:1, 2:]).logits
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    padded = model(input_ids=IDS[:1], attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    assert torch.allclose(alone, padded[:, 2:], atol=1e-6)


@pytest.mark.parametrize("phase", [AttentionPhase.WARMUP, AttentionPhase.SPARSE])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_the_divergence_trains_the_indexer_alone(make: Any, phase: AttentionPhase) -> None:
    model = make()
    shared = with_tokens(model, 3)
    with shared.measured(phase) as measures:
        model(input_ids=IDS)
    assert len(measures) == 2
    torch.stack([each.loss for each in measures]).sum().backward()
    moved = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert moved == {name for name, _ in model.named_parameters() if ".choosers." in name}


def test_the_language_loss_does_not_reach_the_indexer() -> None:
    model = llama()
    with_tokens(model, 3)
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert all(weight.grad is None for name, weight in model.named_parameters() if ".choosers." in name)


def test_warming_up_computes_dense_attention_and_reports_what_the_selection_would_keep() -> None:
    model = llama()
    dense = model(input_ids=IDS).logits
    shared = with_tokens(model, 3)
    with shared.measured(AttentionPhase.WARMUP) as measures:
        assert torch.allclose(dense, model(input_ids=IDS).logits, atol=1e-6)
    tokens = [float(each.tokens) for each in measures]
    assert tokens == [16, 16]
    expected = sum(min(3, seen) / seen for seen in range(1, 9)) / 8
    assert [float(each.kept / each.tokens) for each in measures] == pytest.approx([expected] * 2)
    assert all(0 < float(each.recall / each.tokens) < 1 for each in measures)


def test_padding_is_not_measured() -> None:
    model = llama()
    shared = with_tokens(model, 3)
    with shared.measured(AttentionPhase.WARMUP) as alone:
        model(input_ids=IDS[:1, :5])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    with shared.measured(AttentionPhase.WARMUP) as padded:
        model(input_ids=IDS[:1], attention_mask=mask)
    for measure, other in zip(alone, padded, strict=True):
        assert float(other.tokens) == 5
        assert measure.loss.item() == pytest.approx(other.loss.item(), abs=1e-5)


def test_dropout_of_attention_is_not_in_the_target() -> None:
    quiet, noisy = gpt2(), gpt2(dropout=0.5)
    measured = []
    for model in (quiet, noisy):
        shared = with_tokens(model, 3)
        model.transformer.h[0].attn.train()
        with shared.measured(AttentionPhase.WARMUP) as measures:
            model(input_ids=IDS)
        measured.append(measures[0].loss.item())
    assert measured[0] == pytest.approx(measured[1], abs=1e-5)


def test_layers_with_a_sliding_window_stay_as_they_are() -> None:
    config = MistralConfig(
        vocab_size=11, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=4,
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="no layer for sparse attention"):
        with_tokens(MistralForCausalLM(config), 3)


def test_a_copy_has_a_selection_of_its_own() -> None:
    model = llama()
    shared = with_tokens(model, 3)
    other = copy.deepcopy(model)
    shared.phase = AttentionPhase.DENSE
    assert not torch.allclose(model(input_ids=IDS).logits, other(input_ids=IDS).logits, atol=1e-4)
    shared.phase = AttentionPhase.SPARSE
    assert torch.equal(model(input_ids=IDS).logits, other(input_ids=IDS).logits)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_routing_to_all_heads_begins_with_the_dense_model(make: Any) -> None:
    model = make()
    dense = model(input_ids=IDS).logits
    with_heads(model, 4)
    assert torch.allclose(dense, model(input_ids=IDS).logits, atol=1e-6)


def test_routed_heads_train_with_the_language_loss_and_report_their_balance() -> None:
    model = llama()
    shared = with_heads(model, 3)
    with shared.measured(AttentionPhase.SPARSE) as measures:
        loss = model(input_ids=IDS, labels=IDS).loss
    (loss + 0.01 * measures[0].loss).backward()
    gates = [weight for name, weight in model.named_parameters() if ".choosers." in name]
    assert len(gates) == 2
    assert all(gate.grad is not None and gate.grad.any() for gate in gates)
    assert [float(each.kept / each.tokens) for each in measures] == pytest.approx([0.75, 0.75])


@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_detached_model_is_what_it_was(make: Any) -> None:
    model = make()
    dense, kernel = model(input_ids=IDS).logits, model.config._attn_implementation
    with_tokens(model, 3)
    model.trainyard_latent.detach(model)
    assert torch.equal(dense, model(input_ids=IDS).logits)
    assert model.config._attn_implementation == kernel
    assert not [name for name, _ in model.named_parameters() if "chooser" in name]
