"""The training child of the `trl` backend: five stages with LoRA, DoRA or full weights (imports torch and TRL).

Reads `spec.json`, continues from the newest valid checkpoint or says that it starts from zero, and leaves
`result/adapter` or `result/model` with a `training.json`. Everything that decides a number (threads, seed, precision,
versions) is fixed before the first step and recorded.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import PrinterCallback, set_seed

from trainyard.backends import frame
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import CHECKPOINT_FOLDER, DECISIONS_FILE, log_restart
from trainyard.backends.trl.arguments import common_arguments
from trainyard.backends.trl.data import PreparedRun, prepare, sequence
from trainyard.backends.trl.distributed import describe_layout, is_sharded, join_ranks, load_sharded_model, sync_value
from trainyard.backends.trl.loading import (
    adapter_facts,
    find_head,
    make_model,
    pick_device,
    policy_request,
    template_sha256,
)
from trainyard.backends.trl.stages import STAGES
from trainyard.backends.trl.trainer import CommittedCheckpoints, LossCurve, TrlCallback
from trainyard.compute.child import Events, Stopped
from trainyard.data.renderers.choice import choose_template
from trainyard.json_types import JsonObject
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.rates import SCHEDULES
from trainyard.train.checkpoint.checkpoints import FoundCheckpoint, newest_valid, require_space
from trainyard.train.methods.adapters import NEW
from trainyard.train.methods.coverage import measure_coverage
from trainyard.train.methods.initialization import initialize_adapter
from trainyard.train.methods.loading import lineage
from trainyard.train.methods.reloading import require_reloaded
from trainyard.train.methods.sums import list_adapted_layers, write_difference
from trainyard.train.model.precision import PrecisionChoice, find_accelerator
from trainyard.train.parallel.team import Team


def train(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json` to its end, alone or as one rank of a distributed run."""
    job = frame.read_job(folder)
    device = pick_device(job.config.device)
    frame.fix_threads_and_seed(job)
    transformers.logging.set_verbosity(logging.WARNING)
    is_single = job.config.launch.strategy is Strategy.SINGLE
    with ExitStack() as stack:
        team = None if is_single else stack.enter_context(join_ranks(folder, device))
        if team is None or team.leading:
            stack.enter_context(frame.lock_devices(job, folder, events, device))
        sync_value(team, None)  # nobody begins before the device is ours
        with frame.memory_errors_in_words():
            train_on_device(job, folder, events, device, team)


def train_on_device(job: TrainingJob, folder: Path, events: Events, device: str, team: Team | None = None) -> None:
    checkpoint, restarted_from = share_start(folder, events, team)
    prepared = prepare(job, device, events)
    frame.require_steps(job, prepared.length.total_steps, events)
    frame.require_not_stopped(sync_value(team, events.stop_requested()))
    set_seed(job.config.hyperparameters.seed)  # the weights of a new adapter must not depend on what was drawn before
    model = load_sharded_model(job, checkpoint.path) if is_sharded(job) else make_model(job, device)
    if job.config.method.facts.adapter and not is_sharded(job):
        frame.report_coverage(events, measure_coverage(model, NEW))
    initial = initialize_adapter(model, policy_request(job, device)) if job.adapter is None else None
    choice = frame.decide_precision(job, device, folder, partial(sync_value, team))
    trainer = build_trainer(prepared, model, folder, choice.precision)
    began_with = frame.sum_bits(trainer.model)
    require_space(folder, frame.ADAM_COPIES * frame.trainable_bytes(trainer.model))
    curve = LossCurve.load(checkpoint.path) if checkpoint.path else LossCurve()
    trainer.events, trainer.checkpoint_root, trainer.curve = events, folder / CHECKPOINT_FOLDER, curve
    trainer.team, trainer.initial = team, initial
    trainer.add_callback(TrlCallback(trainer, prepared.length))
    events.emit("begin", restarted_from=restarted_from, **begin_facts(prepared, choice), **trainer.facts())
    started = time.monotonic()
    # transformers resumes from the folder inside a committed checkpoint
    trainer.train(resume_from_checkpoint=str(next(checkpoint.path.glob("checkpoint-*"))) if checkpoint.path else None)
    if trainer.state.global_step < prepared.length.total_steps:
        raise Stopped("asked to stop; a checkpoint is saved", step=trainer.state.global_step)
    frame.require_finite_weights(trainer.model)
    points = trainer.curve.points
    frame.require_moved(job, trainer.model, began_with, frame.explain_standstill(points, len(points), 0, {}))
    record = training_record(prepared, trainer, choice, time.monotonic() - started)
    write_model(trainer, prepared, folder, record)
    frame.report_metrics(events, record)


def share_start(folder: Path, events: Events, team: Team | None) -> tuple[FoundCheckpoint, dict[str, int] | str | None]:
    """Return the checkpoint that rank 0 has found, on every rank; and where a restart continues from."""
    restarted_from: dict[str, int] | str | None = None
    path, step = "", 0
    if team is None or team.leading:
        checkpoint = newest_valid(folder / CHECKPOINT_FOLDER)
        restarted_from = log_restart(folder / DECISIONS_FILE, checkpoint, events)
        path, step = str(checkpoint.path or ""), checkpoint.step
    path, step = sync_value(team, (path, step))
    return FoundCheckpoint(Path(path) if path else None, step), restarted_from


def build_trainer(
    prepared: PreparedRun, model: torch.nn.Module, folder: Path, precision: Precision
) -> CommittedCheckpoints:
    """TRL's trainer for the stage, with our order of rows."""
    job = prepared.job
    common = common_arguments(job, prepared.length, folder / CHECKPOINT_FOLDER, prepared.device, precision)
    unrounded = {name: value.data for name, value in model.named_parameters() if value.requires_grad}
    trainer = STAGES[job.config.stage.type](prepared, model, common)
    if job.config.base_format:  # TRL has rounded the adapter to bf16; it is trained in float32, as everywhere
        for name, data in unrounded.items():
            model.get_parameter(name).data = data
    trainer.lengths = [len(sequence(example)) for example in prepared.examples]
    trainer.count_batches()
    hyper, total = job.config.hyperparameters, prepared.length.total_steps
    warmup, curve = hyper.warmup(total), SCHEDULES[hyper.schedule]
    trainer.multiplier = lambda step: curve(step, total, warmup)
    trainer.remove_callback(PrinterCallback)
    return trainer


def begin_facts(prepared: PreparedRun, choice: PrecisionChoice) -> JsonObject:
    return {
        "total_steps": prepared.length.total_steps,
        "total_epochs": round(prepared.length.epochs, 4),
        "device": find_accelerator(prepared.device).value,
        "threads": torch.get_num_threads(),
        "precision": choice.precision.value,
        "precision_why": choice.why,
    }


def training_record(
    prepared: PreparedRun, trainer: CommittedCheckpoints, choice: PrecisionChoice, seconds: float
) -> JsonObject:
    """`training.json`: what was done, to the token."""
    job = prepared.job
    return {
        **frame.job_facts(job, trainer.curve.points),
        **run_facts(job),
        "chat_template_sha256": template_sha256(prepared.tokenizer),
        "renderer": choose_template("auto", str(prepared.tokenizer.chat_template)).spec.name,
        "lora": adapter_facts(trainer.model, job) if job.config.method.facts.adapter else None,
        "lineage": lineage(policy_request(job, prepared.device)),
        **trainer.counted().record(prepared.ledger),
        "steps": trainer.state.global_step,
        "epochs": prepared.length.epochs,
        **{name: value for name, value in begin_facts(prepared, choice).items() if not name.startswith("total_")},
        **trainer.facts(),
        "seconds": round(seconds, 3),
        "launch": describe_layout(job),
        "versions": frame.library_versions(job.config, "torch", "transformers", "trl", "peft", "accelerate"),
    }


def run_facts(job: TrainingJob) -> dict[str, str]:
    """Return what `training.json` says about running the written adapter once, which `write_result` does."""
    if not job.config.method.facts.adapter:
        return {}
    return {"adapter_run": "its base was spread over several processes" if is_sharded(job) else "yes"}


def write_model(trainer: CommittedCheckpoints, prepared: PreparedRun, folder: Path, record: JsonObject) -> None:
    """Write adapter or model completely, or not at all. Only rank 0 writes."""
    job, team = prepared.job, trainer.team
    if team is None or team.leading:
        frame.save_result(job, folder, record, lambda target: write_result(trainer, prepared, target))
        return
    target = sync_value(team, None)
    if is_sharded(job):  # its part of the weights is gathered
        trainer.model.save_pretrained(target, is_main_process=False)


def write_result(trainer: CommittedCheckpoints, prepared: PreparedRun, target: Path) -> None:
    """Write adapter or model, and the tokenizer, to `target`."""
    job = prepared.job
    sync_value(trainer.team, str(target))
    if job.config.method.facts.adapter:
        # Only the trained adapter: the frozen reference of DPO is not part of the result.
        trainer.model.peft_config["default"].base_model_name_or_path = job.base
        trainer.model.save_pretrained(str(target), safe_serialization=True, selected_adapters=["default"])
        (target / "README.md").unlink(missing_ok=True)
        if trainer.initial is not None:
            write_difference(trainer.initial, list_adapted_layers(trainer.model, NEW), target, job.base)
        if not is_sharded(job):  # the processes have parts of the weights, and only the first is here
            require_reloaded(trainer.model, target, find_head(job), initial=trainer.initial)
        prepared.tokenizer.save_pretrained(target / "tokenizer")
    else:
        trainer.model.save_pretrained(target, safe_serialization=True)
        prepared.tokenizer.save_pretrained(target)
