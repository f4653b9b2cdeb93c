"""Where the GPU tests and benchmarks compute: on the card, or on a CPU with tiny shapes to rehearse the code.

    (no variable)                          CUDA; without a card there is no platform, and `WHY` says so
    TRAINYARD_GPU_TESTS_DEVICE=cpu         the same code with tiny shapes; no bar of speed or memory is held
    TRAINYARD_GPU_TESTS_DEVICE=cuda        CUDA, or an error

Import this before anything computes: it sets what CUDA's matrix products need for the same bits each time.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from importlib.util import find_spec

import torch

os.environ.update(CUBLAS_WORKSPACE_CONFIG=":4096:8", FLASH_ATTENTION_DETERMINISTIC="1")
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", DO_NOT_TRACK="1", TOKENIZERS_PARALLELISM="false")

VARIABLE = "TRAINYARD_GPU_TESTS_DEVICE"
WHY = f"no CUDA device here; {VARIABLE}=cpu rehearses the same code with tiny shapes"
HOPPER = 9


@dataclass(frozen=True)
class Platform:
    """The device that everything is computed on."""

    device: str

    @property
    def rehearsal(self) -> bool:
        """Whether this only shows that the code runs: shapes are tiny, and bars are not held."""
        return self.device != "cuda"

    def synchronize(self) -> None:
        """Wait until the device has done everything that was asked of it."""
        if not self.rehearsal:
            torch.cuda.synchronize()

    def name(self) -> str:
        """The card's name, or `cpu`."""
        return "cpu" if self.rehearsal else torch.cuda.get_device_name()

    def bars(self, bars: dict[str, float], *, least: bool = False) -> dict[str, float]:
        """The bars of a table; in a rehearsal ones that every value meets."""
        return dict.fromkeys(bars, 0.0 if least else math.inf) if self.rehearsal else bars

    def has(self, package: str) -> bool:
        """Whether a package is installed here."""
        return find_spec(package) is not None

    def is_hopper(self) -> bool:
        """Whether the card has compute capability 9."""
        return not self.rehearsal and torch.cuda.get_device_capability()[0] == HOPPER


def result_name(name: str, platform: Platform) -> str:
    """Where a table is kept; a rehearsal never replaces what a card gave."""
    return f"{name}_rehearsal" if platform.rehearsal else name


def find_platform() -> Platform | None:
    """The platform of this process; None where there is none. Raises `RuntimeError` for a device that is not here."""
    choice = os.environ.get(VARIABLE, "")
    if choice not in ("", "cpu", "cuda"):
        raise RuntimeError(f"{VARIABLE}={choice}: use cpu or cuda")
    if choice == "cpu":
        return Platform("cpu")
    if torch.cuda.is_available():
        return Platform("cuda")
    if choice == "cuda":
        raise RuntimeError(f"{VARIABLE}=cuda, and torch finds no CUDA device")
    return None


PLATFORM = find_platform()
