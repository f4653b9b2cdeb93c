"""The eight verbs of a step service, as a protocol: what `session.py` needs of the service that has the weights.

Shapes: T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from trainyard.train.contracts import Generated, Sampling


@dataclass(frozen=True)
class ServiceRow:
    """A row of tokens; each is predicted from those before it."""

    tokens: list[int]
    targets: list[int]
    """The token after each."""


@dataclass(frozen=True)
class StepSettings:
    """Settings of one optimizer step (AdamW)."""

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_grad_norm: float


class StepService(Protocol):
    """A trained adapter at a service. Raises `TrainyardError` in our words, whatever the service says."""

    def open(self) -> None:
        """Open a new adapter, drawn by the seed of the training."""

    def forward(self, rows: Sequence[ServiceRow]) -> list[torch.Tensor]:
        """Return the log-probability of each target: (T,) for each row."""

    def backward(
        self, rows: Sequence[ServiceRow], weights: Sequence[torch.Tensor], *, score: bool = True
    ) -> list[torch.Tensor]:
        """Add the gradient of the sum of -weight x log-probability, and return the log-probabilities.

        Without `score` they are not read, and a service for which they are another pass leaves them out.
        """

    def step(self, settings: StepSettings) -> float | None:
        """Move the weights, clear the gradients, and return the gradient's norm before clipping where it is said."""

    def zero_grad(self) -> None:
        """Clear the gradients; a service that cannot raises `Conflict` (`E-STEP`) where there are any."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        """Continue prompts with the weights as they are now."""

    def logprobs(self, rows: Sequence[Sequence[int]], *, base: bool = False) -> list[list[float | None]]:
        """Return the log-probability of every token, by the weights as they are now or by the frozen base."""

    def save(self, name: str) -> str:
        """Keep weights and optimizer at the service, and return the path by which `load` finds them."""

    def load(self, path: str) -> None:
        """Continue from a saved state."""

    def remove(self, path: str) -> None:
        """Delete a saved state; one that is gone already is left alone."""

    def export(self, name: str, folder: Path) -> None:
        """Write the weights into `folder` as a PEFT adapter."""

    def close(self, status: str) -> None:
        """Say that the session is over: success, errored or interrupted."""
