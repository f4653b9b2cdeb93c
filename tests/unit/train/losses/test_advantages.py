"""Advantages against brute force, worked examples and TRL's functions."""

from __future__ import annotations

import math

import pytest
import torch
from trl.trainer.utils import nanstd

from trainyard.train.losses.advantages import center_groups, estimate_kl, generalized_advantages, token_rewards, whiten


def brute_force(
    rewards: list[float], values: list[float], counts: list[bool], gamma: float, lam: float
) -> dict[int, float]:
    """Equation 16 of the paper as its double sum, over the tokens that count."""
    positions = [at for at, is_counted in enumerate(counts) if is_counted]
    following = [*[values[at] for at in positions[1:]], 0.0]
    deltas = [rewards[at] + gamma * after - values[at] for at, after in zip(positions, following, strict=True)]
    return {
        position: sum((gamma * lam) ** ahead * delta for ahead, delta in enumerate(deltas[index:]))
        for index, position in enumerate(positions)
    }


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.7, 0.0)])
def test_advantages_are_those_of_brute_force(gamma: float, lam: float) -> None:
    torch.manual_seed(0)
    rewards_RT, values_RT = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    mask_RT = torch.tensor(
        [[1] * 7, [1] * 4 + [0] * 3, [1] + [0] * 6, [1, 0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 1, 1, 1]], dtype=torch.float64
    )
    advantages_RT, returns_RT = generalized_advantages(rewards_RT, values_RT, mask_RT, gamma=gamma, lam=lam)
    for row in range(5):
        counts = [bool(is_counted) for is_counted in mask_RT[row]]
        expected = brute_force(rewards_RT[row].tolist(), values_RT[row].tolist(), counts, gamma, lam)
        for at in range(7):
            assert float(advantages_RT[row, at]) == pytest.approx(expected.get(at, 0.0), abs=1e-12)
            expected_return = expected[at] + float(values_RT[row, at]) if at in expected else 0.0
            assert float(returns_RT[row, at]) == pytest.approx(expected_return, abs=1e-12)


def test_without_discount_an_advantage_is_the_rest_of_the_rewards_minus_the_value() -> None:
    rewards_RT, values_RT = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.5, 0.25, 0.125]])
    advantages_RT, returns_RT = generalized_advantages(rewards_RT, values_RT, torch.ones(1, 3), gamma=1.0, lam=1.0)
    assert advantages_RT.tolist() == [[6.5, 5.75, 3.875]]
    assert returns_RT.tolist() == [[7.0, 6.0, 4.0]]


def test_the_score_is_put_on_the_last_token_that_counts() -> None:
    mask_RT = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    kl_RT = torch.tensor([[1.0, 2.0, 9.0], [1.0, 9.0, 2.0], [4.0, 9.0, 9.0]])
    token_rewards_RT = token_rewards(torch.tensor([10.0, 20.0, 30.0]), kl_RT, mask_RT, 0.5)
    assert token_rewards_RT.tolist() == [[-0.5, 9.0, 0.0], [-0.5, 0.0, 19.0], [28.0, 0.0, 0.0]]


def test_whitened_values_have_mean_0_and_variance_1_without_the_padding() -> None:
    torch.manual_seed(0)
    values_RT, mask_RT = torch.randn(4, 6) * 3 + 2, (torch.rand(4, 6) > 0.4).float()
    found_RT = whiten(values_RT, mask_RT)
    valid_N = found_RT[mask_RT.bool()]
    assert float(valid_N.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(valid_N.var()) == pytest.approx(1.0, abs=1e-5)
    assert not found_RT[~mask_RT.bool()].any()
    assert torch.equal(whiten(values_RT + 1e3 * (1 - mask_RT), mask_RT), found_RT)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_centred_groups_are_those_of_trl(scale: str) -> None:
    torch.manual_seed(0)
    scores_R = torch.randn(12)
    mean_R = scores_R.view(-1, 4).mean(1).repeat_interleave(4)
    deviation_R = {
        "group": nanstd(scores_R.view(-1, 4), dim=1).repeat_interleave(4) + 1e-4,
        "batch": nanstd(scores_R).expand_as(scores_R) + 1e-4,
        "none": torch.ones(12),
    }[scale]
    torch.testing.assert_close(center_groups(scores_R, 4, scale), (scores_R - mean_R) / deviation_R)  # type: ignore[arg-type]


def test_a_group_of_equal_scores_teaches_nothing() -> None:
    for scale in ("group", "batch", "none"):
        assert not center_groups(torch.full((8,), 3.0), 4, scale).any()  # type: ignore[arg-type]


def test_the_divergence_of_a_policy_from_itself_is_0_and_its_estimates_are_unbiased() -> None:
    same_N = torch.randn(6)
    assert not estimate_kl(same_N, same_N, "k1").any()
    assert not estimate_kl(same_N, same_N, "k3").any()
    p_V, q_V = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    exact = float((p_V * (p_V / q_V).log()).sum())
    for kind in ("k1", "k3"):
        expectation = float((p_V * estimate_kl(p_V.log(), q_V.log(), kind)).sum())  # type: ignore[arg-type]
        assert math.isclose(expectation, exact, abs_tol=1e-6)
