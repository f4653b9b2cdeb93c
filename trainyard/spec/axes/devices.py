"""Devices, what is assumed of each, and the precision that they compute in. `compute/gpus` looks which are here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainyard.spec.axes.axis import AxisValue, Facts


@dataclass(frozen=True, kw_only=True)
class DeviceFacts(Facts):
    """A device."""

    torch_type: str
    """What torch calls it; its ROCm builds call an AMD GPU `cuda` (docs.pytorch.org/docs/stable/notes/hip.html)."""
    context_gib: float = 0.45
    """Memory of the libraries and the device's context, before there is a model."""
    fp8_capability: tuple[int, int] | None = None
    """First capability whose GPUs multiply fp8, as torch counts it: on ROCm, where it is the number of the gfx
    architecture, MI300 (pytorch/torchtitan#3760). None for no fp8."""

    @property
    def is_gpu(self) -> bool:
        """Return whether frozen weights are kept in half precision there, in memory of its own."""
        return self.torch_type == "cuda"


class Device(AxisValue):
    """Device of a job; `auto` takes CUDA, then ROCm, then Apple's MPS, then the CPU, and records which."""

    facts: DeviceFacts

    AUTO = DeviceFacts("auto", torch_type="")
    CPU = DeviceFacts("cpu", torch_type="cpu")
    CUDA = DeviceFacts("cuda", torch_type="cuda", context_gib=0.8, fp8_capability=(8, 9))
    ROCM = DeviceFacts("rocm", torch_type="cuda", context_gib=0.8, fp8_capability=(9, 4))
    MPS = DeviceFacts("mps", torch_type="mps")


EVERY_DEVICE = (Device.CPU, Device.CUDA, Device.ROCM, Device.MPS)
CPU_AND_GPUS = (Device.CPU, Device.CUDA, Device.ROCM)


def join_devices(devices: Sequence[Device]) -> str:
    """`cpu, cuda or rocm`."""
    *first, last = devices
    return f"{', '.join(first)} or {last}" if first else str(last)


class Precision(StrEnum):
    """The dtype of the matrix products; `auto` measures, and records what it took."""

    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
