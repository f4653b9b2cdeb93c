"""DiLoCo by torchft (https://github.com/pytorch/torchft): each island is a process that may be lost.

The islands meet at a *lighthouse*. An exchange is between those that are alive; one that comes back takes the weights,
the states and the step of a living one at its next exchange. `diloco.py` is the reference: without faults and with two
islands both come to the same weights. torchft's `use_bucketization` is off: it skips what does not fill a bucket.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.strategies import TorchftSettings
from trainyard.train.contracts import Batch, StageSpec
from trainyard.train.parallel.islands import cut_island
from trainyard.train.session.parallelism import SingleProcess

ISLAND_VARIABLE, LIGHTHOUSE_VARIABLE = "TRAINYARD_ISLAND", "TRAINYARD_LIGHTHOUSE"
LOOPBACK = "127.0.0.1"
QUORUM_PATIENCE = timedelta(hours=12)
"""How long an island waits at an exchange for the lighthouse, which itself waits `timeout_s` for slower islands."""
OUTER = "outer"


class Trained(torch.nn.Module):
    """The trained tensors alone: torchft exchanges every parameter of a module."""

    def __init__(self, tensors: list[Any]) -> None:
        super().__init__()
        self.tensors = torch.nn.ParameterList(tensors)


class StepHooks:
    """The place of an optimizer for torchft's hooks, which `TorchftIsland` calls around each step."""

    def __init__(self) -> None:
        self.before: list[Callable[..., None]] = []
        self.after: list[Callable[..., None]] = []

    def register_step_pre_hook(self, hook: Callable[..., None]) -> StepHooks:
        self.before.append(hook)
        return self

    def register_step_post_hook(self, hook: Callable[..., None]) -> StepHooks:
        self.after.append(hook)
        return self

    def run(self, hooks: list[Callable[..., None]]) -> None:
        for hook in hooks:
            hook(self, (), {})


class TorchftIsland(SingleProcess):
    """One island of one process."""

    def __init__(self, model: Any, settings: TorchftSettings) -> None:
        # torchft is an extra
        from torchft import Manager, ProcessGroupGloo
        from torchft.local_sgd import DiLoCo

        self.island, self.settings = int(os.environ[ISLAND_VARIABLE]), settings
        self.layout = {"strategy": "torchft", "processes": 1, "islands": settings.num_islands}
        self.tensors: list[Any] = self.parameters(model)
        self.state: tuple[Callable[[], JsonObject], Callable[[JsonMapping], None]] | None = None
        self.store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=settings.timeout_s)),
            load_state_dict=self._take_state,
            state_dict=self._read_state,
            min_replica_size=settings.min_islands,
            use_async_quorum=False,
            timeout=timedelta(seconds=settings.timeout_s),
            quorum_timeout=QUORUM_PATIENCE,
            rank=0,
            world_size=1,
            store_addr=LOOPBACK,
            store_port=self.store.port,
            lighthouse_addr=os.environ[LIGHTHOUSE_VARIABLE],
            replica_id=f"island-{self.island}",
            hostname=LOOPBACK,
            init_sync=False,  # all islands begin with the same weights
        )
        self.hooks, trained = StepHooks(), Trained(self.tensors)
        self.outer = torch.optim.SGD(
            trained.parameters(),
            lr=settings.outer_lr,
            momentum=settings.outer_momentum,
            nesterov=settings.outer_momentum > 0,
        )
        hooks: Any = self.hooks
        self.diloco = DiLoCo(self.manager, [trained], hooks, self.outer, sync_every=settings.inner_steps)
        self.diloco.__enter__()
        atexit.register(self.manager.shutdown, wait=False)

    def cut_batch(self, stage: StageSpec, batch: Batch) -> tuple[Batch, float]:
        part, idle = cut_island(batch, stage, self.island, self.settings.num_islands)
        return part, 0.0 if idle else float(self.settings.num_islands)

    def sync_gradients(self, parameters: Any, *, scaled: bool) -> None:
        self.hooks.run(self.hooks.before)

    def after_step(self, steps: int) -> None:
        """torchft counts the step, and exchanges weights after every `inner_steps`."""
        grads = [value.grad for value in self.tensors]
        self.hooks.run(self.hooks.after)
        for value, grad in zip(self.tensors, grads, strict=True):
            value.grad = grad

    def finish(self) -> None:
        """Exchange the changes since the last exchange."""
        if self.diloco._local_step:
            self.diloco._local_step = self.settings.inner_steps - 1
            self.after_step(0)

    def facts(self) -> JsonObject:
        return {
            "outer_step": self.manager.current_step(),
            "inner_step": self.diloco._local_step,
            "islands": self.manager.num_participants(),
        }

    # The state

    def share_state(self, read: Callable[[], JsonObject], take: Callable[[JsonMapping], None]) -> None:
        """Let an island that comes back take over what `read` returns of this one."""
        self.state = read, take

    def _read_state(self) -> JsonObject:
        assert self.state is not None, "the session shares its state before the first exchange"
        return {"weights": [value.detach().clone() for value in self.tensors], "session": self.state[0]()}

    @torch.no_grad()
    def _take_state(self, saved: JsonMapping) -> None:
        assert self.state is not None, "the session shares its state before the first exchange"
        for value, weights in zip(self.tensors, saved["weights"], strict=True):
            value.copy_(weights)
        self.state[1](saved["session"])
        self.healed = True

    def own_parts(self) -> JsonObject:
        fragment = self.diloco._fragments[0]
        return {
            OUTER: {
                "weights": dict(fragment.original_parameters),
                "optimizer": self.outer.state_dict(),
                "manager": self.manager.state_dict(),
                "inner_step": self.diloco._local_step,
            }
        }

    @torch.no_grad()
    def take_own_parts(self, parts: JsonMapping) -> None:
        if OUTER not in parts:
            return
        saved = parts[OUTER]
        for name, value in self.diloco._fragments[0].original_parameters.items():
            value.copy_(saved["weights"][name])
        self.outer.load_state_dict(saved["optimizer"])
        self.manager.load_state_dict(saved["manager"])
        self.diloco._local_step = saved["inner_step"]
