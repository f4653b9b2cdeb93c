"""Value of thoughts, and the three terms of Quiet-STaR's loss.

Shapes: B rows, T tokens, N thinking positions, A tokens ahead, P thoughts per position (Q = B * P rows), D hidden,
L labels that are predicted after thoughts, J tokens of a thought, M = N * A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trainyard.train.contracts import IGNORED, Head
from trainyard.train.latent.quiet_star.thoughts import (
    Batch,
    Positions,
    Thinker,
    ThoughtHead,
    Thoughts,
    ThoughtSettings,
    find_positions,
)
from trainyard.train.model.head import token_logprobs


@dataclass(frozen=True)
class Talk:
    """Log-probabilities of labels without and with thoughts."""

    base_BT: torch.Tensor
    """Of each token; 0 where there is no label."""
    mixed_QNA: torch.Tensor
    """Of the tokens ahead; 0 where there is no label."""
    weight_QNA: torch.Tensor
    """The thought's share, detached."""


def talk(thinker: Thinker, labels_BT: torch.Tensor, positions: Positions, thoughts: Thoughts, kind: Head) -> Talk:
    """Score the labels with the base's hidden states and with the mixed ones."""
    repeats, target_BNA = thinker.settings.num_thoughts, positions.target_BNA
    rows_N, columns_N = (labels_BT[:, 1:] != IGNORED).nonzero(as_tuple=True)
    base_N = token_logprobs(
        thoughts.base_BTD[rows_N, columns_N], labels_BT[:, 1:][rows_N, columns_N], thinker.output, kind
    )
    base_BT = torch.zeros(labels_BT.shape, device=base_N.device).index_put((rows_N, columns_N + 1), base_N)
    target_QNA = target_BNA.repeat_interleave(repeats, 0)
    q_L, n_L, a_L = (target_QNA != IGNORED).nonzero(as_tuple=True)
    before_L = positions.at_BN[q_L // repeats, n_L] + a_L
    base_LD, thought_LD = thoughts.base_BTD[q_L // repeats, before_L], thoughts.ahead_QNAD[q_L, n_L, a_L]
    weight_L1 = thinker.head.weight(base_LD, thought_LD)
    mixed_LD = ((1 - weight_L1) * base_LD + weight_L1 * thought_LD).to(base_LD.dtype)
    mixed_L = token_logprobs(mixed_LD, target_QNA[q_L, n_L, a_L], thinker.output, kind)
    empty = torch.zeros(target_QNA.shape, device=mixed_L.device)
    return Talk(
        base_BT,
        empty.index_put((q_L, n_L, a_L), mixed_L),
        empty.index_put((q_L, n_L, a_L), weight_L1.detach()[:, 0].float()),
    )


def compute_gain(talk_scores: Talk, positions: Positions, repeats: int) -> torch.Tensor:
    """Return how much likelier a thought made each token ahead, detached: (Q, N, A)."""
    ahead = torch.arange(1, positions.target_BNA.shape[-1] + 1, device=talk_scores.base_BT.device)
    at_BNA = (positions.at_BN[..., None] + ahead).clamp(max=talk_scores.base_BT.shape[1] - 1)
    base_BNA = talk_scores.base_BT.detach().gather(1, at_BNA.flatten(1)).view_as(at_BNA)
    has_BNA = positions.target_BNA != IGNORED
    return (talk_scores.mixed_QNA.detach() - base_BNA.repeat_interleave(repeats, 0)) * has_BNA.repeat_interleave(
        repeats, 0
    )


def policy_loss(gain_QN: torch.Tensor, logprobs_QNJ: torch.Tensor, settings: ThoughtSettings) -> torch.Tensor:
    """REINFORCE with the mean over a position's thoughts as baseline, summed over positions, averaged over thoughts.

    The baseline contains the thought itself, so the expected gradient is (P - 1) / P of the exact one.
    """
    gain_BPN = gain_QN.detach().unflatten(0, (-1, settings.num_thoughts))
    reward_BPN = gain_BPN - gain_BPN.mean(dim=1, keepdim=True)
    if settings.only_positive:
        reward_BPN = reward_BPN.clamp(min=0)
    logprob_BPN = logprobs_QNJ.sum(dim=-1).unflatten(0, (-1, settings.num_thoughts))
    return -(reward_BPN * logprob_BPN).sum() / settings.num_thoughts


def compute_mixed_loss(talk_scores: Talk, positions: Positions, repeats: int) -> torch.Tensor:
    """NLL with thoughts, summed over labels: each is the mean over the positions and thoughts that predict it."""
    has_BNA = positions.target_BNA != IGNORED
    ahead = torch.arange(1, has_BNA.shape[-1] + 1, device=has_BNA.device)
    at_BM = (positions.at_BN[..., None] + ahead).clamp(max=talk_scores.base_BT.shape[1] - 1).flatten(1)
    counts_BT = torch.zeros_like(talk_scores.base_BT).scatter_add(1, at_BM, has_BNA.flatten(1).float())
    share_BNA = has_BNA / (counts_BT.gather(1, at_BM).view(has_BNA.shape).clamp(min=1) * repeats)
    return -(talk_scores.mixed_QNA * share_BNA.repeat_interleave(repeats, 0)).sum()


def quiet_scores(base: Any, head: ThoughtHead, batch: Batch, settings: ThoughtSettings, kind: Head) -> Batch:
    """Think at every position with a label ahead. Sums over the batch:

    `base`, `mixed`, `policy`   the three terms of the loss
    `gain`                      log-probability of the next token that the thoughts added
    `weight`                    the thoughts' share at the next token
    """
    positions = find_positions(batch["labels"], settings.num_ahead)
    thinker = Thinker(base, head, settings)
    thoughts = thinker.think(batch, positions)
    talk_scores = talk(thinker, batch["labels"], positions, thoughts, kind)
    gain_QNA = compute_gain(talk_scores, positions, settings.num_thoughts)
    return {
        "base": -talk_scores.base_BT.sum(),
        "mixed": compute_mixed_loss(talk_scores, positions, settings.num_thoughts),
        "policy": policy_loss(gain_QNA.sum(dim=-1), thoughts.logprobs_QNJ, settings),
        "gain": gain_QNA[..., 0].sum() / settings.num_thoughts,
        "weight": talk_scores.weight_QNA[..., 0].sum() / settings.num_thoughts,
    }


def quiet_loss(scores: Batch, settings: ThoughtSettings) -> torch.Tensor:
    """Return the loss, summed over the labels; its unit is the label."""
    return 0.5 * scores["base"] + 0.5 * scores["mixed"] + settings.policy_weight * scores["policy"]
