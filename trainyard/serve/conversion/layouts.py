"""Whose files an adapter can be in: the names alone, so that a request for a conversion needs none of the code."""

from __future__ import annotations

from enum import StrEnum


class Layout(StrEnum):
    """Whose files an adapter is in."""

    PEFT = "peft"
    MLX = "mlx"
    GGUF = "gguf"
