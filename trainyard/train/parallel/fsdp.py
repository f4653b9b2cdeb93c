"""FSDP with hybrid sharding: the processes of a replica share its weights, gradients and optimizer states.

torch's `fully_shard` (FSDP2) on a mesh of replicas x shards: a block's weights are gathered when it computes and given
back afterwards; its gradients are summed over all processes in the backward, and each keeps its part. The rest of the
model is one more group, around a module whose forward is whatever is to be done with the model: so the weights are in
place also for the heads, which call the decoder and the output layer directly, and tied weights stay tied.

Optimizers get plain tensors that share the memory of the parts. Those that look at single elements compute what they
would in one process; those that look at whole matrices or blocks do not, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from trainyard.json_types import JsonObject
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.training import LaunchSettings, TrainerConfig
from trainyard.train.checkpoint import state
from trainyard.train.methods.full import find_decoder_blocks
from trainyard.train.optimizers import make_optimizer
from trainyard.train.parallel.team import LEADER, Team
from trainyard.train.parallel.zero import Sharded
from trainyard.train.session.parallelism import Found

ISLAND, REPLICATE, SHARD = "island", "replicate", "shard"


class Whole(torch.nn.Module):
    """A model, and as its forward whatever is to be done with it: a place for the hooks that gather its weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


class Hybrid(Sharded):
    """Weights, gradients and optimizer states in parts, once in each replica."""

    strategy = Strategy.FSDP_HYBRID
    is_sharded = True

    def __init__(self, team: Team, model: Any, launch: LaunchSettings) -> None:
        super().__init__(team, model, launch)
        self.size = launch.parts
        self.layout |= {"shard_size": self.size}
        shape = (team.islands, team.size // self.size, self.size)
        everywhere = init_device_mesh(team.device, shape, mesh_dim_names=(ISLAND, REPLICATE, SHARD))
        self.mesh = everywhere[REPLICATE, SHARD]
        # The shards of a replica are gathered once, from the ranks of the first replica.
        self.apart = ("gradients", "optimizer", "random") if team.rank < self.size else ("random",)
        _, blocks = find_decoder_blocks(model) or (None, [])  # without blocks, the model is one group
        for block in blocks:
            fully_shard(block, mesh=self.mesh, reshard_after_forward=True)
        self.whole: Any = Whole(model)
        fully_shard(self.whole, mesh=self.mesh, reshard_after_forward=True)
        for module in self.whole.modules():
            if isinstance(module, FSDPModule):  # sums, as a loss is divided by the units of the whole step
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self.sharded: JsonObject = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.shards = {name: torch.nn.Parameter(value.to_local().detach()) for name, value in self.sharded.items()}

    @property
    def group(self) -> Any:
        return self.mesh.get_group(SHARD)

    def parameters(self, model: Any) -> list[torch.Tensor]:
        return list(self.shards.values())

    def optimizer(self, groups: list[JsonObject], config: TrainerConfig) -> Any:
        return make_optimizer(
            [{**group, "params": [self.shards[name] for name in group["names"]]} for group in groups], config
        )

    def sources(self, rank: int) -> tuple[int, ...]:
        return (rank % self.size, rank)

    def run(self, model: Any, work: Callable[[Any], Found]) -> Found:
        outcome: Found = self.whole(lambda: work(model))
        return outcome

    def after_backward(self, parameters: Sequence[torch.Tensor]) -> None:
        self.share_gradients()

    def share_gradients(self) -> None:
        """The optimizer's tensors get the gradients of the parts, in the same memory."""
        for name, value in self.sharded.items():
            grad = value.grad.to_local() if value.grad is not None else None
            self.shards[name].grad = grad if grad is not None and grad.numel() else None

    def sync_gradients(self, parameters: Sequence[torch.Tensor], *, scaled: bool) -> None:
        """The backward has summed them already."""
        super().sync_gradients(parameters, scaled=scaled)

    def norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.norm_of_parts(parameters)

    def clear(self, model: Any) -> None:
        for value in self.sharded.values():
            value.grad = None

    # The state

    def weights(self, model: Any) -> state.Tensors:
        """Gather the shards of the first replica on rank 0; nothing on the other ranks."""
        shards = {f"parameter/{name}": value.detach() for name, value in self.shards.items()}
        if not self.leading:
            if self.team.rank < self.size:
                self.team.send(shards, LEADER)
            return {}
        parts = [{name: value.cpu() for name, value in shards.items()}]
        parts += [self.team.receive(rank) for rank in range(1, self.size)]
        whole = {name: torch.cat([part[name] for part in parts]) for name in shards}
        return whole | {f"buffer/{name}": value for name, value in model.named_buffers()}

    @torch.no_grad()
    def take_weights(self, model: Any, saved: state.Tensors) -> None:
        for name, value in self.shards.items():
            value.copy_(self.cut_part(saved[f"parameter/{name}"]))
        for name, value in model.named_buffers():
            value.copy_(saved[f"buffer/{name}"])

    def cut_part(self, whole: torch.Tensor) -> torch.Tensor:
        """This process's part of a whole tensor, cut as `fully_shard` cuts: chunks of rows, the last maybe empty."""
        chunks, at = whole.chunk(self.size), self.mesh.get_local_rank(SHARD)
        return chunks[at] if at < len(chunks) else whole[:0]

    def gradients(self, model: Any) -> state.Tensors:
        return {name: value.grad.to_local() for name, value in self.sharded.items() if value.grad is not None}

    def take_gradients(self, model: Any, saved: state.Tensors) -> None:
        for name, value in self.sharded.items():
            value.grad = self.as_part(value, saved[name]) if name in saved else None
        self.share_gradients()

    def as_part(self, like: DTensor, shard: torch.Tensor) -> DTensor:
        return DTensor.from_local(
            shard.to(like.device).clone(),
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )
