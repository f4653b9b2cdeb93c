"""Kernels that give the same bits each time, on a GPU too.

Every job asks torch for deterministic algorithms with `warn_only`, since some operations have none. For attention this
is not enough on CUDA: with `warn_only` its backward pass takes a faster kernel with another order of additions each
time, and cuDNN's attention stays allowed. Only errors in place of warnings exclude both (torch: `sdp_utils.cpp`,
`attention_backward.cu`; flash-attention has the variable `FLASH_ATTENTION_DETERMINISTIC`). So the passes of a training
step are computed in this strict way wherever a first step shows that all of the model's operations allow it.

torch fills new memory with NaN then, so that an operation that reads it before it is written gives the same bits as
well. No training of the tests has such an operation, and the filling is a fifth of all operations of a step: it is
switched off (torch.utils.deterministic).

The random generators of one session: what it draws is its own, whatever else in the process draws.

Modules draw their dropout from the process's generators. While a verb runs these have the session's state; before and
after it they have that of everybody else. Two sessions that take turns therefore draw what each would draw alone. No
verb draws from Python's or numpy's generators. About 20 µs a verb on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

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


Given = ParamSpec("Given")
Found = TypeVar("Found")


class GeneratorStates(NamedTuple):
    """Generator states of torch, and of the current CUDA device where one is used."""

    torch: torch.Tensor
    cuda: torch.Tensor | None


def read_states(*, cuda: bool) -> GeneratorStates:
    return GeneratorStates(torch.get_rng_state(), torch.cuda.get_rng_state() if cuda else None)


def write_states(states: GeneratorStates) -> None:
    torch.set_rng_state(states.torch)
    if states.cuda is not None:
        torch.cuda.set_rng_state(states.cuda)


class OwnGenerators:
    """The states that belong to one session, beginning with those of the process."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self.states = read_states(cuda=self.cuda)
        self._used = False

    @contextmanager
    def used(self) -> Iterator[None]:
        """The process's generators have the session's state while the block runs, and it keeps what they become."""
        if self._used:
            yield
            return
        outer_states, self._used = read_states(cuda=self.cuda), True
        write_states(self.states)
        try:
            yield
        finally:
            self.states, self._used = read_states(cuda=self.cuda), False
            write_states(outer_states)


class Drawing(Protocol):
    """Protocol of an object with generators of its own."""

    @property
    def generators(self) -> OwnGenerators: ...


Drawer = TypeVar("Drawer", bound=Drawing)


def draw_own(
    method: Callable[Concatenate[Drawer, Given], Found],
) -> Callable[Concatenate[Drawer, Given], Found]:
    """Decorate a method that runs with the generators of its object."""

    @wraps(method)
    def run(self: Drawer, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        with self.generators.used():
            return method(self, *args, **kwargs)

    return run


def fork_rng(device: str) -> AbstractContextManager[None]:
    """torch's generators as they were, afterwards."""
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()) if device == "cuda" else [])
