"""The interface of a session for the loop and its hooks, with weights in this process or at a service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from trainyard.train.contracts import Batch, Generated, Sampling
from trainyard.train.session.replies import Backward, Evaluated, Forward, Stepped


class StepSession(Protocol):
    """A model in training."""

    global_step: int
    skipped: int

    @property
    def engine(self) -> Any:
        """Return the parts of the session; its `config` and `stage` are read."""

    @property
    def context(self) -> int | None:
        """Return tokens that the model can see at once; None where its config does not say."""

    def forward(self, batch: Batch, *, normalizer: float | None = None) -> Forward:
        """Score a batch and keep its graph for one `backward`."""

    def backward(self, forward_id: str, *, scale: float = 1.0, measure: bool = True) -> Backward:
        """Add the gradients of a forward's loss."""

    def step(self, *, metric: float | None = None) -> Stepped:
        """Move the weights by what has been accumulated, and the schedule."""

    def zero_grad(self) -> None:
        """Clear the gradients."""

    def evaluate(self, batch: Batch) -> Evaluated:
        """Score a batch without gradients and without dropout."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None) -> list[Generated]:
        """Continue token prompts."""

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        """Continue token prompts with the frozen model."""

    def reset_optimizer(self) -> None:
        """Let the optimizer begin again with what it had before its first step."""
