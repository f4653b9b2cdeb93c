"""Sampling and scoring with the model that is being trained: no gradients, no dropout, a generator of its own.

Log-probabilities of sampled tokens come twice: under the distribution that was sampled from (temperature, top-p), which
is what an importance ratio needs, and at temperature 1.

Shapes: B prompts, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch.nn.functional import log_softmax
from torch.nn.utils.rnn import pad_sequence

from trainyard.errors import InvalidInput
from trainyard.train.contracts import Generated, Sampling, StopReason


@dataclass
class Reading:
    """Read prefix of some rows: the cache, and which of its columns are seen (B, T)."""

    cache: Any
    mask_BT: torch.Tensor


class PromptReader(Protocol):
    """Reader of a prompt and each token after it; one that thinks reads more than that."""

    def open(self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        """Read prompts that are padded on the left; returns the logits of the first token of an answer too (B, V)."""

    def step(self, model: Any, reading: Reading, token_B: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        """Read one more token of each row; returns the logits of the next one too (B, V)."""


class PlainReader:
    """Reads tokens and nothing else."""

    def open(self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        return self.read(model, Reading(None, mask_BT), ids_BT)

    def step(self, model: Any, reading: Reading, token_B: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        fed_BT = token_B[:, None]
        mask_BT = torch.cat([reading.mask_BT, torch.ones_like(fed_BT)], dim=1)
        return self.read(model, Reading(reading.cache, mask_BT), fed_BT)

    def read(self, model: Any, reading: Reading, fed_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        """Read tokens that the mask of `reading` includes already."""
        mask_BT = reading.mask_BT
        positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)[:, -fed_BT.shape[1] :]
        reply = model(
            input_ids=fed_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=reading.cache,
            use_cache=True,
        )
        return Reading(reply.past_key_values, mask_BT), reply.logits[:, -1].float()


PLAIN = PlainReader()
LATENT = "trainyard_latent"
"""Attribute of a model under which the weights of a latent technique are, which reads its prompts."""


def choose_reader(model: Any) -> PromptReader:
    """Who reads the prompts of a model: its latent technique, if it has one."""
    reader: PromptReader = getattr(model, LATENT, PLAIN)
    return reader


COMPACT_ROWS = 32
"""Rows from which on those that have ended leave the batch; below, that costs more than it saves."""
ENDED_SHARE = 0.25
"""Share of a batch that has ended before it is compacted."""


def sample(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], sampling: Sampling, reader: PromptReader = PLAIN
) -> list[Generated]:
    """Continue every prompt; the same prompts, settings and seed give the same tokens.

    A prompt that occurs several times is computed once, where the model's cache can be copied and the reader does not
    think. Raises `InvalidInput` (`E-SAMPLING`).
    """
    require_tokens(prompts)
    stop_ids = set(sampling.stop_ids if sampling.stop_ids is not None else end_ids(model, tokenizer))
    stops = torch.tensor(sorted(stop_ids), device=model.device)
    generator = torch.Generator(device=model.device).manual_seed(sampling.seed)
    reading, logits_BV = open_prompts(model, tokenizer, prompts, reader)
    compacts = reader is PLAIN and len(prompts) >= COMPACT_ROWS and copies(reading.cache)
    samples: list[list[tuple[int, float, float]]] = [[] for _ in prompts]
    places_B, ended_B = list(range(len(prompts))), torch.zeros(len(prompts), dtype=torch.bool, device=model.device)
    for step in range(sampling.max_new_tokens):
        token_B, own_B, plain_B = choose(logits_BV, sampling, generator)
        for at, *token_sample in zip(places_B, token_B.tolist(), own_B.tolist(), plain_B.tolist(), strict=True):
            samples[at].append((token_sample[0], token_sample[1], token_sample[2]))
        ended_B = ended_B | torch.isin(token_B, stops)
        if step + 1 == sampling.max_new_tokens or bool(ended_B.all()):
            break
        if compacts and float(ended_B.float().mean()) >= ENDED_SHARE:
            kept_B = (~ended_B).nonzero()[:, 0]
            reading = select_rows(reading, kept_B)
            places_B = [places_B[at] for at in kept_B.tolist()]
            token_B, ended_B = token_B[kept_B], ended_B[kept_B]
        reading, logits_BV = reader.step(model, reading, token_B)
    return [continuation(tokenizer, row, stop_ids) for row in samples]


def open_prompts(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], reader: PromptReader
) -> tuple[Reading, torch.Tensor]:
    """Read the prompts, each different one once; returns the logits after each of them too (B, V)."""
    different = list(dict.fromkeys(map(tuple, prompts))) if reader is PLAIN else prompts
    for rows in (different, prompts):
        reading, logits_BV = reader.open(model, *pad_rows(rows, "left", find_pad_id(tokenizer), model.device))
        if len(rows) == len(prompts) or copies(reading.cache):
            break
    if len(rows) == len(prompts):
        return reading, logits_BV
    row_of = {row: at for at, row in enumerate(different)}
    owner_B = torch.tensor([row_of[tuple(prompt)] for prompt in prompts], device=model.device)
    return select_rows(reading, owner_B), logits_BV[owner_B]


def select_rows(reading: Reading, rows_B: torch.Tensor) -> Reading:
    """Return the reading of some of the rows, each as often as it is named. The cache is changed in place."""
    reading.cache.batch_select_indices(rows_B)
    return Reading(reading.cache, reading.mask_BT[rows_B])


def copies(cache: Any) -> bool:
    """Return whether the rows of a cache can be selected; the states of recurrent layers cannot."""
    layers: list[Any] = getattr(cache, "layers", None) or []
    return len(layers) > 0 and all(hasattr(layer, "batch_select_indices") for layer in layers)


def choose(
    logits_BV: torch.Tensor, sampling: Sampling, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a token for each row, its log-probability where it was drawn, and at temperature 1."""
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


def continuation(tokenizer: Any, token_samples: Sequence[tuple[int, float, float]], stop_ids: set[int]) -> Generated:
    """Return one row of what was sampled, up to and including its end token."""
    ids = [token for token, _, _ in token_samples]
    end = next((at for at, token in enumerate(ids) if token in stop_ids), None)
    length = len(ids) if end is None else end + 1
    return Generated(
        ids=ids[:length],
        text=tokenizer.decode(ids[:length], skip_special_tokens=True),
        logprobs=[logprob for _, logprob, _ in token_samples[:length]],
        logprobs_at_one=[plain for _, _, plain in token_samples[:length]],
        stop_reason=StopReason.LENGTH if end is None else StopReason.END,
    )


def token_logprobs(model: Any, tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[list[float | None]]:
    """Log-probability of every token of every row given those before it. Raises `InvalidInput` (`E-SAMPLING`)."""
    require_tokens(rows)
    ids_BT, mask_BT = pad_rows(rows, "right", find_pad_id(tokenizer), model.device)
    logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits[:, :-1].float()
    found_BT = log_softmax(logits_BTV, dim=-1).gather(2, ids_BT[:, 1:, None])[..., 0]
    return [[None, *found_BT[index, : len(row) - 1].tolist()] for index, row in enumerate(rows)]


def pad_rows(
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
    """Return the model's end tokens, from its generation settings or its tokenizer."""
    named = getattr(model, "generation_config", None)
    stop_ids = named.eos_token_id if named is not None and named.eos_token_id is not None else tokenizer.eos_token_id
    return list(stop_ids) if isinstance(stop_ids, list) else [stop_ids] if stop_ids is not None else []


def find_pad_id(tokenizer: Any) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0)
