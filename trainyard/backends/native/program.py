"""The training child of the `native` backend (imports torch).

Reads `spec.json`, builds policy, data and session, continues from the newest valid checkpoint, and leaves
`result/adapter` or `result/model` with a `training.json`. Stopped anywhere, also inside an accumulation or by SIGKILL
after a checkpoint, it continues to the same bits: one thread count, one seed and deterministic kernels are fixed before
the first number is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import torch
from transformers import AutoConfig

from trainyard.backends import frame
from trainyard.backends.job import TrainingJob, earlier_configs, mirror_address
from trainyard.backends.native.assembly import (
    JOB,
    NativeRun,
    assemble,
    choose_attention_kernel,
    gather_policy,
    save_trained,
    set_determinism,
)
from trainyard.backends.results import CHECKPOINT_FOLDER, DECISIONS_FILE, FITTED_FILE, RUNG, log_restart
from trainyard.backends.trl.loading import pick_device, template_sha256
from trainyard.callbacks import ignore
from trainyard.compute.child import Events, Stopped, faultpoint
from trainyard.compute.gpus import device_memory
from trainyard.data.renderers.choice import choose_template
from trainyard.errors import Corrupt
from trainyard.json_types import JsonObject
from trainyard.settings import settings
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.stages import EvalMetric
from trainyard.spec.estimate.cascade import choose as choose_knobs
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.training import EvalSettings, TrainerConfig
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoint.checkpoints import require_space
from trainyard.train.checkpoint.mirror import find_step
from trainyard.train.checkpoint.state import Snapshot, require_same
from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest, load_checkpoint
from trainyard.train.contracts import Cursor, StepRecord
from trainyard.train.evaluation import PeriodicEvaluation
from trainyard.train.history import choose_comparison
from trainyard.train.loop import Save, count_done
from trainyard.train.loop import train as run_loop
from trainyard.train.losses.scoring import CRITIC
from trainyard.train.model.precision import find_accelerator
from trainyard.train.optimizers import optimizer_facts
from trainyard.train.parallel.session import PEERS
from trainyard.train.parallel.team import Team
from trainyard.train.progress import SavedProgress
from trainyard.train.reporting import Reporting, memory_bytes, reporting
from trainyard.train.rl.feed import ConstantRewards, RolloutFeed, summarize_rollouts
from trainyard.train.rl.reward_model import attach_critic, detach_critic
from trainyard.train.session.session import Session
from trainyard.train.trackers import TrackedRun

SERVER_FOLDER = "rollouts"
"""Where a server that draws completions has its log and the weights that it is given."""


def train(folder: Path, events: Events, team: Team | None = None) -> None:
    """Run the job of `folder/spec.json` to its end, alone or as rank 0 of a team."""
    job = frame.read_job(folder)
    device = pick_device(job.config.device)
    set_determinism(job)
    job = with_memory_fit(job, folder, events, device)
    if team is not None:
        team.broadcast_command(JOB, job.model_dump(mode="json"))
    with (
        frame.lock_devices(job, folder, events, device),
        frame.memory_errors_in_words(),
        policy_server(job, folder) as server,
    ):
        train_on_device(job, folder, events, device, team=team, server=server)


def policy_server(job: TrainingJob, folder: Path) -> AbstractContextManager[object]:
    """Return the server that draws completions, where the stage asks for one, else None.

    Its module is loaded then: it brings an HTTP client, which a bare machine with a card does not have.
    """
    rollouts = getattr(job.config.stage, "rollouts", None)
    if rollouts is None or rollouts.engine == "native":
        return nullcontext()
    from trainyard.backends.native.policy_server import serving_policy  # brings an HTTP client

    return serving_policy(job.base, job.config, folder / SERVER_FOLDER, settings())


def with_memory_fit(job: TrainingJob, folder: Path, events: Events, device: str) -> TrainingJob:
    """The job with the knobs that make it fit, where `engine.autotune` asks for that; a restart takes the same ones.

    What decides is the memory of the device, not what happens to be free: a training has its device alone.

    Raises `LimitExceeded` (`E-MEMORY-FIT`) with the deficit when nothing of the asked method fits.
    """
    if not job.config.engine.autotune:
        return job
    path = folder / FITTED_FILE
    if not path.exists():
        shape = ModelShape.from_config(AutoConfig.from_pretrained(job.base, trust_remote_code=False).to_dict())
        memory = device_memory(find_accelerator(device))
        if shape is None or memory is None:
            why = "this model's layout is not one that is estimated" if memory else f"that of {device} is not known"
            events.emit("warning", text=f"The memory was not fitted: {why}.")
            return job
        choice = choose_knobs(
            shape,
            job.config,
            memory,
            find_accelerator(device),
            rungs=(job.config.method.type,),
            teacher=teacher_shape(job),
        )
        write_json_durably(path, {"config": choice.config.model_dump(mode="json"), "lines": choice.lines()})
    record = orjson.loads(path.read_bytes())
    for line in record["lines"]:
        print(f"autotune: {line}", flush=True)
        events.emit("autotune", text=line)
    return job.model_copy(update={"config": TrainerConfig.model_validate(record["config"])})


def teacher_shape(job: TrainingJob) -> ModelShape | None:
    """Return the shape of the frozen model that is loaded too, if there is one."""
    if job.teacher_folder is None:
        return None
    return ModelShape.from_config(AutoConfig.from_pretrained(job.teacher_folder, trust_remote_code=False).to_dict())


def train_on_device(
    job: TrainingJob,
    folder: Path,
    events: Events,
    device: str,
    *,
    team: Team | None = None,
    server: object = None,
    ready: Callable[[], None] = ignore,
) -> None:
    """Train from the newest checkpoint to the end; `ready` is called when everything has loaded."""
    mirror = mirror_address(job)
    checkpoint = find_newest(folder / CHECKPOINT_FOLDER, mirror)
    restarted_from = log_restart(folder / DECISIONS_FILE, checkpoint, events)
    run = assemble(job, folder, events, device, team)
    if server is not None:
        draw_by(run, server, folder / SERVER_FOLDER)
    require_space(folder, frame.ADAM_COPIES * frame.trainable_bytes(run.policy.model))
    began_with = frame.sum_bits(run.policy.model)  # as at its very first step, also where it continues
    if checkpoint.path is not None:
        resume(run, checkpoint.path, events)
    ready()
    events.emit("begin", restarted_from=restarted_from, **begin_facts(run))
    started, evaluation = time.monotonic(), job.config.eval
    tracked_run = TrackedRun(folder, "trainyard", job.digest[:12], job.config.model_dump(mode="json"))
    with (
        CheckpointWriter(
            folder / CHECKPOINT_FOLDER,
            keep=job.config.engine.keep_checkpoints,
            best=choose_comparison(evaluation.metric) if evaluation else min,
            keep_best=evaluation.keep_best if evaluation else 0,
            mirror=mirror,
            at=faultpoint,
            report=lambda fields: events.emit("warning" if "code" in fields else "checkpoint", **fields),
            may_overflow=("state/gradients/", "state/peers/gradients/") if run.session.scaler.is_enabled() else (),
        ) as writer,
        reporting(events.emit, tracked_run, trackers=job.config.engine.trackers) as report,
    ):

        def save(session: Session, progress: SavedProgress) -> None:
            save_checkpoint(writer, session, progress, evaluation.metric if evaluation else None)

        finished = run_loop(
            run.session,
            run.feed,
            run.progress,
            total_steps=run.total_steps,
            save=save,
            save_steps=run.save_steps,
            stop=lambda: events.stop_requested() or is_at_stop(run),
            hooks=[
                ExchangeReporter(run),
                *build_evaluation(run, save, events),
                StepReporter(run, report),
                ConstantRewards(events.emit),
            ],
        )
        if finished:
            run.session.finish()
        if finished and outlives(job):
            save(run.session, run.progress)
    if not finished:
        reason = RUNG if is_at_stop(run) else "asked to stop; a checkpoint is saved"
        raise Stopped(reason, step=count_done(run.session))
    if evaluation and evaluation.load_best:
        take_best(run, folder / CHECKPOINT_FOLDER, mirror)
    run.session.show_served()
    frame.require_moved(job, run.policy.model, began_with, explain_standstill(run))
    run.policy = gather_policy(run.policy, run.session, run.job)
    record = training_record(run, time.monotonic() - started)
    frame.require_finite_weights(run.policy.model)
    frame.save_result(job, folder, record, lambda target: write_result(run, target))
    frame.report_metrics(events, record)


def outlives(job: TrainingJob) -> bool:
    """Return whether checkpoints of a job stay after its end, where that of its last step belongs then."""
    return mirror_address(job) is not None or (job.config.eval is not None and job.config.eval.best_outlive)


def is_at_stop(run: NativeRun) -> bool:
    """Return whether the step is done after which this execution stops."""
    until = run.job.until
    return until is not None and count_done(run.session) >= until


def save_checkpoint(
    writer: CheckpointWriter, session: Session, progress: SavedProgress, metric: EvalMetric | None = None
) -> None:
    """Save the state, with what was measured of its weights where `metric` names it."""
    tensors, values = session.snapshot().flat()
    step = count_done(session)
    measured = progress.evaluations.value_at(step, metric) if metric else None
    writer.save(step, tensors, {**values, "progress": progress.as_values()}, metric=measured)


def build_evaluation(run: NativeRun, save: Save, events: Events) -> list[PeriodicEvaluation]:
    """Return the evaluation of a run as a hook of its loop; none where none is requested."""
    evaluation = run.job.config.eval
    if evaluation is None or run.held_out is None:
        return []
    return [
        PeriodicEvaluation(
            run.session, run.progress, run.held_out, evaluation,
            total_steps=run.total_steps, save=save, emit=events.emit, at=faultpoint,
        )
    ]  # fmt: skip


def take_best(run: NativeRun, root: Path, mirror: str | None) -> None:
    """Put the weights of the best checkpoint in place, with the optimizer that may average them.

    Raises `Corrupt` (`E-CHECKPOINT-CORRUPT`) when it is not there any more or damaged.
    """
    evaluation = run.job.config.eval
    step = run.progress.evaluations.best_step(evaluation.metric) if evaluation else None
    if step is None or step == count_done(run.session):
        return
    path = find_step(root, step, mirror)
    if path is None:
        raise Corrupt(
            f"The best checkpoint, of step {step}, is not there any more.",
            why="It was removed, or the run continued on another machine without a mirror.",
            do="Start the training again, or set eval.load_best to false to take the last weights.",
            code="E-CHECKPOINT-CORRUPT",
        )
    snapshot = Snapshot.from_flat(*load_checkpoint(path))
    parts = {name: part for name, part in snapshot.parts.items() if name in ("weights", "optimizer", PEERS)}
    run.session.restore(replace(snapshot, parts=parts))


def resume(run: NativeRun, path: Path, events: Events, *, dropped: frozenset[str] = frozenset()) -> None:
    """Take over a checkpoint, without the parts of the state that are `dropped` (by a proof that must fail).

    Raises `Corrupt` when it belongs to another config or other library versions.
    """
    tensors, values = load_checkpoint(path, verify=False)  # `newest` has just compared every byte
    snapshot = Snapshot.from_flat(tensors, values)
    here = run.session.identity()
    if snapshot.identity["config"] in earlier_configs(path.parents[1]):
        here["config"] = snapshot.identity["config"]
    for difference in require_same(snapshot, here):
        events.emit("warning", text=f"Since the checkpoint was made: {difference}. The bits may differ.")
    if run.job.config.engine.compile:
        text = "Blocks are compiled for the first batch that a process has. The bits of this run may differ."
        events.emit("warning", text=text)
    run.session.restore(replace(snapshot, parts={k: v for k, v in snapshot.parts.items() if k not in dropped}))
    if "progress" not in dropped:
        run.progress = SavedProgress.from_values(values["progress"])
        if "counted" not in values["progress"]:
            text = "An earlier release made the checkpoint: what was trained before it is not in the account."
            events.emit("warning", text=text)


class ExchangeReporter:
    """Adds the exchanges of the processes to each step's metrics: of islands, steps and bytes."""

    def __init__(self, run: NativeRun) -> None:
        self.run, self.parallelism = run, run.session.parallelism

    def on_step(self, record: StepRecord) -> None:
        record.metrics.update(self.parallelism.facts())
        if self.parallelism.healed:  # the state of another island, with its steps
            epoch, step = divmod(count_done(self.run.session), self.run.feed.plan.steps_per_epoch)
            self.run.progress.cursor = Cursor(epoch, step, 0)
            self.parallelism.healed = False


class StepReporter:
    """Reports each step, and dies where a fault is injected."""

    def __init__(self, run: NativeRun, report: Reporting) -> None:
        self.run, self.report, self.started, self.tokens = run, report, time.monotonic(), 0

    def on_step(self, record: StepRecord) -> None:
        self.tokens += record.tokens
        per_epoch = self.run.feed.plan.steps_per_epoch
        progress = {
            "step": record.step,
            "total_steps": self.run.total_steps,
            "epoch": round(record.step / per_epoch, 4),
            "total_epochs": round(self.run.total_steps / per_epoch, 4),
            "loss": record.loss,
            "learning_rate": record.learning_rate,
            "grad_norm": record.grad_norm,
            "tokens": self.tokens,
            "tokens_per_second": round(record.tokens / max(record.seconds, 1e-9), 1),
            "padding_ratio": round(1 - record.tokens / max(record.positions, 1), 4),
            "skipped": self.run.session.skipped,
            "memory_bytes": memory_bytes(self.run.device),
            "seconds": round(time.monotonic() - self.started, 3),
        }
        self.report.on_step({**progress, **record.metrics})
        faultpoint(f"step.{record.step}")


def begin_facts(run: NativeRun) -> JsonObject:
    return {
        "total_steps": run.total_steps,
        "total_epochs": round(run.total_steps / run.feed.plan.steps_per_epoch, 4),
        "device": find_accelerator(run.device).value,
        "threads": torch.get_num_threads(),
        "precision": run.precision.precision.value,
        "precision_why": run.precision.why,
        **optimizer_facts(run.session.engine.optimizer),
        "batching": run.cut.mode,
        "batching_why": run.cut.why,
        "padding_ratio": round(run.feed.plan.padding_ratio(), 4),
        **({"shared_prompt": run.cut.shared, "shared_prompt_why": run.cut.shared_why} if run.cut.shared_why else {}),
        "head": run.session.engine.head.value,
        "kernels": run.job.config.engine.kernels,
        "attention": str(run.policy.model.config._attn_implementation),
        "attention_why": choose_attention_kernel(run.job, run.device).why,
    }


def training_record(run: NativeRun, seconds: float) -> JsonObject:
    """`training.json`: what was done, to the token."""
    evaluations = run.progress.evaluations
    return {
        **frame.job_facts(run.job, run.progress.losses),
        **({"adapter_run": "yes"} if run.job.output is Port.ADAPTER else {}),  # `save_trained` runs it, or raises
        "chat_template_sha256": template_sha256(run.prepared.tokenizer),
        "renderer": choose_template("auto", run.prepared.tokenizer.chat_template).spec.name,
        "lora": run.policy.facts,
        "lineage": run.policy.lineage,
        **run.progress.counted.record(run.prepared.ledger),
        "steps": count_done(run.session),
        "skipped_steps": run.session.skipped,
        "epochs": (count_done(run.session) if evaluations.ended else run.total_steps) / run.feed.plan.steps_per_epoch,
        **({"evaluation": evaluation_record(run, held_out)} if (held_out := run.job.config.eval) else {}),
        **({"rollouts": rollouts} if (rollouts := summarize_rollouts(run.progress.kept)) else {}),
        **{name: value for name, value in begin_facts(run).items() if not name.startswith("total_")},
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "launch": run.session.parallelism.layout,
        "seconds": round(seconds, 3),
        "versions": frame.library_versions(run.job.config, "torch", "transformers", "peft", *run.policy.packages),
    }


def explain_standstill(run: NativeRun) -> str:
    """Return why a run has moved nothing, if it has not."""
    done, rollouts = count_done(run.session), summarize_rollouts(run.progress.kept)
    return frame.explain_standstill(run.progress.losses, done, run.session.skipped, rollouts)


def evaluation_record(run: NativeRun, settings: EvalSettings) -> dict[str, object]:
    """Return the results of the evaluations, and which step the result is of."""
    rows = run.held_out.rows if run.held_out else 0
    return run.progress.evaluations.record(
        settings, rows=rows, last=count_done(run.session), total_steps=run.total_steps
    )


def draw_by(run: NativeRun, server: Any, folder: Path) -> None:
    """Let a server draw the completions of a run, with its weights as they are at each rollout."""
    assert isinstance(run.feed, RolloutFeed), "asked by a stage that draws completions"

    def save(target: Path) -> None:
        critic = getattr(run.policy.model, CRITIC, None)
        detach_critic(run.policy.model)
        run.session.show_served()
        try:
            save_trained(run.policy, run.job, run.device, target, verify=False)  # with every rollout
        finally:
            run.session.show_trained()
            if critic is not None:
                attach_critic(run.policy.model, critic)

    adapter = run.job.output is Port.ADAPTER
    from trainyard.backends.native.policy_server import PolicyServer  # brings an HTTP client

    run.feed.server = PolicyServer(server, save, folder, run.prepared.tokenizer, run.policy.model, adapter)


def write_result(run: NativeRun, target: Path) -> None:
    """Write adapter or model, and the tokenizer, to `target`; a critic stays behind."""
    detach_critic(run.policy.model)
    save_trained(run.policy, run.job, run.device, target)
    adapter = run.job.output is Port.ADAPTER
    run.prepared.tokenizer.save_pretrained(target / "tokenizer" if adapter else target)
