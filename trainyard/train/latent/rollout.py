"""Passes over a model that begin with vectors instead of tokens: what all techniques share.

A position of a batch is a token, or one of the technique's own vectors: `slots` (B, T) is 0 for a token and k for the
k-th vector. The cache that a pass leaves is read by the next one, and gradients go through it.

Shapes: B rows, T positions, K own vectors, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache

from trainyard.errors import InvalidInput
from trainyard.train.contracts import Batch
from trainyard.train.model.head import evaluating, read_output
from trainyard.train.model.sampling import Reading

SLOTS = "slots"
Projection = Callable[[torch.Tensor], torch.Tensor]
"""From hidden states to the vectors that are fed back."""


def unwrap_base(model: Any) -> Any:
    """Return the transformers model inside PEFT's, whose layers have the adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def embed(model: Any, batch: Batch, vectors_KD: torch.Tensor) -> torch.Tensor:
    """Embeddings of a batch with the own vectors in their places: (B, T, D). What is at a slot above their number
    is computed while it is read."""
    embeds_BTD = model.get_input_embeddings()(batch["input_ids"])
    slots_BT = batch[SLOTS]
    own_BTD = vectors_KD.to(embeds_BTD.dtype)[(slots_BT - 1).clamp(0, len(vectors_KD) - 1)]
    return torch.where(slots_BT[:, :, None] > 0, own_BTD, embeds_BTD)


def compute_positions(mask_BT: torch.Tensor) -> torch.Tensor:
    """Position of each column in its row, from 0 after padding on the left: (B, T)."""
    return (mask_BT.cumsum(1) - 1).clamp(min=0)


def new_cache(model: Any) -> DynamicCache:
    return DynamicCache(config=unwrap_base(model).config)


PROBE_TOLERANCE = 0.05
"""Relative difference that a model in bf16 stays below; one that does not read its cache is off by its own size."""


def require_passes(model: Any) -> None:
    """Raise `InvalidInput` (`E-MODEL-INVALID`) for a model that does not read a row in passes over a cache."""
    base = unwrap_base(model)
    ids_BT = torch.arange(4, device=base.device)[None]
    mask_BT, why = torch.ones_like(ids_BT), ""
    with evaluating(base):
        embeds_BTD = model.get_input_embeddings()(ids_BT)
        whole_BTD = run(model, embeds_BTD, mask_BT)
        try:
            cache = new_cache(model)
            parts = [
                run(model, embeds_BTD[:, :2], mask_BT[:, :2], cache),
                run(model, embeds_BTD[:, 2:], mask_BT, cache),
            ]
            apart = float((torch.cat(parts, 1) - whole_BTD).norm() / whole_BTD.norm())
            why = "" if apart < PROBE_TOLERANCE else f"Two passes gave states that are {apart:.2f} of their size apart."
        except Exception as error:  # each architecture fails in its own way
            why = f"Two passes failed: {' '.join(str(error).split())[:200]}"
    if why:
        raise InvalidInput(
            f"{type(base).__name__} cannot read a row in passes over a cache of keys and values.",
            why=why,
            do="Use a base with attention in all layers, such as a Llama, a Qwen or a GPT-2, or latent type pause.",
            code="E-MODEL-INVALID",
        )


def find_window(model: Any) -> int | None:
    """Return the smallest sliding window of a model's layers; None where all layers see everything."""
    layers: list[Any] = new_cache(model).layers
    return min((int(layer.sliding_window) for layer in layers if getattr(layer, "sliding_window", None)), default=None)


def run(model: Any, embeds_BTD: torch.Tensor, mask_BT: torch.Tensor, cache: DynamicCache | None = None) -> torch.Tensor:
    """Hidden states after the final norm of the columns that are given: (B, T, D).

    `mask_BT` has the columns of the cache too. A cache that is given grows by these columns.
    """
    states: torch.Tensor = reply_to(model, embeds_BTD, mask_BT, cache).last_hidden_state
    return states


def run_layers(
    model: Any, embeds_BTD: torch.Tensor, mask_BT: torch.Tensor, cache: DynamicCache | None = None
) -> tuple[torch.Tensor, ...]:
    """Return the same of every layer, the embeddings first and the states after the final norm last."""
    states: tuple[torch.Tensor, ...] = reply_to(model, embeds_BTD, mask_BT, cache, layers=True).hidden_states
    return states


def reply_to(
    model: Any, embeds_BTD: torch.Tensor, mask_BT: torch.Tensor, cache: DynamicCache | None, *, layers: bool = False
) -> Any:
    return unwrap_base(model).base_model(
        inputs_embeds=embeds_BTD,
        attention_mask=mask_BT,
        position_ids=compute_positions(mask_BT)[:, -embeds_BTD.shape[1] :],
        past_key_values=cache,
        use_cache=cache is not None,
        output_hidden_states=layers,
    )


def open_with(
    model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor, vectors_KD: torch.Tensor, added: list[int]
) -> tuple[Reading, torch.Tensor]:
    """Read prompts and, after each, the own vectors with these numbers (from 1); the last hidden state too (B, D)."""
    rows = len(ids_BT)
    slots_T = torch.tensor([0] * ids_BT.shape[1] + added, device=ids_BT.device)
    more_BT = ids_BT.new_zeros(rows, len(added))
    batch = {"input_ids": torch.cat([ids_BT, more_BT], 1), SLOTS: slots_T.expand(rows, -1)}
    mask_BT = torch.cat([mask_BT, torch.ones_like(more_BT)], 1)
    cache = new_cache(model)
    hidden_BTD = run(model, embed(model, batch, vectors_KD), mask_BT, cache)
    return Reading(cache, mask_BT), hidden_BTD[:, -1]


def think(model: Any, reading: Reading, fed_BTD: torch.Tensor) -> tuple[Reading, torch.Tensor]:
    """Read vectors after what has been read; the last hidden state too (B, D)."""
    ones_BT = reading.mask_BT.new_ones(fed_BTD.shape[:2])
    mask_BT = torch.cat([reading.mask_BT, ones_BT], 1)
    return Reading(reading.cache, mask_BT), run(model, fed_BTD, mask_BT, reading.cache)[:, -1]


def think_ahead(
    model: Any, embeds_BTD: torch.Tensor, mask_BT: torch.Tensor, thought_BT: torch.Tensor, project: Projection
) -> torch.Tensor:
    """Hidden states of a batch in which a thought is what `project` makes of the state before it: (B, T, D).

    The columns up to the first thought are one pass, each column with a thought is another one, and what is behind the
    last is one more: each computes new columns only, and gradients go back through all of them.
    """
    columns = thought_BT.any(0).nonzero()[:, 0].tolist()
    if not columns:
        return run(model, embeds_BTD, mask_BT)
    first, last = columns[0], columns[-1]
    cache = new_cache(model)
    parts_BTD = [run(model, embeds_BTD[:, :first], mask_BT[:, :first], cache)]
    for column in range(first, last + 1):
        own_B11 = thought_BT[:, column, None, None]
        fed_B1D = torch.where(own_B11, project(parts_BTD[-1][:, -1:]).to(embeds_BTD.dtype), embeds_BTD[:, column, None])
        parts_BTD.append(run(model, fed_B1D, mask_BT[:, : column + 1], cache))
    if last + 1 < embeds_BTD.shape[1]:
        parts_BTD.append(run(model, embeds_BTD[:, last + 1 :], mask_BT, cache))
    return torch.cat(parts_BTD, 1)


def compute_logits(model: Any, hidden_BD: torch.Tensor) -> torch.Tensor:
    """Logits of some hidden states in float32: (B, V)."""
    return read_output(unwrap_base(model))(hidden_BD)
