"""The share of each rank in the memory of a distributed training; each rank has its own device.

ZeRO (arXiv 1910.02054, section 3) divides one after the other by the N processes: 1 the optimizer's states, 2 the
gradients too, 3 the weights too; fsdp is as 3, and fsdp_hybrid divides by the `shard_size` processes of a copy.
Where the weights are divided, the largest group of them is whole while it computes: a block, or embedding and output
layer. ddp divides nothing, and activations are each process's own.
"""

from __future__ import annotations

from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.training import LaunchSettings


def sharers(launch: LaunchSettings) -> int:
    """Processes that divide one copy."""
    if launch.strategy is Strategy.FSDP_HYBRID:
        return launch.shard_size or max(1, launch.processes // 2)
    return launch.processes


def divide_memory(kept: dict[str, int], launch: LaunchSettings) -> dict[str, int]:
    """The parts of the memory of one process: whole ones, and its share of the others (rounded up)."""
    shared = launch.strategy.facts.divided
    return {part: -(-size // sharers(launch)) if part in shared else size for part, size in kept.items()}


def gathered_bytes(shape: ModelShape, launch: LaunchSettings, width: int) -> int:
    """Bytes of the largest group of weights that a process puts together to compute; `width` is that of a number."""
    if "weights" not in launch.strategy.facts.divided:
        return 0
    return width * max(shape.block, shape.parameters - shape.layers * shape.block)
