"""ZeRO 1 and 2 (Rajbhandari et al. 2019, arXiv 1910.02054): one owner for each tensor that moves.

    zero1   the optimizer's states are with the owner; gradients are whole everywhere until a step
    zero2   the gradients are with the owner, too: reduced bucket by bucket during each backward, dropped elsewhere

Tensors are dealt out whole, so every optimizer of the table works as it is, also those that look at a whole matrix
(Muon, GaLore, Adafactor). An owner's optimizer is the ordinary one with the other tensors taken out of its groups;
after a step the owners broadcast their tensors. This is Trainyard's ZeRO; DeepSpeed's is the backend `deepspeed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grads_with_norm_

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.training import LaunchSettings, TrainerConfig
from trainyard.train import optimizers
from trainyard.train.optimizers import CompositeOptimizer, ScheduleFree
from trainyard.train.parallel import ddp
from trainyard.train.parallel.ddp import Ddp
from trainyard.train.parallel.team import Team


class Sharded(Ddp):
    """Gradients of which each process of a group has another shard, when they have been brought together."""

    @property
    def group(self) -> Any:
        """Return the processes that have the shards."""
        return self.team.group

    def sync_gradients(self, parameters: Sequence[torch.Tensor], *, scaled: bool) -> None:
        """When a gradient of some process is not finite, make one so in each: all their scalers then skip the step."""
        if scaled and not torch.isfinite(self.norm_of_parts(parameters)):
            for value in parameters:
                if value.grad is not None and value.grad.numel():
                    value.grad.view(-1)[0] = torch.inf

    def norm_of_parts(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm of all shards together."""
        grads = [value.grad for value in parameters if value.grad is not None]
        none = torch.zeros((), dtype=torch.float64, device=ddp.choose_device(parameters))
        squares = sum((grad.double().square().sum() for grad in grads), none)
        dist.all_reduce(squares, group=self.group)
        return squares.sqrt().float()

    def clip(self, parameters: Sequence[torch.Tensor], limit: float) -> torch.Tensor:
        norm = self.norm_of_parts(parameters)
        clip_grads_with_norm_(parameters, limit, norm)
        return norm


class Zero1(Sharded):
    """Optimizer states in parts."""

    strategy = Strategy.ZERO1
    apart = ("gradients", "optimizer", "random")

    def __init__(self, team: Team, model: Any, launch: LaunchSettings) -> None:
        super().__init__(team, model, launch)
        self.trainable = self.parameters(model)
        self.owner = dict(zip(map(id, self.trainable), assign_owners(self.trainable, team.size), strict=True))

    def optimizer(self, groups: list[JsonObject], config: TrainerConfig) -> Any:
        return Partitioned(optimizers.make_optimizer(groups, config), self.owner, self.team)

    def sync_gradients(self, parameters: Sequence[torch.Tensor], *, scaled: bool) -> None:
        """Sum each gradient at its owner, and drop it everywhere else."""
        present = ddp.zero_missing_grads(parameters, self.team.group)
        for owner in range(self.team.size):
            for bucket in ddp.buckets([value for value in present if self.owner[id(value)] == owner]):
                flat_M = ddp.flatten_bucket(bucket)
                dist.reduce(flat_M, group_dst=owner, group=self.team.group)
                for value, part in zip(bucket, ddp.unflatten_bucket(flat_M, bucket), strict=True):
                    value.grad = part.clone() if owner == self.team.rank else None
        super().sync_gradients(parameters, scaled=scaled)


class Zero2(Zero1):
    """Gradients in parts, too: a backward leaves each process with those of its own tensors."""

    strategy = Strategy.ZERO2

    def __init__(self, team: Team, model: Any, launch: LaunchSettings) -> None:
        super().__init__(team, model, launch)
        order = list(reversed(self.trainable))  # a backward comes to the last layers first
        order_of = {id(value): at for at, value in enumerate(order)}
        parts = [[value for value in order if self.owner[id(value)] == rank] for rank in range(team.size)]
        buckets = [bucket for part in parts for bucket in ddp.buckets(part)]
        self.buckets = sorted(buckets, key=lambda bucket: max(order_of[id(value)] for value in bucket))
        self.ready: set[int] = set()
        self.reduced = 0
        self.grads: dict[int, torch.Tensor] = {}
        """Gradients of this process's tensors: of earlier backwards, and the sums of this one."""
        self.touched: set[int] = set()
        for value in self.trainable:
            value.register_post_accumulate_grad_hook(self.take_gradient)

    def before_backward(self, parameters: Sequence[torch.Tensor]) -> None:
        self.ready, self.touched, self.reduced = set(), set(), 0
        self.grads = {id(value): value.grad for value in parameters if value.grad is not None}
        for value in parameters:
            value.grad = None

    def take_gradient(self, value: torch.Tensor) -> None:
        """A gradient is complete here. Buckets go in one order everywhere, so that the processes meet."""
        self.ready.add(id(value))
        self.touched.add(id(value))
        while self.reduced < len(self.buckets) and all(id(part) in self.ready for part in self.buckets[self.reduced]):
            self.reduce_next()

    def reduce_next(self) -> None:
        bucket = self.buckets[self.reduced]
        owner = self.owner[id(bucket[0])]
        for value in bucket:
            if value.grad is None:
                value.grad = torch.zeros_like(value)
        flat_M = ddp.flatten_bucket(bucket)
        dist.reduce(flat_M, group_dst=owner, group=self.team.group)
        for value, part in zip(bucket, ddp.unflatten_bucket(flat_M, bucket), strict=True):
            value.grad = None
            if owner == self.team.rank:
                before = self.grads.get(id(value))
                self.grads[id(value)] = part.clone() if before is None else before + part
        self.reduced += 1

    def after_backward(self, parameters: Sequence[torch.Tensor]) -> None:
        """Reduce the remaining buckets: those with tensors that this process's rows did not touch."""
        had_before = {id(value) for value in parameters if id(value) in self.grads} - self.touched
        while self.reduced < len(self.buckets):
            self.reduce_next()
        touched = [id(value) in self.touched or id(value) in had_before for value in parameters]
        flags = ddp.reduce_any(touched, ddp.choose_device(parameters), self.team.group)
        for value, anywhere in zip(parameters, flags, strict=True):
            value.grad = self.grads.get(id(value)) if anywhere else None
        self.grads = {}

    def sync_gradients(self, parameters: Sequence[torch.Tensor], *, scaled: bool) -> None:
        """Every gradient is with its owner already."""
        Sharded.sync_gradients(self, parameters, scaled=scaled)

    def norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.norm_of_parts(parameters)


class Partitioned(CompositeOptimizer):
    """An optimizer that moves the tensors of this process, and then has all owners hand theirs round."""

    def __init__(self, inner: Any, owner: Mapping[int, int], team: Team) -> None:
        super().__init__(own=inner)
        self.rank, self.group = team.rank, team.group
        self.everything = list(optimizers.iterate_parameters(inner.param_groups))
        self.owner = owner
        self._trained: list[torch.Tensor] = []
        for group in inner.param_groups:
            group["params"] = [value for value in group["params"] if owner[id(value)] == team.rank]
        for part in leaves(inner):
            for value in [value for value in part.state if owner[id(value)] != team.rank]:
                del part.state[value]  # some make room for every tensor at once

    def step(self) -> None:
        super().step()
        self.broadcast_params()

    @torch.no_grad()
    def broadcast_params(self) -> None:
        """Each tensor as its owner has it."""
        for owner in sorted(set(self.owner.values())):
            for bucket in ddp.buckets([value for value in self.everything if self.owner[id(value)] == owner]):
                flat_M = torch.cat([value.detach().reshape(-1) for value in bucket])
                dist.broadcast(flat_M, group_src=owner, group=self.group)
                if owner != self.rank:
                    for value, part in zip(bucket, ddp.unflatten_bucket(flat_M, bucket), strict=True):
                        value.copy_(part)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for value in self.everything:
            value.grad = None

    def eval(self) -> None:
        """Show the averages of all owners' schedule-free optimizers; the trained weights are kept separately."""
        if isinstance(self.inner, ScheduleFree) and not self._trained:
            self._trained = [value.detach().clone() for value in self.everything]
            optimizers.switch_to_eval(self.inner)
            self.broadcast_params()

    @torch.no_grad()
    def train(self) -> None:
        optimizers.switch_to_train(self.inner)
        for value, trainable in zip(self.everything, self._trained, strict=False):
            value.copy_(trainable)
        self._trained = []

    def load_state_dict(self, state: JsonMapping) -> None:
        super().load_state_dict(state)
        self._trained = []


def leaves(optimizer: Any) -> list[Any]:
    """Return the optimizers of torch's kind that one is put together of."""
    if isinstance(optimizer, CompositeOptimizer):
        return [leaf for part in optimizer.parts.values() for leaf in leaves(part)]
    return [optimizer]


def assign_owners(tensors: Sequence[torch.Tensor], size: int) -> list[int]:
    """Assign an owner to each tensor: the largest first, each to the rank with the fewest elements so far.

    Raises `InvalidInput` (`E-LAUNCH`) when some process would own nothing.
    """
    if len(tensors) < size:
        raise InvalidInput(
            f"{len(tensors)} tensors move, and {size} processes would share them.",
            why="Each tensor has one owner, and a process without one would have nothing to do at a step.",
            do=f"Use at most {len(tensors)} processes, or strategy ddp.",
            code="E-LAUNCH",
        )
    owners, loads = [0] * len(tensors), [0] * size
    for at in sorted(range(len(tensors)), key=lambda at: (-tensors[at].numel(), at)):
        owners[at] = min(range(size), key=lambda rank: (loads[rank], rank))
        loads[owners[at]] += max(1, tensors[at].numel())
    return owners
