"""DeepSeek sparse attention, the part without a model: the lightning indexer, its selection and its loss.

    I[t, s] = sum_j w[t, j] ReLU(q[t, j] . k[s]) / sqrt(d)          one small key per token, few query heads
    S_t     = the k tokens s with the largest I[t, s] that t may see
    loss    = sum_t KL(p[t, :] || softmax(I[t, :])),  p = attention summed over heads, normalised to 1

In the dense warm-up the loss covers every visible token, in the sparse stage the tokens of S_t. Its gradients reach
the indexer alone: hidden states and attention come in detached. Source: DeepSeek-V3.2-Exp, section 2.1; names of
weights and rotation as in transformers' `DeepseekV32Indexer`, whose forward has no gradients. The Hadamard rotation
and fp8 are left out there and here: they change the precision, not the result.

Shapes: B rows, T queries, S keys, D hidden, H index heads, I index head dimension, R rotated dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch.nn import functional

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
    """Return what the indexer imitates: attention summed over heads, normalised over the allowed keys, detached (B, T,
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
