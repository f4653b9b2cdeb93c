"""DeepSeek sparse attention: the lightning indexer, its selection, its loss, and attention over the selected tokens.

    I[t, s] = sum_j w[t, j] ReLU(q[t, j] . k[s]) / sqrt(d)          one small key per token, few query heads
    S_t     = the k tokens s with the largest I[t, s] that t may see
    loss    = sum_t KL(p[t, :] || softmax(I[t, :])),  p = attention summed over heads, normalised to 1

In the dense warm-up the loss covers every visible token, in the sparse stage the tokens of S_t. Its gradients reach
the indexer alone: hidden states and attention come in detached. Source: DeepSeek-V3.2-Exp, section 2.1; names of
weights and rotation as in transformers' `DeepseekV32Indexer`, whose forward has no gradients. The Hadamard rotation
and fp8 are left out there and here: they change the precision, not the result.

Attention over the selected tokens copies their keys and values together and reads no others:

    places    the selected tokens of each query in the order of the row, filled up with its first token
    output    the model's attention over `places`, where the fillings are masked

So a new token reads `num_tokens` keys and values of a long row, and one small index key of every other token. Selection
and output are those of the masked attention, but for rounding.

Shapes: B rows, T queries, S keys, K selected tokens, N = B * T, D hidden, H heads of queries (or index heads), G heads
of keys, I index head dimension, C dimensions of a head, R rotated dimensions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class IndexerShape:
    """Sizes of an indexer. DeepSeek-V3.2 has 64 heads of 128 dimensions, 64 of them rotated."""

    num_heads: int = 4
    head_dim: int = 32
    rotary_dim: int | None = None
    """Rotated dimensions of a head; None is half of them."""
    rotary_base: float = ROTARY_BASE

    @property
    def rotated(self) -> int:
        return self.head_dim // 2 // 2 * 2 if self.rotary_dim is None else self.rotary_dim


class LightningIndexer(torch.nn.Module):
    """Scores every earlier token for every token. Reads the hidden states that the attention layer reads."""

    def __init__(self, hidden_size: int, shape: IndexerShape) -> None:
        super().__init__()
        self.shape = shape
        self.wq_b = torch.nn.Linear(hidden_size, shape.num_heads * shape.head_dim, bias=False)
        self.wk = torch.nn.Linear(hidden_size, shape.head_dim, bias=False)
        self.k_norm = torch.nn.LayerNorm(shape.head_dim, eps=1e-6)
        self.weights_proj = torch.nn.Linear(hidden_size, shape.num_heads, bias=False)

    def keys(self, hidden_BTD: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        """Return the key of each token, shared by all index heads: (B, T, I)."""
        return self._rotate(self.k_norm(self.wk(self._detach_input(hidden_BTD))), positions_BT)

    def forward(self, hidden_BTD: torch.Tensor, positions_BT: torch.Tensor, keys_BSI: torch.Tensor) -> torch.Tensor:
        """Scores of all keys for each query, in float32: (B, T, S). Nothing is masked."""
        hidden_BTD = self._detach_input(hidden_BTD)
        heads, dim = self.shape.num_heads, self.shape.head_dim
        query_BTHI = self.wq_b(hidden_BTD).unflatten(-1, (heads, dim)).transpose(1, 2)
        query_BHTI = self._rotate(query_BTHI, positions_BT[:, None])
        # One product for all heads of a row: with a head dimension of its own the keys would be copied for each head.
        product_BMS = query_BHTI.float().flatten(1, 2) @ keys_BSI.float().transpose(1, 2)
        each_BMS = functional.relu(product_BMS)
        weights_BTH = self.weights_proj(hidden_BTD).float() * (heads * dim) ** -0.5
        if weights_BTH.shape[1] == 1:  # one product; einsum asks a card for several more operations
            return weights_BTH @ each_BMS
        return torch.einsum("bth,bhts->bts", weights_BTH, each_BMS.unflatten(1, (heads, -1)))

    def _detach_input(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        return hidden_BTD.detach().to(self.wk.weight.dtype)

    def _rotate(self, values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate the first dimensions by position, in halves rather than in pairs (RoPE, arXiv 2104.09864)."""
        rotated = self.shape.rotated
        angles = positions[..., None] * frequencies(rotated, self.shape.rotary_base, values.device)
        cos, sin = angles.cos().to(values.dtype), angles.sin().to(values.dtype)
        first, second, rest = values.split([rotated // 2, rotated // 2, values.shape[-1] - rotated], dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


@cache
def frequencies(rotated: int, base: float, device: torch.device) -> torch.Tensor:
    """Radians per position of each pair of rotated dimensions, in float32: (R / 2,)."""
    with torch.inference_mode(False):
        steps_R = torch.arange(0, rotated, 2, device=device, dtype=torch.float32) / max(1, rotated)
        return 1 / base**steps_R


def select_tokens(scores_BTS: torch.Tensor, visible_BTS: torch.Tensor, k: int) -> torch.Tensor:
    """Return which keys each query attends to: its `k` best visible ones, all of them where it sees fewer.

    Of equal scores the earlier keys win: ReLU makes many zeros, and which of them `topk` returns depends on how many
    keys there are, so that a cached pass would select others than a pass over the whole row.
    """
    if k >= scores_BTS.shape[-1]:
        return visible_BTS
    scores_BTS = scores_BTS.masked_fill(~visible_BTS, float("-inf"))
    last_BT1 = scores_BTS.topk(k, dim=-1).values[..., -1:]
    above_BTS, equal_BTS = scores_BTS > last_BT1, scores_BTS == last_BT1
    room_BT1 = k - above_BTS.sum(dim=-1, keepdim=True)
    return (above_BTS | (equal_BTS & (equal_BTS.cumsum(dim=-1) <= room_BT1))) & visible_BTS


def best_places(
    scores_BTS: torch.Tensor, visible_BTS: torch.Tensor | None, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the tokens of `select_tokens` are (B, T, K), in any order, and which of these places are visible (B,
    T, K).

    For CUDA, where each operation costs as much as reading thousands of tokens: torch's radix selection finds them in
    one, and returns the earlier of equal scores (`tests/gpu` compares). No mask is every key visible. A query that sees
    nothing, which is padding, gets one key, so that no output is without a number.
    """
    lowest = float("-inf")
    if visible_BTS is not None:
        scores_BTS = scores_BTS.masked_fill(~visible_BTS, lowest)
    values_BTK, places_BTK = scores_BTS.topk(k, dim=-1, sorted=False)
    seen_BTK = values_BTK > lowest
    return places_BTK, seen_BTK if visible_BTS is None else seen_BTK | ~seen_BTK.any(-1, keepdim=True)


def select_window(scores_BTS: torch.Tensor, visible_BTS: torch.Tensor, k: int) -> torch.Tensor:
    """Return the last `k` visible keys: a sliding window, the control with the same count."""
    return select_tokens(torch.arange(scores_BTS.shape[-1]).to(scores_BTS).expand_as(scores_BTS), visible_BTS, k)


def select_randomly(scores_BTS: torch.Tensor, visible_BTS: torch.Tensor, k: int) -> torch.Tensor:
    """`k` visible keys by chance: the control that knows nothing."""
    return select_tokens(torch.rand_like(scores_BTS), visible_BTS, k)


def attention_target(weights_BHTS: torch.Tensor, allowed_BTS: torch.Tensor) -> torch.Tensor:
    """Return the indexer's target: attention summed over heads, normalised over the allowed keys, detached (B, T,
    S).
    """
    summed_BTS = weights_BHTS.detach().float().sum(dim=1) * allowed_BTS
    return summed_BTS / summed_BTS.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


def index_divergence(target_BTS: torch.Tensor, scores_BTS: torch.Tensor, allowed_BTS: torch.Tensor) -> torch.Tensor:
    """KL(target || softmax of the scores over the allowed keys) of each query: (B, T); 0 where nothing is allowed."""
    lowest = torch.finfo(scores_BTS.dtype).min
    logprobs_BTS = functional.log_softmax(scores_BTS.masked_fill(~allowed_BTS, lowest), dim=-1)
    terms_BTS = torch.xlogy(target_BTS, target_BTS) - target_BTS * logprobs_BTS
    return terms_BTS.masked_fill(~allowed_BTS, 0.0).sum(dim=-1)


def attention_recall(weights_BHTS: torch.Tensor, kept_BTS: torch.Tensor, visible_BTS: torch.Tensor) -> torch.Tensor:
    """Share of the attention over all visible keys that lies on the kept ones, of each query: (B, T)."""
    return (attention_target(weights_BHTS, visible_BTS) * kept_BTS).sum(dim=-1)


GATHERED_FROM = 3
"""Keys per selected token from which on one query is answered by a gather, which copies the selected ones first. With
2,048 tokens of 8 heads of 128 on a CPU, a gather takes 7.4 ms of 4,096 keys and 7.7 of 6,144, and masking 7.0 and 10.8.
"""
QUERIES_AT_ONCE = 128
"""Queries of a prompt that are scored and masked together: that many times the keys are in memory."""
Kernel = Callable[..., tuple[torch.Tensor, Any]]


def find_selected(kept_BTS: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the kept keys are (B, T, K), and which of these places are filled (B, T, K).

    A query that sees nothing, which is padding, gets its first key, so that no output is without a number.
    """
    slots_BTS = kept_BTS.cumsum(-1) - 1
    columns_S = torch.arange(kept_BTS.shape[-1], device=kept_BTS.device)
    columns_BTK = torch.zeros(*kept_BTS.shape[:2], k + 1, dtype=torch.long, device=kept_BTS.device)
    columns_BTK.scatter_(-1, slots_BTS.masked_fill(~kept_BTS, k), columns_S.expand_as(kept_BTS))
    counts_BT1 = kept_BTS.sum(-1, keepdim=True).clamp(min=1)
    places_BTK = columns_BTK[..., :k].masked_fill(~kept_BTS.any(-1, keepdim=True), 0)
    return places_BTK, torch.arange(k, device=kept_BTS.device) < counts_BT1


def gather_tokens(states: Sequence[torch.Tensor], places_BTK: torch.Tensor) -> list[torch.Tensor]:
    """Keys, values (B, G, S, C) at some places of each query: each (N, G, K, C).

    One `index_select` over all rows of memory, which is a copy of whole vectors also where the states are a view into
    a larger room; indexing with several tensors takes up to ten times as long on a CPU.
    """
    gathered: list[torch.Tensor] = []
    strides: tuple[int, ...] = ()
    for states_BGSC in map(whole_vectors, states):
        rows, heads, length, size = states_BGSC.shape
        if states_BGSC.stride() != strides:
            strides = states_BGSC.stride()
            by_row, by_head, by_token = (stride // size for stride in strides[:3])
            at_BTGK = list_offsets(rows, by_row, places_BTK)[:, None, None, None] + places_BTK[:, :, None] * by_token
            at_M = (at_BTGK + list_offsets(heads, by_head, places_BTK)[:, None]).flatten()
        last = (rows - 1) * by_row + (heads - 1) * by_head + (length - 1) * by_token
        vectors_MC = states_BGSC.as_strided((last + 1, size), (size, 1))
        gathered.append(vectors_MC.index_select(0, at_M).view(-1, heads, places_BTK.shape[-1], size))
    return gathered


def whole_vectors(states_BGSC: torch.Tensor) -> torch.Tensor:
    """Return the states with each vector in one piece and at a multiple of its size; themselves where they are so."""
    *strides, last = states_BGSC.stride()
    if last != 1 or any(stride % states_BGSC.shape[-1] for stride in strides):
        return states_BGSC.contiguous()
    return states_BGSC


def list_offsets(count: int, step: int, like: torch.Tensor) -> torch.Tensor:
    """0, `step`, 2 `step`, …: (count,)."""
    return torch.arange(0, count * step, step, device=like.device) if step else like.new_zeros(count)


def attend_to_places(
    kernel: Kernel,
    module: torch.nn.Module,
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    places_BTK: torch.Tensor,
    filled_BTK: torch.Tensor | None,
    **options: Any,
) -> torch.Tensor:
    """Attention of (query, key, value) over the filled places of each query, or over all of them: (B, T, H, C)."""
    query_BHTC, key_BGSC, value_BGSC = states
    rows, queries = places_BTK.shape[:2]
    query_NH1C = query_BHTC.transpose(1, 2).flatten(0, 1)[:, :, None]
    mask_N11K = None if filled_BTK is None else filled_BTK.flatten(0, 1)[:, None, None]
    keys_NGKC, values_NGKC = gather_tokens([key_BGSC, value_BGSC], places_BTK)
    attend = attend_once if kernel is sdpa_attention_forward else kernel
    output_N1HC, _ = attend(module, query_NH1C, keys_NGKC, values_NGKC, mask_N11K, **options)
    return output_N1HC.view(rows, queries, *output_N1HC.shape[2:])


def attend_once(
    _module: torch.nn.Module, query_NH1C: torch.Tensor, key_NGKC: torch.Tensor, value_NGKC: torch.Tensor,
    mask: torch.Tensor | None, *, scaling: float | None = None, dropout: float = 0.0, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """SDPA of one query: the heads that share keys are its queries, which takes two thirds of the time of `enable_gqa`
    on a CPU."""
    rows, heads, size = len(query_NH1C), key_NGKC.shape[1], value_NGKC.shape[-1]
    shared = query_NH1C.view(rows, heads, -1, query_NH1C.shape[-1])
    output = functional.scaled_dot_product_attention(
        shared, key_NGKC, value_NGKC, attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    return output.reshape(rows, 1, -1, size), None


def choose_kernel(module: torch.nn.Module, *, fused: bool, **options: Any) -> Kernel:
    """Return the attention of a model as a function of boolean masks: torch's SDPA where the model allows it and
    nothing else
    is asked of it, else the model's own eager one."""
    if fused and options.get("softcap") is None and options.get("s_aux") is None:
        return sdpa_attention_forward
    eager = find_eager_kernel(module)

    def attend(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        mask: torch.Tensor | None, **options: Any,
    ) -> tuple[torch.Tensor, Any]:  # fmt: skip
        return eager(
            module, query, key, value, None if mask is None else to_additive_mask(mask, query.dtype), **options
        )

    return attend


def find_eager_kernel(module: torch.nn.Module) -> Kernel:
    """Return the eager attention of the file that a model's layer is defined in."""
    eager_kernel: Kernel = vars(sys.modules[type(module).__module__])["eager_attention_forward"]
    return eager_kernel


def to_additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a boolean mask as a number that is added to the scores."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)
