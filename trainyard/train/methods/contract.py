"""The interface of a method: its inputs and its result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from peft import PeftConfig

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.training import TrainerConfig

Head = Literal["causal", "reward"]
Groups = list[dict[str, Any]]
"""Parameter groups: `params`, `names` (of the parameters, in their order), `lr`, `weight_decay`."""


@dataclass(frozen=True)
class PolicyRequest:
    """Request for a policy: the model to train, and its device. The config is one that `resolve_trainer` returned."""

    config: TrainerConfig
    base: str
    """Folder of the base model, or its name on the Hub."""
    head: Head
    device: str
    base_sha256: str = ""
    """Digest of the base's files; an adapter trained on other bytes is refused."""
    adapter: Path | None = None
    """Folder of the earlier adapter that `config.adapter` speaks of."""
    attention: str | None = None
    """Attention kernel as transformers names it; None leaves the choice to transformers."""


@dataclass
class Policy:
    """The model in training and its facts."""

    model: Any
    """A `PeftModel` for the methods with an adapter, the transformers model itself for the others."""
    reference: Callable[[], AbstractContextManager[Any]] | None
    """Opens the frozen reference: a model in evaluation mode without gradients, until the context ends. None when it
    was not asked for; setting None frees its memory."""
    facts: JsonObject
    lineage: list[JsonObject]
    """Every model and adapter that this one comes from, oldest first: {stage, method, sha256, parents}."""
    warnings: list[str] = field(default_factory=list)
    initial: dict[str, torch.Tensor] | None = None
    """What a new adapter began with, by the names of a saved one, where that was not zero."""
    earlier_layers: JsonMapping | None = None
    """Layers of an earlier adapter that is saved together with the new one (`sums.Layers`)."""
    rotation: BlockRotation | None = None
    """Draws the blocks that are trainable, where they change while it trains."""
    packages: list[str] = field(default_factory=list)
    """Packages whose kernels compute it, besides those of its quantization format and its optimizer."""


class BlockRotation(Protocol):
    """Other trainable blocks every few steps. The blocks of a step follow from its number alone."""

    def show(self, step: int, optimizer: Any = None) -> None:
        """Let the blocks of a step be trainable. The optimizer drops the states of all others, which begin at zero when
        they are drawn again."""

    def open(self) -> None:
        """Let every weight that is trained at any step be trainable."""


@dataclass(frozen=True)
class MethodSpec:
    """A row of the table of methods: an adapter (`adapter_config`) or a choice of weights (`choose`)."""

    load: Callable[[PolicyRequest, str], Any]
    """(request, folder) -> the base on its device, in the dtype or quantization format of the method."""
    groups: Callable[[torch.nn.Module, TrainerConfig], Groups]
    adapter_config: Callable[[Any, PolicyRequest], PeftConfig] | None = None
    choose: Callable[[Any, PolicyRequest], list[str]] | None = None
    """Mark the weights that move; returns warnings."""
    rotate: Callable[[Any, PolicyRequest], BlockRotation | None] | None = None
    """Which of them move at a step, where that changes."""
