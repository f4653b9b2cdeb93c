"""Adapters of a step service's double, computed at Trainyard's step service.

`connect` opens one adapter there; everything else of a double is its wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from trainyard.backends.remote_steps.service import ServiceRow, StepService, StepSettings
from trainyard.testing.step_services.wire import REFUSED, Json, WireRefusal
from trainyard.train.contracts import Generated, Sampling

Connect = Callable[[int, int], StepService]
"""Rank and seed -> a client of the service that computes."""
ALPHA = 32
"""Scale of an adapter at our step service."""


@dataclass
class ComputedAdapter:
    """Adapter with the paths of its saved states."""

    service: StepService
    steps: int = 0
    operations: dict[str, Json] = field(default_factory=dict)
    """Key of a request -> its body and its result, so that a repeated one is the first."""

    def score(self, rows: Sequence[ServiceRow], weights: Sequence[Sequence[float]] | None) -> list[list[float]]:
        """Return log-probabilities; with weights, add the gradients of the weighted cross-entropy."""
        if weights is None:
            return [values_T.tolist() for values_T in self.service.forward(rows)]
        tensors = [torch.tensor(values, dtype=torch.float32) for values in weights]
        return [values_T.tolist() for values_T in self.service.backward(rows, tensors)]

    def step(self, settings: StepSettings) -> float | None:
        self.steps += 1
        return self.service.step(settings)

    def sample(self, prompt: list[int], sampling: Sampling, count: int = 1) -> list[Generated]:
        return self.service.generate([prompt] * count, sampling)


@dataclass
class Computer:
    """The machine of a service: its one base, and the adapters on it."""

    connect: Connect
    base: str
    """The service's name for the base."""
    services: list[StepService] = field(default_factory=list)

    def open(self, base: str, rank: int, alpha: int | None, seed: int | None) -> ComputedAdapter:
        """Open an adapter. Raises `WireRefusal` for another base, or a scale that is not the computing service's."""
        if base != self.base:
            raise WireRefusal(REFUSED, f"The model {base} is not supported: only {self.base} is.")
        if alpha != ALPHA or not rank > 0:
            raise WireRefusal(REFUSED, f"An adapter of rank {rank} and alpha {alpha} is not supported here.")
        service = self.connect(rank, seed or 0)
        service.open()
        self.services.append(service)
        return ComputedAdapter(service)

    def load(self, adapter: ComputedAdapter, path: str) -> None:
        adapter.service.load(path)

    def close(self) -> None:
        """Let go of every adapter: their clients keep connections open."""
        while self.services:
            self.services.pop().close("success")

    def export(self, adapter: ComputedAdapter, name: str, folder: Path) -> list[Path]:
        """Write the weights of an adapter, and return the files."""
        adapter.service.export(name, folder)
        return sorted(folder.iterdir())
