"""The lightning indexer without a model: selection, divergence and where its gradients reach."""

from __future__ import annotations

import math

import pytest
import torch

from trainyard.train.latent.dsa.indexer import (
    IndexerShape,
    LightningIndexer,
    attention_recall,
    attention_target,
    index_divergence,
    select_randomly,
    select_tokens,
    select_window,
)

CAUSAL = torch.ones(1, 4, 4, dtype=torch.bool).tril()


def test_a_query_keeps_its_best_visible_tokens() -> None:
    scores = torch.tensor([[[9.0, 8, 7, 6], [1, 2, 9, 9], [3, 1, 2, 9], [0, 5, 1, 4]]])
    selected = select_tokens(scores, CAUSAL, 2)
    assert selected[0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]


def test_as_many_tokens_as_there_are_keep_everything_visible() -> None:
    assert torch.equal(select_tokens(torch.randn(1, 4, 4), CAUSAL, 4), CAUSAL)


def test_of_equal_scores_the_earlier_tokens_win() -> None:
    scores = torch.tensor([[[0.0, 2.0, 0.0, 0.0]]]).expand(1, 4, 4)
    assert select_tokens(scores, CAUSAL, 2)[0, 3].tolist() == [True, True, False, False]
    assert select_tokens(scores, CAUSAL, 3)[0, 3].tolist() == [True, True, True, False]


def test_padding_is_never_selected() -> None:
    visible = CAUSAL.clone()
    visible[..., 0] = False
    selected = select_tokens(torch.full((1, 4, 4), 5.0), visible, 3)
    assert not selected[..., 0].any()
    assert selected[0].sum(-1).tolist() == [0, 1, 2, 3]


def test_controls_keep_as_many_tokens_as_the_indexer() -> None:
    scores = torch.randn(1, 4, 4)
    assert select_window(scores, CAUSAL, 2)[0, 3].tolist() == [False, False, True, True]
    for select in (select_window, select_randomly):
        assert select(scores, CAUSAL, 2).sum(-1).tolist() == [[1, 2, 2, 2]]


def test_divergence_is_that_of_the_two_distributions() -> None:
    weights = torch.tensor([[[[0.5, 0.5]], [[1.0, 0.0]]]])  # two heads, one query, two keys
    target = attention_target(weights, torch.ones(1, 1, 2, dtype=torch.bool))
    assert target.tolist() == [[[0.75, 0.25]]]
    scores = torch.tensor([[[0.0, math.log(3.0)]]])
    divergence = index_divergence(target, scores, torch.ones(1, 1, 2, dtype=torch.bool))
    assert float(divergence) == pytest.approx(0.75 * math.log(0.75 / 0.25) + 0.25 * math.log(0.25 / 0.75), abs=1e-6)


def test_divergence_over_selected_tokens_leaves_the_others_out() -> None:
    weights = torch.tensor([[[[0.2, 0.2, 0.6]]]])
    selected = torch.tensor([[[True, True, False]]])
    target = attention_target(weights, selected)
    assert target[0, 0].tolist() == pytest.approx([0.5, 0.5, 0.0], abs=1e-6)
    equal = torch.tensor([[[1.0, 1.0, 7.0]]], requires_grad=True)
    divergence = index_divergence(target, equal, selected)
    divergence.sum().backward()
    assert divergence.tolist() == [[pytest.approx(0.0, abs=1e-6)]]
    assert equal.grad is not None
    assert float(equal.grad[0, 0, 2]) == 0.0


def test_a_query_that_sees_nothing_has_no_divergence_and_no_gradient() -> None:
    none = torch.zeros(1, 1, 3, dtype=torch.bool)
    scores = torch.randn(1, 1, 3, requires_grad=True)
    divergence = index_divergence(attention_target(torch.rand(1, 2, 1, 3), none), scores, none)
    divergence.sum().backward()
    assert divergence.tolist() == [[0.0]]
    assert scores.grad is not None
    assert torch.equal(scores.grad, torch.zeros_like(scores))


def test_recall_is_the_share_of_attention_on_what_is_kept() -> None:
    weights = torch.tensor([[[[0.1, 0.2, 0.7]]]])
    selected = torch.tensor([[[False, True, True]]])
    assert float(attention_recall(weights, selected, torch.ones_like(selected))) == pytest.approx(0.9)


def test_gradients_reach_the_indexer_and_not_what_it_reads() -> None:
    indexer = LightningIndexer(8, IndexerShape(num_heads=2, head_dim=4))
    hidden = torch.randn(2, 5, 8, requires_grad=True)
    positions = torch.arange(5).expand(2, -1)
    indexer(hidden, positions, indexer.keys(hidden, positions)).sum().backward()
    assert hidden.grad is None
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in indexer.parameters())


def test_scores_depend_on_distances_and_not_on_where_the_row_begins() -> None:
    indexer = LightningIndexer(8, IndexerShape(num_heads=2, head_dim=8, rotary_dim=8))
    hidden, positions = torch.randn(1, 5, 8), torch.arange(5)[None]
    here = indexer(hidden, positions, indexer.keys(hidden, positions))
    later = indexer(hidden, positions + 30, indexer.keys(hidden, positions + 30))
    assert torch.allclose(here, later, atol=1e-5)
    assert not torch.allclose(here, indexer(hidden, positions * 2, indexer.keys(hidden, positions * 2)), atol=1e-3)
