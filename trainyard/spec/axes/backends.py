"""Backends: who executes a training job."""

from __future__ import annotations

from enum import StrEnum


class BackendName(StrEnum):
    """Who executes a training job."""

    NATIVE = "native"
    TRL = "trl"
    UNSLOTH = "unsloth"
    AXOLOTL = "axolotl"
    DEEPSPEED = "deepspeed"
    MLX = "mlx"
    LLAMACPP = "llamacpp"
    SCRIPT = "script"
