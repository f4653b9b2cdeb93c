"""The training child of the `trl` backend: five stages with LoRA, DoRA or full weights (imports torch and TRL).

Reads `spec.json`, continues from the newest valid checkpoint or says that it starts from zero, and leaves
`result/adapter` or `result/model` with a `training.json`. Everything that decides a number (threads, seed, precision,
versions) is fixed before the first step and recorded.
"""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import accelerate
import orjson
import peft
import torch
import transformers
import trl
from transformers import PrinterCallback, set_seed

from trainyard.backends.base import CHECKPOINT_FOLDER, DECISIONS_FILE, RESULT_FOLDER, TRAINING_FILE
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import tell_restart
from trainyard.backends.trl.arguments import common_arguments
from trainyard.backends.trl.data import PreparedRun, prepare, sequence
from trainyard.backends.trl.loading import (
    head_of,
    load_base,
    lora_facts,
    pick_device,
    template_sha256,
    trainable,
    with_adapter,
)
from trainyard.backends.trl.several import company, in_parts, layout_of, shared, shared_model
from trainyard.backends.trl.stages import STAGES
from trainyard.backends.trl.trainer import (
    CommittedCheckpoints,
    InOrder,
    LossCurve,
    TrlCallback,
    newest_trainer_state,
    require_finite_weights,
)
from trainyard.compute.child import SPEC_FILE, Events, Stopped, faultpoint
from trainyard.compute.lease import device_locks
from trainyard.data.renderers.choice import choose
from trainyard.errors import TrainyardError
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.methods import ADAPTER_METHODS
from trainyard.spec.axes.stages import Stage
from trainyard.spec.axes.strategies import Strategy
from trainyard.stores.artifacts import write_json_durably
from trainyard.train.checkpoints import FoundCheckpoint, newest_valid, require_space, seal, whole_or_nothing
from trainyard.train.methods.contract import PolicyRequest
from trainyard.train.methods.loading import lineage
from trainyard.train.parallel.team import Team
from trainyard.train.precision import PrecisionChoice, choose_precision, native_bf16

LOCK_WAIT_S = 600
"""How long a trainer waits for the device: an orphan of a dead run may still be saving."""
COMPARING = (Stage.DPO, Stage.KTO, Stage.REWARD)
"""Stages whose records tell the settings of a preference."""
ADAM_COPIES = 4
"""Weights, two moments and room for the next checkpoint, as multiples of the trained bytes."""


def train(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json` to its end, alone or as one of several processes."""
    job = TrainingJob.model_validate_json((folder / SPEC_FILE).read_text(encoding="utf-8"))
    device = pick_device(job.config.device)
    fix_numbers(job)
    with ExitStack() as held:
        team = None if job.config.launch.strategy is Strategy.SINGLE else held.enter_context(company(folder, device))
        if team is None or team.leading:
            places, give_up = Path(job.locks), events.stop_requested
            locks = device_locks(
                places, device, job.devices, work=folder, run=job.run, wait_s=LOCK_WAIT_S, give_up=give_up
            )
            held.enter_context(locks)
        shared(team, None)  # nobody begins before the device is ours
        try:
            train_on(job, folder, events, device, team)
        except torch.OutOfMemoryError as error:
            raise TrainyardError(
                "The device ran out of memory.",
                why=str(error).splitlines()[0],
                do="Lower batch_size or max_length, or set gradient_checkpointing: true.",
                code="E-DEVICE-MEMORY",
            ) from error


def fix_numbers(job: TrainingJob) -> None:
    """Threads and seeds, before anything draws a random number."""
    torch.set_num_threads(max(1, job.threads // job.config.launch.processes))
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    set_seed(job.config.hyperparameters.seed)
    transformers.logging.set_verbosity(logging.WARNING)


def train_on(job: TrainingJob, folder: Path, events: Events, device: str, team: Team | None = None) -> None:
    found, restarted_from = start_of(folder, events, team)
    prepared = prepare(job, device, events)
    stop_if_asked(events, team)
    set_seed(job.config.hyperparameters.seed)  # the weights of a new adapter must not depend on what was drawn before
    model = shared_model(job, found.path) if in_parts(job) else with_adapter(load_base(job, device), job).to(device)
    choice = decide_precision(prepared, model, folder, team)
    trainer = build_trainer(prepared, model, folder, choice.precision)
    trained_bytes = sum(parameter.numel() * parameter.element_size() for parameter in trainable(trainer.model).values())
    require_space(folder, ADAM_COPIES * trained_bytes)
    curve = LossCurve.load(found.path) if found.path else LossCurve()
    trainer.events, trainer.checkpoint_root, trainer.curve = events, folder / CHECKPOINT_FOLDER, curve
    trainer.team = team
    trainer.add_callback(TrlCallback(events, prepared.length, curve, team))
    trainer.add_callback(InOrder(trainer, prepared.length))
    events.emit("begin", restarted_from=restarted_from, **begin_facts(prepared, choice))
    started = time.monotonic()
    trainer.train(resume_from_checkpoint=newest_trainer_state(found.path) if found.path else None)
    if trainer.state.global_step < prepared.length.total_steps:
        raise Stopped("asked to stop; a checkpoint is saved", step=trainer.state.global_step)
    require_finite_weights(trainer.model)
    record = training_record(prepared, trainer, choice, time.monotonic() - started)
    save_result(trainer, prepared, folder, record)
    events.emit("metrics", **{name: record[name] for name in ("steps", "first_loss", "final_loss", "seconds")})


def start_of(folder: Path, events: Events, team: Team | None) -> tuple[FoundCheckpoint, dict[str, int] | str | None]:
    """The checkpoint that the process that leads has found, for all; and what it says of a restart."""
    restarted_from: dict[str, int] | str | None = None
    place, step = "", 0
    if team is None or team.leading:
        found = newest_valid(folder / CHECKPOINT_FOLDER)
        restarted_from = tell_restart(folder / DECISIONS_FILE, found, events)
        place, step = str(found.path or ""), found.step
    place, step = shared(team, (place, step))
    return FoundCheckpoint(Path(place) if place else None, step), restarted_from


def stop_if_asked(events: Events, team: Team | None = None) -> None:
    if shared(team, events.stop_requested()):
        raise Stopped("asked to stop before the first step", step=0)


def decide_precision(
    prepared: PreparedRun, model: torch.nn.Module, folder: Path, team: Team | None = None
) -> PrecisionChoice:
    """The precision of this job: measured at its first start, remembered for every later one."""
    path = folder / DECISIONS_FILE
    known = shared(team, orjson.loads(path.read_bytes()) if path.exists() else None)
    if known:
        return PrecisionChoice(Precision(known["precision"]), known["why"])
    device = prepared.device
    choice = choose_precision(
        prepared.job.config.hyperparameters.precision,
        device,
        native=native_bf16(device),
        seconds_per_step=lambda bf16: seconds_per_step(prepared, model, bf16=bf16),
    )
    decided = shared(team, {"precision": choice.precision.value, "why": choice.why})
    if team is None or team.leading:
        write_json_durably(path, decided)
    return PrecisionChoice(Precision(decided["precision"]), decided["why"])


def seconds_per_step(prepared: PreparedRun, model: torch.nn.Module, *, bf16: bool) -> float:
    """Fastest of three forward and backward passes over a batch of middling length, after one to warm up."""
    sequences = sorted((sequence(example) for example in prepared.examples), key=len)
    middle = sequences[len(sequences) // 2]
    ids_BT = torch.tensor([middle] * prepared.job.config.hyperparameters.batch_size, device=prepared.device)
    given = {"input_ids": ids_BT} if head_of(prepared.job) == "reward" else {"input_ids": ids_BT, "labels": ids_BT}
    times = []
    for _ in range(4):
        started = time.perf_counter()
        with torch.autocast(prepared.device, dtype=torch.bfloat16, enabled=bf16):
            said = model(**given)
            (said.logits.mean() if said.loss is None else said.loss).backward()
        times.append(time.perf_counter() - started)
        model.zero_grad(set_to_none=True)
    return min(times[1:])


def build_trainer(
    prepared: PreparedRun, model: torch.nn.Module, folder: Path, precision: Precision
) -> CommittedCheckpoints:
    """TRL's trainer for the stage, with our order of rows."""
    job = prepared.job
    common = common_arguments(job, prepared.length, folder / CHECKPOINT_FOLDER, prepared.device, precision)
    trainer = STAGES[job.config.stage](prepared, model, common)
    trainer.lengths = [len(sequence(example)) for example in prepared.examples]
    trainer.count_batches()
    trainer.remove_callback(PrinterCallback)
    return trainer


def begin_facts(prepared: PreparedRun, choice: PrecisionChoice) -> dict[str, Any]:
    return {
        "total_steps": prepared.length.total_steps,
        "total_epochs": round(prepared.length.epochs, 4),
        "device": prepared.device,
        "threads": torch.get_num_threads(),
        "precision": choice.precision.value,
        "precision_why": choice.why,
    }


def training_record(
    prepared: PreparedRun, trainer: CommittedCheckpoints, choice: PrecisionChoice, seconds: float
) -> dict[str, Any]:
    """`training.json`: what was done, to the token."""
    job, points = prepared.job, trainer.curve.points
    config = job.config
    return {
        "stage": config.stage.value,
        "method": config.method.value,
        "backend": config.backend.value,
        "base_model": config.base_model,
        "base_path": job.base,
        "base_sha256": job.base_sha256,
        "chat_template_sha256": template_sha256(prepared.tokenizer),
        "renderer": choose("auto", str(prepared.tokenizer.chat_template)).spec.name,
        "hyperparameters": config.hyperparameters.model_dump(mode="json"),
        "preference": config.preference.model_dump(mode="json") if config.stage in COMPARING else None,
        **({"rollouts": config.rollouts.model_dump(mode="json")} if config.rollouts else {}),
        "lora": lora_facts(trainer.model, job),
        "control": config.control,
        "parents": list(job.parents),
        "lineage": lineage(origin(prepared)),
        **trainer.counted().record(prepared.ledger),
        "steps": trainer.state.global_step,
        "epochs": prepared.length.epochs,
        "first_loss": points[0][1],
        "final_loss": points[-1][1],
        "losses": points,
        "device": prepared.device,
        "threads": torch.get_num_threads(),
        "precision": choice.precision.value,
        "precision_why": choice.why,
        "seconds": round(seconds, 3),
        "launch": layout_of(job),
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, trl, peft, accelerate)},
    }


def origin(prepared: PreparedRun) -> PolicyRequest:
    """What the model was made from, in the words of the native engine."""
    job = prepared.job
    adapter = Path(job.adapter) if job.adapter else None
    return PolicyRequest(job.config, job.base, head_of(job), prepared.device, job.base_sha256, adapter)


def save_result(trainer: CommittedCheckpoints, prepared: PreparedRun, folder: Path, record: dict[str, Any]) -> None:
    """Write adapter or model whole, or not at all. Of several processes the one that leads writes."""
    job, final = prepared.job, folder / RESULT_FOLDER
    temporary = folder / f".{RESULT_FOLDER}.tmp"
    if trainer.team is not None and not trainer.team.leading:
        target = shared(trainer.team, None)
        if in_parts(job):  # its part of the weights is gathered
            trainer.model.save_pretrained(target, is_main_process=False)
        return
    for leftover in (temporary, final):  # of a start that died while saving
        shutil.rmtree(leftover, ignore_errors=True)
    with whole_or_nothing(temporary):
        target = temporary / job.output.value
        shared(trainer.team, str(target))
        if job.config.method in ADAPTER_METHODS:
            save_adapter(trainer.model, job, target)
            prepared.tokenizer.save_pretrained(target / "tokenizer")
        else:
            trainer.model.save_pretrained(target, safe_serialization=True)
            prepared.tokenizer.save_pretrained(target)
        write_json_durably(target / TRAINING_FILE, record)
        faultpoint("result.written")
        seal(temporary)
        temporary.rename(final)


def save_adapter(model: Any, job: TrainingJob, target: Path) -> None:
    """Only the trained adapter: the frozen reference of DPO is not part of the result."""
    model.peft_config["default"].base_model_name_or_path = job.base
    model.save_pretrained(str(target), safe_serialization=True, selected_adapters=["default"])
    (target / "README.md").unlink(missing_ok=True)
