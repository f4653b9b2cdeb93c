"""Estimate of a run: rows and steps, trained parameters, memory, disk and time; arithmetic only, nothing is loaded.

Every number comes with its basis in words, because it is a bound or an assumption and not a measurement. What is not
known (the rows of a file that was not read, the shape of a model that is not here) stays None, with the reason.

    shape.py     the sizes of a model          memory.py    bytes at the peak of a training step
    heldout.py   rows that are held out        cascade.py   the first method and knobs that fit the memory
    timing.py    seconds, from measured ones
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import Field

from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import DATA_PORTS, Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.estimate.islands import describe_islands
from trainyard.spec.estimate.memory import Memory, completion_length, count_trainable, estimate_memory, rows_seen
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.estimate.timing import Timings, Workload, estimate_held_out_rows, estimate_time
from trainyard.spec.estimate.verdict import estimate_generated_rows, find_generated_sets, generator_basis
from trainyard.spec.nodes import AiGeneratorConfig, DataSourceConfig, ValidatorConfig
from trainyard.spec.training import Hyperparameters, TrainerConfig

KEPT_CHECKPOINTS = 2
"""Of a backend that does not say how many it keeps."""


class SampledNode(Strict):
    """Facts that were read of a node before the run."""

    rows: Mapping[Port, int] = Field(default_factory=dict)
    """All that it gives on each port; extrapolated where not all were read."""
    whole: bool = True
    """Whether every row was read."""
    requested: int | None = None
    """Rows requested of a generator, including those held out."""
    examples: int | None = None
    """What a trainer trains on in a pass: rows that fit, blocks of a text."""
    tokens_per_row: float | None = None
    """Mean tokens of an example."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """Facts that `plan` found. Every field may be empty."""

    rows: Mapping[str, Mapping[Port, int]] = field(default_factory=dict)
    """Node id -> port -> rows in its files, or in its finished result."""
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    """Base model's name -> shape."""
    device: Device = Device.CPU
    timings: Mapping[str, Timings] = field(default_factory=dict)
    """Node id -> measurements of similar trainings on this machine."""
    data: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Node id -> names of the data set that reaches it."""
    tokens_per_row: Mapping[str, float] = field(default_factory=dict)
    """Node id -> mean tokens of the rows that reach it, where they are counted."""
    queue_s: float | None = 0.0
    """Until the device is free; None where that is not known."""
    sampled: Mapping[str, SampledNode] = field(default_factory=dict)
    """Node id -> its sample."""


class Estimate(Strict):
    """A node's line of the plan. None where it is not known; `basis` says where each number comes from."""

    node: str
    rows: int | None = None
    steps: int | None = None
    trainable_parameters: int | None = None
    memory_bytes: int | None = None
    """On each device."""
    devices: int = 1
    """Processes that train together, each on a device of its own."""
    disk_bytes: int | None = None
    tokens: int | None = None
    """Of one pass over the rows."""
    seconds: float | None = None
    """From its start in the queue to its result; None until a training like it was measured on this machine."""
    queue_s: float | None = None
    """The part of it until the device is free."""
    basis: tuple[str, ...] = ()


def estimate(chain: ResolvedChain, facts: Known | None = None) -> tuple[Estimate, ...]:
    """Return one estimate for each node, in the order in which they run."""
    facts = facts or Known()
    rows: dict[str, dict[Port, int]] = {}
    generators = find_generated_sets(chain)
    estimates = []
    for node_id in chain.order:
        node = chain.node(node_id)
        rows[node_id], basis = estimate_rows(node, rows, facts, generators)
        if isinstance(node.config, TrainerConfig):
            estimates.append(estimate_training(node, node.config, rows, facts))
            facts = replace(facts, queue_s=0.0)  # the next one follows it
        else:
            counted = sum(rows[node_id].values()) if rows[node_id] else None
            estimates.append(Estimate(node=node_id, rows=counted, basis=(basis,) if basis else ()))
    return tuple(estimates)


# Rows


def estimate_rows(
    node: ResolvedNode,
    earlier: Mapping[str, Mapping[Port, int]],
    facts: Known,
    generators: Mapping[str, Mapping[Port, int]],
) -> tuple[dict[Port, int], str]:
    """Return rows that a node gives on each port, at most, and how that is known."""
    if node.id in facts.rows:
        return dict(facts.rows[node.id]), "rows: counted"
    sampled = facts.sampled.get(node.id, SampledNode())
    if sampled.rows:
        return dict(sampled.rows), "; ".join(sampled.notes) or "rows: read"
    rows, basis = derive_rows(node, earlier, generators)
    notes = () if isinstance(node.config, TrainerConfig) else sampled.notes  # those of a trainer are next to its steps
    return rows, "; ".join(filter(None, (basis, *notes)))


def derive_rows(
    node: ResolvedNode, earlier: Mapping[str, Mapping[Port, int]], generators: Mapping[str, Mapping[Port, int]]
) -> tuple[dict[Port, int], str]:
    """Return rows of a node that was not read, at most, by its config and the nodes before it."""
    if isinstance(node.config, DataSourceConfig):
        sources = (source for _, _, source in node.config.trained_sets())
        elsewhere = [str(source.hub or source.url) for source in sources if source.hub is not None or source.in_bucket]
        unseen = f"; not looked at before the run: {', '.join(elsewhere)}" if elsewhere else ""
        return {}, f"rows: not known before the files are read{unseen}"
    if isinstance(node.config, AiGeneratorConfig):
        shares = estimate_generated_rows(node.config, arriving(node, earlier).get(Port.DOCUMENTS))
        return {node.produces[0]: shares.generated}, generator_basis(node.config, shares)
    return rows_kept(node, earlier, generators) if isinstance(node.config, ValidatorConfig) else ({}, "")


def rows_kept(
    node: ResolvedNode, earlier: Mapping[str, Mapping[Port, int]], generators: Mapping[str, Mapping[Port, int]]
) -> tuple[dict[Port, int], str]:
    """Return rows that a validator keeps for training, at most."""
    assert isinstance(node.config, ValidatorConfig)
    if rows := generators.get(node.id):
        return dict(rows), "rows: the count of the generator, which writes what is held out on top; filters drop more"
    reserved, arrived = node.config.holdout.documents, arriving(node, earlier).items()  # a wording is not counted
    remaining = {port: n if port is Port.DOCUMENTS else n - math.ceil(n * reserved) for port, n in arrived}
    return remaining, "rows: what arrives without what is held out; filters drop more" if remaining else ""


def arriving(node: ResolvedNode, earlier: Mapping[str, Mapping[Port, int]]) -> dict[Port, int]:
    """Return rows on each data port of a node, as far as they are known."""
    counts = {}
    for port in Port:
        for source in node.inputs.get(port, ()) if port in DATA_PORTS else ():
            count = earlier.get(source.node_id, {}).get(source.port)
            if count is not None:
                counts[port] = count
                break
    return counts


def count_steps(hyper: Hyperparameters, rows: int, processes: int = 1) -> int:
    """Optimizer steps: micro-batches are rounded up, and so is the last accumulation of an epoch."""
    if hyper.max_steps is not None:
        return hyper.max_steps
    per_epoch = math.ceil(math.ceil(rows / (hyper.batch_size * processes)) / hyper.gradient_accumulation)
    return max(1, math.ceil((hyper.epochs or 3.0) * max(1, per_epoch)))


# Training


def estimate_training(
    node: ResolvedNode, config: TrainerConfig, rows: Mapping[str, Mapping[Port, int]], facts: Known
) -> Estimate:
    hyper = config.hyperparameters
    counts = arriving(node, rows)
    count = next(iter(counts.values()), None)
    sampled = facts.sampled.get(node.id, SampledNode())
    held_out = 0 if count is None else estimate_held_out_rows(config, count)
    count = None if count is None else count - held_out
    if sampled.examples is not None:
        count = max(0, sampled.examples - held_out)
    seen = None if count is None else rows_seen(config, count)
    processes = config.launch.processes
    steps = hyper.max_steps if seen is None else count_steps(hyper, seen, processes)
    basis = [steps_basis(hyper, seen, processes), *sampled.notes]
    shape = facts.shapes.get(config.base_model or "")
    if config.backend.facts.remote:
        basis.append("memory, disk and time: a service computes, and they are not known here")
        trained = None if shape is None else count_trainable(shape, config)
        return Estimate(node=node.id, rows=count, steps=steps, trainable_parameters=trained, basis=tuple(basis))
    if shape is None:
        basis.append(f"memory, disk and time: the shape of {config.base_model!r} is not known here")
        return Estimate(node=node.id, rows=count, steps=steps, basis=tuple(basis))
    device = facts.device if config.device is Device.AUTO else config.device
    trained = count_trainable(shape, config)
    teacher = facts.shapes.get(config.stage.teacher_model or "")
    if config.stage.teacher_model and teacher is None:
        basis.append(f"memory without the teacher: the shape of {config.stage.teacher_model!r} is not known here")
    memory = estimate_memory(shape, config, device, teacher)
    checkpoints = config.engine.keep_checkpoints if config.backend is BackendName.NATIVE else KEPT_CHECKPOINTS
    checkpoints += config.eval.keep_best if config.eval else 0
    disk = f"disk: {trained:,} parameters in float32, and {checkpoints} checkpoints with optimizer state"
    mean = sampled.tokens_per_row or facts.tokens_per_row.get(node.id)
    mean = mean + completion_length(config) if mean else None
    data = frozenset[str]() if sampled.tokens_per_row else facts.data.get(node.id, frozenset())
    work = Workload(count, steps, mean, data)
    time = estimate_time(shape, config, replace(work, rows=seen), facts.timings.get(node.id))
    queue_s, seconds, queue = add_queue_time(time.seconds, facts.queue_s)
    if (diloco := config.launch.diloco) is not None:
        step_s = time.seconds / time.steps if time.seconds and time.steps else None
        basis.append(describe_islands(diloco, trained, config.launch.island_size, step_s))
    return Estimate(
        node=node.id,
        rows=count,
        steps=time.steps or steps,
        trainable_parameters=trained,
        memory_bytes=memory.total,
        devices=processes,
        disk_bytes=(4 + checkpoints * (4 + hyper.optimizer.facts.state_bytes)) * trained,
        tokens=time.tokens,
        seconds=seconds,
        queue_s=queue_s,
        basis=(*basis, memory_basis(memory, config, device), disk, time.basis, *queue),
    )


def add_queue_time(seconds: float | None, queue_s: float | None) -> tuple[float | None, float | None, tuple[str, ...]]:
    """Return the wait for the device, the time with it, and what to say about it."""
    if queue_s is None:
        return None, seconds, ("queue: the device is in use, and how long is not known",)
    if queue_s and seconds is not None:
        return queue_s, seconds + queue_s, (f"queue: {queue_s:,.0f} s until the device is free",)
    return queue_s, seconds, ()


# Basis


def steps_basis(hyper: Hyperparameters, rows: int | None, processes: int) -> str:
    if hyper.max_steps is not None:
        return f"steps: max_steps {hyper.max_steps:,}"
    if rows is None:
        return "steps: not known without the rows"
    effective = hyper.batch_size * hyper.gradient_accumulation * processes
    return f"steps: at most {rows:,} rows, {effective} a step, {hyper.epochs or 3.0:g} epochs"


def memory_basis(memory: Memory, config: TrainerConfig, device: Device) -> str:
    launch, length = config.launch, config.hyperparameters.max_length
    each = f" for each of {launch.processes} processes ({launch.strategy})" if launch.processes > 1 else ""
    return f"memory on {device} in GiB{each} for rows of {length:,} tokens: {memory.in_words()}"
