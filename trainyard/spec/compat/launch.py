"""Rows on how a training's processes are launched: how many, by what, and who holds what."""

from __future__ import annotations

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.stages import Stage
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.compat.place import Hits, NodeView, Row, listed
from trainyard.spec.training import TrainerConfig

REPLICATED = (Strategy.DDP, Strategy.ZERO1, Strategy.ZERO2, Strategy.FSDP_HYBRID)
"""Strategies with whole gradients on each replica, which the verbs of the native engine need."""
WITHOUT_REPLICAS = (Strategy.FSDP, Strategy.ZERO3)
STRATEGIES: dict[BackendName, tuple[Strategy, ...]] = {
    BackendName.NATIVE: (Strategy.SINGLE, *REPLICATED),
    BackendName.TRL: (Strategy.SINGLE, Strategy.DDP, Strategy.FSDP, Strategy.FSDP_HYBRID),
    BackendName.DEEPSPEED: (Strategy.SINGLE, Strategy.DDP, Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3),
    BackendName.UNSLOTH: (Strategy.SINGLE,),
    BackendName.AXOLOTL: (Strategy.SINGLE,),
    BackendName.SCRIPT: (Strategy.SINGLE,),
}
"""What each backend carries out; those of a single process that have rows of their own on settings are not listed."""
LAUNCHERS: dict[BackendName, tuple[str, ...]] = {
    BackendName.NATIVE: ("auto", "torchrun", "accelerate"),
    BackendName.TRL: ("auto", "torchrun", "accelerate"),
    BackendName.DEEPSPEED: ("auto", "torchrun", "deepspeed"),
}
SHARDED = (Strategy.FSDP, Strategy.FSDP_HYBRID)
"""Strategies that hold weights in parts by torch's FSDP."""


def unfit_count(config: TrainerConfig, _: NodeView) -> Hits:
    """A number of processes that is not what the strategy says."""
    launch = config.launch
    if launch.strategy is Strategy.SINGLE and launch.processes > 1:
        return {
            "why": f"Strategy single is one process, and {launch.processes} are asked for",
            "do": f"Use strategy {listed(STRATEGIES.get(config.backend, ())[1:]) or 'single with processes: 1'}",
        }
    if launch.strategy is not Strategy.SINGLE and launch.processes == 1 and config.backend is not BackendName.DEEPSPEED:
        return {
            "why": f"Strategy {launch.strategy} shares a training, and one process has nobody to share it with",
            "do": "Use processes: 2 or more, or remove strategy",
        }
    return False


def unfit_shard(config: TrainerConfig, _: NodeView) -> Hits:
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


def other_strategy(config: TrainerConfig, _: NodeView) -> Hits:
    allowed = STRATEGIES.get(config.backend, tuple(Strategy))
    told_by_another = config.backend is BackendName.NATIVE and config.launch.strategy in WITHOUT_REPLICAS
    return config.launch.strategy not in allowed and not told_by_another and {"allowed": listed(allowed)}


def other_launcher(config: TrainerConfig, _: NodeView) -> Hits:
    launch = config.launch
    if launch.launcher == "auto":
        return False
    if launch.strategy is Strategy.SINGLE:
        return {"why": "One process is started without a launcher", "do": "Remove launcher"}
    allowed = LAUNCHERS.get(config.backend, ("auto",))
    return launch.launcher not in allowed and {
        "why": f"The {config.backend} backend is not started by {launch.launcher}",
        "do": f"Use launcher {listed(allowed)}",
    }


def whole_gradients(config: TrainerConfig, _: NodeView) -> Hits:
    shared = {Strategy.FSDP: "fsdp_hybrid", Strategy.ZERO3: "zero2"}
    elsewhere = {Strategy.FSDP: "trl", Strategy.ZERO3: "deepspeed"}
    strategy = config.launch.strategy
    return (
        config.backend is BackendName.NATIVE
        and strategy in WITHOUT_REPLICAS
        and {"shared": shared[strategy], "elsewhere": elsewhere[strategy]}
    )


def beyond_trl_parts(config: TrainerConfig, _: NodeView) -> Hits:
    """What the trl backend does not carry out with weights in parts: transformers shards them as it loads a model."""
    if config.backend is not BackendName.TRL or config.launch.strategy not in SHARDED:
        return False
    axes = [
        ("stage", config.stage, (Stage.SFT,)),
        ("method", config.method, (Method.FULL,)),
        ("optimizer", config.hyperparameters.optimizer, (Optimizer.ADAMW, Optimizer.SGD)),
    ]
    return [
        {"axis": axis, "value": value, "allowed": listed(allowed)}
        for axis, value, allowed in axes
        if value not in allowed
    ]


LAUNCH_ROWS = (
    Row(
        "R-LAUNCH-PROCESSES", "trainer", "config.launch.processes", unfit_count, "{why}.", "{do}.",
    ),
    Row(
        "R-LAUNCH-SHARD", "trainer", "config.launch.shard_size", unfit_shard, "{why}.", "{do}.",
    ),
    Row(
        "R-LAUNCH-BACKEND", "trainer", "config.launch.strategy", other_strategy,
        "The {config.backend} backend does not carry out strategy {config.launch.strategy}.",
        "Use strategy {allowed}, or another backend.",
    ),
    Row(
        "R-LAUNCH-LAUNCHER", "trainer", "config.launch.launcher", other_launcher, "{why}.", "{do}.",
    ),
    Row(
        "R-LAUNCH-DEVICE", "trainer", "config.device",
        lambda config, _: config.device is Device.MPS and config.launch.strategy is not Strategy.SINGLE,
        "A machine with Apple's GPU has one, and no library that several processes could share it by.",
        "Remove launch, or use device cuda or cpu.",
    ),
    Row(
        "R-STEP-SHARDED", "trainer", "config.launch.strategy", whole_gradients,
        "With {config.launch.strategy} no replica has whole gradients, and the verbs of a step need them on each.",
        "Use strategy {shared}, or backend {elsewhere}.",
    ),
    Row(
        "R-SHARD-QUANTISED", "trainer", "config.launch.strategy",
        lambda config, _: config.launch.strategy in SHARDED and config.method is Method.QLORA,
        "The base of qlora is packed in a few bits, and {config.launch.strategy} cuts weights by their rows.",
        "Use strategy ddp, zero1 or zero2, or method lora.",
    ),
    Row(
        "R-SHARD-OPTIMIZER", "trainer", "config.hyperparameters.optimizer",
        lambda config, _: config.backend is BackendName.NATIVE and config.launch.strategy is Strategy.FSDP_HYBRID
        and config.hyperparameters.optimizer.facts.whole_tensors,
        "The optimizer {config.hyperparameters.optimizer} works on whole tensors, and fsdp_hybrid holds parts of them.",
        "Use strategy zero2, which deals tensors out whole, or optimizer adamw.",
    ),
    Row(
        "R-FSDP-TRL", "trainer", "config.launch.strategy", beyond_trl_parts,
        "With {config.launch.strategy} the trl backend moves all weights, by sft with adamw or sgd: no {axis} {value}.",
        "Use {axis} {allowed}, strategy ddp, or backend native with strategy fsdp_hybrid.",
    ),
)  # fmt: skip
"""What several processes can share, and by whom they can be started."""
