"""The first way of training that fits the memory: the method as far up as it goes, then its knobs, in one order.

    rungs   full → freeze (only if it is requested) → lora (or the kind of adapter that is requested) → qlora
    knobs   as asked → gradient checkpointing → 8-bit optimizer states → smaller micro-batches → chunked output layer

Each knob is added to the ones before it, and the first combination that fits wins. A knob that is refused for what is
trained, or that has no effect there, is left out. A knob costs time or rounding and changes nothing that is learned:
the length of the rows, the rank and the rows of a step are never touched. Everything that differs from what was asked
is in `FitResult.changes`, and everything that did not fit in `FitResult.rejected`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainyard.errors import InvalidInput, LimitExceeded
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import FreezeSettings, Method, with_type
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.estimate.memory import GIB, Memory, estimate_memory
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.model_schema import list_changes
from trainyard.spec.training import TrainerConfig, default_learning_rate, resolve_method

SAFETY = 1.1
"""Factor by which an estimate has to fit: an estimate is not a measurement, and other programs grow."""
PLAIN_ADAPTERS = tuple(method for method in Method if method.facts.adapter and not method.facts.quantised)
EIGHT_BIT = {
    Device.CUDA: Optimizer.PAGED_ADAMW_8BIT, Device.ROCM: Optimizer.ADAMW_8BIT, Device.CPU: Optimizer.ADAMW_8BIT
}  # fmt: skip
"""Device -> the 8-bit twin of adamw there; paged states can leave the GPU when it is full."""
SMALLER = "micro-batches of"


class Rejected(Strict):
    """A combination that does not fit."""

    method: Method
    knobs: tuple[str, ...]
    needed_bytes: int
    """With the reserve."""
    missing_bytes: int

    def line(self) -> str:
        knobs = ", ".join(self.knobs) or "as asked"
        return f"{self.method} ({knobs}): {self.needed_bytes / GIB:.2f} GiB, {self.missing_bytes / GIB:.2f} too much"


class FitResult(Strict):
    """Combination that fits, its memory, and the rejected ones before it."""

    config: TrainerConfig
    rung: Method
    knobs: tuple[str, ...]
    changes: tuple[str, ...]
    """Return `field: before → after` for every difference between `config` and the requested one."""
    memory: Memory
    device: Device
    memory_bytes: int
    rejected: tuple[Rejected, ...]

    @property
    def needed_bytes(self) -> int:
        return bytes_with_reserve(self.memory)

    def lines(self) -> list[str]:
        """Return the whole breakdown, for people."""
        return [
            f"{self.rung} on {self.device}: {self.memory.total / GIB:.2f} GiB and the reserve make "
            f"{self.needed_bytes / GIB:.2f} of {self.memory_bytes / GIB:.2f} GiB",
            f"in GiB: {self.memory.in_words()}",
            *(f"changed: {change}" for change in self.changes),
            *(f"does not fit: {candidate.line()}" for candidate in self.rejected),
        ]


def choose(
    shape: ModelShape,
    config: TrainerConfig,
    memory_bytes: int,
    device: Device,
    *,
    rungs: Sequence[Method] | None = None,
    teacher: ModelShape | None = None,
) -> FitResult:
    """Return the first rung and knobs whose estimate, with a reserve of a tenth, fits in `memory_bytes`.

    `rungs` replaces the usual ones, in the order given; `teacher` is a frozen model that the stage loads
    too. Raises `LimitExceeded` (`E-MEMORY-FIT`) with the deficit when
    nothing fits, `InvalidInput` (`E-DEVICE`) when the device is left open or there is no rung.
    """
    tried = tuple(rungs) if rungs is not None else usual_rungs(config, device)
    if device is Device.AUTO or not tried:
        raise InvalidInput(
            "A way of training can be chosen for a certain device and at least one method.",
            why=f"Device {device}, methods {', '.join(tried) or 'none'}.",
            do="Name the device (cpu, cuda or mps), and methods to choose from.",
            code="E-DEVICE",
        )
    rejected: list[Rejected] = []
    for rung in tried:
        for knobs, candidate in variants(apply_rung(config, rung), device):
            memory = estimate_memory(shape, candidate, device, teacher)
            missing = bytes_with_reserve(memory) - memory_bytes
            if missing <= 0:
                return FitResult(
                    config=candidate,
                    rung=rung,
                    knobs=knobs,
                    changes=differences(config, candidate),
                    memory=memory,
                    device=device,
                    memory_bytes=memory_bytes,
                    rejected=tuple(rejected),
                )
            rejected.append(
                Rejected(method=rung, knobs=knobs, needed_bytes=bytes_with_reserve(memory), missing_bytes=missing)
            )
    raise nothing_fits_error(rejected, config, memory_bytes, device)


def nothing_fits_error(
    rejected: Sequence[Rejected], config: TrainerConfig, memory_bytes: int, device: Device
) -> LimitExceeded:
    least = min(rejected, key=lambda candidate: candidate.needed_bytes)
    return LimitExceeded(
        f"No way of training {config.base_model} on rows of {config.hyperparameters.max_length:,} tokens fits: "
        f"{least.missing_bytes / GIB:.2f} GiB are missing.",
        why=f"{memory_bytes / GIB:.2f} GiB are there on {device}, and the least is {least.line()}.",
        do="Shorten max_length, lower method.rank, take a smaller base_model, or a machine with more memory.",
        code="E-MEMORY-FIT",
    )


def bytes_with_reserve(memory: Memory) -> int:
    return int(SAFETY * memory.total)


# Rungs


def usual_rungs(config: TrainerConfig, device: Device) -> tuple[Method, ...]:
    """Return full, freeze if that is the method, the requested low-rank method or lora, and qlora where it runs."""
    low_rank = config.method.type if config.method.type in PLAIN_ADAPTERS else Method.LORA
    freeze = (Method.FREEZE,) if config.method.type is Method.FREEZE else ()
    quantised = (Method.QLORA,) if device in Quantization.NF4.facts.devices else ()
    return (Method.FULL, *freeze, low_rank, *quantised)


def apply_rung(config: TrainerConfig, rung: Method) -> TrainerConfig:
    """Return the config with another method, and with what belongs to a method: its default learning rate, its
    settings.

    A learning rate that is not the default of the method was chosen by a person and stays.
    """
    if rung is config.method.type:
        return config
    updates: dict[str, object] = {"method": resolve_method(with_type(config.method, rung))}
    if not rung.facts.quantised:
        updates["quantization"] = None
    rate = config.hyperparameters.learning_rate
    stage, base = config.stage.type, config.base_model or ""
    before, after = (default_learning_rate(stage, method, base) for method in (config.method.type, rung))
    if rate == before:
        updates["hyperparameters"] = config.hyperparameters.model_copy(update={"learning_rate": after})
    return config.model_copy(update=updates)


# Knobs


def variants(config: TrainerConfig, device: Device) -> Iterator[tuple[tuple[str, ...], TrainerConfig]]:
    """Return the config as it is, and then with one knob after the other turned, each on top of the ones before."""
    knobs: tuple[str, ...] = ()
    yield knobs, config
    for name, changed in vary_settings(config, device):
        replaced = SMALLER if name.startswith(SMALLER) else name  # a smaller micro-batch replaces the one before it
        knobs = (*(knob for knob in knobs if not knob.startswith(replaced)), name)
        yield knobs, changed


def vary_settings(config: TrainerConfig, device: Device) -> Iterator[tuple[str, TrainerConfig]]:
    if not config.hyperparameters.gradient_checkpointing and recomputes(config):
        config = with_hyper(config, gradient_checkpointing=True)
        yield "gradient checkpointing", config
    if config.hyperparameters.optimizer is Optimizer.ADAMW and (states := smaller_states(config, device)) is not None:
        config = with_hyper(config, optimizer=states)
        yield f"optimizer {states}", config
    while (smaller := smaller_batch(config)) is not None:
        config = smaller
        hyper = config.hyperparameters
        yield f"{SMALLER} {hyper.batch_size}, {hyper.gradient_accumulation} a step", config
    by_labels = not config.stage.facts.compares_logits
    if config.backend is BackendName.NATIVE and config.engine.head in ("auto", "full") and by_labels:
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"head": "chunked"})})
        yield "chunked output layer", config


def recomputes(config: TrainerConfig) -> bool:
    """Return whether gradient checkpointing saves memory with what is trained, and leaves the gradients as they are."""
    if config.stage.facts.draws_groups and config.backend is BackendName.NATIVE:
        return False
    technique = config.stage.technique
    return technique is None or technique.facts.recomputes


def smaller_states(config: TrainerConfig, device: Device) -> Optimizer | None:
    """Return the 8-bit optimizer of a device; None where it has none, or where states begin again or are divided."""
    technique, facts, optimizer = config.stage.technique, config.backend.facts, EIGHT_BIT.get(device)
    if technique is not None and technique.resets_optimizer:
        return None
    if isinstance(config.method, FreezeSettings) and config.method.interval is not None:
        return None
    divided = facts.sharded if config.launch.strategy.facts.sharded else {}
    return optimizer if optimizer in divided.get("hyperparameters.optimizer", (optimizer,)) else None


def smaller_batch(config: TrainerConfig) -> TrainerConfig | None:
    """Return the next smaller micro-batch that leaves the rows of a step as they are; None if there is none."""
    hyper = config.hyperparameters
    smaller = range(hyper.batch_size // 2, config.stage.facts.smallest_batch - 1, -1)
    size = next((n for n in smaller if hyper.batch_size % n == 0), None)
    if size is None:
        return None
    times = hyper.batch_size // size
    changed = with_hyper(config, batch_size=size, gradient_accumulation=hyper.gradient_accumulation * times)
    if config.engine.token_budget is None:
        return changed
    budget = max(8, config.engine.token_budget // times)
    return changed.model_copy(update={"engine": config.engine.model_copy(update={"token_budget": budget})})


def with_hyper(config: TrainerConfig, **updates: object) -> TrainerConfig:
    return config.model_copy(update={"hyperparameters": config.hyperparameters.model_copy(update=updates)})


def differences(before: TrainerConfig, after: TrainerConfig) -> tuple[str, ...]:
    """`field: before → after` for each setting that differs."""
    changes = list_changes(before.model_dump(mode="json"), after.model_dump(mode="json"))
    return tuple(f"{name}: {old} → {new}" for name, old, new in changes)
