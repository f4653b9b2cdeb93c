"""The automatic choices of a training or an evaluation: by which facts each is made, and which decision counts here.

Every choice follows from facts: the spec, the rows, the sizes of the base, the processor or GPU, and library versions.
None follows from a clock or from the memory that happens to be free, so the work of neighbours cannot change a result.
What the machine adds is decided once for each index of facts and kept in `TRAINYARD_HOME/choices`; deleting the
folder loses nothing, because the same facts give the same decision. Imports no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any

import orjson
from pydantic import ValidationError

from trainyard.backends.machine import device_name, read_architecture, versions
from trainyard.compute.gpus import device_numbers, list_devices, physical_cores, read_gpus, training_threads
from trainyard.errors import Conflict
from trainyard.json_types import JsonObject
from trainyard.settings import Settings
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.chain import digest
from trainyard.spec.training import TrainerConfig
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably
from trainyard.train.model.precision import choose_precision, cpu_bf16, read_hidden_size

OWN_BACKENDS = (BackendName.NATIVE, BackendName.TRL)
"""Backends whose child computes in the precision that is decided here; others decide by the same facts of a device."""


@dataclass(frozen=True)
class AutomaticChoice:
    """A choice that a training makes where the spec leaves it open."""

    name: str
    setting: str
    """The field that decides it by name; empty where there is none."""
    decided_by: tuple[str, ...]
    """Facts, each a part of the content key."""
    functions: tuple[str, ...]
    """`module:function` below `trainyard` that decide it."""


SPEC, ROWS, BASE, DEVICE, PACKAGES, CORES, OVERFLOW = (
    "spec", "rows", "base", "device", "package versions", "cores", "a memory overflow, which is recorded",
)  # fmt: skip
AUTOMATIC = (
    AutomaticChoice("device", "device", (DEVICE,), ("compute.gpus:list_devices", "backends.trl.loading:pick_device")),
    AutomaticChoice(
        "precision", "hyperparameters.precision", (DEVICE, BASE),
        ("backends.choices:decide_choices", "train.model.precision:choose_precision",
         "train.model.precision:choose_on_cpu", "train.model.precision:choose_frozen_dtype", 
         "backends.frame:decide_precision", "backends.axolotl.config:choose_precision"),
    ),
    AutomaticChoice(
        "threads", "", (DEVICE, CORES),
        ("compute.gpus:training_threads", "backends.choices:decide_evaluation", "backends.choices:choose_evaluation"),
    ),
    AutomaticChoice("processes", "launch.processes", (SPEC,), ()),
    AutomaticChoice("launcher", "launch.launcher", (SPEC,), ("backends.programs:command",)),
    AutomaticChoice(
        "method", "method.type", (SPEC, BASE, DEVICE, OVERFLOW), ("app.plan.auto_method:resolve_auto_methods",),
    ),
    AutomaticChoice(
        "memory fit", "engine.autotune", (SPEC, BASE, DEVICE),
        ("spec.estimate.cascade:choose", "backends.native.program:with_memory_fit"),
    ),
    AutomaticChoice("micro-batch", "launch.on_oom", (SPEC, OVERFLOW), ("backends.oom:halve_batch",)),
    AutomaticChoice(
        "batching", "engine.batching", (SPEC, ROWS, BASE, DEVICE),
        ("train.rows.batching:choose_cut", "train.rows.batching:sound_cut", "backends.native.assembly:keep_layout"),
    ),
    AutomaticChoice("token budget", "engine.token_budget", (SPEC,), ("train.rows.batching:choose_cut",)),
    AutomaticChoice(
        "shared prompts", "stage.shared_prompt", (SPEC, ROWS, BASE),
        ("train.rows.sharing:share_prompts", "backends.trl.rollouts:choose_sharing"),
    ),
    AutomaticChoice(
        "attention", "engine.attention", (SPEC, BASE, DEVICE, PACKAGES),
        ("backends.native.assembly:choose_attention_kernel", "train.model.precision:choose_attention",
         "train.rows.row_attention:choose_row_attention"),
    ),
    AutomaticChoice("output layer", "engine.head", (SPEC, BASE), ("backends.native.assembly:choose_head",)),
    AutomaticChoice("float8", "engine.fp8", (DEVICE, PACKAGES), ("train.model.precision:choose_fp8",)),
    AutomaticChoice("fused kernels", "engine.kernels", (SPEC,), ()),
    AutomaticChoice("compile", "engine.compile", (SPEC,), ()),
    AutomaticChoice("deterministic kernels", "", (DEVICE, PACKAGES), ("backends.native.assembly:settle_kernels",)),
    AutomaticChoice("chat template", "engine.template", (BASE,), ("data.renderers.tokenizer:choose_for_tokenizer",)),
    AutomaticChoice("longest row", "hyperparameters.max_length", (SPEC, BASE), ("app.plan.resolve:fit_lengths",)),
    AutomaticChoice("steps", "hyperparameters.max_steps", (SPEC, ROWS), ("backends.frame:total_steps",)),
    AutomaticChoice("learning rate", "hyperparameters.learning_rate", (SPEC,), ("spec.training:resolve_trainer",)),
    AutomaticChoice(
        "checkpoints", "hyperparameters.save_steps", (SPEC, ROWS), ("spec.estimate.timing:save_steps",)
    ),
    AutomaticChoice(
        "evaluations", "eval.steps", (SPEC, ROWS), ("spec.estimate.timing:default_interval",)
    ),
)  # fmt: skip
"""Every automatic choice of a training. `tests/unit/backends/test_choices.py` compares it with spec and code."""


class MachineChoices(Strict):
    """Automatic choices of this machine for a training or an evaluation: a part of its content key and of its plan."""

    device: Device
    precision: Precision
    """As requested, or decided here; of a backend that decides itself `auto`."""
    precision_why: str
    threads: int
    """Of a training on the CPU, where another number gives other last bits; 0 on a GPU."""
    capability: tuple[int, int] | None = None
    """CUDA's compute capability, by which attention and float8 are chosen."""

    def lines(self) -> dict[str, str]:
        """Return each choice with its reason, for a plan."""
        choices = {"device": self.device.value}
        if self.precision is not Precision.AUTO:
            choices["precision"] = f"{self.precision} ({self.precision_why})"
        return choices | ({"threads": str(self.threads)} if self.threads else {})


def decide_choices(config: TrainerConfig, base: Path | None, settings: Settings) -> MachineChoices:
    """Return the choices of a training of a base on this machine: those that are kept, or those of the facts.

    Raises `InvalidInput` (`E-DEVICE`) for fp16 on a CPU.
    """
    facts = machine_facts(config, base, settings)
    return read_choices(facts, settings) or choose(config, base, facts)


def keep_choices(config: TrainerConfig, base: Path | None, settings: Settings) -> MachineChoices:
    """Return the same, and keep them for every later training with the same facts. Raises as `decide_choices`."""
    facts = machine_facts(config, base, settings)
    choices = read_choices(facts, settings)
    return choices if choices is not None else write_choices(facts, choose(config, base, facts), settings)


def decide_evaluation(settings: Settings) -> MachineChoices:
    """Return the choices of an evaluation on this machine: those that are kept, or those of the facts."""
    facts = evaluation_facts(settings)
    return read_choices(facts, settings) or choose_evaluation(facts)


def keep_evaluation(settings: Settings) -> MachineChoices:
    """Return the same, and keep them for every later evaluation with the same facts."""
    facts = evaluation_facts(settings)
    choices = read_choices(facts, settings)
    return choices if choices is not None else write_choices(facts, choose_evaluation(facts), settings)


def write_choices(facts: Mapping[str, object], choices: MachineChoices, settings: Settings) -> MachineChoices:
    """Keep a decision under its facts, and return it."""
    path = choices_file(facts, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.stem}.{os.getpid()}.{get_ident()}.tmp")  # a chain's trainers start in threads
    write_json_durably(draft, add_version("choices", {"facts": facts, "chosen": choices.model_dump(mode="json")}))
    draft.replace(path)
    return choices


def machine_facts(config: TrainerConfig, base: Path | None, settings: Settings) -> dict[str, object]:
    """Return the key of the decision: the machine, the sizes of the base, the versions, and what is requested.

    Of the machine it contains what does not change with its load.
    """
    return {
        "machine": facts_of_device(list_devices()[0] if config.device is Device.AUTO else config.device, settings),
        "base": read_architecture(base) or config.base_model or "",
        "versions": versions(),
        "requested": {"precision": config.hyperparameters.precision.value, "backend": config.backend.value},
    }


def evaluation_facts(settings: Settings) -> dict[str, object]:
    """Return the key of the decision of an evaluation: it takes the first device of the machine."""
    machine = facts_of_device(list_devices()[0], settings)
    return {"machine": machine, "versions": versions(), "requested": {"node": "evaluator"}}


def facts_of_device(device: Device, settings: Settings) -> dict[str, object]:
    """Return the constant facts of a device of this machine."""
    return {
        "device": device.value,
        "name": device_name(device),
        "bf16": find_native_bf16(device),
        "capability": find_capability(device),
        "cores": physical_cores(),
        "threads": settings.threads,
    }


def choose_evaluation(facts: JsonObject) -> MachineChoices:
    """Return the decision of an evaluation: fp32 on a CPU, else the precision in which the weights are stored."""
    machine = facts["machine"]
    device = Device(machine["device"])
    on_cpu = device is Device.CPU
    return MachineChoices(
        device=device,
        precision=Precision.FP32 if on_cpu else Precision.AUTO,
        precision_why="of every evaluation on a CPU" if on_cpu else "as the weights are stored",
        threads=training_threads(machine["threads"]) if on_cpu else 0,
        capability=machine["capability"],
    )


def choose(config: TrainerConfig, base: Path | None, facts: JsonObject) -> MachineChoices:
    """Return the decision of some facts."""
    machine, requested = facts["machine"], config.hyperparameters.precision
    device = Device(machine["device"])
    decides = config.backend in OWN_BACKENDS
    choice = choose_precision(
        requested, device.facts.torch_type, native=machine["bf16"], hidden=read_hidden_size(read_architecture(base))
    ) if decides else None  # fmt: skip
    return MachineChoices(
        device=device,
        precision=choice.precision if choice else requested,
        precision_why=choice.why if choice else f"decided by {config.backend}",
        threads=training_threads(machine["threads"]) if device is Device.CPU else 0,
        capability=machine["capability"],
    )


def find_native_bf16(device: Device) -> str | None:
    """Return what multiplies bf16 natively: an instruction set of this CPU, a GPU's own name, or None for nothing."""
    if device is Device.CPU:
        return cpu_bf16()
    if device is Device.CUDA and not all(gpu.native_bf16 for gpu in list_gpus()):
        return None
    return device.facts.torch_type


def find_capability(device: Device) -> tuple[int, int] | None:
    """Return the lowest compute capability of the GPUs that trainings may take; None without one of NVIDIA's."""
    return min((gpu.capability for gpu in list_gpus()), default=None) if device is Device.CUDA else None


def list_gpus() -> list[Any]:
    numbers = device_numbers()
    return [gpu for gpu in read_gpus().gpus if gpu.index in numbers]


def choices_file(facts: Mapping[str, object], settings: Settings) -> Path:
    """Return the file of the decision for some facts."""
    return settings.choices / f"{digest(facts)[:32]}.json"


def read_choices(facts: Mapping[str, object], settings: Settings) -> MachineChoices | None:
    """Return the decision for these facts; None before the first decision, or for a damaged file."""
    path = choices_file(facts, settings)
    try:
        value = read_versioned("choices", path.read_bytes(), path)
        return MachineChoices.model_validate(value["chosen"]) if value["facts"] == to_stored(facts) else None
    except (OSError, ValueError, KeyError, TypeError, ValidationError, Conflict):
        return None  # the facts decide again, as they did before


def to_stored(facts: Mapping[str, object]) -> object:
    return orjson.loads(orjson.dumps(facts))


def choices_digest(choices: MachineChoices) -> str:
    """Return the part of a content key that is this machine's; the reasons are words and stay out."""
    return digest(json.loads(choices.model_dump_json(exclude={"precision_why"})))
