"""Strategies: how several processes share a training."""

from __future__ import annotations

from enum import StrEnum


class Strategy(StrEnum):
    """How several processes share a training; `single` is one process."""

    SINGLE = "single"
    DDP = "ddp"
    FSDP = "fsdp"
    FSDP_HYBRID = "fsdp_hybrid"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
