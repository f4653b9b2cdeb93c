"""Sparse attention on a model of transformers: `granularity: token` (DeepSeek's) or `head` (routing of heads).

Each full-attention layer gets a chooser of what it attends to. It hangs on transformers' attention interface: while a
model trains, its own eager attention is computed with a narrower mask, which is not faster than dense attention.
Without gradients a query of a long row reads the selected tokens alone (`gathered`). Layers with a sliding window are
left as they are: they are sparse already.

The keys of the indexer are cached in transformers' own `DynamicIndexedLayer`, which crops and repeats them together
with the keys of the attention.

Shapes: B rows, T queries, S keys, H heads, D hidden, C dimensions of a head.

Routing of attention heads: which heads answer for a token, in the way of MoH (arXiv 2410.11842).

    g       = softmax(W h)                                       one score per head
    kept    = the shared heads, always, and the best of the others
    output  = sum over kept heads of (number of heads) * g_i * head_i
    balance = (number of routed heads) * sum_i (share of tokens that keep i) * (mean g_i)

With a router of zeros and all heads kept each factor is 1: training begins with the dense model. This is not DeepSeek's
sparse attention, which chooses tokens (`dsa_indexer`); heads are computed here and then left out, so nothing is faster.

Shapes: B rows, T positions, D hidden, H heads, C dimensions of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from transformers.cache_utils import Cache

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.train.latent.dsa.indexer import (
    GATHERED_FROM,
    QUERIES_AT_ONCE,
    Kernel,
    LightningIndexer,
    attend_to_places,
    attention_recall,
    attention_target,
    best_places,
    choose_kernel,
    find_eager_kernel,
    find_selected,
    index_divergence,
    select_tokens,
    to_additive_mask,
)


@dataclass(frozen=True)
class HeadRouting:
    """Number of heads that a token uses: the shared ones and some of the others."""

    num_heads: int
    num_shared: int
    num_active: int
    """Heads per token, the shared ones included."""

    @property
    def num_routed(self) -> int:
        return self.num_heads - self.num_shared


class HeadRouter(torch.nn.Module):
    """Weights of the heads for each token. The first heads are the shared ones."""

    def __init__(self, hidden_size: int, routing: HeadRouting) -> None:
        super().__init__()
        self.routing = routing
        self.gate = torch.nn.Linear(hidden_size, routing.num_heads, bias=False)
        torch.nn.init.zeros_(self.gate.weight)

    def forward(self, hidden_BTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Factors of the heads (0 where a head is left out), which are kept, and their probabilities: (B, T, H)."""
        probs_BTH = self.gate(hidden_BTD.to(self.gate.weight.dtype)).float().softmax(dim=-1)
        kept_BTH = keep_heads(probs_BTH.detach(), self.routing)
        return probs_BTH * self.routing.num_heads * kept_BTH, kept_BTH, probs_BTH


def keep_heads(probs_BTH: torch.Tensor, routing: HeadRouting) -> torch.Tensor:
    """Return which heads a token uses: the shared ones and the best of the others."""
    shared = routing.num_shared
    kept_BTH = torch.zeros_like(probs_BTH, dtype=torch.bool)
    kept_BTH[..., :shared] = True
    best_BTK = probs_BTH[..., shared:].topk(routing.num_active - shared, dim=-1).indices + shared
    return kept_BTH.scatter(-1, best_BTK, True)


def balance_loss(
    kept_BTH: torch.Tensor, probs_BTH: torch.Tensor, valid_BT: torch.Tensor, routing: HeadRouting
) -> torch.Tensor:
    """Imbalance of the routed heads over the valid tokens (section 3.3 of the paper).

    With `n` routed heads of which `m` are kept, equal use and equal probabilities that sum to 1 give `m`.
    """
    weight_BT1 = valid_BT[..., None].float()
    count = weight_BT1.sum().clamp(min=1)
    share_H = (kept_BTH * weight_BT1).sum(dim=(0, 1))[routing.num_shared :] / count
    mean_H = (probs_BTH * weight_BT1).sum(dim=(0, 1))[routing.num_shared :] / count
    return routing.num_routed * (share_H * mean_H).sum()


SELECTOR = "trainyard_selector"
"""Attribute of an attention layer, which is not a module: the weights of the choosers belong to the technique."""
Chooser = LightningIndexer | HeadRouter
Select = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(scores, visible, k) -> kept, all (B, T, S)."""


class AttentionPhase(StrEnum):
    """Phase of attention that a pass computes."""

    DENSE = "dense"
    """All visible tokens, as without this file."""
    WARMUP = "warmup"
    """All visible tokens; the indexer learns to predict them."""
    SPARSE = "sparse"
    """The selected tokens or heads."""


@dataclass
class Selection:
    """Shared state of all layers of a model: the phase, and sums over layers and tokens of a pass that is measured."""

    num_tokens: int
    """Tokens that a query attends to at most (granularity token)."""
    phase: AttentionPhase = AttentionPhase.SPARSE
    select: Select = select_tokens
    gathers: bool = True
    """Whether a query may read its selected tokens alone; False masks the others, with the same result."""
    fused: bool = False
    """Whether the model allows torch's SDPA."""
    positions_BT: torch.Tensor | None = None
    fewest_seen: int | None = None
    """Keys that the query of this pass sees which sees the fewest; None until the first layer has looked."""
    measures: list[Measures] | None = None
    """One of each layer while a pass is measured."""

    @property
    def only_answers(self) -> bool:
        """Return whether nothing but the output of the selection is asked of a pass."""
        return self.phase is AttentionPhase.SPARSE and self.measures is None and not torch.is_grad_enabled()

    def places(self, scores_BTS: torch.Tensor, visible_BTS: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the selected tokens are (B, T, K), and which of these places are filled (B, T, K)."""
        if scores_BTS.is_cuda and self.select is select_tokens:
            return best_places(scores_BTS, visible_BTS, self.num_tokens)
        visible_BTS = torch.ones_like(scores_BTS, dtype=torch.bool) if visible_BTS is None else visible_BTS
        return find_selected(self.select(scores_BTS, visible_BTS, self.num_tokens), self.num_tokens)

    @contextmanager
    def measured(self, phase: AttentionPhase) -> Iterator[list[Measures]]:
        """Compute a phase and collect what its layers measure."""
        before, self.phase, self.measures = self.phase, phase, []
        try:
            yield self.measures
        finally:
            self.phase, self.measures = before, None


@dataclass(frozen=True)
class Measures:
    """Measures of one layer and pass, summed over the tokens that are not padding."""

    loss: torch.Tensor
    """KL of the indexer, or the balance loss times the tokens."""
    kept: torch.Tensor
    """Share of the visible tokens, or of the heads, that was used."""
    recall: torch.Tensor
    """Share of the dense attention on what the selection keeps; of `warmup` alone."""
    tokens: torch.Tensor


@dataclass
class LayerInput:
    """Inputs of an attention layer, until its attention is computed."""

    hidden_BTD: torch.Tensor
    cache: Cache | None


@dataclass
class Selector:
    """Selector of an attention layer: an indexer of tokens or a router of heads."""

    chooser: Chooser
    shared: Selection
    layer_input: LayerInput | None = None

    def take(self) -> LayerInput:
        """Return the input of the layer that computes now; good once."""
        layer_input, self.layer_input = self.layer_input, None
        assert layer_input is not None, "the layer's hook runs before its attention"
        return layer_input


@dataclass
class Attention:
    """A call of an attention layer, as transformers' interface passes it."""

    module: torch.nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor
    """(B, 1, T, S), added to the scores."""
    options: JsonObject = field(default_factory=dict)

    @property
    def visible_BTS(self) -> torch.Tensor:
        return self.mask[:, 0] > torch.finfo(self.mask.dtype).min / 2

    @property
    def is_biased(self) -> bool:
        """Return whether scores depend on where a key is."""
        return self.options.get("position_bias") is not None

    @property
    def valid_BT(self) -> torch.Tensor:
        """Queries that see themselves, which padding does not."""
        return self.visible_BTS.diagonal(self.key.shape[2] - self.query.shape[2], 1, 2)

    def run(self, kept_BTS: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the model's eager attention over the kept tokens: output (B, T, H, C), weights (B, H, T, S)."""
        lowest = torch.finfo(self.mask.dtype).min
        mask = self.mask if kept_BTS is None else self.mask.masked_fill(~kept_BTS[:, None], lowest)
        return find_eager_kernel(self.module)(self.module, self.query, self.key, self.value, mask, **self.options)

    def clean_weights(self, weights_BHTS: torch.Tensor, kept_BTS: torch.Tensor) -> torch.Tensor:
        """Return the same weights without dropout."""
        if not (self.options.get("dropout") and self.module.training):
            return weights_BHTS
        with torch.no_grad():
            return Attention(**{**vars(self), "options": {**self.options, "dropout": 0.0}}).run(kept_BTS)[1]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute attention as transformers' interface asks for it; a layer without a selector attends densely."""
    call = Attention(module, query, key, value, additive_mask(attention_mask, query, key), options)
    selector: Selector | None = getattr(module, SELECTOR, None)
    if selector is None:
        return call.run()
    layer_input = selector.take()
    chooser, shared = selector.chooser, selector.shared
    if isinstance(chooser, HeadRouter):
        return attend_heads(call, chooser, shared, layer_input)
    return attend_tokens(call, chooser, shared, layer_input)


def additive_mask(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return the mask as a number that is added to the scores, of the keys that there are."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    if mask is None:
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device)
        mask = mask.tril(num_keys - num_queries).expand(query.shape[0], 1, -1, -1)
    mask = mask[..., :num_keys]
    return mask if mask.dtype is not torch.bool else to_additive_mask(mask, query.dtype)


def attend_tokens(
    call: Attention, indexer: LightningIndexer, shared: Selection, layer_input: LayerInput
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend to the tokens that the indexer selects, or to all while it warms up."""
    positions_BT = query_positions(shared, call)
    keys_BSI = update_keys(call.module, indexer.keys(layer_input.hidden_BTD, positions_BT), layer_input.cache)
    if keys_BSI.shape[1] != call.key.shape[2]:
        raise InvalidInput(
            f"The cache has {call.key.shape[2]} keys of attention and {keys_BSI.shape[1]} of the indexer.",
            why="Sparse attention selects among the tokens whose index keys it has.",
            do="Begin with an empty cache, or with one that this model filled.",
            code="E-STEP",
        )
    if shared.phase is AttentionPhase.DENSE:
        return call.run()
    if shared.only_answers and not call.options.get("output_attentions"):
        return answer_in_blocks(call, indexer, shared, Queries(layer_input.hidden_BTD, positions_BT, keys_BSI)), None
    scores_BTS = indexer(layer_input.hidden_BTD, positions_BT, keys_BSI)
    visible_BTS = call.visible_BTS
    kept_BTS = shared.select(scores_BTS.detach(), visible_BTS, shared.num_tokens)
    allowed_BTS = visible_BTS if shared.phase is AttentionPhase.WARMUP else kept_BTS
    output, weights_BHTS = call.run(allowed_BTS)
    if shared.measures is not None:
        clean_BHTS = call.clean_weights(weights_BHTS, allowed_BTS)
        target_BTS = attention_target(clean_BHTS, allowed_BTS)
        valid_BT = call.valid_BT.float()
        shared.measures.append(
            Measures(
                loss=(index_divergence(target_BTS, scores_BTS, allowed_BTS) * valid_BT).sum(),
                kept=(kept_BTS.sum(-1) / visible_BTS.sum(-1).clamp(min=1) * valid_BT).sum(),
                recall=(attention_recall(clean_BHTS, kept_BTS, allowed_BTS) * valid_BT).sum(),
                tokens=valid_BT.sum(),
            )
        )
    return output, weights_BHTS


@dataclass(frozen=True)
class Queries:
    """Queries for which the indexer scores keys."""

    hidden_BTD: torch.Tensor
    positions_BT: torch.Tensor
    keys_BSI: torch.Tensor


def answer_in_blocks(call: Attention, indexer: LightningIndexer, shared: Selection, queries: Queries) -> torch.Tensor:
    """Return the output of the selection (B, T, H, C), a block of queries at a time.

    The tokens of an answer read their selected tokens alone. The queries of a prompt mask the others: 64 of them take
    1.2 s on a CPU at 32,768 keys, and 1.5 s with a copy of the 2,048 selected ones for each.
    """
    kernel, num_queries = choose_kernel(call.module, fused=shared.fused, **call.options), call.query.shape[2]
    if shared.gathers and pays(num_queries, call.key.shape[2], shared.num_tokens) and not call.is_biased:
        return answer_by_gather(call, indexer, shared, queries, kernel)
    visible_BTS, outputs = call.visible_BTS, []
    for start in range(0, num_queries, QUERIES_AT_ONCE):
        block = slice(start, start + QUERIES_AT_ONCE)
        scores_BTS = indexer(queries.hidden_BTD[:, block], queries.positions_BT[:, block], queries.keys_BSI)
        kept_BTS = shared.select(scores_BTS, visible_BTS[:, block], shared.num_tokens)
        query_BHTC = call.query[:, :, block]
        outputs.append(kernel(call.module, query_BHTC, call.key, call.value, kept_BTS[:, None], **call.options)[0])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def answer_by_gather(
    call: Attention, indexer: LightningIndexer, shared: Selection, queries: Queries, kernel: Kernel
) -> torch.Tensor:
    """Return the output of the selection for one query of each row, which reads its selected tokens alone (B, 1, H, C).

    On a card what counts is the number of operations, so that masks are left out where nothing is masked.
    """
    if shared.fewest_seen is None:
        shared.fewest_seen = int(call.visible_BTS.sum(-1).min())
    visible_BTS = None if shared.fewest_seen == call.key.shape[2] else call.visible_BTS
    scores_BTS = indexer(queries.hidden_BTD, queries.positions_BT, queries.keys_BSI)
    places_BTK, filled_BTK = shared.places(scores_BTS, visible_BTS)
    mask_BTK = None if shared.fewest_seen >= shared.num_tokens else filled_BTK
    states = call.query, call.key, call.value
    return attend_to_places(kernel, call.module, states, places_BTK, mask_BTK, **call.options)


def pays(num_queries: int, num_keys: int, k: int) -> bool:
    """Return whether copying the selected tokens is less work than reading all of them."""
    return num_queries == 1 and num_keys >= GATHERED_FROM * k


def attend_heads(
    call: Attention, router: HeadRouter, shared: Selection, layer_input: LayerInput
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with all heads and weight those that the router keeps."""
    output_BTHC, weights_BHTS = call.run()
    if shared.phase is AttentionPhase.DENSE:
        return output_BTHC, weights_BHTS
    factors_BTH, kept_BTH, probs_BTH = router(layer_input.hidden_BTD)
    if shared.measures is not None:
        valid_BT = call.valid_BT
        tokens = valid_BT.float().sum()
        shared.measures.append(
            Measures(
                loss=balance_loss(kept_BTH, probs_BTH, valid_BT, router.routing) * tokens,
                kept=(kept_BTH.float().mean(-1) * valid_BT).sum(),
                recall=tokens,
                tokens=tokens,
            )
        )
    return output_BTHC * factors_BTH[..., None].to(output_BTHC.dtype), weights_BHTS


def query_positions(shared: Selection, call: Attention) -> torch.Tensor:
    """Positions of the queries (B, T): those that the model was given, else counted from the cache."""
    rows, num_queries, num_keys = call.query.shape[0], call.query.shape[2], call.key.shape[2]
    if shared.positions_BT is not None:
        return shared.positions_BT.expand(rows, -1)
    return torch.arange(num_keys - num_queries, num_keys, device=call.query.device).expand(rows, -1)


def update_keys(module: Any, keys_BTI: torch.Tensor, cache: Cache | None) -> torch.Tensor:
    """Return the index keys of all tokens so far: those of the cache and the new ones, which it keeps."""
    return keys_BTI if cache is None else cache.update_indexer(keys_BTI, module.layer_idx)
