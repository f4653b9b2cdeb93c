"""What every training child shares, whichever engine trains below it; imports torch only where a function computes.

    job = read_job(folder)
    fix_threads_and_seed(job)                     before the first number is drawn
    with lock_devices(job, folder, events, device), memory_errors_in_words():
        ...
        save_result(job, folder, record, write)   `result/adapter` or `result/model`, whole or not at all
        report_metrics(events, record)

Here is also what each engine would otherwise decide for itself: how often to save, how long a run is, which precision
a job computes in, and the part of `training.json` that is known from the job alone.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from trainyard.backends.job import TrainingJob
from trainyard.backends.results import DECISIONS_FILE, RESULT_FOLDER, TRAINING_FILE
from trainyard.compute.child import SPEC_FILE, Events, Stopped, faultpoint
from trainyard.compute.lease import device_locks
from trainyard.errors import TrainyardError
from trainyard.spec.axes.devices import Precision
from trainyard.spec.training import Hyperparameters, TrainerConfig
from trainyard.stores.whole import write_folder, write_json_durably
from trainyard.train.precision import PrecisionChoice, choose_precision, native_bf16
from trainyard.workers.trainyard_worker.failures import nonfinite_weights, out_of_memory

if TYPE_CHECKING:
    from trainyard.train.tokens import TokenLedger

LOCK_WAIT_S = 600
"""How long a trainer waits for the device: an orphan of a dead run may still be saving."""
ADAM_COPIES = 4
"""Weights, two moments and room for the next checkpoint, as multiples of the trained bytes."""
DEFAULT_EPOCHS = 3.0
TIMED_STEPS = 4
"""One to warm up, then three of which the fastest counts."""
WEIGHT_FILES = {True: ("adapter_config.json", "adapter_model.safetensors"), False: ("config.json",)}
"""Is it an adapter -> files without which it is not a result."""
ADAPTER_CONFIG = "adapter_config.json"


def load(module: str) -> Any:
    """torch or transformers, which the children of external tools never import."""
    return importlib.import_module(module)


def read_job(folder: Path) -> TrainingJob:
    """The job of `folder/spec.json`."""
    return TrainingJob.model_validate_json((folder / SPEC_FILE).read_text(encoding="utf-8"))


def lock_devices(job: TrainingJob, folder: Path, events: Events, device: str) -> AbstractContextManager[None]:
    """Lock the devices of a job, and its work folder, while the block runs. Raises `Conflict` (`E-DEVICE-BUSY`)."""
    places, give_up = Path(job.locks), events.stop_requested
    return device_locks(places, device, job.devices, work=folder, run=job.run, wait_s=LOCK_WAIT_S, give_up=give_up)


@contextmanager
def memory_errors_in_words() -> Iterator[None]:
    """Raise `TrainyardError` (`E-DEVICE-MEMORY`) where torch runs out of the memory of its device."""
    try:
        yield
    except load("torch").OutOfMemoryError as error:
        raise TrainyardError(**out_of_memory(str(error))) from error


def fix_threads_and_seed(job: TrainingJob) -> None:
    """Fix the thread count of this process and every generator, before anything draws a random number."""
    torch = load("torch")
    torch.set_num_threads(max(1, job.threads // job.config.launch.processes))
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    load("transformers").set_seed(job.config.hyperparameters.seed)


def require_not_stopped(stopped: bool) -> None:
    """Raise `Stopped` before the first step."""
    if stopped:
        raise Stopped("asked to stop before the first step", step=0)


# How long, how often, how exact


def total_steps(hyper: Hyperparameters, per_epoch: int) -> int:
    """Optimizer steps of a run."""
    return hyper.max_steps or max(1, math.ceil((hyper.epochs or DEFAULT_EPOCHS) * per_epoch))


def decide_precision(
    job: TrainingJob,
    device: str,
    folder: Path,
    step: Callable[[bool], None],
    share: Callable[[Any], Any] = lambda value: value,
) -> PrecisionChoice:
    """The precision of a job: measured at its first start, kept for every later one.

    `step(bf16)` runs forward and backward once; it is timed where that decides. `share` returns rank 0's value.
    """
    path, asked = folder / DECISIONS_FILE, job.config.hyperparameters.precision
    known = share(orjson.loads(path.read_bytes()) if path.exists() else {})
    if "precision" not in known:
        native = native_bf16(device)
        choice = choose_precision(asked, device, native=native, seconds_per_step=lambda bf16: fastest(step, bf16))
        known = share({**known, "precision": choice.precision.value, "why": choice.why})
        write_json_durably(path, known)
    return PrecisionChoice(Precision(known["precision"]), known["why"])


def fastest(step: Callable[[bool], None], bf16: bool) -> float:
    """Seconds of the fastest of some steps, the first one left out."""
    times = []
    for _ in range(TIMED_STEPS):
        started = time.perf_counter()
        step(bf16)
        times.append(time.perf_counter() - started)
    return min(times[1:])


# The result


def trainable_bytes(model: Any) -> int:
    """Bytes of the weights that are trained."""
    return sum(value.numel() * value.element_size() for value in model.parameters() if value.requires_grad)


def require_finite_weights(model: Any) -> None:
    """Raise `E-NON-FINITE` naming the first trained tensor with NaN or infinity; of a sharded one, its part."""
    torch = load("torch")
    for name, parameter in model.named_parameters():
        own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if parameter.requires_grad and not torch.isfinite(own).all():
            raise TrainyardError(**nonfinite_weights(name))


def job_facts(job: TrainingJob, losses: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The part of `training.json` that is known from the job and its loss curve."""
    config = job.config
    return {
        "stage": config.stage.type.value,
        "method": config.method.type.value,
        "backend": config.backend.value,
        "base_model": config.base_model,
        "base_path": job.base,
        "base_sha256": job.base_sha256,
        "hyperparameters": config.hyperparameters.model_dump(mode="json"),
        "quantization": config.base_format or config.quantization,
        **({"teacher_sha256": job.teacher_sha256} if job.teacher_sha256 else {}),
        **({"reward_model_sha256": job.reward_sha256} if job.reward_sha256 else {}),
        "stage_settings": config.stage.model_dump(mode="json", exclude={"type"}),
        "control": config.control,
        "parents": list(job.parents),
        "first_loss": losses[0][1],
        "final_loss": losses[-1][1],
        "losses": losses,
    }


def library_versions(config: TrainerConfig, *packages: str) -> dict[str, str]:
    """Versions of these packages, and of those that the job's quantization format and optimizer are made by."""
    used = [config.hyperparameters.optimizer.facts.package]
    used += [config.base_format.facts.package] if config.base_format else []
    names = dict.fromkeys((*packages, *(module for package in used for module in package.modules)))
    return {name: version(name) for name in names}


def save_result(job: TrainingJob, folder: Path, record: Mapping[str, Any], write: Callable[[Path], None]) -> None:
    """Make `folder/result` of what `write(target)` leaves, with `training.json`: whole, or not at all."""

    def fill(temporary: Path) -> None:
        target = temporary / job.output.value
        write(target)
        write_json_durably(target / TRAINING_FILE, record)

    write_folder(folder / RESULT_FOLDER, fill, at=lambda point: faultpoint(f"result.{point}"))


def missing_weights(job: TrainingJob, folder: Path) -> list[str]:
    """Files that a result of the job's method needs and `folder` lacks."""
    return [name for name in WEIGHT_FILES[job.config.method.facts.adapter] if not (folder / name).is_file()]


def name_base(job: TrainingJob, target: Path) -> None:
    """Let an adapter's config name the base as the job does, not a tool's copy or quantized replacement of it."""
    if job.config.method.facts.adapter:
        config = orjson.loads((target / ADAPTER_CONFIG).read_bytes())
        write_json_durably(target / ADAPTER_CONFIG, {**config, "base_model_name_or_path": job.base})


def report_ledger(events: Events, ledger: TokenLedger) -> None:
    """Print and emit the account of the data."""
    print(ledger.line(), flush=True)
    events.emit("ledger", **ledger.tokens(), rows=dict(ledger.rows), text=ledger.line())


def report_coverage(events: Events, coverage: Mapping[str, Any] | None) -> None:
    """Print and emit the share of the weights that an adapter is on, where that is not plain from the settings."""
    if coverage and coverage["note"]:
        print(f"adapter: {coverage['note']}", flush=True)
        events.emit("adapter", text=coverage["note"])


def report_metrics(events: Events, record: Mapping[str, Any]) -> None:
    """Emit what a person looks for first."""
    events.emit("metrics", **{name: record[name] for name in ("steps", "first_loss", "final_loss", "seconds")})
