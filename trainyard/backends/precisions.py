"""The precision that a CPU computes a base in, measured once and kept in the home for every later training of it.

A measurement depends on what else the machine does at that moment. Were each training to measure, an adapter and the
control that it is compared with could be trained in different precisions. Imports no torch.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.chain import digest
from trainyard.spec.training import TrainerConfig
from trainyard.stores.whole import write_json_durably
from trainyard.train.precision import PrecisionChoice, cpu_bf16

FOLDER = "precision"
MEASURING = (BackendName.NATIVE, BackendName.TRL)
"""Backends that time a step in bf16 and in fp32 where that decides."""


def choice_file(base: str, settings: Settings) -> Path:
    """Return the file with the choice for a base's folder, this processor's instructions and this torch."""
    return settings.timings / FOLDER / f"{digest({'base': base, 'native': cpu_bf16(), 'torch': version('torch')})}.json"


def read_choice(base: str, settings: Settings) -> PrecisionChoice | None:
    """Return what an earlier training has measured; None before the first one."""
    path = choice_file(base, settings)
    if not path.is_file():
        return None
    try:
        known: dict[str, Any] = orjson.loads(path.read_bytes())
        return PrecisionChoice(Precision(known["precision"]), f"{known['why']}, measured at its first training")
    except (ValueError, KeyError, TypeError):
        return None  # of another release, or damaged: it is measured again


def keep_choice(base: str, choice: PrecisionChoice, settings: Settings) -> PrecisionChoice:
    """Keep a measured choice, and return the one that counts: of two trainings at a time that of the first."""
    path = choice_file(base, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_json_durably(draft, {"precision": choice.precision.value, "why": choice.why})
    try:
        os.link(draft, path)
    except FileExistsError:
        if (earlier := read_choice(base, settings)) is not None:
            return earlier
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return choice


def describe_choice(config: TrainerConfig, folder: Path, here: Device, settings: Settings) -> list[str]:
    """Return what `precision: auto` is for a base on this machine; nothing where no measurement decides."""
    device = here if config.device is Device.AUTO else config.device
    asks = config.hyperparameters.precision is Precision.AUTO and config.backend in MEASURING
    if not asks or device is not Device.CPU or cpu_bf16() is None:
        return []
    known = read_choice(str(folder), settings)
    if known is None:
        return ["Precision auto is measured once, at the first training of this base on this CPU, and then kept."]
    return [f"Precision auto is {known.precision} on this CPU: {known.why}."]
