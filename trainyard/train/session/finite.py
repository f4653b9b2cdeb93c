"""The check of every loss, of whatever engine computed it. Imports no torch."""

from __future__ import annotations

import math

from trainyard.errors import TrainyardError


def require_finite_loss(step: int, loss: float) -> None:
    """Raise `TrainyardError` (`E-NON-FINITE`) for a loss that is NaN or infinite."""
    if not math.isfinite(loss):
        raise TrainyardError(
            f"The loss of step {step} is {loss}.",
            why="The weights left the range of numbers: usually the learning rate is too high for this data.",
            do="Lower hyperparameters.learning_rate, or use precision: fp32.",
            code="E-NON-FINITE",
        )
