"""`method: auto`: the first method that fits the memory of the device, and every one that did not, with its numbers.

    full → lora → qlora → freeze      as requested
    of the last adapter that can run: smaller micro-batches, gradient checkpointing, shorter rows

`freeze` is last: it trains a few blocks and leaves a whole model, which a user who has an adapter in mind cannot use.

A method that the chain, the backend or this machine refuses is left out, for the reason that the table of refusals
gives. One that ran out of memory in a measurement is left out for that. The chain is resolved to what was chosen, so
that it is the same wherever the resolved chain runs, and its digest is that of the chosen one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.app.plan.machine import find_base_folder
from trainyard.backends.timings import read_timings, timing_key
from trainyard.compute.gpus import device_memory, list_devices
from trainyard.errors import Reason, Refused, TrainyardError, to_reason
from trainyard.settings import Settings
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import AutoSettings, Method
from trainyard.spec.chain import ChainSpec, ResolvedChain
from trainyard.spec.compat.context import RunFacts
from trainyard.spec.compat.table import run_reasons
from trainyard.spec.estimate.cascade import bytes_with_reserve, differences, smaller_batch, with_hyper
from trainyard.spec.estimate.memory import GIB, estimate_memory
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.graph import RUNGS, apply_method, auto_trainers, check_bounds, resolve, with_method
from trainyard.spec.training import TrainerConfig
from trainyard.stores.models import resolve_model

CODE = "E-MEMORY-FIT"


class Rung(Strict):
    """One way of training that was looked at."""

    method: Method
    knobs: str = ""
    """Differences from the requested settings, except the method."""
    needed_bytes: int | None = None
    """With a reserve of a tenth; None for one that was left out before."""
    fits: bool = False
    why: str = ""
    """Why it does not fit, or was left out."""

    def line(self) -> str:
        name = f"{self.method}, {self.knobs}" if self.knobs else str(self.method)
        needs = "" if self.needed_bytes is None else f" needs {self.needed_bytes / GIB:.2f} GiB"
        return f"{name}:{needs} {'fits' if self.fits else self.why}"


class MethodDecision(Strict):
    """What `method: auto` of one trainer became here."""

    node: str
    device: Device
    memory_bytes: int
    memory_from: str
    rungs: tuple[Rung, ...]
    changes: tuple[str, ...] = ()
    """`field: before → after` of everything that was chosen, but for the method."""

    @property
    def method(self) -> Method:
        return self.rungs[-1].method

    def lines(self) -> list[str]:
        """Return the decision as text: the chosen method, and each rung down to it."""
        sentence = f"method auto is {self.rungs[-1].line().partition(':')[0]} here"
        where = f"{self.memory_bytes / GIB:.2f} GiB of {self.device} ({self.memory_from})"
        return [
            f"{sentence}, by {where}",
            *(rung.line() for rung in self.rungs),
            *(f"changed: {c}" for c in self.changes),
        ]


@dataclass(frozen=True)
class Budget:
    """The memory that is chosen for."""

    device: Device
    memory_bytes: int
    source: str


def resolve_auto_methods(
    spec: ChainSpec, settings: Settings, default: str, facts: RunFacts
) -> tuple[ChainSpec, tuple[MethodDecision, ...]]:
    """Return the chain with a method for each trainer of method auto, and how it was chosen; `facts` decide refusals.

    Raises `Refused` with the reasons of the method that comes nearest, with `E-MEMORY-FIT` when nothing fits or the
    sizes of the model are not known, and with `R-DEVICE` when the memory is not.
    """
    if reasons := check_bounds(spec):
        raise Refused(reasons)
    decisions = []
    for at in auto_trainers(spec):
        spec, decision = resolve_auto_method(spec, at, settings, default, facts)
        decisions.append(decision)
    return spec, tuple(decisions)


def resolve_auto_method(
    spec: ChainSpec, at: int, settings: Settings, default: str, facts: RunFacts
) -> tuple[ChainSpec, MethodDecision]:
    config = spec.nodes[at].config
    assert isinstance(config, TrainerConfig)
    rungs: list[Rung] = []
    reasons: list[tuple[Reason, ...]] = []
    smallest: tuple[TrainerConfig, Method] | None = None
    node, budget, shape = "", None, None
    for method in RUNGS:
        candidate = apply_method(config, method)
        try:
            trainer_id, resolved = resolve_candidate(spec, at, candidate, default, facts)
        except Refused as error:
            reasons.append(error.reasons)
            rungs.append(Rung(method=method, why=f"is left out: {error.reasons[0].because}"))
            continue
        if budget is None or shape is None:
            node = trainer_id
            budget, shape = find_budget(config, node), require_base_shape(resolved, node, settings)
        rungs.append(check_memory(shape, resolved, budget, settings, ""))
        if rungs[-1].fits:
            return with_method(spec, at, candidate), build_decision(node, budget, rungs, config, candidate)
        if smallest is None or method.facts.adapter:
            smallest = (candidate, method)
    if smallest is None or budget is None or shape is None:
        raise Refused(min(reasons, key=len))
    for knobs, candidate in list_smaller_configs(smallest[0], config):
        try:
            _, resolved = resolve_candidate(spec, at, candidate, default, facts)
        except Refused as error:
            rungs.append(Rung(method=smallest[1], knobs=knobs, why=f"is left out: {error.reasons[0].because}"))
            continue
        rungs.append(check_memory(shape, resolved, budget, settings, knobs))
        if rungs[-1].fits:
            return with_method(spec, at, candidate), build_decision(node, budget, rungs, config, candidate)
    raise Refused([describe_misfit(node, budget, rungs)])


def build_decision(
    node: str, budget: Budget, rungs: list[Rung], auto_config: TrainerConfig, config: TrainerConfig
) -> MethodDecision:
    same = auto_config.model_copy(update={"method": config.method, "quantization": config.quantization})
    return MethodDecision(
        node=node,
        device=budget.device,
        memory_bytes=budget.memory_bytes,
        memory_from=budget.source,
        rungs=tuple(rungs),
        changes=differences(same, config),
    )


def resolve_candidate(
    spec: ChainSpec, at: int, candidate: TrainerConfig, default: str, facts: RunFacts
) -> tuple[str, TrainerConfig]:
    """Return the trainer's id and its complete config. Raises `Refused` where the chain or this machine refuses it."""
    tried = with_method(spec, at, candidate)
    for other in auto_trainers(tried):  # a later one, which is chosen after this one
        config = tried.nodes[other].config
        assert isinstance(config, TrainerConfig)
        tried = with_method(
            tried, other, apply_method(config, choose_provisional_method(tried, other, config, default))
        )
    chain = resolve(tried, default)
    node = chain.nodes[at]
    if reasons := [reason for reason in run_reasons(chain, facts) if reason.node == node.id]:
        raise Refused(reasons)
    assert isinstance(node.config, TrainerConfig)
    return node.id, node.config


def choose_provisional_method(spec: ChainSpec, at: int, config: TrainerConfig, default: str) -> Method:
    """Return a method for a trainer that is not decided yet: one that nothing refuses, if there is one."""
    for method in (Method.LORA, Method.FULL):
        tried = with_method(spec, at, apply_method(config, method))
        if auto_trainers(tried):
            return Method.LORA
        try:
            resolve(tried, default)
        except Refused:
            continue
        return method
    return Method.LORA


def find_budget(config: TrainerConfig, node: str) -> Budget:
    """Return the memory to choose for: as requested, or of the device. Raises `Refused` (`R-DEVICE`) where it is not
    known.
    """
    here = list_devices()
    device = here[0] if config.device is Device.AUTO else config.device
    memory_gb = config.method.memory_gb if isinstance(config.method, AutoSettings) else None
    if memory_gb is not None:
        return Budget(device, int(memory_gb * GIB), "method.memory_gb")
    memory = device_memory(device) if device in here else None
    if memory is None:
        because = f"Method auto is chosen by the memory of {device}, which is not known on this machine."
        do = "Check the chain on the machine that trains, or write method.memory_gb."
        raise Refused([Reason("R-DEVICE", node, "config.method", because, do)])
    return Budget(device, memory, "all of this machine's")


def require_base_shape(config: TrainerConfig, node: str, settings: Settings) -> ModelShape:
    """Return the sizes of the base model. Raises `Refused` where they are not known, or it cannot be loaded."""
    name = config.base_model or settings.default_base_model
    try:
        folder = resolve_model(name, settings).path
    except TrainyardError as error:  # a folder without weights, or one that may not be loaded
        raise Refused([to_reason(error, node, "config.base_model")]) from error
    path = folder / "config.json" if folder else Path()
    shape = ModelShape.from_config(json.loads(path.read_text("utf-8"))) if folder and path.is_file() else None
    if shape is None:
        why = "has another layout than those whose memory is estimated" if folder else "is not on this machine"
        because = f"Method auto needs the sizes of {name!r}, which {why}."
        raise Refused([Reason(CODE, node, "config.method", because, "Download the model first, or name the method.")])
    return shape


def check_memory(shape: ModelShape, config: TrainerConfig, budget: Budget, settings: Settings, knobs: str) -> Rung:
    """Return whether a candidate fits, by its estimate and by measurements."""
    method, needs = config.method.type, bytes_with_reserve(estimate_memory(shape, config, budget.device))
    missing = needs - budget.memory_bytes
    if missing > 0:
        return Rung(method=method, knobs=knobs, needed_bytes=needs, why=f"and {missing / GIB:.2f} are missing")
    key = timing_key(config, find_base_folder(str(config.base_model), settings), budget.device, settings)
    problem = read_timings(key, settings).find_problem(config)
    if problem is not None:
        return Rung(method=method, knobs=knobs, needed_bytes=needs, why=f"and did not fit: {problem.why}")
    return Rung(method=method, knobs=knobs, needed_bytes=needs, fits=True)


def list_smaller_configs(config: TrainerConfig, auto_config: TrainerConfig) -> Iterator[tuple[str, TrainerConfig]]:
    """Smaller micro-batches, then gradient checkpointing, then shorter rows, each on top of the ones before."""
    changes: list[str] = []
    while (smaller := smaller_batch(config)) is not None:
        config = smaller
        hyper = config.hyperparameters
        changes[:] = [f"batch_size {hyper.batch_size} × gradient_accumulation {hyper.gradient_accumulation}"]
        yield ", ".join(changes), config
    if not config.hyperparameters.gradient_checkpointing:
        config = with_hyper(config, gradient_checkpointing=True)
        changes.append("gradient_checkpointing")
        yield ", ".join(changes), config
    least = (
        auto_config.method.min_length
        if isinstance(auto_config.method, AutoSettings)
        else config.hyperparameters.max_length
    )
    while (length := max(least, config.hyperparameters.max_length // 2)) < config.hyperparameters.max_length:
        config = with_hyper(config, max_length=length)
        yield ", ".join([*changes, f"max_length {length}"]), config


def describe_misfit(node: str, budget: Budget, rungs: list[Rung]) -> Reason:
    looked = [rung for rung in rungs if rung.needed_bytes is not None]
    least = min(looked, key=lambda rung: rung.needed_bytes or 0)
    because = (
        f"No method fits {budget.memory_bytes / GIB:.2f} GiB of {budget.device} ({budget.source}). The least is "
        f"{least.line()}."
    )
    do = "Lower method.min_length, max_length or method.rank, take a smaller base_model, or a machine with more memory."
    return Reason(CODE, node, "config.method", because, do)


def take_recorded(spec: ChainSpec, recorded: ResolvedChain | None) -> ChainSpec:
    """Return the chain with what an earlier start of the same run has chosen."""
    for at in auto_trainers(spec) if recorded is not None and len(recorded.nodes) == len(spec.nodes) else ():
        config = recorded.nodes[at].config  # type: ignore[union-attr]
        if isinstance(config, TrainerConfig):
            spec = with_method(spec, at, config)
    return spec
