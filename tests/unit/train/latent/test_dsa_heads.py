"""Routing of heads: which are kept, their factors, and the balance of their use."""

from __future__ import annotations

import pytest
import torch

from trainyard.train.latent.dsa.attention import HeadRouter, HeadRouting, balance_loss, keep_heads

ROUTING = HeadRouting(num_heads=4, num_shared=1, num_active=2)


def test_shared_heads_are_always_kept_with_the_best_of_the_others() -> None:
    probs = torch.tensor([[[0.0, 0.2, 0.5, 0.3], [0.1, 0.4, 0.2, 0.3]]])
    assert keep_heads(probs, ROUTING)[0].int().tolist() == [[1, 0, 1, 0], [1, 1, 0, 0]]


def test_a_new_router_with_all_heads_changes_nothing() -> None:
    factors, routed, _ = HeadRouter(6, HeadRouting(4, 1, 4))(torch.randn(2, 3, 6))
    assert torch.equal(factors, torch.ones(2, 3, 4))
    assert routed.all()


def test_a_head_that_is_left_out_has_the_factor_zero() -> None:
    router = HeadRouter(6, ROUTING)
    torch.nn.init.normal_(router.gate.weight)
    factors, routed, probs = router(torch.randn(2, 3, 6))
    assert torch.equal(factors == 0, ~routed)
    assert torch.allclose(factors[routed], 4 * probs[routed])


def test_balance_is_smallest_where_all_heads_are_used_alike() -> None:
    valid = torch.ones(1, 3, dtype=torch.bool)
    equal = torch.full((1, 3, 4), 0.25)
    kept_alike = torch.tensor([[[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]]).bool()
    kept_same = torch.tensor([[[1, 1, 0, 0]] * 3]).bool()
    peaked = torch.tensor([0.25, 0.7, 0.03, 0.02]).expand(1, 3, 4)
    alike = balance_loss(kept_alike, equal, valid, ROUTING)
    assert float(alike) == pytest.approx(3 * 3 * (1 / 3 * 0.25))
    assert float(balance_loss(kept_same, peaked, valid, ROUTING)) > 2 * float(alike)


def test_balance_leaves_padding_out() -> None:
    routed = torch.tensor([[[1, 1, 0, 0], [1, 0, 1, 0]]]).bool()
    probs = torch.tensor([[[0.1, 0.5, 0.2, 0.2], [0.1, 0.2, 0.5, 0.2]]])
    first = balance_loss(routed[:, :1], probs[:, :1], torch.tensor([[True]]), ROUTING)
    assert float(balance_loss(routed, probs, torch.tensor([[True, False]]), ROUTING)) == pytest.approx(float(first))


def test_the_balance_and_the_factors_train_the_router() -> None:
    router = HeadRouter(6, ROUTING)
    factors, routed, probs = router(torch.randn(2, 3, 6))
    (factors.square().sum() + balance_loss(routed, probs, torch.ones(2, 3, dtype=torch.bool), ROUTING)).backward()
    assert router.gate.weight.grad is not None
    assert router.gate.weight.grad.abs().sum() > 0
