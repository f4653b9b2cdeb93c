"""Which number format the matrix products use, decided once per run and recorded with its reason.

On a GPU that has it, bf16. On a CPU bf16 autocast pays only where the processor multiplies bf16 natively, and not for
every model size even there: so it is measured, on the run's own model and batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainyard.errors import InvalidInput
from trainyard.spec.axes import Precision

MEASURED_GAIN = 1.1
"""bf16 has to be this much faster on the CPU: below it, the rounding buys nothing."""


@dataclass(frozen=True)
class PrecisionChoice:
    """bf16, fp16 or fp32, and why."""

    precision: Precision
    why: str


def choose_precision(
    asked: Precision, device: str, *, native: str | None, seconds_per_step: Callable[[bool], float]
) -> PrecisionChoice:
    """Decide the precision.

    `native` names what the device has for bf16 (an instruction set, `cuda`), None for nothing.
    `seconds_per_step(bf16)` times a training step on the device; it is called only where it decides.
    Raises `InvalidInput` (`E-PRECISION`) for fp16 on a CPU, where nothing applies it.
    """
    if asked is Precision.FP16 and device == "cpu":
        raise InvalidInput(
            "precision fp16 was asked for on a CPU.",
            why="Half precision is not applied on CPUs; the run would be fp32 under another name.",
            do="Use precision auto, bf16 or fp32.",
            code="E-PRECISION",
        )
    if asked is not Precision.AUTO:
        return PrecisionChoice(asked, "asked for")
    if native is None:
        return PrecisionChoice(Precision.FP32, f"this {device} has no native bf16")
    if device != "cpu":
        return PrecisionChoice(Precision.BF16, f"native on this device ({native})")
    gain = seconds_per_step(False) / max(seconds_per_step(True), 1e-9)
    if gain >= MEASURED_GAIN:
        return PrecisionChoice(Precision.BF16, f"{gain:.2f} times as fast as fp32 here ({native})")
    return PrecisionChoice(Precision.FP32, f"bf16 was only {gain:.2f} times as fast here ({native})")
