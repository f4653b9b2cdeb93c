"""Answers that read the selected tokens alone: the selection and the output of the masked way, and what they cost."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, DynamicCache, Gemma2Config, GPTNeoXConfig, GptOssConfig, Qwen3Config

from tests.unit.train.latent.test_dsa_models import gpt2, llama, with_tokens
from trainyard.train.latent.dsa import attention, indexer, technique
from trainyard.train.latent.dsa.indexer import GATHERED_FROM, find_selected, gather_tokens, select_tokens, select_window
from trainyard.train.latent.dsa.layers import RoomyIndexedLayer
from trainyard.train.model.sampling import Reading

WORDS, LENGTH, K = 11, 24, 5
SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
FULL: dict[str, Any] = {"layer_types": ["full_attention"] * 2}
CONFIGS: dict[str, Any] = {
    "qwen3": Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8),
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "gemma2": Gemma2Config(**SIZES, **FULL, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8),
    "gpt_oss": GptOssConfig(
        **SIZES, **FULL, num_key_value_heads=2, head_dim=8, num_local_experts=2, num_experts_per_tok=1
    ),
}  # fmt: skip


def build(name: str) -> Any:
    """A random model: with SDPA and grouped heads, with a softcap (gemma2), or with sinks (gpt_oss)."""
    torch.manual_seed(0)
    builders = {"llama": llama, "gpt2": gpt2}
    return builders[name]() if name in builders else AutoModelForCausalLM.from_config(CONFIGS[name]).eval()


ARCHITECTURES = ["llama", "gpt2", *CONFIGS]


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows, one of which begins with padding."""
    ids = torch.randint(WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    return ids, mask


def answer(model: Any, rows: tuple[torch.Tensor, torch.Tensor], prompt: int = 10) -> list[torch.Tensor]:
    """Logits after the prompt and after each token that follows it."""
    sparse_attention, (ids, mask) = model.trainyard_latent, rows
    reading, logits = sparse_attention.open(model, ids[:, :prompt], mask[:, :prompt])
    all_logits = [logits]
    for column in range(prompt, LENGTH):
        reading, logits = sparse_attention.step(model, Reading(reading.cache, mask[:, :column]), ids[:, column])
        all_logits.append(logits)
    return all_logits


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each gathered query has read."""
    seen: list[int] = []

    def attend(kernel: Any, module: Any, states: Any, positions: torch.Tensor, *rest: Any, **options: Any) -> Any:
        seen.append(positions.shape[-1])
        return indexer.attend_to_places(kernel, module, states, positions, *rest, **options)

    monkeypatch.setattr(attention, "attend_to_places", attend)
    return seen


@torch.no_grad()
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gathered_answers_are_the_masked_ones(name: str, rows: Any, counted: list[int]) -> None:
    model = build(name)
    shared = with_tokens(model, K)
    gathered_logits = answer(model, rows)
    assert counted == [K] * 2 * (LENGTH + 1 - GATHERED_FROM * K)
    shared.gathers = False
    masked = answer(model, rows)
    assert len(counted) == 2 * (LENGTH + 1 - GATHERED_FROM * K)
    for actual, other in zip(gathered_logits, masked, strict=True):
        torch.testing.assert_close(actual, other, rtol=0, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_answer_is_what_training_computes_for_the_row(name: str, rows: Any) -> None:
    """The last logits of an answer and those of a pass over the whole row with gradients, where all is masked."""
    model = build(name)
    with_tokens(model, K)
    ids, mask = rows
    with torch.enable_grad():
        whole = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    for step, logits in enumerate(answer(model, rows)):
        torch.testing.assert_close(logits, whole[:, 9 + step].detach(), rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_prompt_in_blocks_is_the_prompt_at_once(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    with_tokens(model, K)
    once = answer(model, rows, prompt=20)
    monkeypatch.setattr(technique, "PROMPT_BLOCK", 6)
    monkeypatch.setattr(attention, "QUERIES_AT_ONCE", 4)
    for actual, other in zip(once, answer(model, rows, prompt=20), strict=True):
        torch.testing.assert_close(actual, other, rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_row_alone_answers_as_it_does_in_a_batch(rows: Any) -> None:
    model, (ids, mask) = build("llama"), rows
    with_tokens(model, K)
    together = answer(model, rows)
    for row, start in ((0, 7), (1, 0)):
        sparse_attention = model.trainyard_latent
        reading, logits = sparse_attention.open(model, ids[row : row + 1, start:10], mask[row : row + 1, start:10])
        torch.testing.assert_close(logits[0], together[0][row], rtol=0, atol=1e-6)
        _, logits = sparse_attention.step(model, reading, ids[row : row + 1, 10])
        torch.testing.assert_close(logits[0], together[1][row], rtol=0, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("k", [LENGTH, 64])
def test_as_many_tokens_as_there_are_answer_densely(k: int, rows: Any, counted: list[int]) -> None:
    dense = answer_densely(build("llama"), rows)
    model = build("llama")
    with_tokens(model, k)
    for actual, other in zip(answer(model, rows), dense, strict=True):
        torch.testing.assert_close(actual, other, rtol=0, atol=1e-6)
    assert counted == []


def answer_densely(model: Any, rows: Any) -> list[torch.Tensor]:
    ids, mask = rows
    whole = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    return list(whole[:, 9:].unbind(1))


@torch.no_grad()
def test_a_control_gathers_what_it_selects(rows: Any, counted: list[int]) -> None:
    model = build("llama")
    shared = with_tokens(model, K)
    shared.select = select_window
    gathered_logits = answer(model, rows)
    shared.gathers = False
    for actual, other in zip(gathered_logits, answer(model, rows), strict=True):
        torch.testing.assert_close(actual, other, rtol=0, atol=1e-6)
    assert counted


def test_places_are_the_kept_keys_in_order() -> None:
    """Exactly those of `select_tokens`, also among equal scores; what is left is masked."""
    scores = torch.randint(4, (3, 6, 40), generator=torch.Generator().manual_seed(0)).float()
    visible = torch.ones(3, 6, 40, dtype=torch.bool).tril(30)
    visible[1, :, :33] = False
    visible[2, 0] = False
    selected = select_tokens(scores, visible, 8)
    positions, filled = find_selected(selected, 8)
    for row, query in ((row, query) for row in range(3) for query in range(6)):
        there = selected[row, query].nonzero()[:, 0].tolist()
        assert positions[row, query, : len(there)].tolist() == there
        assert int(filled[row, query].sum()) == max(1, len(there))
    assert positions[2, 0].tolist() == [0] * 8


def test_tokens_are_gathered_from_views_and_copies() -> None:
    room = torch.randn(2, 3, 20, 4)
    positions = torch.randint(12, (2, 5, 6))
    expected = torch.stack([room[row][:, positions[row, query]] for row in range(2) for query in range(5)])
    for states in (room[:, :, :12], room[:, :, :12].clone(), room.transpose(1, 2).contiguous().transpose(1, 2)):
        assert torch.equal(gather_tokens([states], positions)[0], expected)
    odd = torch.randn(2, 3, 12, 5)[..., :4]
    assert torch.equal(gather_tokens([odd], positions)[0][7], odd[1][:, positions[1, 2]])


# The cache


class LargestTensor(TorchDispatchMode):
    """The largest tensor that an operation has made, views left out."""

    most: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if isinstance(output, torch.Tensor) and func.__name__.split(".")[0] in (
            "cat",
            "index",
            "index_select",
            "clone",
        ):
            self.most = max(self.most, output.numel())
        return output


@torch.no_grad()
def test_a_token_copies_no_more_than_the_selected_ones() -> None:
    """The keys of a row of 2,000 tokens are never copied: neither to append to them nor to read them."""
    model = build("llama")
    with_tokens(model, K)
    sparse_attention, ids = model.trainyard_latent, torch.randint(WORDS, (1, 2000))
    reading, _ = sparse_attention.open(model, ids, torch.ones_like(ids))
    reading, _ = sparse_attention.step(model, reading, ids[:, 0])  # the room grows here
    keys = reading.cache.layers[0].keys.numel()
    with LargestTensor() as seen:
        sparse_attention.step(model, reading, ids[:, 1])
    assert 0 < seen.most < keys / 4


@torch.no_grad()
def test_a_roomy_cache_has_what_a_concatenated_one_has() -> None:
    roomy, plain = RoomyIndexedLayer(), DynamicCache()
    parts = [(torch.randn(2, 3, length, 4), torch.randn(2, 3, length, 4)) for length in (5, 1, 80, 1, 2)]
    for at, (keys, values) in enumerate(parts):
        roomy.update_indexer(keys[:, 0])
        for actual, other in zip(roomy.update(keys, values), plain.update(keys, values, 0), strict=True):
            assert torch.equal(actual, other)
        if at == 2:
            roomy.crop(-3)
            plain.crop(-3)
        if at == 3:
            for cache in (roomy, plain):
                cache.batch_select_indices(torch.tensor([1, 1, 0]))
                cache.batch_select_indices(torch.tensor([0, 2]))
    assert torch.equal(roomy.indexer_keys, roomy.keys[:, 0])  # type: ignore[index]
    assert roomy.get_seq_length() == plain.get_seq_length() == 86


@torch.no_grad()
def test_a_copied_cache_grows_on_its_own() -> None:
    layer = RoomyIndexedLayer()
    layer.update(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
    other = copy.deepcopy(layer)
    first, second = torch.ones(1, 2, 1, 4), torch.zeros(1, 2, 1, 4)
    layer.update(first, first)
    other.update(second, second)
    assert torch.equal(layer.keys[:, :, -1:], first)
    assert torch.equal(other.keys[:, :, -1:], second)
    layer.reset()
    assert layer.get_seq_length() == 0
    assert layer.update(first, first)[0].shape == (1, 2, 1, 4)


def test_a_cache_that_was_read_without_gradients_continues_with_them() -> None:
    layer = RoomyIndexedLayer()
    with torch.inference_mode():
        layer.update(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
    with torch.no_grad():
        layer.update(torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4))
    added = torch.randn(1, 2, 1, 4, requires_grad=True)
    layer.update(added, added)[0].sum().backward()
    assert added.grad is not None
    assert layer.get_seq_length() == 7
