"""Rows on how a training's processes are launched: how many, by which launcher, and how they share the weights."""

from __future__ import annotations

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.compat.context import Match, NodeView, Row, listed
from trainyard.spec.training import TrainerConfig


def shares_nothing(config: TrainerConfig, _: NodeView) -> Match:
    """Match more than one process with the strategy of one."""
    shared = config.backend.facts.strategies[1:]
    asked = config.launch.strategy is Strategy.SINGLE and config.launch.processes > 1
    return asked and bool(shared) and {"strategies": listed(shared)}


def shares_alone(config: TrainerConfig, _: NodeView) -> bool:
    """Match one process with a distributed strategy; DeepSpeed runs its own with one."""
    asked = config.launch.strategy is not Strategy.SINGLE and config.launch.processes == 1
    return asked and config.backend is not BackendName.DEEPSPEED


def unfit_shard(config: TrainerConfig, _: NodeView) -> Match:
    """A size of a replica that the processes cannot be divided into."""
    launch = config.launch
    size = launch.shard_size or launch.processes // 2
    fitting = [part for part in range(2, launch.processes // 2 + 1) if launch.processes % part == 0]
    if launch.strategy is not Strategy.FSDP_HYBRID or size in fitting or launch.processes == 1:
        return False
    return {
        "size": size,
        "do": f"shard_size {listed(fitting)}" if fitting else "an even number of processes, 4 or more",
    }


LAUNCH_ROWS = (
    Row(
        "launch-processes", "R-LAUNCH", "trainer", "config.launch.processes", shares_nothing,
        "Strategy single is one process, and {config.launch.processes} are asked for.",
        "Use strategy {strategies}.",
    ),
    Row(
        "launch-processes-one", "R-LAUNCH", "trainer", "config.launch.processes", shares_alone,
        "Strategy {config.launch.strategy} shares a training, and one process has nobody to share it with.",
        "Use processes: 2 or more, or remove strategy.",
    ),
    Row(
        "launch-shard", "R-LAUNCH", "trainer", "config.launch.shard_size", unfit_shard,
        "{config.launch.processes} processes are not two or more replicas of {size} processes each.",
        "Use {do}.",
    ),
    Row(
        "launch-shard-unused", "R-SETTING-UNUSED", "trainer", "config.launch.shard_size",
        lambda config, _: config.launch.shard_size is not None
        and config.launch.strategy is not Strategy.FSDP_HYBRID,
        "Strategy {config.launch.strategy} has no replicas that share weights, so shard_size would be ignored.",
        "Remove shard_size, or use strategy fsdp_hybrid.",
    ),
    Row(
        "launch-launcher", "R-LAUNCH", "trainer", "config.launch.launcher",
        lambda config, _: config.launch.launcher != "auto" and config.launch.strategy is Strategy.SINGLE,
        "One process is started without a launcher.", "Remove launcher.",
    ),
    Row(
        "launch-device", "R-DEVICE", "trainer", "config.device",
        lambda config, _: config.device is Device.MPS and config.launch.strategy is not Strategy.SINGLE,
        "A machine with Apple's GPU has one, and no library through which processes could share it.",
        "Remove launch, or use device cuda or cpu.",
    ),
    Row(
        "shard-quantised", "R-LAUNCH", "trainer", "config.launch.strategy",
        lambda config, _: config.launch.strategy.facts.sharded and config.method.facts.quantised,
        "The base of qlora is packed in a few bits, and {config.launch.strategy} cuts weights by their rows.",
        "Use strategy ddp, zero1 or zero2, or method lora.",
    ),
)  # fmt: skip
"""What processes can share, and by what they can be started."""
