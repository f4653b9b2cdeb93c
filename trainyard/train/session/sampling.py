"""Sampling and scoring with the model that is being trained: no gradients, no dropout, a generator of its own.

Log-probabilities of sampled tokens come twice: under the distribution that was sampled from (temperature, top-p), which
is what an importance ratio needs, and at temperature 1.

Shapes: B prompts, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import torch
from torch.nn.functional import log_softmax
from torch.nn.utils.rnn import pad_sequence

from trainyard.errors import InvalidInput


class StopReason(StrEnum):
    """Why a continuation ended."""

    END = "end"
    """An end token, which is part of the continuation."""
    LENGTH = "length"


@dataclass(frozen=True)
class Sampling:
    """How to sample. Temperature 0 is greedy."""

    max_new_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: tuple[int, ...] | None = None
    """Default: the model's own end tokens."""

    def __post_init__(self) -> None:
        fine = self.max_new_tokens >= 1 and self.temperature >= 0 and 0 < self.top_p <= 1
        if not fine:
            raise InvalidInput(
                f"These sampling settings have no meaning: {self}.",
                do="Use max_new_tokens >= 1, temperature >= 0 and 0 < top_p <= 1.",
                code="E-SAMPLING",
            )


@dataclass(frozen=True)
class Generated:
    """One continuation."""

    ids: list[int]
    text: str
    logprobs: list[float]
    """Of each token, under the distribution that it was sampled from; 0 for greedy."""
    logprobs_at_one: list[float]
    """Of each token, at temperature 1 without top-p."""
    stop_reason: StopReason


COMPACT_ROWS = 32
"""Rows from which on those that have ended leave the batch; below, that costs more than it saves."""
ENDED_SHARE = 0.25
"""Share of a batch that has ended before it is compacted."""


def sample(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
    """Continue every prompt; the same prompts, settings and seed give the same tokens.

    A prompt that occurs several times is computed once, where the model's cache can be copied. Raises `InvalidInput`
    (`E-SAMPLING`).
    """
    require_tokens(prompts)
    stop_ids = set(sampling.stop_ids if sampling.stop_ids is not None else end_ids(model, tokenizer))
    stops = torch.tensor(sorted(stop_ids), device=model.device)
    generator = torch.Generator(device=model.device).manual_seed(sampling.seed)
    logits_BV, mask_BT, cache = read_prompts(model, tokenizer, prompts)
    found: list[list[tuple[int, float, float]]] = [[] for _ in prompts]
    places_B, ended_B = list(range(len(prompts))), torch.zeros(len(prompts), dtype=torch.bool, device=model.device)
    for step in range(sampling.max_new_tokens):
        token_B, own_B, plain_B = choose(logits_BV, sampling, generator)
        for at, *drawn in zip(places_B, token_B.tolist(), own_B.tolist(), plain_B.tolist(), strict=True):
            found[at].append((drawn[0], drawn[1], drawn[2]))
        ended_B = ended_B | torch.isin(token_B, stops)
        if step + 1 == sampling.max_new_tokens or bool(ended_B.all()):
            break
        if len(prompts) >= COMPACT_ROWS and float(ended_B.float().mean()) >= ENDED_SHARE and copies(cache):
            kept_B = (~ended_B).nonzero()[:, 0]
            cache.batch_select_indices(kept_B)
            places_B = [places_B[at] for at in kept_B.tolist()]
            token_B, mask_BT, ended_B = token_B[kept_B], mask_BT[kept_B], ended_B[kept_B]
        mask_BT = torch.cat([mask_BT, torch.ones_like(token_B[:, None])], dim=1)
        positions_B1 = (mask_BT.sum(1, keepdim=True) - 1).clamp(min=0)
        reply = model(
            input_ids=token_B[:, None], attention_mask=mask_BT, position_ids=positions_B1, past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        cache, logits_BV = reply.past_key_values, reply.logits[:, -1].float()
    return [continuation(tokenizer, row, stop_ids) for row in found]


def read_prompts(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return the logits after each prompt (B, V), the mask of the left-padded prompts (B, T), and the cache."""
    different = list(dict.fromkeys(map(tuple, prompts)))
    for rows in (different, prompts):
        ids_BT, mask_BT = padded(rows, "left", pad_of(tokenizer), model.device)
        positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
        reply = model(input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, use_cache=True)
        logits_BV, cache = reply.logits[:, -1].float(), reply.past_key_values
        if len(rows) == len(prompts) or copies(cache):
            break
    if len(rows) == len(prompts):
        return logits_BV, mask_BT, cache
    place = {row: at for at, row in enumerate(different)}
    owner_B = torch.tensor([place[tuple(prompt)] for prompt in prompts], device=model.device)
    cache.batch_select_indices(owner_B)
    return logits_BV[owner_B], mask_BT[owner_B], cache


def copies(cache: Any) -> bool:
    """Whether the rows of a cache can be selected; the states of recurrent layers cannot."""
    layers: list[Any] = getattr(cache, "layers", None) or []
    return len(layers) > 0 and all(hasattr(layer, "batch_select_indices") for layer in layers)


def choose(
    logits_BV: torch.Tensor, sampling: Sampling, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A token for each row, its log-probability where it was drawn, and at temperature 1."""
    plain_BV = log_softmax(logits_BV, dim=-1)
    if sampling.temperature == 0:
        token_B = logits_BV.argmax(dim=-1)
        return token_B, torch.zeros_like(plain_BV[:, 0]), pick(plain_BV, token_B)
    as_plain = sampling.temperature == 1 and sampling.top_p >= 1
    own_BV = plain_BV if as_plain else log_softmax(nucleus(logits_BV / sampling.temperature, sampling.top_p), dim=-1)
    token_B = torch.multinomial(own_BV.exp(), 1, generator=generator)[:, 0]
    return token_B, pick(own_BV, token_B), pick(plain_BV, token_B)


def nucleus(logits_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Logits with all but the smallest set of likeliest tokens of mass `top_p` excluded (Holtzman et al. 2020)."""
    if top_p >= 1:
        return logits_BV
    ordered_BV, order_BV = logits_BV.sort(dim=-1, descending=True)
    before_BV = ordered_BV.softmax(dim=-1).cumsum(dim=-1) - ordered_BV.softmax(dim=-1)
    excluded_BV = torch.zeros_like(before_BV, dtype=torch.bool).scatter(1, order_BV, before_BV >= top_p)
    return logits_BV.masked_fill(excluded_BV, float("-inf"))


def pick(values_BV: torch.Tensor, token_B: torch.Tensor) -> torch.Tensor:
    return values_BV.gather(1, token_B[:, None])[:, 0]


def continuation(tokenizer: Any, drawn: Sequence[tuple[int, float, float]], stop_ids: set[int]) -> Generated:
    """One row of what was sampled, up to and including its end token."""
    ids = [token for token, _, _ in drawn]
    end = next((at for at, token in enumerate(ids) if token in stop_ids), None)
    length = len(ids) if end is None else end + 1
    return Generated(
        ids=ids[:length],
        text=tokenizer.decode(ids[:length], skip_special_tokens=True),
        logprobs=[own for _, own, _ in drawn[:length]],
        logprobs_at_one=[plain for _, _, plain in drawn[:length]],
        stop_reason=StopReason.LENGTH if end is None else StopReason.END,
    )


def token_logprobs(model: Any, tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[list[float | None]]:
    """Log-probability of every token of every row given those before it. Raises `InvalidInput` (`E-SAMPLING`)."""
    require_tokens(rows)
    ids_BT, mask_BT = padded(rows, "right", pad_of(tokenizer), model.device)
    logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits[:, :-1].float()
    found_BT = log_softmax(logits_BTV, dim=-1).gather(2, ids_BT[:, 1:, None])[..., 0]
    return [[None, *found_BT[index, : len(row) - 1].tolist()] for index, row in enumerate(rows)]


def padded(
    rows: Sequence[Sequence[int]], side: Literal["left", "right"], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask (B, T), filled up on one side."""
    ids = [torch.tensor(row, device=device) for row in rows]
    masks = [torch.ones_like(row) for row in ids]
    return pad_sequence(ids, True, pad_id, side), pad_sequence(masks, True, 0, side)


def require_tokens(rows: Sequence[Sequence[int]]) -> None:
    if not rows or not all(rows):
        raise InvalidInput("A prompt has no tokens.", do="Give every prompt at least one token.", code="E-SAMPLING")


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    """The model's end tokens, from its generation settings or its tokenizer."""
    named = getattr(model, "generation_config", None)
    found = named.eos_token_id if named is not None and named.eos_token_id is not None else tokenizer.eos_token_id
    return list(found) if isinstance(found, list) else [found] if found is not None else []


def pad_of(tokenizer: Any) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0)
