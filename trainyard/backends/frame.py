"""Frame of every training child, whichever engine trains below it; imports torch only where a function computes.

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
import re
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
from trainyard.data.renderers.day import DAY
from trainyard.errors import Refused, TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.devices import Precision
from trainyard.spec.compat.advice import step_advice, step_reasons
from trainyard.spec.training import Hyperparameters, TrainerConfig
from trainyard.stores.tensors import has_changed
from trainyard.stores.whole import write_folder, write_json_durably
from trainyard.train.model.precision import (
    PrecisionChoice,
    choose_precision,
    find_accelerator,
    native_bf16,
    read_hidden_size,
)
from trainyard.workers.trainyard_worker.failures import (
    describe_out_of_memory,
    nonfinite_weights,
    unchanged_weights_error,
)

if TYPE_CHECKING:
    from trainyard.train.rows.tokens import TokenLedger

LOCK_WAIT_S = 600
"""How long a trainer waits for the device: an orphan of a dead run may still be saving."""
ADAM_COPIES = 4
"""Weights, two moments and room for the next checkpoint, as multiples of the trained bytes."""
DEFAULT_EPOCHS = 3.0
WEIGHT_FILES = {True: ("adapter_config.json", "adapter_model.safetensors"), False: ("config.json",)}
"""Is it an adapter -> files without which it is not a result."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FIRST_FACTOR = re.compile(r"\.lora_(embedding_)?A\b")
CRITIC_PREFIX = "critic."
"""Where ppo keeps its critic in a policy (`train/losses/scoring`, which imports torch)."""


def import_package(module: str) -> Any:
    """torch or transformers, which the children of external tools never import."""
    return importlib.import_module(module)


def read_job(folder: Path) -> TrainingJob:
    """Return the job of `folder/spec.json`; from then on chat templates write its day."""
    job = TrainingJob.model_validate_json((folder / SPEC_FILE).read_text(encoding="utf-8"))
    if job.template_day:
        DAY.fix(job.template_day)
    return job


def lock_devices(job: TrainingJob, folder: Path, events: Events, device: str) -> AbstractContextManager[None]:
    """Lock the devices of a job, and its work folder, while the block runs. Raises `Conflict` (`E-DEVICE-BUSY`)."""
    locks_folder, give_up = Path(job.locks), events.stop_requested
    return device_locks(
        locks_folder, device, job.devices, work=folder, run=job.run, wait_s=LOCK_WAIT_S, give_up=give_up
    )


@contextmanager
def memory_errors_in_words() -> Iterator[None]:
    """Raise `TrainyardError` (`E-DEVICE-MEMORY`) where torch runs out of the memory of its device."""
    try:
        yield
    except import_package("torch").OutOfMemoryError as error:
        raise TrainyardError(**describe_out_of_memory(str(error))) from error


def fix_threads_and_seed(job: TrainingJob) -> None:
    """Fix the thread count of this process and every generator, before anything draws a random number."""
    torch = import_package("torch")
    torch.set_num_threads(max(1, job.threads // job.config.launch.local_processes))
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    import_package("transformers").set_seed(job.config.hyperparameters.seed)


def require_not_stopped(stopped: bool) -> None:
    """Raise `Stopped` before the first step."""
    if stopped:
        raise Stopped("asked to stop before the first step", step=0)


# How long, how often, how exact


def total_steps(hyper: Hyperparameters, per_epoch: int) -> int:
    """Optimizer steps of a run."""
    return hyper.max_steps or max(1, math.ceil((hyper.epochs or DEFAULT_EPOCHS) * per_epoch))


def require_steps(job: TrainingJob, total: int, events: Events | None = None) -> None:
    """Raise `Refused` (`R-SCHEDULE`) where a run of so many steps has another curve than its settings say."""
    if reasons := step_reasons(job.config, total, job.node or None):
        raise Refused(reasons)
    if events is not None and job.config.hyperparameters.max_steps is None:  # else `advice` has said it
        for text in step_advice(job.config, total):
            events.emit("warning", text=text)


def decide_precision(
    job: TrainingJob, device: str, folder: Path, share: Callable[[Any], Any] = lambda value: value
) -> PrecisionChoice:
    """Return the precision of a job: that of its first start, else what this machine decided for it.

    A job that was made without a decision, or that runs on another device, decides by the same facts here. `share`
    returns rank 0's value.
    """
    path = folder / DECISIONS_FILE
    decisions = share(orjson.loads(path.read_bytes()) if path.exists() else {})
    if "precision" not in decisions:
        choice = resolve_precision(job, device)
        decisions = share({**decisions, "precision": choice.precision.value, "why": choice.why})
        write_json_durably(path, decisions)
    return PrecisionChoice(Precision(decisions["precision"]), decisions["why"])


def resolve_precision(job: TrainingJob, device: str) -> PrecisionChoice:
    """Return the precision that the job carries for this device, or that its facts give. Raises `E-DEVICE`."""
    choices, requested = job.choices, job.config.hyperparameters.precision
    if choices is not None and choices.device is find_accelerator(device) and choices.precision is not Precision.AUTO:
        return PrecisionChoice(choices.precision, choices.precision_why)
    path = Path(job.base) / "config.json"
    config = orjson.loads(path.read_bytes()) if path.is_file() else {}
    return choose_precision(requested, device, native=native_bf16(device), hidden=read_hidden_size(config))


# The result


def trainable_bytes(model: Any) -> int:
    """Bytes of the weights that are trained."""
    return sum(value.numel() * value.element_size() for value in model.parameters() if value.requires_grad)


def require_finite_weights(model: Any) -> None:
    """Raise `E-NON-FINITE` naming the first trained tensor with NaN or infinity; of a sharded one, its part."""
    torch = import_package("torch")
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if parameter.requires_grad and not torch.isfinite(local).all():
            raise TrainyardError(**nonfinite_weights(name))


def sum_bits(model: Any) -> dict[str, int]:
    """Return for each trained tensor the sum of its bits as integers; of a sharded one, of its part.

    The first factors of an adapter are left out where it has second ones: an adapter whose second factors are still
    zero is the base, whatever weight decay has done to the first. So is the critic, which stays behind.
    """
    torch = import_package("torch")
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    policy = {name: value for name, value in trained.items() if not name.startswith(CRITIC_PREFIX)}
    decisive = {name: value for name, value in policy.items() if not FIRST_FACTOR.search(name)}
    sums = {}
    for name, value in (decisive or policy).items():
        local = (value.to_local() if hasattr(value, "to_local") else value).detach().contiguous()
        integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[local.element_size()]
        sums[name] = int(local.view(integer).sum(dtype=torch.int64))
    return sums


def require_moved(job: TrainingJob, model: Any, before: Mapping[str, int], why: str) -> None:
    """Raise `TrainyardError` (`E-UNCHANGED`) where no trained weight differs from what the run began with."""
    if before and not job.is_probe and sum_bits(model) == before:
        raise TrainyardError(**unchanged_weights_error(why))


def explain_standstill(losses: Sequence[Sequence[float]], steps: int, skipped: int, rollouts: JsonMapping) -> str:
    """Return the likely reason why a run moved nothing."""
    if steps and skipped == steps:
        return "Every step was skipped: its gradients overflowed in half precision."
    if rollouts and rollouts["constant"] == rollouts["count"]:
        return "Every advantage was 0: all completions of each prompt had the same reward in every step."
    if losses and not any(point[2] for point in losses):
        return "The learning rate was 0 in every step."
    return "No gradient reached the trained weights, or each step was below their precision."


def job_facts(job: TrainingJob, losses: Sequence[Sequence[float]]) -> JsonObject:
    """Return the part of `training.json` that is known from the job and its loss curve."""
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
        **({"template_day": DAY.fixed} if DAY.fixed and DAY.is_written else {}),
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


def save_result(job: TrainingJob, folder: Path, record: JsonMapping, write: Callable[[Path], None]) -> None:
    """Make `folder/result` of what `write(target)` leaves, with `training.json`: whole, or not at all."""

    def fill(temporary: Path) -> None:
        target = temporary / job.output.value
        write(target)
        require_changed_files(job, target)
        write_json_durably(target / TRAINING_FILE, record)

    write_folder(folder / RESULT_FOLDER, fill, at=lambda point: faultpoint(f"result.{point}"))


def require_changed_files(job: TrainingJob, target: Path) -> None:
    """Raise `TrainyardError` (`E-UNCHANGED`) for a written adapter that is the base, or the earlier one unchanged.

    Whatever tool has written it: this is what an adapter is served from.
    """
    path = target / ADAPTER_WEIGHTS
    if job.is_probe or not job.config.method.facts.adapter or not path.is_file():
        return
    earlier = Path(job.adapter) / ADAPTER_WEIGHTS if job.adapter is not None else None
    try:
        changed = has_changed(path, earlier if earlier is not None and earlier.is_file() else None)
    except ValueError as error:
        message = f"The adapter that the training has left cannot be read: {path.name} is not a safetensors file."
        raise TrainyardError(
            message, why=str(error), do="Look into child.log, and train again.", code="E-PROGRAM"
        ) from error
    if not changed:
        raise TrainyardError(
            **unchanged_weights_error("The adapter that was written changes nothing of what it began with.")
        )


def missing_weights(job: TrainingJob, folder: Path) -> list[str]:
    """Files that a result of the job's method needs and `folder` lacks."""
    return [name for name in WEIGHT_FILES[job.config.method.facts.adapter] if not (folder / name).is_file()]


def name_base(job: TrainingJob, target: Path) -> None:
    """Let an adapter's config name the base as the job does, not a tool's copy or quantized replacement of it."""
    if job.config.method.facts.adapter:
        config = orjson.loads((target / ADAPTER_CONFIG).read_bytes())
        write_json_durably(target / ADAPTER_CONFIG, {**config, "base_model_name_or_path": job.base})


def report_ledger(events: Events, ledger: TokenLedger) -> None:
    """Print and emit the account of the data, and warn of what the chat template refuses or hides."""
    print(ledger.line(), flush=True)
    if notes := ledger.notes():
        events.emit("warning", text=f"Rows and their chat template: {'; '.join(notes)}.")
    events.emit("ledger", **ledger.tokens(), rows=dict(ledger.rows), text=ledger.line())


def report_coverage(events: Events, coverage: JsonMapping | None) -> None:
    """Print and emit the share of the weights that an adapter is on, where that is not plain from the settings."""
    if coverage and coverage["note"]:
        print(f"adapter: {coverage['note']}", flush=True)
        events.emit("adapter", text=coverage["note"])


def report_metrics(events: Events, record: JsonMapping) -> None:
    """Emit what a person looks for first."""
    events.emit("metrics", **{name: record[name] for name in ("steps", "first_loss", "final_loss", "seconds")})
