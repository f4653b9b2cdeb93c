"""Kernels that give the same bits each time, on a GPU too.

Every job asks torch for deterministic algorithms with `warn_only`, since some operations have none. For attention this
is not enough on CUDA: with `warn_only` its backward pass takes a faster kernel with another order of additions each
time, and cuDNN's attention stays allowed. Only errors in place of warnings exclude both (torch: `sdp_utils.cpp`,
`attention_backward.cu`; flash-attention has the variable `FLASH_ATTENTION_DETERMINISTIC`). So the passes of a training
step are computed in this strict way wherever a first step shows that all of the model's operations allow it.

torch fills new memory with NaN then, so that an operation that reads it before it is written gives the same bits as
well. No training of the tests has such an operation, and the filling is a fifth of all operations of a step: it is
switched off (torch.utils.deterministic).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic

REFUSED = "deterministic"
"""In the message of every operation that torch refuses."""


def prefer_deterministic(*, strict: bool = False) -> None:
    """Ask torch for deterministic algorithms in this process; where an operation has none, it warns, or raises
    `RuntimeError` if `strict`."""
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property of the module


@contextmanager
def strict_kernels(enabled: bool = True) -> Iterator[None]:
    """Within the block, an operation without a deterministic kernel raises `RuntimeError`. Nothing if not `enabled`."""
    if not enabled:
        yield
        return
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def find_refusal(step: Callable[[], None]) -> str:
    """Return why torch cannot compute a step with deterministic kernels alone; empty if it can."""
    try:
        with strict_kernels():
            step()
    except RuntimeError as error:
        if REFUSED not in str(error):
            raise
        return str(error).splitlines()[0]
    return ""
