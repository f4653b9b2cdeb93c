"""Packed and padded rows without a mask give the numbers that they have with one, in every family that can do it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForSequenceClassification, LlamaModel

from trainyard.train.contracts import IGNORED
from trainyard.train.model.head import label_logprobs
from trainyard.train.model.sequence_attention import KERNEL, attend, attend_in_turn, border_inputs, takes_borders
from trainyard.train.rows.batching import pack
from trainyard.train.rows.row_attention import choose_row_attention

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers
LENGTHS = (3, 17, 1, 9)
TOKENS = sum(LENGTHS)
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "olmo3", "gemma3_text")
USED = "each sequence separately, without a mask"
CLOSE = 1e-5


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def make_model(family: str, **options: Any) -> Any:
    config = AutoConfig.for_model(
        family, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        vocab_size=64, num_hidden_layers=2, sliding_window=4, **options,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()


def make_packed_rows() -> dict[str, torch.Tensor]:
    rows = [torch.randint(1, 64, (length,)).tolist() for length in LENGTHS]
    return pack([{"input_ids": row, "labels": row} for row in rows], 0)


def make_padded_rows(side: str) -> dict[str, torch.Tensor]:
    rows = [torch.randint(1, 64, (length,)) for length in LENGTHS]
    learned = [torch.cat((torch.tensor([IGNORED]), row[1:])) for row in rows]  # nothing real predicts a first token
    ids, labels, mask = (
        pad_sequence(values, batch_first=True, padding_value=fill, padding_side=side)
        for values, fill in ((rows, 0), (learned, IGNORED), ([torch.ones_like(row) for row in rows], 0))
    )
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


ROWS = {
    "packed": make_packed_rows, "right": lambda: make_padded_rows("right"), "left": lambda: make_padded_rows("left"),
}  # fmt: skip
"""How rows lie in a batch."""


def positions() -> torch.Tensor:
    return torch.cat([torch.arange(length) for length in LENGTHS])[None]


def mask_of_sequences(window: int | None) -> torch.Tensor:
    """Which token sees which (T, T)."""
    owner_T = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    place_T = torch.arange(TOKENS)
    apart_TT = place_T[:, None] - place_T[None]
    seen_TT = (owner_T[:, None] == owner_T[None]) & (apart_TT >= 0)
    return seen_TT if window is None else seen_TT & (apart_TT < window)


def with_gradients(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad()
    logprobs_N = label_logprobs(model, batch).logprobs_N
    logprobs_N.sum().backward()
    return logprobs_N.detach(), [value.grad.clone() for value in model.parameters() if value.grad is not None]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_sequences_attend_as_with_a_mask(window: int | None, heads: int, scale: float | None) -> None:
    query, key, value = (torch.randn(TOKENS, each, 8, requires_grad=True) for each in (4, heads, heads))
    borders = border_inputs({"input_ids": torch.zeros(1, TOKENS), "position_ids": positions()})
    output = attend_in_turn((query, key, value), borders["cu_seq_lens_q"], borders["max_length_q"], scale, window)
    states = [each.transpose(0, 1)[None] for each in (query, key, value)]
    masked = functional.scaled_dot_product_attention(
        *states, attn_mask=mask_of_sequences(window), scale=scale, enable_gqa=True
    )[0].transpose(0, 1)
    assert torch.allclose(output, masked, atol=CLOSE)
    weights = torch.randn_like(output)
    for actual, other in zip(
        torch.autograd.grad((output * weights).sum(), (query, key, value)),
        torch.autograd.grad((masked * weights).sum(), (query, key, value)),
        strict=True,
    ):
        assert torch.allclose(actual, other, atol=CLOSE)


def list_borders(**batch: list[list[int]]) -> list[int]:
    tensors = {name: torch.tensor(values) for name, values in batch.items()}
    inputs = border_inputs({"input_ids": torch.zeros_like(next(iter(tensors.values()))), **tensors})
    borders: list[int] = inputs["cu_seq_lens_q"].tolist()
    assert inputs["cu_seq_lens_k"].tolist() == borders
    assert inputs["cu_seq_lens_q"].dtype is torch.int32
    assert inputs["max_length_q"] == inputs["max_length_k"] == max(end - at for at, end in pairwise(borders))
    return borders


def test_borders_are_those_of_rows_positions_and_padding() -> None:
    assert list_borders(position_ids=[[0, 1, 2, 0, 1, 5], [0, 1, 2, 3, 4, 5]]) == [0, 3, 5, 6, 12]
    assert list_borders(attention_mask=[[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 1, 1]]) == [0, 3, 4, 8, 10, 12]
    assert list_borders(position_ids=[[0, 1, 0, 1]], attention_mask=[[1, 1, 1, 0]]) == [0, 2, 3, 4]


@pytest.mark.parametrize("rows", list(ROWS))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_gives_the_same_numbers_and_gradients(family: str, rows: str) -> None:
    model, batch = make_model(family), ROWS[rows]()
    masked_N, before = with_gradients(model, batch)
    assert choose_row_attention(model, "cpu", torch.float32) == USED
    assert model.config._attn_implementation == KERNEL
    separate_N, after = with_gradients(model, batch)
    assert torch.allclose(masked_N, separate_N, atol=CLOSE)
    assert len(before) == len(after) > 0
    assert all(torch.allclose(actual, other, atol=1e-4) for actual, other in zip(before, after, strict=True))


def test_an_adapter_is_computed_so_in_bf16() -> None:
    model = get_peft_model(make_model("qwen3").bfloat16(), LoraConfig(r=2, target_modules="all-linear"))
    assert choose_row_attention(model, "cpu", torch.bfloat16) == USED
    assert takes_borders(model.get_base_model())


def list_saved_masks(model: Any, batch: dict[str, torch.Tensor]) -> list[torch.Size]:
    """Shapes of what the backward pass needs that has a number for each pair of positions."""
    sizes: list[torch.Size] = []
    positions = batch["input_ids"].shape[1]

    def note(value: torch.Tensor) -> torch.Tensor:
        if value.shape[-2:] == (positions, positions):
            sizes.append(value.shape)
        return value

    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        label_logprobs(model, batch)
    return sizes


@pytest.mark.parametrize("rows", list(ROWS))
def test_no_mask_is_made(rows: str) -> None:
    model, batch = make_model("llama"), ROWS[rows]()
    assert list_saved_masks(model, batch)
    choose_row_attention(model, "cpu", torch.float32)
    assert not list_saved_masks(model, batch)


def test_a_model_that_gives_other_numbers_keeps_its_mask() -> None:
    model, batch = make_model("qwen2"), make_packed_rows()
    model.model.layers[0].self_attn.sliding_window = 2  # its mask does not know
    before = label_logprobs(model, batch).logprobs_N
    attention = choose_row_attention(model, "cpu", torch.float32)
    assert attention == "SDPA with a mask: Qwen2ForCausalLM gives other numbers sequence by sequence"
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(before, label_logprobs(model, batch).logprobs_N)


class KeepsBorders(LlamaModel):
    """A decoder whose layers do not get what it does not know."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **_: Any) -> Any:
        return super().forward(input_ids, attention_mask, position_ids, use_cache=False)


class TakesNone(LlamaModel):
    def forward(self, input_ids: Any = None, attention_mask: Any = None, use_cache: bool = False) -> Any:
        return super().forward(input_ids, attention_mask, use_cache=use_cache)


@pytest.mark.parametrize(
    ("decoder", "why"),
    [
        (KeepsBorders, "LlamaForCausalLM gives other numbers sequence by sequence"),
        (TakesNone, "LlamaForCausalLM takes no borders of its caller"),
    ],
)
def test_a_family_that_hands_no_borders_on_keeps_its_mask(decoder: type, why: str) -> None:
    model = make_model("llama")
    model.model.__class__ = decoder
    assert choose_row_attention(model, "cpu", torch.float32) == f"SDPA with a mask: {why}"
    assert model.config._attn_implementation == "sdpa"


def test_a_reward_model_keeps_its_mask() -> None:
    scorer = LlamaForSequenceClassification(make_model("llama").config)
    scorer.set_attn_implementation("sdpa")
    why = "LlamaForSequenceClassification gives no tokens"
    assert choose_row_attention(scorer, "cpu", torch.float32) == f"SDPA with a mask: {why}"


@pytest.mark.parametrize(
    ("options", "device", "dtype", "why"),
    [
        ({"attn_implementation": "eager"}, "cpu", torch.float32, "the attention kernel is eager"),
        ({"attention_dropout": 0.1}, "cpu", torch.float32, "attention has dropout"),
        ({}, "cuda", torch.float32, "torch's flash kernel computes bf16 and fp16 on CUDA, not torch.float32 on cuda"),
        ({}, "mps", torch.bfloat16, "torch's flash kernel computes bf16 and fp16 on CUDA, not torch.bfloat16 on mps"),
    ],
)
def test_what_is_against_it_is_named(options: dict[str, Any], device: str, dtype: torch.dtype, why: str) -> None:
    kernel = options.pop("attn_implementation", "sdpa")
    model = make_model("llama", **options)
    model.set_attn_implementation(kernel)
    assert choose_row_attention(model, device, dtype) == f"SDPA with a mask: {why}"
    assert model.config._attn_implementation == kernel


def test_attention_without_borders_is_sdpa() -> None:
    states = [torch.randn(1, 4, 6, 8) for _ in range(3)]
    output, _ = attend(torch.nn.Module(), *states, None, is_causal=True)
    assert torch.equal(output, functional.scaled_dot_product_attention(*states, is_causal=True).transpose(1, 2))
