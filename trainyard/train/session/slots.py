"""Several adapters of one shape on one base: each has a slot with weights, optimizer, gradients and generators.

One slot is in the model; the others are parked as snapshots, and a call to one of them exchanges the two. A new slot is
a function of its seed alone. Therefore an adapter comes to the same bits whether others take turns with it or not. A
parked adapter takes the memory of its weights and its optimizer state; an exchange copies the weights once.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from peft.tuners.lora import LoraLayer

from trainyard.errors import InvalidInput, LimitExceeded, NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.train.checkpoint.state import Snapshot, Tensors, flatten, rebuild
from trainyard.train.session.session import COUNTERS, Session

MAX_SLOTS = 64


class AdapterSlots:
    """The adapters of a session, by the names of their slots; the first is `""`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.active = ""
        self.parked: dict[str, Snapshot] = {}
        counters = dict.fromkeys(COUNTERS, 0) | {"stale": False}
        fresh = {"rate": session.engine.rate.state_dict(), "scaler": session.scaler.state_dict(), "counters": counters}
        self.fresh: JsonObject = deepcopy(fresh)
        """Parts of a state that do not depend on a seed, as they are before the first step."""

    def enter(self, name: str) -> None:
        """Put the adapter of a slot into the model. Raises `NotFound` (`E-NOT-FOUND`)."""
        if name == self.active:
            return
        if name not in self.parked:
            raise NotFound(
                f"The session has no adapter {name!r}.", why="It was dropped, or never opened.",
                do="Open it again, and load a saved state into it.", code="E-NOT-FOUND",
            )  # fmt: skip
        self.parked[self.active] = self.park()
        self.session.restore(self.parked.pop(name))
        self.active = name

    def open(self, name: str, seed: int) -> None:
        """Open a slot with a new adapter, drawn by its seed alone, and enter it. An open one begins again.

        Raises `InvalidInput` (`E-STEP`) for a method without LoRA layers, `LimitExceeded` (`E-LIMIT`).
        """
        layers = [module for module in self.session.engine.model.modules() if isinstance(module, LoraLayer)]
        if not layers:
            raise InvalidInput(
                "Only a session of method lora has several adapters.", do="Create it with method lora.", code="E-STEP"
            )
        if name in self.parked:
            self.enter(name)
        elif name != self.active:
            if len(self.parked) >= MAX_SLOTS:
                raise LimitExceeded(
                    f"The session has {MAX_SLOTS} adapters already.", do="Unload one of them.", code="E-LIMIT"
                )
            self.parked[self.active] = self.park()
        self.active = name
        self.begin(layers, seed)

    def begin(self, layers: list[Any], seed: int) -> None:
        """Draw the weights of a new adapter, and put everything else back to its beginning."""
        session = self.session
        session.zero_grad()
        session.reset_optimizer()
        with session.generators.used(), torch.no_grad():
            torch.manual_seed(seed)
            for layer in layers:
                for adapter in layer.active_adapters:
                    draw_as_peft(layer, adapter)
            torch.manual_seed(seed)
        session.restore(Snapshot(deepcopy(self.fresh), session.identity()))

    def drop(self, name: str) -> None:
        """Forget an adapter; the active one is replaced by the first. Dropping twice is dropping once."""
        if name == self.active and name:
            self.enter("")
        if name:
            self.parked.pop(name, None)

    def park(self) -> Snapshot:
        """Return the state of the active adapter, which no later step of another one changes."""
        snapshot = self.session.snapshot()
        weights = {name: value.detach().clone() for name, value in snapshot.parts["weights"].items()}
        return replace(snapshot, parts={**snapshot.parts, "weights": weights})

    @property
    def in_use(self) -> bool:
        """Return whether there is any adapter besides the first."""
        return bool(self.active or self.parked)

    # The checkpoint of the session

    def save(self, tensors: Tensors) -> JsonObject:
        """Add the tensors of the parked adapters to those of a checkpoint, and return their values."""
        parked = {name: flatten(snapshot.parts, f"slot/{name}", tensors) for name, snapshot in self.parked.items()}
        return {"active": self.active, "parked": parked}

    def restore(self, values: JsonMapping, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `save` returned; the active adapter is in the session already."""
        identity = self.session.identity()
        self.active = str(values["active"])
        self.parked = {name: Snapshot(rebuild(value, tensors), identity) for name, value in values["parked"].items()}


def draw_as_peft(layer: LoraLayer, adapter: str) -> None:
    """Draw the factors of a layer as PEFT does when it makes them: on the CPU, both of them first, then A again.

    So an adapter begins as that of a training with the same seed.
    """
    if adapter not in layer.lora_A:  # of an embedding
        layer.reset_lora_parameters(adapter, init_lora_weights=True)
        return
    first: Any = layer.lora_A[adapter]
    second: Any = layer.lora_B[adapter]
    drawn = torch.nn.Linear(first.in_features, first.out_features, bias=False)
    torch.nn.Linear(second.in_features, second.out_features, bias=False)
    drawn.reset_parameters()
    first.weight.copy_(drawn.weight)
    second.weight.zero_()
