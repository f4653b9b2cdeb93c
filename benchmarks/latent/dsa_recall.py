"""Sparse attention on recall: does an indexer that was warmed up find the one token of 32 that answers?

    python -m benchmarks.latent dsa_recall --seed 0

A row has 24 pair tokens (one token is a key with its value) and then 8 keys; the answer to a key is the value of its
pair. A model learns it with dense attention; then the indexer learns from the dense attention with everything else
frozen (warm-up), then all of it learns with the 4 best tokens of each query (sparse stage). Controls attend to as
many tokens: chosen by the untrained indexer, by chance, or the last ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trainyard.spec.axes.latent import GRANULARITY_SETTINGS, LATENT_SETTINGS, Granularity, Latent
from trainyard.train.contracts import IGNORED
from trainyard.train.latent.dsa.attention import AttentionPhase, Selection
from trainyard.train.latent.dsa.indexer import select_randomly, select_tokens, select_window
from trainyard.train.latent.dsa.technique import SparseAttention

KEYS, VALUES, PAIRS, QUERIES, TOP_K = 32, 8, 24, 8, 4
VOCABULARY = KEYS * VALUES + KEYS + 1
BATCH, DENSE_STEPS, WARMUP_STEPS, SPARSE_STEPS = 64, 400, 200, 100
DENSE_RATE, INDEXER_RATE, SPARSE_RATE = 1e-3, 3e-3, 3e-4


@dataclass(frozen=True)
class Recall:
    """Accuracies of one seed."""

    dense: float
    untrained: float
    random: float
    window: float
    warmed_up: float
    sparse: float
    dense_after: float
    all_tokens: float
    """Largest difference of logits between dense attention (SDPA) and k = 64 >= length, as a share of the largest
    logit. Transformers' two kernels of dense attention are up to 8e-6 apart on a processor, where logits are 8.6."""
    divergence_before: float
    divergence_after: float
    mass_kept: float
    """Share of the dense attention on the selected tokens, mean over layers, after the warm-up."""
    seconds: float


def draw_rows(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Rows of pairs and queries; the label behind a query is its value."""
    keys = torch.rand(count, KEYS, generator=generator).argsort(-1)[:, :PAIRS]
    values = torch.randint(VALUES, (count, PAIRS), generator=generator)
    query_indices = torch.rand(count, PAIRS, generator=generator).argsort(-1)[:, :QUERIES]
    queries = KEYS * VALUES + keys.gather(1, query_indices)
    end = torch.full((count, 1), VOCABULARY - 1)
    labels = torch.full((count, PAIRS + QUERIES + 1), IGNORED)
    labels[:, PAIRS + 1 :] = values.gather(1, query_indices)
    return {"input_ids": torch.cat([keys * VALUES + values, queries, end], 1), "labels": labels}


def build_model(seed: int) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
        )
    )  # fmt: skip


def attach(model: Any, granularity: Granularity, seed: int, **options: Any) -> Selection:
    """Make sparse attention a part of the model."""
    torch.manual_seed(seed)
    choice = GRANULARITY_SETTINGS[granularity](type=granularity, **options)
    attention = SparseAttention(model, LATENT_SETTINGS[Latent.DSA](type=Latent.DSA, granularity=choice))
    attention.attach(model)
    return attention.shared


def measure_accuracy(model: Any, shared: Selection | None, phase: AttentionPhase = AttentionPhase.SPARSE) -> float:
    """Share of 512 x 8 held-out queries that are answered."""
    rows = draw_rows(512, torch.Generator().manual_seed(10_000))
    with torch.no_grad(), measure_phase(shared, phase):
        predictions = model(input_ids=rows["input_ids"]).logits[:, PAIRS:-1].argmax(-1)
    return float((predictions == rows["labels"][:, PAIRS + 1 :]).float().mean())


@contextmanager
def measure_phase(shared: Selection | None, phase: AttentionPhase) -> Iterator[None]:
    if shared is None:
        yield
        return
    with shared.measured(phase):
        yield


def train_indexer(model: Any, shared: Selection, steps: int, generator: torch.Generator) -> list[float]:
    """The dense warm-up: KL alone, into the indexer alone; returns the divergence per token of each step."""
    optimizer = torch.optim.AdamW([w for n, w in model.named_parameters() if ".choosers." in n], lr=INDEXER_RATE)
    divergences = []
    for _ in range(steps):
        with shared.measured(AttentionPhase.WARMUP) as measures:
            model(input_ids=draw_rows(BATCH, generator)["input_ids"])
        loss = sum(each.loss / each.tokens for each in measures) / len(measures)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        divergences.append(float(loss.detach()))
    return divergences


def train_model(
    model: Any, shared: Selection | None, steps: int, rate: float, generator: torch.Generator, *, weight: float = 1.0
) -> None:
    """Learn the answers, with the loss of the selectors where there are some."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    for _ in range(steps):
        rows = draw_rows(BATCH, generator)
        if shared is None:
            loss = model(**rows).loss
        else:
            with shared.measured(AttentionPhase.SPARSE) as measures:
                loss = model(**rows).loss
            loss = loss + weight * sum(each.loss / each.tokens for each in measures) / len(measures)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def run_tokens(seed: int, dense: int = DENSE_STEPS, warmup: int = WARMUP_STEPS, sparse: int = SPARSE_STEPS) -> Recall:
    """Train one model through all stages and measure it after each."""
    begin, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
    model = build_model(seed)
    train_model(model, None, dense, DENSE_RATE, generator)
    model.eval()
    before = measure_accuracy(model, None)
    rows = draw_rows(64, torch.Generator().manual_seed(10_001))["input_ids"]
    with torch.no_grad():
        dense_logits = model(input_ids=rows).logits
    shared = attach(model, Granularity.TOKEN, seed, top_k=64, index_heads=2, index_dim=16)
    with torch.no_grad():
        difference = float((model(input_ids=rows).logits - dense_logits).abs().max() / dense_logits.abs().max())
    shared.num_tokens = TOP_K
    untrained = measure_accuracy(model, shared)
    controls = {}
    for name, select in {"random": select_randomly, "window": select_window}.items():
        torch.manual_seed(seed)
        shared.select = select
        controls[name] = measure_accuracy(model, shared)
    shared.select = select_tokens
    divergence = train_indexer(model, shared, warmup, generator)
    with torch.no_grad(), shared.measured(AttentionPhase.WARMUP) as measures:
        model(input_ids=rows)
    mean_recall = statistics.mean(float(each.recall / each.tokens) for each in measures)
    warmed = measure_accuracy(model, shared)
    train_model(model, shared, sparse, SPARSE_RATE, generator)
    return Recall(
        dense=before, untrained=untrained, **controls, warmed_up=warmed, sparse=measure_accuracy(model, shared),
        dense_after=measure_accuracy(model, shared, AttentionPhase.DENSE), all_tokens=difference,
        divergence_before=divergence[0], divergence_after=divergence[-1], mass_kept=mean_recall,
        seconds=time.perf_counter() - begin,
    )  # fmt: skip


@dataclass(frozen=True)
class RoutedHeads:
    """Accuracies of one seed with half of the heads."""

    dense: float
    untrained: float
    """Half of the heads before the router learned."""
    routed: float
    kept: float
    """Share of the heads that a token uses."""
    balance: float
    """Balance loss per token at the end; routed heads kept where all are used alike and share all probability."""
    seconds: float


def run_heads(seed: int, dense: int = DENSE_STEPS, steps: int = WARMUP_STEPS) -> RoutedHeads:
    """Train one model densely and then with one shared head and one of the other three."""
    begin, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
    model = build_model(seed)
    train_model(model, None, dense, DENSE_RATE, generator)
    before = measure_accuracy(model.eval(), None)
    shared = attach(model, Granularity.HEAD, seed, shared=1, active=2)
    untrained = measure_accuracy(model, shared)
    train_model(model, shared, steps, DENSE_RATE, generator, weight=0.01)
    with torch.no_grad(), shared.measured(AttentionPhase.SPARSE) as measures:
        model(input_ids=draw_rows(64, torch.Generator().manual_seed(10_001))["input_ids"])
    return RoutedHeads(
        dense=before, untrained=untrained, routed=measure_accuracy(model, shared),
        kept=statistics.mean(float(each.kept / each.tokens) for each in measures),
        balance=statistics.mean(float(each.loss / each.tokens) for each in measures),
        seconds=time.perf_counter() - begin,
    )  # fmt: skip


def measure(seed: int, *, share: float = 1.0) -> dict[str, Any]:
    """Both granularities of one seed, with a share of the steps."""
    dense, warmup, sparse = (max(1, round(steps * share)) for steps in (DENSE_STEPS, WARMUP_STEPS, SPARSE_STEPS))
    tokens = asdict(run_tokens(seed, dense, warmup, sparse))
    heads = {f"heads_{name}": value for name, value in asdict(run_heads(seed, dense, warmup)).items()}
    figures = {name: round(value, 7) for name, value in {**tokens, **heads}.items()}
    return {"task": "dsa_recall", "seed": seed, **figures}
