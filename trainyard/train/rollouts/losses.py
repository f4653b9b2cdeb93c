"""The clipped losses of PPO and GRPO, per token: pure functions.

    rho     = p(token) / p_old(token)
    policy  = max(-A rho, -A clip(rho, 1 - epsilon, 1 + epsilon))               (Schulman et al. 2017, arXiv 1707.06347)
    value   = 1/2 max((V - R)^2, (clip(V, V_old - epsilon, V_old + epsilon) - R)^2)

Shapes: N tokens that are learned from.
"""

from __future__ import annotations

import torch


def clipped_policy_loss(ratio_N: torch.Tensor, advantages_N: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The loss of each token: (N,)."""
    clipped_N = ratio_N.clamp(1 - epsilon, 1 + epsilon)
    return torch.maximum(-advantages_N * ratio_N, -advantages_N * clipped_N)


def clipped_value_loss(
    values_N: torch.Tensor, old_N: torch.Tensor, returns_N: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """The loss of each token's value: (N,)."""
    clipped_N = torch.clamp(values_N, old_N - epsilon, old_N + epsilon)
    return 0.5 * torch.maximum((values_N - returns_N) ** 2, (clipped_N - returns_N) ** 2)


def is_clipped(ratio_N: torch.Tensor, advantages_N: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Whether the clip takes a token's gradient away: (N,) of bool."""
    too_high_N = (ratio_N > 1 + epsilon) & (advantages_N > 0)
    too_low_N = (ratio_N < 1 - epsilon) & (advantages_N < 0)
    return too_high_N | too_low_N
