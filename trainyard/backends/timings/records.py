"""The file of measurements of one kind of training: `timings/<digest of what its speed depends on>.json`.

Length and rows of a step are within the file, because a step is scaled by its operations. A file that cannot be read,
or that a newer version wrote, counts as no measurement, with the reason; the next measurement replaces it.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from trainyard.backends.machine import device_name, read_architecture, versions
from trainyard.compute.gpus import training_threads
from trainyard.compute.lease import device_lock
from trainyard.compute.monitor.processor import read_processor_time
from trainyard.errors import Conflict
from trainyard.settings import Settings
from trainyard.spec.axes.devices import Device
from trainyard.spec.chain import digest
from trainyard.spec.estimate.timing import Problem, StepTiming, Timings
from trainyard.spec.training import TrainerConfig
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

KEPT = 50
"""Measurements in a file, the newest ones."""
LOCK_WAIT_S = 10.0
LEAST_RUN_NS = 200_000_000
"""A process that computed less says nothing about the others."""


def timing_key(config: TrainerConfig, base: Path | None, device: Device, settings: Settings) -> str:
    """Digest of everything that the speed of a training depends on, but for its length and the rows of a step."""
    hyper, engine = config.hyperparameters, config.engine
    facts = {
        "architecture": read_architecture(base) or config.base_model,
        "method": config.method.model_dump(mode="json"),
        "stage": config.stage.model_dump(mode="json"),
        "quantization": config.quantization,
        "precision": hyper.precision,
        "optimizer": hyper.optimizer,
        "checkpointing": hyper.gradient_checkpointing,
        "engine": {name: getattr(engine, name) for name in ("batching", "token_budget", "attention", "head", "fp8")},
        "launch": {"strategy": config.launch.strategy, "processes": config.launch.processes},
        "device": device_name(device),
        "threads": training_threads(settings.threads) if device is Device.CPU else 0,
        "backend": config.backend,
        "script": config.launch.script,
        "versions": versions(),
    }
    return digest(facts)[:32]


def measure_slowdown(device: Device) -> float:
    """Return how much longer a computation takes next to the other programs of this machine; 1 on a GPU.

    Measured on this process: the time that it computed and waited for a processor, over that in which it computed. (The
    load average counts programs that wait for the disk, too: at a load of 15 trainings took 2.3 times as long, not 8.)
    """
    used = read_processor_time(os.getpid()) if device is Device.CPU else None
    return 1.0 if used is None or used.run < LEAST_RUN_NS else (used.run + used.wait) / used.run


def read_timings(key: str, settings: Settings) -> Timings:
    """Return the measurements; none, with the reason, for a file that cannot be used."""
    path = settings.timings / f"{key}.json"
    try:
        value = read_versioned("timings", path.read_bytes(), path)
        measured = tuple(StepTiming.model_validate(timing) for timing in value["measured"])
        return Timings(measured, tuple(Problem.model_validate(problem) for problem in value["problems"]))
    except FileNotFoundError:
        return Timings()
    except Conflict as error:
        return Timings(note=f"an earlier measurement is not used: {error.what}")
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        return Timings(note=f"an earlier measurement is not used: {path} cannot be read ({type(error).__name__})")


def add_timing(key: str, entry: StepTiming | Problem, settings: Settings) -> None:
    """Add a measurement to its file. Two processes that measured at once add one after the other."""
    path = settings.timings / f"{key}.json"
    with device_lock(settings.timings / f"{key}.lock", run="timings", wait_s=LOCK_WAIT_S):
        timings = read_timings(key, settings)
        measured, problems = list(timings.measured), list(timings.problems)
        (measured if isinstance(entry, StepTiming) else problems).append(entry)  # type: ignore[arg-type]
        value = {
            "measured": [timing.model_dump(mode="json") for timing in measured[-KEPT:]],
            "problems": [problem.model_dump(mode="json") for problem in problems[-KEPT:]],
        }
        write_json_durably(path, add_version("timings", value))
