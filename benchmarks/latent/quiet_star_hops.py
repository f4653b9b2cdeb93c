"""Quiet-STaR on two hops: does a model with one layer learn to think of the step in between?

    python -m benchmarks.latent quiet_star_hops --seed 0

A row has a permutation f of 8 symbols as 8 pair tokens (one token is x with f(x)), a walk x, f(x), f(f(x)), … and then
a question `? a d` with d = f(f(a)). Each token of the walk is one look into the table, which one layer can do; d is
two.
A thought can copy a and then walk. Variants, with the same rows and steps: the base alone; thoughts that only the
likelihood trains (policy weight 0); Quiet-STaR. Thoughts of random tokens show whether the content of thoughts is read.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trainyard.spec.axes.latent import LATENT_SETTINGS, Latent
from trainyard.train.contracts import IGNORED, Head
from trainyard.train.latent.quiet_star import QuietStar, quiet_loss, quiet_scores, thought_settings
from trainyard.train.model.head import label_logprobs
from trainyard.train.model.sampling import PLAIN

SYMBOLS, WALK = 8, 6
FIRST_SYMBOL, WALKS, ASKS = SYMBOLS * SYMBOLS, SYMBOLS * SYMBOLS + SYMBOLS, SYMBOLS * SYMBOLS + SYMBOLS + 1
VOCABULARY = ASKS + 1
BATCH, RATE, WARM_STEPS, STEPS = 32, 2e-3, 300, 1500
VARIANTS = ("base", "likelihood", "quiet")
SETTINGS = {"thought_tokens": 3, "ahead": 1, "policy_temperature": 1.0, "embedding_scale": 1.0}
EVENLY = 1e9
"""A temperature at which every token is as likely as the others."""
NO_TOKENIZER = SimpleNamespace(encode=lambda *_, **__: [])


@dataclass(frozen=True)
class Hops:
    """What one seed of one variant learned."""

    base_nll: float
    """Of the hard token d, without thoughts, on held-out rows."""
    thought_nll: float
    """The same after greedy thoughts, as a served model writes them."""
    sampled_nll: float
    """The same after sampled thoughts, as in training: the mean over two of each row."""
    random_nll: float
    """The same after thoughts of tokens that are drawn evenly: what is lost is what thoughts are worth by content."""
    base_accuracy: float
    thought_accuracy: float
    gain: float
    """Mean log-probability that sampled thoughts added to the labels of a row in the last 50 steps."""
    first_loss: float
    last_loss: float
    """The training objective per label, means of the first and the last 50 steps."""
    seconds: float


def draw_rows(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Rows with labels on the walk and on the answer."""
    after = torch.rand(count, SYMBOLS, generator=generator).argsort(-1)
    keys = torch.rand(count, SYMBOLS, generator=generator).argsort(-1)
    pairs = keys * SYMBOLS + after.gather(1, keys)
    walk = [torch.randint(SYMBOLS, (count, 1), generator=generator)]
    for _ in range(WALK - 1):
        walk.append(after.gather(1, walk[-1]))
    queries = torch.randint(SYMBOLS, (count, 1), generator=generator)
    answer = after.gather(1, after.gather(1, queries))
    marks = [torch.full((count, 1), mark) for mark in (WALKS, ASKS)]
    symbols = [FIRST_SYMBOL + part for part in (torch.cat(walk, 1), torch.cat([queries, answer], 1))]
    ids = torch.cat([pairs, marks[0], symbols[0], marks[1], symbols[1]], 1)
    labels = torch.full_like(ids, IGNORED)
    labels[:, SYMBOLS + 2 : SYMBOLS + 1 + WALK] = ids[:, SYMBOLS + 2 : SYMBOLS + 1 + WALK]
    labels[:, -1] = ids[:, -1]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def build_model(seed: int) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
        )
    )  # fmt: skip


def measure_answers(model: Any, reader: Any) -> tuple[float, float]:
    """NLL and accuracy of d on 512 held-out rows."""
    rows = draw_rows(512, torch.Generator().manual_seed(10_000))
    with torch.no_grad():
        _, logits = reader.open(model, rows["input_ids"][:, :-1], rows["attention_mask"][:, :-1])
    target = rows["input_ids"][:, -1]
    nll = torch.nn.functional.cross_entropy(logits, target)
    return float(nll), float((logits.argmax(-1) == target).float().mean())


def measure_sampled(model: Any, quiet_star: QuietStar, options: Any) -> float:
    """NLL of d on the same rows after sampled thoughts."""
    rows = draw_rows(512, torch.Generator().manual_seed(10_000))
    rows["labels"][:, :-1] = IGNORED
    with torch.no_grad():
        return float(quiet_scores(model, quiet_star.head, rows, options, Head.FULL)["mixed"]) / 512


def train_variant(seed: int, variant: str, steps: int, **overrides: Any) -> Hops:
    """Train one model: `WARM_STEPS` as a base, then the variant. Rows are those of every other variant."""
    begin, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
    model = build_model(seed)
    settings: Any = LATENT_SETTINGS[Latent.QUIET_STAR](type=Latent.QUIET_STAR, **{**SETTINGS, **overrides})
    quiet_star = QuietStar(model, NO_TOKENIZER, settings)
    options = replace(thought_settings(settings), **({"policy_weight": 0.0} if variant == "likelihood" else {}))
    optimizer = torch.optim.AdamW([*model.parameters(), *quiet_star.parameters()], lr=RATE, weight_decay=0.0)
    losses, gains = [], []
    torch.manual_seed(seed)
    for step in range(WARM_STEPS + steps):
        rows = draw_rows(BATCH, generator)
        units = int((rows["labels"] != IGNORED).sum())
        if variant == "base" or step < WARM_STEPS:
            loss = -label_logprobs(model, rows).logprobs_N.sum() / units
        else:
            scores = quiet_scores(model, quiet_star.head, rows, options, Head.FULL)
            loss = quiet_loss(scores, options) / units
            gains.append(float(scores["gain"]) / BATCH)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*model.parameters(), *quiet_star.parameters()], 1.0)
        optimizer.step()
        if step >= WARM_STEPS:
            losses.append(float(loss.detach()))
    plain, thinking = measure_answers(model, PLAIN), measure_answers(model, quiet_star)
    return Hops(
        base_nll=plain[0], thought_nll=thinking[0], sampled_nll=measure_sampled(model, quiet_star, options),
        random_nll=measure_sampled(model, quiet_star, replace(options, temperature=EVENLY)),
        base_accuracy=plain[1], thought_accuracy=thinking[1],
        gain=statistics.mean(gains[-50:]) if gains else 0.0,
        first_loss=statistics.mean(losses[:50]), last_loss=statistics.mean(losses[-50:]),
        seconds=time.perf_counter() - begin,
    )  # fmt: skip


def measure(seed: int, *, share: float = 1.0) -> dict[str, Any]:
    """All variants of one seed, with a share of the steps."""
    results = {name: asdict(train_variant(seed, name, round(STEPS * share))) for name in VARIANTS}
    rounded = {f"{way}_{name}": round(value, 4) for way, row in results.items() for name, value in row.items()}
    return {"task": "quiet_star_hops", "seed": seed, **rounded}
