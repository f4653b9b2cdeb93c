"""Advantages of tokens, and the clipped losses that follow: pure functions.

GAE (Schulman et al. 2016, arXiv 1506.02438, equation 16) over the tokens that count, the others skipped:

    delta_t = r_t + gamma V_{t+1} - V_t        A_t = delta_t + gamma lambda A_{t+1}        return_t = A_t + V_t

There is no value after the last token, whether it ends the turn or the length does: nothing is bootstrapped.

Groups (GRPO, Shao et al. 2024, arXiv 2402.03300, section 4.1): a score minus the mean of its group, over the deviation.

The losses of PPO and GRPO, of a token:

    rho     = p(token) / p_old(token)
    policy  = max(-A rho, -A clip(rho, 1 - epsilon, 1 + epsilon))               (Schulman et al. 2017, arXiv 1707.06347)
    value   = 1/2 max((V - R)^2, (clip(V, V_old - epsilon, V_old + epsilon) - R)^2)

Shapes: R completions, G of them to a prompt, T tokens of the longest; N tokens that are learned from.
"""

from __future__ import annotations

from typing import Literal

import torch

GROUP_EPSILON = 1e-4
"""Added to a deviation that divides, as TRL does."""
WHITEN_EPSILON = 1e-8


def estimate_kl(policy: torch.Tensor, reference: torch.Tensor, kind: Literal["k1", "k3"]) -> torch.Tensor:
    """Return the KL divergence from the reference at each token that the policy drew, from log-probabilities.

    k1 is unbiased, k3 is too and never negative (Schulman 2020, http://joschu.net/blog/kl-approx.html).
    """
    difference = policy - reference
    return difference if kind == "k1" else torch.exp(-difference) + difference - 1


def token_rewards(scores_R: torch.Tensor, kl_RT: torch.Tensor, mask_RT: torch.Tensor, kl_coef: float) -> torch.Tensor:
    """Return the reward of each token: minus its weighted divergence, and the score at the last token that counts: (R,
    T).
    """
    rewards_RT = -kl_coef * kl_RT * mask_RT
    positions_T = torch.arange(1, mask_RT.shape[1] + 1, device=mask_RT.device)
    last_R = (mask_RT * positions_T).argmax(1)
    rewards_RT[torch.arange(len(scores_R), device=mask_RT.device), last_R] += scores_R
    return rewards_RT


def generalized_advantages(
    rewards_RT: torch.Tensor, values_RT: torch.Tensor, mask_RT: torch.Tensor, *, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (advantages, returns), both 0 where the mask is: (R, T)."""
    advantages_RT = torch.zeros_like(rewards_RT)
    next_value_R = next_advantage_R = torch.zeros_like(rewards_RT[:, 0])
    for at in range(rewards_RT.shape[1] - 1, -1, -1):
        counts_R = mask_RT[:, at].bool()
        delta_R = rewards_RT[:, at] + gamma * next_value_R - values_RT[:, at]
        advantage_R = delta_R + gamma * lam * next_advantage_R
        advantages_RT[:, at] = torch.where(counts_R, advantage_R, 0.0)
        next_advantage_R = torch.where(counts_R, advantage_R, next_advantage_R)
        next_value_R = torch.where(counts_R, values_RT[:, at], next_value_R)
    return advantages_RT, (advantages_RT + values_RT) * mask_RT


def whiten(values_RT: torch.Tensor, mask_RT: torch.Tensor, *, magnify: bool = True) -> torch.Tensor:
    """Return the values that count, shifted and scaled to mean 0 and variance 1 (unbiased); 0 elsewhere: (R, T).

    Without `magnify` a variance below 1 stays.
    """
    valid_N = values_RT[mask_RT.bool()]
    if len(valid_N) < 2:
        return torch.zeros_like(values_RT)
    variance = valid_N.var() if magnify else valid_N.var().clamp(min=1)
    return (values_RT - valid_N.mean()) * torch.rsqrt(variance + WHITEN_EPSILON) * mask_RT


def center_groups(scores_R: torch.Tensor, group: int, scale: Literal["group", "batch", "none"]) -> torch.Tensor:
    """Return each score minus the mean of its group of neighbours, over the deviation of the group or of all: (R,)."""
    grouped_PG = scores_R.view(-1, group)
    centered_PG = grouped_PG - grouped_PG.mean(1, keepdim=True)
    if scale == "none":
        return centered_PG.flatten()
    deviation = grouped_PG.std(1, keepdim=True) if scale == "group" else scores_R.std()
    return (centered_PG / (deviation + GROUP_EPSILON)).flatten()


def clipped_policy_loss(ratio_N: torch.Tensor, advantages_N: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return the loss of each token: (N,)."""
    clipped_N = ratio_N.clamp(1 - epsilon, 1 + epsilon)
    return torch.maximum(-advantages_N * ratio_N, -advantages_N * clipped_N)


def clipped_value_loss(
    values_N: torch.Tensor, old_N: torch.Tensor, returns_N: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Return the loss of each token's value: (N,)."""
    clipped_N = torch.clamp(values_N, old_N - epsilon, old_N + epsilon)
    return 0.5 * torch.maximum((values_N - returns_N) ** 2, (clipped_N - returns_N) ** 2)


def is_clipped(ratio_N: torch.Tensor, advantages_N: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return whether the clip takes a token's gradient away: (N,) of bool."""
    too_high_N = (ratio_N > 1 + epsilon) & (advantages_N > 0)
    too_low_N = (ratio_N < 1 - epsilon) & (advantages_N < 0)
    return too_high_N | too_low_N
