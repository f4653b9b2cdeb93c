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
    """Reader of a model's prompts: its latent technique, if it has one."""
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
        if sampling.stop_texts:
            says_B = [ends_with_text(tokenizer, samples[at], sampling.stop_texts) for at in places_B]
            ended_B = ended_B | torch.tensor(says_B, device=ended_B.device)
        if step + 1 == sampling.max_new_tokens or bool(ended_B.all()):
            break
        if compacts and float(ended_B.float().mean()) >= ENDED_SHARE:
            kept_B = (~ended_B).nonzero()[:, 0]
            reading = select_rows(reading, kept_B)
            places_B = [places_B[at] for at in kept_B.tolist()]
            token_B, ended_B = token_B[kept_B], ended_B[kept_B]
        reading, logits_BV = reader.step(model, reading, token_B)
    return [continuation(tokenizer, row, stop_ids, sampling.stop_texts) for row in samples]


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
    as_plain = sampling.temperature == 1 and sampling.top_p >= 1 and sampling.top_k is None
    own_BV = plain_BV if as_plain else log_softmax(narrow(logits_BV / sampling.temperature, sampling), dim=-1)
    token_B = torch.multinomial(own_BV.exp(), 1, generator=generator)[:, 0]
    return token_B, pick(own_BV, token_B), pick(plain_BV, token_B)


def narrow(logits_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the logits with the tokens excluded that `top_k` and `top_p` leave out."""
    if sampling.top_k is not None and sampling.top_k < logits_BV.shape[-1]:
        least_B1 = logits_BV.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, float("-inf"))
    return nucleus(logits_BV, sampling.top_p)


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


def continuation(
    tokenizer: Any,
    token_samples: Sequence[tuple[int, float, float]],
    stop_ids: set[int],
    stop_texts: Sequence[str] = (),
) -> Generated:
    """Return one row of the samples, up to and including its end token, or the token that completes a text."""
    ids = [token for token, _, _ in token_samples]
    ends = [at for at, token in enumerate(ids) if token in stop_ids]
    if stop_texts:
        rows = (token_samples[: at + 1] for at in range(len(ids)))
        ends += [at for at, row in enumerate(rows) if ends_with_text(tokenizer, row, stop_texts)]
    end = min(ends, default=None)
    length = len(ids) if end is None else end + 1
    return Generated(
        ids=ids[:length],
        text=tokenizer.decode(ids[:length], skip_special_tokens=True),
        logprobs=[logprob for _, logprob, _ in token_samples[:length]],
        logprobs_at_one=[plain for _, _, plain in token_samples[:length]],
        stop_reason=StopReason.LENGTH if end is None else StopReason.END,
    )


def ends_with_text(tokenizer: Any, token_samples: Sequence[tuple[int, float, float]], texts: Sequence[str]) -> bool:
    """Return whether the last token of a row completes one of some texts.

    A text of n characters begins in the last 4 n + 1 tokens, as a character takes at most four.
    """
    tail = [token for token, _, _ in token_samples[-(4 * max(map(len, texts)) + 1) :]]
    now, before = tokenizer.decode(tail), tokenizer.decode(tail[:-1])
    return any(now.count(text) > before.count(text) for text in texts)


def token_logprobs(model: Any, tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[list[float | None]]:
    """Log-probability of every token of every row given those before it. Raises `InvalidInput` (`E-SAMPLING`)."""
    require_tokens(rows)
    ids_BT, mask_BT = pad_rows(rows, "right", find_pad_id(tokenizer), model.device)
    logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits[:, :-1].float()
    found_BT = log_softmax(logits_BTV, dim=-1).gather(2, ids_BT[:, 1:, None])[..., 0]
    return [[None, *found_BT[index, : len(row) - 1].tolist()] for index, row in enumerate(rows)]


@dataclass(frozen=True)
class PromptScores:
    """Log-probabilities of a prompt's tokens given those before them; position 0 has none."""

    logprobs: list[float | None]
    likeliest: list[list[tuple[int, float]]]
    """Of each position after the first: its k likeliest tokens."""
    targets: list[list[float]]
    """Of each position after the first: the log-probabilities of the tokens that the caller names there."""
    draws: list[list[tuple[int, float]]]
    """Of each position after the first: independent draws from its distribution."""


@dataclass(frozen=True)
class PromptQuestions:
    """What a caller wants to know of a prompt."""

    top_k: int = 0
    targets: Sequence[Sequence[int]] = ()
    """A row of token ids for each position after the first; -1 means none."""
    draws: int = 0
    temperature: float = 1.0
    """Of the draws."""
    seed: int = 0


def score_prompt(model: Any, prompt: Sequence[int], questions: PromptQuestions) -> PromptScores:
    """Score one prompt in one pass. Raises `InvalidInput` (`E-SAMPLING`) for one without tokens."""
    require_tokens([prompt])
    ids_1T = torch.tensor([list(prompt)], device=model.device)
    logits_TV = model(input_ids=ids_1T, attention_mask=torch.ones_like(ids_1T), use_cache=False).logits[0, :-1].float()
    logprobs_TV = log_softmax(logits_TV, dim=-1)
    own_T = logprobs_TV.gather(1, ids_1T[0, 1:, None])[:, 0].tolist()
    likeliest, targets, draws = list[list[tuple[int, float]]](), list[list[float]](), list[list[tuple[int, float]]]()
    if questions.top_k:
        values_TK, ids_TK = logprobs_TV.topk(min(questions.top_k, logprobs_TV.shape[-1]), dim=-1)
        likeliest = pairs_of(ids_TK, values_TK)
    if questions.targets:
        target_TK = torch.tensor([list(row) for row in questions.targets], device=model.device)
        picked_TK = logprobs_TV.gather(1, target_TK.clamp(min=0)).masked_fill(target_TK < 0, 0.0)
        targets = picked_TK.tolist()
    if questions.draws and len(prompt) > 1:
        generator = torch.Generator(device=model.device).manual_seed(questions.seed)
        warm_TV = logits_TV / questions.temperature if questions.temperature else logits_TV
        drawn_TK = (
            torch.multinomial(warm_TV.softmax(-1), questions.draws, replacement=True, generator=generator)
            if questions.temperature
            else logits_TV.argmax(-1, keepdim=True).expand(-1, questions.draws)
        )
        draws = pairs_of(drawn_TK, logprobs_TV.gather(1, drawn_TK))
    return PromptScores([None, *own_T], likeliest, targets, draws)


def pairs_of(ids_TK: torch.Tensor, values_TK: torch.Tensor) -> list[list[tuple[int, float]]]:
    rows = zip(ids_TK.tolist(), values_TK.tolist(), strict=True)
    return [list(zip(ids, values, strict=True)) for ids, values in rows]


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
    """Return the id that fills up rows: the padding token, the end of text, or any, as it is masked."""
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(id) for id in ids if id is not None)
