"""Rows on DiLoCo: how processes are divided into islands, and what an island can train alone."""

from __future__ import annotations

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.strategies import DilocoEngine, Strategy
from trainyard.spec.compat.context import Match, NodeView, Row
from trainyard.spec.training import TrainerConfig

PORTS = 65_536
CUT_OVER_ALL = (Strategy.FSDP, Strategy.ZERO3)
"""Strategies that cut the weights over all processes."""


def uneven_islands(config: TrainerConfig, _: NodeView) -> Match:
    """Return the numbers of processes near the requested one that the islands divide."""
    launch = config.launch
    if launch.diloco is None or launch.processes % launch.islands == 0:
        return False
    below, above = (launch.processes // launch.islands + step for step in (0, 1))
    fitting = [count * launch.islands for count in (below, above) if count]
    return {"fitting": " or ".join(map(str, fitting))}


def has_islands(config: TrainerConfig, *strategies: Strategy) -> bool:
    """Match DiLoCo over one of the strategies."""
    return config.launch.diloco is not None and config.launch.strategy in strategies


def shares_island_alone(config: TrainerConfig, _: NodeView) -> bool:
    """Match islands of one process with a strategy that divides something."""
    divides = has_islands(config, Strategy.FSDP_HYBRID, Strategy.ZERO1, Strategy.ZERO2)
    return divides and config.launch.processes == config.launch.islands


def long_period(config: TrainerConfig, _: NodeView) -> bool:
    """Match a training that ends before its islands meet."""
    steps, diloco = config.hyperparameters.max_steps, config.launch.diloco
    return diloco is not None and steps is not None and diloco.inner_steps > steps


def is_torchft(config: TrainerConfig) -> bool:
    return config.launch.diloco is not None and config.launch.diloco.type is DilocoEngine.TORCHFT


def unfit_hosts(config: TrainerConfig, _: NodeView) -> Match:
    """Return the problem with the hosts of a launch."""
    launch, count = config.launch, config.launch.node_count
    placed = launch.node_rank is not None and launch.rendezvous is not None
    placed_at_all = launch.node_rank is not None or launch.rendezvous is not None
    even = -(-launch.processes // count) * count
    problems = (
        (
            launch.hosts and (placed_at_all or launch.nodes > 1),
            "hosts and nodes both name the hosts", "hosts, or nodes with node_rank and rendezvous",
        ),
        (
            count == 1 and placed_at_all,
            "one host has no number and no rendezvous", "nodes: 2 or more, or remove node_rank and rendezvous",
        ),
        (
            launch.hosts and (count == 1 or len(set(launch.hosts)) < count),
            "a host is alone or named twice", "two or more hosts, each once",
        ),
        (
            count > 1 and not launch.hosts and not (placed and (launch.node_rank or 0) < count),
            "each of several hosts has a number, and they meet at one address",
            f"node_rank from 0 to {count - 1} and rendezvous: HOST:PORT",
        ),
        (
            count > 1 and (launch.strategy is Strategy.SINGLE or launch.processes % count > 0),
            f"{launch.processes} processes are not as many on each of {count}", f"strategy ddp and processes: {even}",
        ),
        (
            count == 1 and launch.wait_s is not None,
            "one host waits for no other", "hosts, or remove wait_s",
        ),
        (
            count > 1 and config.backend not in (BackendName.NATIVE, BackendName.DEEPSPEED),
            f"the {config.backend} backend trains on one host", "backend native or deepspeed",
        ),
        (
            count > 1 and launch.launcher == "accelerate",
            "accelerate starts the processes of one host", "launcher torchrun",
        ),
        (
            launch.rendezvous is not None and not 0 < int(launch.rendezvous.rpartition(":")[2]) < PORTS,
            f"{launch.rendezvous} has no port from 1 to {PORTS - 1}", "rendezvous HOST:PORT with such a port",
        ),
        (
            count > 1 and is_torchft(config),
            "islands of torchft are started on one host", "diloco type native",
        ),
    )  # fmt: skip
    return next(({"why": why, "do": do} for wrong, why, do in problems if wrong), False)


ISLAND_ROWS = (
    Row(
        "launch-hosts", "R-LAUNCH", "trainer", "config.launch", unfit_hosts,
        "The hosts do not fit: {why}.", "Use {do} for these hosts.",
    ),
    Row(
        "diloco-backend", "R-BACKEND-SETTING", "trainer", "config.launch.diloco",
        lambda config, _: config.launch.diloco is not None and not config.backend.facts.trains_islands,
        "The {config.backend} backend trains no islands.",
        "Use backend native, or remove diloco.",
    ),
    Row(
        "diloco-cut", "R-LAUNCH", "trainer", "config.launch.strategy",
        lambda config, _: has_islands(config, *CUT_OVER_ALL),
        "Strategy {config.launch.strategy} cuts the weights over all processes, so no island has a complete copy to "
        "train alone.",
        "Use strategy ddp, fsdp_hybrid, zero1 or zero2 inside an island.",
    ),
    Row(
        "diloco-single", "R-LAUNCH", "trainer", "config.launch.strategy",
        lambda config, _: has_islands(config, Strategy.SINGLE),
        "Islands are two or more processes, and strategy single is one.",
        "Remove strategy, or use ddp.",
    ),
    Row(
        "diloco-islands", "R-LAUNCH", "trainer", "config.launch.diloco.num_islands", uneven_islands,
        "{config.launch.processes} processes are not {config.launch.islands} islands of the same size.",
        "Use processes: {fitting}, or another number of islands.",
    ),
    Row(
        "diloco-alone", "R-LAUNCH", "trainer", "config.launch.strategy", shares_island_alone,
        "Each island is one process, which has nothing to share by strategy {config.launch.strategy}.",
        "Use strategy ddp, or more processes than islands.",
    ),
    Row(
        "diloco-period", "R-LAUNCH", "trainer", "config.launch.diloco.inner_steps", long_period,
        "The islands would exchange their weights every {config.launch.diloco.inner_steps} steps, and the training has "
        "{config.hyperparameters.max_steps}.",
        "Use inner_steps of at most {config.hyperparameters.max_steps}, or more steps.",
    ),
    Row(
        "diloco-optimizer", "R-LAUNCH", "trainer", "config.hyperparameters.optimizer",
        lambda config, _: config.launch.diloco is not None
        and config.hyperparameters.optimizer is not Optimizer.ADAMW,
        "DiLoCo's inner optimizer is AdamW; {config.hyperparameters.optimizer} has not been tried between exchanges.",
        "Use optimizer adamw.",
    ),
    Row(
        "diloco-torchft", "R-LAUNCH", "trainer", "config.launch.strategy",
        lambda config, _: is_torchft(config)
        and (config.launch.strategy is not Strategy.DDP or config.launch.processes != config.launch.islands),
        "With torchft each island is one process, so that it can be lost and taken in again alone.",
        "Use strategy ddp with as many processes as islands, or type native.",
    ),
)  # fmt: skip
"""What DiLoCo needs of a launch."""
