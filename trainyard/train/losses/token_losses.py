"""Losses whose inputs come with each call: one value of weight, advantage or old log-probability for each target token.

A caller of a session names one of them and gives its inputs. Each is a pure function (scored tokens, settings) -> the
sum over the tokens of one row; nothing is divided by a number of tokens or rows.

    cross_entropy         -Σ w log p
    importance_sampling   -Σ r A,  r = p / q
    ppo                   -Σ min(r A, clip(r) A)                       (arXiv 1707.06347)
    cispo                 -Σ sg(clip(r)) A log p                       (MiniMax-M1, arXiv 2506.13585)
    dro                   -Σ (A log p - β/2 (log p - log q)²)          (arXiv 2405.19107)
    gspo                  ppo with the ratio of the row, whose gradient each token takes for itself: GSPO-token
                          (arXiv 2507.18071)

Shapes: T positions, K targets of a position, in the order in which the caller gave them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from trainyard.errors import InvalidInput

Settings = Mapping[str, float]
CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
WEIGHTS, ADVANTAGES, OLD, IN_RATIO = "weights", "advantages", "logprobs", "sequence_ratio_mask"


class TokenLoss(Protocol):
    """Loss of one row."""

    def __call__(
        self, logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], settings: Settings
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class TokenLossFacts:
    """A row of the table."""

    loss: TokenLoss
    required: tuple[str, ...]
    """Inputs of every row, besides its target tokens."""
    settings: Mapping[str, float]
    """Name -> default."""
    optional: tuple[str, ...] = ()


def cross_entropy(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], settings: Settings) -> torch.Tensor:
    """Return the weighted negative log-likelihood; without weights each target counts once."""
    del settings  # it has none
    weighted = logprobs * inputs[WEIGHTS] if WEIGHTS in inputs else logprobs
    return -weighted.sum()


def importance_sampling(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], settings: Settings) -> torch.Tensor:
    del settings  # it has none
    return -(ratio_of(logprobs, inputs) * inputs[ADVANTAGES]).sum()


def ppo(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], settings: Settings) -> torch.Tensor:
    return clipped(ratio_of(logprobs, inputs), inputs[ADVANTAGES], settings)


def cispo(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], settings: Settings) -> torch.Tensor:
    weight = clip(ratio_of(logprobs, inputs), settings).detach()
    return -(weight * inputs[ADVANTAGES] * logprobs).sum()


def dro(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], settings: Settings) -> torch.Tensor:
    penalty = settings["beta"] / 2 * (logprobs - inputs[OLD]).square()
    return -(inputs[ADVANTAGES] * logprobs - penalty).sum()


def gspo(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], settings: Settings) -> torch.Tensor:
    fixed = logprobs.detach()
    log_ratio = (fixed - inputs[OLD])[inputs[IN_RATIO] != 0].mean()
    return clipped(torch.exp(log_ratio + logprobs - fixed), inputs[ADVANTAGES], settings)


def ratio_of(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return (logprobs - inputs[OLD]).exp()


def clip(ratio: torch.Tensor, settings: Settings) -> torch.Tensor:
    return ratio.clamp(settings["clip_low_threshold"], settings["clip_high_threshold"])


def clipped(ratio: torch.Tensor, advantages: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Return PPO's clipped objective with its sign turned, summed over the tokens."""
    return -torch.minimum(ratio * advantages, clip(ratio, settings) * advantages).sum()


RATIO = (ADVANTAGES, OLD)
TOKEN_LOSSES: dict[str, TokenLossFacts] = {
    "cross_entropy": TokenLossFacts(cross_entropy, (), {}, (WEIGHTS,)),
    "importance_sampling": TokenLossFacts(importance_sampling, RATIO, {}),
    "ppo": TokenLossFacts(ppo, RATIO, CLIP),
    "cispo": TokenLossFacts(cispo, RATIO, CLIP),
    "dro": TokenLossFacts(dro, RATIO, {"beta": 0.05}),
    "gspo": TokenLossFacts(gspo, (*RATIO, IN_RATIO), CLIP),
}
"""Name -> loss."""


def find_token_loss(name: str) -> TokenLossFacts:
    """Return a loss by its name. Raises `InvalidInput` (`E-STEP`)."""
    if name not in TOKEN_LOSSES:
        raise InvalidInput(
            f"There is no token loss {name!r}.", do=f"Use one of {', '.join(TOKEN_LOSSES)}.", code="E-STEP"
        )
    return TOKEN_LOSSES[name]


def complete_settings(name: str, settings: Mapping[str, object]) -> dict[str, float]:
    """Return the settings of a loss with its defaults.

    Raises `InvalidInput` (`E-STEP`) for one that it does not read.
    """
    facts = find_token_loss(name)
    unread = sorted(settings.keys() - facts.settings.keys())
    if unread:
        allowed = ", ".join(facts.settings) or "none"
        raise InvalidInput(f"The loss {name} has no setting {unread[0]!r}.", do=f"It has: {allowed}.", code="E-STEP")
    values = {key: as_number(key, value) for key, value in settings.items()}
    return {**facts.settings, **values}


def as_number(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf"):
        return float(value)
    raise InvalidInput(f"The setting {name} is {value!r}.", do="Give a finite number.", code="E-STEP")
