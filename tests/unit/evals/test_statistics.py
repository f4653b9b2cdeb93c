"""Statistics against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.evals.statistics import Flips, bootstrap, count_flips, improvements, resampled_means
from trainyard.spec.estimate.verdict import least_cases


def test_improvement_is_positive_when_a_loss_falls_and_when_an_accuracy_rises() -> None:
    assert improvements([3.0, 2.0], [2.5, 2.5], higher_is_better=False).tolist() == [0.5, -0.5]
    assert improvements([0.0, 1.0], [1.0, 1.0], higher_is_better=True).tolist() == [1.0, 0.0]


def test_flips_count_each_row_once() -> None:
    assert count_flips(np.array([0.5, -0.5, 0.0, 0.1])) == Flips(better=2, worse=1, equal=1)


@pytest.mark.parametrize(("confidence", "cases"), [(0.95, 6), (0.9, 5), (0.99, 8)])
def test_least_cases_follow_the_sign_test(confidence: float, cases: int) -> None:
    assert least_cases(confidence) == cases
    assert 2.0**-cases <= (1 - confidence) / 2 < 2.0 ** -(cases - 1)


def test_two_clusters_give_the_three_means_that_enumeration_gives() -> None:
    # Draws of two from {a: rows 1, 3; b: row 6}: aa -> 2, ab -> 10/3, bb -> 6, with chances 1/4, 1/2, 1/4.
    means = resampled_means(np.array([4.0, 6.0]), np.array([2.0, 1.0]), 40_000, np.random.default_rng(7))
    values, counts = np.unique(np.round(means, 6), return_counts=True)
    assert values.tolist() == [2.0, 3.333333, 6.0]
    assert counts / 40_000 == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


def test_the_interval_of_independent_rows_matches_the_normal_approximation() -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, 400)
    interval = bootstrap(values, [str(index) for index in range(400)], confidence=0.95, resamples=4000, seed=1)
    half = 1.96 * values.std() / math.sqrt(400)
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.01)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.01)
    assert interval.cases == 400


def test_rows_of_one_document_are_no_independent_evidence() -> None:
    values = np.repeat(np.random.default_rng(3).normal(0.2, 1.0, 20), 50)
    rows = bootstrap(values, [str(index) for index in range(1000)], confidence=0.95, resamples=2000, seed=1)
    documents = bootstrap(values, [str(index // 50) for index in range(1000)], confidence=0.95, resamples=2000, seed=1)
    assert rows.low is not None
    assert rows.high is not None
    assert documents.low is not None
    assert documents.high is not None
    assert documents.cases == 20
    assert documents.high - documents.low > 5 * (rows.high - rows.low)


def test_one_cluster_has_a_mean_and_no_interval() -> None:
    interval = bootstrap(np.array([1.0, 3.0]), ["a", "a"], confidence=0.95, resamples=100, seed=0)
    assert asdict(interval) == {"mean": 2.0, "low": None, "high": None, "cases": 1}


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values, names = np.arange(30.0), [str(index) for index in range(30)]
    first, again, other = (bootstrap(values, names, confidence=0.9, resamples=300, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_chunked_resampling_has_the_asked_number_of_draws() -> None:
    many = 5000
    means = resampled_means(np.ones(many), np.ones(many), 1700, np.random.default_rng(0))
    assert len(means) == 1700
    assert means == pytest.approx(np.ones(1700))


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=30), st.floats(-5, 5))
def test_adding_a_constant_shifts_the_interval_by_it(values: list[float], shift: float) -> None:
    names = [str(index) for index in range(len(values))]
    before = bootstrap(np.array(values), names, confidence=0.9, resamples=100, seed=2)
    after = bootstrap(np.array(values) + shift, names, confidence=0.9, resamples=100, seed=2)
    assert before.low is not None
    assert after.low is not None
    assert after.low == pytest.approx(before.low + shift, abs=1e-6)
