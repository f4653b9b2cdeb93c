"""Devices, and the precision that they compute in."""

from __future__ import annotations

from enum import StrEnum


class Device(StrEnum):
    """Where a job computes; `auto` takes CUDA, then Apple's MPS, then the CPU, and records which."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


EVERY_DEVICE = (Device.CPU, Device.CUDA, Device.MPS)


class Precision(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
