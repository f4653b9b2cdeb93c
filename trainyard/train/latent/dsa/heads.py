"""Routing of attention heads: which heads answer for a token, in the way of MoH (arXiv 2410.11842).

    g       = softmax(W h)                                       one score per head
    kept    = the shared heads, always, and the best of the others
    output  = sum over kept heads of (number of heads) * g_i * head_i
    balance = (number of routed heads) * sum_i (share of tokens that keep i) * (mean g_i)

With a router of zeros and all heads kept each factor is 1: training begins with the dense model. This is not DeepSeek's
sparse attention, which chooses tokens (`dsa_indexer`); heads are computed here and then left out, so nothing is faster.

Shapes: B rows, T positions, D hidden, H heads, C dimensions of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class HeadRouting:
    """Number of heads that a token uses: the shared ones and some of the others."""

    num_heads: int
    num_shared: int
    num_active: int
    """Heads per token, the shared ones included."""

    @property
    def num_routed(self) -> int:
        return self.num_heads - self.num_shared


class HeadRouter(torch.nn.Module):
    """Weights of the heads for each token. The first heads are the shared ones."""

    def __init__(self, hidden_size: int, routing: HeadRouting) -> None:
        super().__init__()
        self.routing = routing
        self.gate = torch.nn.Linear(hidden_size, routing.num_heads, bias=False)
        torch.nn.init.zeros_(self.gate.weight)

    def forward(self, hidden_BTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Factors of the heads (0 where a head is left out), which are kept, and their probabilities: (B, T, H)."""
        probs_BTH = self.gate(hidden_BTD.to(self.gate.weight.dtype)).float().softmax(dim=-1)
        kept_BTH = keep_heads(probs_BTH.detach(), self.routing)
        return probs_BTH * self.routing.num_heads * kept_BTH, kept_BTH, probs_BTH


def keep_heads(probs_BTH: torch.Tensor, routing: HeadRouting) -> torch.Tensor:
    """Return which heads a token uses: the shared ones and the best of the others."""
    shared = routing.num_shared
    kept_BTH = torch.zeros_like(probs_BTH, dtype=torch.bool)
    kept_BTH[..., :shared] = True
    best_BTK = probs_BTH[..., shared:].topk(routing.num_active - shared, dim=-1).indices + shared
    return kept_BTH.scatter(-1, best_BTK, True)


def balance_loss(
    kept_BTH: torch.Tensor, probs_BTH: torch.Tensor, valid_BT: torch.Tensor, routing: HeadRouting
) -> torch.Tensor:
    """Imbalance of the routed heads over the valid tokens (section 3.3 of the paper).

    With `n` routed heads of which `m` are kept, equal use and equal probabilities that sum to 1 give `m`.
    """
    weight_BT1 = valid_BT[..., None].float()
    count = weight_BT1.sum().clamp(min=1)
    share_H = (kept_BTH * weight_BT1).sum(dim=(0, 1))[routing.num_shared :] / count
    mean_H = (probs_BTH * weight_BT1).sum(dim=(0, 1))[routing.num_shared :] / count
    return routing.num_routed * (share_H * mean_H).sum()
