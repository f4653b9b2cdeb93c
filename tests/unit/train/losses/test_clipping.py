"""The clipped losses by hand, and where they have no gradient."""

from __future__ import annotations

import pytest
import torch

from trainyard.train.losses.advantages import clipped_policy_loss, clipped_value_loss, is_clipped


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.0),
        (1.5, 2.0, -2.4, 0.0),  # already likelier than the clip allows
        (0.5, 2.0, -1.0, -2.0),
        (0.5, -2.0, 1.6, 0.0),  # already less likely than the clip allows
        (1.5, -2.0, 3.0, 2.0),
    ],
)
def test_policy_loss(ratio: float, advantage: float, expected: float, gradient: float) -> None:
    ratio_N, advantages_N = torch.tensor([ratio], requires_grad=True), torch.tensor([advantage])
    loss_N = clipped_policy_loss(ratio_N, advantages_N, 0.2)
    loss_N.sum().backward()
    assert loss_N.tolist() == pytest.approx([expected])
    assert ratio_N.grad is not None
    assert ratio_N.grad.tolist() == [gradient]
    assert is_clipped(ratio_N.detach(), advantages_N, 0.2).tolist() == [gradient == 0.0]


@pytest.mark.parametrize(
    ("value", "old", "target", "expected", "gradient"),
    [
        (1.0, 1.0, 3.0, 2.0, -2.0),
        (1.5, 1.0, 3.0, 0.5 * 1.8**2, 0.0),  # moved further towards the return than the clip allows
        (0.0, 1.0, 3.0, 4.5, -3.0),  # moved away: the larger of the two losses counts
    ],
)
def test_value_loss(value: float, old: float, target: float, expected: float, gradient: float) -> None:
    values_N = torch.tensor([value], requires_grad=True)
    loss_N = clipped_value_loss(values_N, torch.tensor([old]), torch.tensor([target]), 0.2)
    loss_N.sum().backward()
    assert loss_N.tolist() == pytest.approx([expected])
    assert values_N.grad is not None
    assert values_N.grad.tolist() == pytest.approx([gradient])
