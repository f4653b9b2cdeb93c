"""Rows on how a training's processes are launched: how many, by what, and who holds what."""

from __future__ import annotations

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.compat.context import Match, NodeView, Row, listed
from trainyard.spec.training import TrainerConfig


def unfit_count(config: TrainerConfig, _: NodeView) -> Match:
    """A number of processes that is not what the strategy says."""
    launch, several = config.launch, config.backend.facts.strategies[1:]
    if several and launch.strategy is Strategy.SINGLE and launch.processes > 1:
        return {
            "why": f"Strategy single is one process, and {launch.processes} are asked for",
            "do": f"Use strategy {listed(several)}",
        }
    if launch.strategy is not Strategy.SINGLE and launch.processes == 1 and config.backend is not BackendName.DEEPSPEED:
        return {
            "why": f"Strategy {launch.strategy} shares a training, and one process has nobody to share it with",
            "do": "Use processes: 2 or more, or remove strategy",
        }
    return False


def unfit_shard(config: TrainerConfig, _: NodeView) -> Match:
    """A size of a replica that the processes cannot be divided into."""
    launch = config.launch
    if launch.strategy is not Strategy.FSDP_HYBRID:
        return launch.shard_size is not None and {
            "why": f"Strategy {launch.strategy} has no replicas that share weights, so shard_size would be ignored",
            "do": "Remove shard_size, or use strategy fsdp_hybrid",
        }
    size = launch.shard_size or launch.processes // 2
    fitting = [part for part in range(2, launch.processes // 2 + 1) if launch.processes % part == 0]
    if size in fitting or launch.processes == 1:
        return False
    return {
        "why": f"{launch.processes} processes are not two or more replicas of {size} processes each",
        "do": f"Use shard_size {listed(fitting)}" if fitting else "Use an even number of processes, 4 or more",
    }


LAUNCH_ROWS = (
    Row(
        "R-LAUNCH-PROCESSES", "trainer", "config.launch.processes", unfit_count, "{why}.", "{do}.",
    ),
    Row(
        "R-LAUNCH-SHARD", "trainer", "config.launch.shard_size", unfit_shard, "{why}.", "{do}.",
    ),
    Row(
        "R-LAUNCH-LAUNCHER", "trainer", "config.launch.launcher",
        lambda config, _: config.launch.launcher != "auto" and config.launch.strategy is Strategy.SINGLE,
        "One process is started without a launcher.", "Remove launcher.",
    ),
    Row(
        "R-LAUNCH-DEVICE", "trainer", "config.device",
        lambda config, _: config.device is Device.MPS and config.launch.strategy is not Strategy.SINGLE,
        "A machine with Apple's GPU has one, and no library that several processes could share it by.",
        "Remove launch, or use device cuda or cpu.",
    ),
    Row(
        "R-SHARD-QUANTISED", "trainer", "config.launch.strategy",
        lambda config, _: config.launch.strategy.facts.sharded and config.method.facts.quantised,
        "The base of qlora is packed in a few bits, and {config.launch.strategy} cuts weights by their rows.",
        "Use strategy ddp, zero1 or zero2, or method lora.",
    ),
)  # fmt: skip
"""What several processes can share, and by whom they can be started."""
