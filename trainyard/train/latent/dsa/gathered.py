"""Attention over the selected tokens alone: their keys and values are copied together, and the others are not read.

    places    the selected tokens of each query in the order of the row, filled up with its first token
    output    the model's attention over `places`, where the fillings are masked

So a new token reads `num_tokens` keys and values of a long row, and one small index key of every other token. The
selection is the one that the masked way makes, from the same scores, and so is the output but for rounding.

Shapes: B rows, T queries, S keys, K selected tokens, H heads of queries, G heads of keys, C dimensions of a head,
N = B * T.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward

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
