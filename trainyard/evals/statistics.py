"""Paired comparison: the mean improvement per row, its bootstrap interval, and how many rows flipped.

The bootstrap (Efron 1979; percentile interval) draws *clusters* with replacement, so that rows which share a document
or a question do not count as independent evidence. The estimate of a draw is the mean over all of its rows.
Cost: resamples x clusters multinomial counts and two matrix products; 2,000 x 200 take about 10 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_COUNTS_AT_ONCE = 4_000_000
"""Largest matrix of multinomial counts in memory at a time: 32 MB."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean with its confidence interval; `low` and `high` are None when fewer than two clusters exist."""

    mean: float
    low: float | None
    high: float | None
    cases: int
    """Independent clusters behind the estimate."""


@dataclass(frozen=True)
class Flips:
    """Rows on which the candidate is better than, worse than or equal to the baseline."""

    better: int
    worse: int
    equal: int


def improvements(
    baseline: Sequence[float], candidate: Sequence[float], *, higher_is_better: bool
) -> NDArray[np.float64]:
    """Return how much better the candidate is, row by row; positive is better for every metric."""
    difference = np.asarray(candidate, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    return difference if higher_is_better else -difference


def count_flips(improvement: NDArray[np.float64]) -> Flips:
    return Flips(
        better=int((improvement > 0).sum()), worse=int((improvement < 0).sum()), equal=int((improvement == 0).sum())
    )


def bootstrap(
    values: NDArray[np.float64], clusters: Sequence[str], *, confidence: float, resamples: int, seed: int
) -> ConfidenceInterval:
    """Mean of `values` with its percentile interval over cluster resamples.

    `values`: one number per row; `clusters`: its cluster's name; the same seed gives the same interval.
    """
    names, member = np.unique(np.asarray(clusters), return_inverse=True)
    sums = np.bincount(member, weights=values).astype(np.float64)
    sizes = np.bincount(member).astype(np.float64)
    mean = float(values.mean())
    if len(names) < 2:
        return ConfidenceInterval(mean, None, None, len(names))
    means = resampled_means(sums, sizes, resamples, np.random.default_rng(seed))
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return ConfidenceInterval(mean, float(low), float(high), len(names))


def resampled_means(
    sums: NDArray[np.float64], sizes: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the mean over rows in each of `resamples` draws of as many clusters as there are."""
    count = len(sums)
    chance = np.full(count, 1 / count)
    step = max(1, _COUNTS_AT_ONCE // count)
    parts = []
    for start in range(0, resamples, step):
        counts = rng.multinomial(count, chance, size=min(step, resamples - start))
        parts.append((counts @ sums) / (counts @ sizes))
    return np.concatenate(parts)


def kappa_interval(
    counts: NDArray[np.int64], clusters: Sequence[str], *, confidence: float, resamples: int, seed: int
) -> ConfidenceInterval:
    """Cohen's kappa (1960) with its percentile interval over cluster resamples.

    `counts` (rows, labels, answers) says how often a label got an answer; an answer beyond the labels never agrees.
    """
    names, member = np.unique(np.asarray(clusters), return_inverse=True)
    sums = np.zeros((len(names), *counts.shape[1:]))
    np.add.at(sums, member, counts)
    kappa = float(kappas(sums.sum(axis=0)[None])[0])
    if len(names) < 2:
        return ConfidenceInterval(kappa, None, None, len(names))
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    samples = kappas(np.tensordot(weights.astype(np.float64), sums, axes=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return ConfidenceInterval(kappa, float(low), float(high), len(names))


def kappas(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kappa of each matrix (draws, labels, answers); 0 where agreement by chance is certain."""
    shares = matrix / matrix.sum(axis=(1, 2), keepdims=True)
    labels, answers = shares.sum(axis=2), shares.sum(axis=1)[:, : shares.shape[1]]
    seen = np.trace(shares[:, :, : shares.shape[1]], axis1=1, axis2=2)
    chance = (labels * answers).sum(axis=1)
    return np.where(chance < 1, (seen - chance) / np.where(chance < 1, 1 - chance, 1), 0.0)
