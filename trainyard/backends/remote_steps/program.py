"""The training child of the step services (imports torch, for losses alone).

Reads `spec.json`, encodes the rows as the native engine does, and runs the native loop over a session at the service.
A checkpoint here is a few numbers and the path of a state there: a training that was killed continues from it with a
new session, and later steps are trained again and counted once. The weights come home as a PEFT adapter.

    save:   state at the service -> its path in a checkpoint here -> older states are deleted there
    resume: newest checkpoint here -> new session from its state
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig

from trainyard.backends import frame
from trainyard.backends.environments import find_external, list_installed, require_external
from trainyard.backends.job import TrainingJob
from trainyard.backends.native.assembly import PreparedData, encode_held_out, hold_out, load_tokenizer, make_feed
from trainyard.backends.remote_steps.addresses import ServiceAddress, find_address
from trainyard.backends.remote_steps.child import ChildService
from trainyard.backends.remote_steps.client import TinkerService
from trainyard.backends.remote_steps.service import StepService
from trainyard.backends.remote_steps.session import RemoteSession, RemoteState
from trainyard.backends.results import CHECKPOINT_FOLDER, DECISIONS_FILE, RUNG, log_restart
from trainyard.backends.rows import list_mixed_sets, read_rows
from trainyard.backends.trl.loading import find_head, template_sha256
from trainyard.compute.child import Events, Stopped, faultpoint
from trainyard.data.renderers.choice import choose_template
from trainyard.errors import Corrupt, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.spec.chain import digest
from trainyard.spec.estimate.timing import save_steps
from trainyard.spec.training import EvalSettings
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoint.checkpoints import checkpoints
from trainyard.train.checkpoint.mirror import find_step
from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest, load_checkpoint
from trainyard.train.contracts import StepRecord
from trainyard.train.evaluation import HeldOut, PeriodicEvaluation
from trainyard.train.history import choose_comparison
from trainyard.train.loop import count_done
from trainyard.train.loop import train as run_loop
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.reloading import try_adapter
from trainyard.train.model.positions import find_context
from trainyard.train.progress import SavedProgress
from trainyard.train.reporting import Reporting, reporting
from trainyard.train.rl.feed import ConstantRewards, summarize_rollouts
from trainyard.train.rows.batching import Feed, choose_cut
from trainyard.train.rows.prompts import require_any_prompt
from trainyard.train.rows.tokens import require_accepted, require_targets
from trainyard.train.trackers import TrackedRun

REFERENCE_ROWS = 16
RESULT_STATE = "result"


@dataclass
class RemoteRun:
    """Assembled parts of one execution at a service."""

    job: TrainingJob
    events: Events
    address: ServiceAddress
    service: StepService
    prepared: PreparedData
    feed: Feed
    total_steps: int
    session: RemoteSession
    held_out: HeldOut | None
    progress: SavedProgress = field(default_factory=SavedProgress)
    states: dict[int, str] = field(default_factory=dict)
    """Step -> path of its state at the service, where that is not deleted yet."""

    @property
    def save_steps(self) -> int:
        return save_steps(self.job.config.hyperparameters, self.total_steps)

    @property
    def per_epoch(self) -> int:
        return self.feed.plan.steps_per_epoch


def train(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json` to its end at its service."""
    job = frame.read_job(folder)
    frame.fix_threads_and_seed(job)
    transformers.logging.set_verbosity_error()
    checkpoint = find_newest(folder / CHECKPOINT_FOLDER, None)
    restarted_from = log_restart(folder / DECISIONS_FILE, checkpoint, events)
    write_json_durably(folder / DECISIONS_FILE, {"backend": job.config.backend.value})
    run = assemble(job, folder, events)
    status = "errored"
    try:
        if checkpoint.path is None:
            run.service.open()
        else:
            resume(run, checkpoint.path)
        score_reference(run)
        events.emit("begin", restarted_from=restarted_from, **begin_facts(run))
        train_at_service(run, folder)
        status = "success"
    except Stopped:
        status = "interrupted"
        raise
    finally:
        with suppress(TrainyardError):  # the error that ends the training is the one to report
            run.service.close(status)


def assemble(job: TrainingJob, folder: Path, events: Events) -> RemoteRun:
    """Rows, schedule and a session at the service, before its adapter is opened."""
    config, stage = job.config, STAGES[job.config.stage.type].chosen(job.config)
    cut, tokenizer = choose_cut(config, stage, "cpu"), load_tokenizer(job, events)
    began = time.perf_counter()
    examples, ledger = stage.encode(read_rows(job), tokenizer, config)
    ledger.keep_sets(list_mixed_sets(job))
    frame.report_ledger(events, ledger)
    require_accepted(ledger, config.refusal_limit)
    (require_any_prompt if stage.facts.draws_groups else require_targets)(ledger)
    prepared = PreparedData(tokenizer, stage, examples, ledger, encode_held_out(job, stage, tokenizer, events))
    frame.require_not_stopped(events.stop_requested())
    feed = make_feed(job, prepared, cut, "cpu", events)
    total = frame.total_steps(config.hyperparameters, feed.plan.steps_per_epoch)
    frame.require_steps(job, total, events)
    events.emit("prepared", rows=len(examples), seconds=round(time.perf_counter() - began, 3))
    context = find_context(AutoConfig.from_pretrained(job.base, trust_remote_code=False))
    address = find_address(job)
    service = connect(job, address, tokenizer, folder)
    session = RemoteSession(RemoteState.build(config, stage, tokenizer, total, context), service)
    return RemoteRun(
        job, events, address, service, prepared, feed, total, session, hold_out(job, feed, prepared, total)
    )


def connect(job: TrainingJob, address: ServiceAddress, tokenizer: Any, folder: Path) -> StepService:
    """Return the service of a job, by the Tinker SDK of this interpreter or by another SDK in its own."""
    if find_external(job.config.backend) is None:
        return TinkerService(address, job.config, tokenizer, job.work_name)
    return ChildService(job, address, tokenizer, folder)


def score_reference(run: RemoteRun) -> None:
    """Score every example once by the frozen base, where the stage has a reference."""
    stage, config = run.prepared.stage, run.job.config
    if not (stage.needs_reference(config) and stage.reference_per_example):
        return
    for feed in (run.feed, run.held_out.feed) if run.held_out else (run.feed,):
        row_scores: list[dict[str, float]] = [{} for _ in feed.examples]
        for rows, batch in feed.in_order(REFERENCE_ROWS):
            for name, values in run.session.reference_scores(batch).items():
                for row, value in zip(rows, values.float().tolist(), strict=True):
                    row_scores[row][name] = value
        feed.reference = row_scores


def train_at_service(run: RemoteRun, folder: Path) -> None:
    """Run the loop, and bring the weights home."""
    job, events, evaluation = run.job, run.events, run.job.config.eval
    started = time.monotonic()
    tracked_run = TrackedRun(folder, "trainyard", job.digest[:12], job.config.model_dump(mode="json"))
    root = folder / CHECKPOINT_FOLDER
    with (
        CheckpointWriter(
            root,
            keep=job.config.engine.keep_checkpoints,
            best=choose_comparison(evaluation.metric) if evaluation else min,
            keep_best=evaluation.keep_best if evaluation else 0,
            at=faultpoint,
            report=lambda fields: events.emit("warning" if "code" in fields else "checkpoint", **fields),
        ) as writer,
        reporting(events.emit, tracked_run, trackers=job.config.engine.trackers) as report,
    ):

        def save(_session: Any, progress: SavedProgress) -> None:
            save_state(run, writer, root, progress)

        hooks: Sequence[Any] = [
            *build_evaluation(run, save),
            ServiceReporter(run, report),
            ConstantRewards(events.emit),
        ]
        finished = run_loop(
            run.session, run.feed, run.progress, total_steps=run.total_steps, save=save, save_steps=run.save_steps,
            stop=lambda: not run.progress.cursor.micro and (events.stop_requested() or is_at_stop(run)), hooks=hooks,
        )  # fmt: skip
        if finished:
            save(run.session, run.progress)  # a process that dies from here on trains nothing again
    if not finished:
        raise Stopped(RUNG if is_at_stop(run) else "asked to stop; a state is saved", step=count_done(run.session))
    take_best(run, root)
    record = training_record(run, time.monotonic() - started)
    frame.save_result(job, folder, record, lambda target: fetch_result(run, target))
    frame.report_metrics(events, record)
    remove_states(run, set())


def is_at_stop(run: RemoteRun) -> bool:
    """Return whether the step is done after which this execution stops."""
    return run.job.until is not None and count_done(run.session) >= run.job.until


def build_evaluation(run: RemoteRun, save: Any) -> list[PeriodicEvaluation]:
    """Return the evaluation of a run as a hook of its loop; none where none is requested."""
    evaluation = run.job.config.eval
    if evaluation is None or run.held_out is None:
        return []
    return [
        PeriodicEvaluation(
            run.session, run.progress, run.held_out, evaluation, total_steps=run.total_steps, save=save,
            emit=run.events.emit, at=faultpoint,
        )
    ]  # fmt: skip


# States


def save_state(run: RemoteRun, writer: CheckpointWriter, root: Path, progress: SavedProgress) -> None:
    """Keep a state at the service and its path here, then delete those that no checkpoint here names any more."""
    step, evaluation = count_done(run.session), run.job.config.eval
    run.states[step] = run.session.save(f"{run.job.work_name[:16]}-{step:08d}")
    faultpoint(f"remote.saved.{step}")
    metric = progress.evaluations.value_at(step, evaluation.metric) if evaluation else None
    values = {
        "config": digest(run.job.config), "session": run.session.state(), "progress": progress.as_values(),
        "states": {str(number): path for number, path in run.states.items()},
    }  # fmt: skip
    writer.save(step, {"step": torch.tensor(step)}, values, metric=metric)
    writer.wait()
    remove_states(run, {number for _, number in checkpoints(root)})


def remove_states(run: RemoteRun, keep: set[int]) -> None:
    """Delete the states of other steps at the service. One that is not deleted expires there."""
    for step in sorted(run.states.keys() - keep):
        try:
            run.service.remove(run.states[step])
        except TrainyardError as error:
            run.events.emit("warning", text=f"The state of step {step} stays at the service for now: {error}")
        del run.states[step]


def resume(run: RemoteRun, path: Path) -> None:
    """Continue from a checkpoint: a new adapter from its state. Raises `Corrupt` for one of another config."""
    _, values = load_checkpoint(path, verify=False)  # `find_newest` has just compared every byte
    if values["config"] != digest(run.job.config):
        raise Corrupt(
            f"The checkpoint {path.name} belongs to another config.", why="Its schedule or its data differ.",
            do="Continue with the config that it was made with, or start a new run.", code="E-CHECKPOINT-MISMATCH",
        )  # fmt: skip
    run.states = {int(step): state for step, state in values["states"].items()}
    load_state(run, values)
    run.progress = SavedProgress.from_values(values["progress"])


def load_state(run: RemoteRun, values: JsonObject) -> None:
    """Load the state that a checkpoint names."""
    step = str(values["session"]["global_step"])
    run.session.load(values["states"][step], values["session"])


def take_best(run: RemoteRun, root: Path) -> None:
    """Continue with the weights of the best checkpoint, where `eval.load_best` asks for them."""
    evaluation = run.job.config.eval
    if evaluation is None or not evaluation.load_best:
        return
    step = run.progress.evaluations.best_step(evaluation.metric)
    path = find_step(root, step, None) if step is not None and step != count_done(run.session) else None
    if path is not None:
        run.service.load(load_checkpoint(path)[1]["states"][str(step)])


# Reports and the result


class ServiceReporter:
    """Reports each step, and dies where a fault is injected."""

    def __init__(self, run: RemoteRun, report: Reporting) -> None:
        self.run, self.report, self.started, self.tokens = run, report, time.monotonic(), 0

    def on_step(self, record: StepRecord) -> None:
        self.tokens += record.tokens
        norm = {} if torch.isnan(torch.tensor(record.grad_norm)) else {"grad_norm": record.grad_norm}
        progress = {
            "step": record.step,
            "total_steps": self.run.total_steps,
            "epoch": round(record.step / self.run.per_epoch, 4),
            "total_epochs": round(self.run.total_steps / self.run.per_epoch, 4),
            "loss": record.loss,
            "learning_rate": record.learning_rate,
            **norm,
            "tokens": self.tokens,
            "tokens_per_second": round(record.tokens / max(record.seconds, 1e-9), 1),
            "seconds": round(time.monotonic() - self.started, 3),
        }
        self.report.on_step({**progress, **record.metrics})
        faultpoint(f"step.{record.step}")


def begin_facts(run: RemoteRun) -> JsonObject:
    return {
        "total_steps": run.total_steps,
        "total_epochs": round(run.total_steps / run.per_epoch, 4),
        "device": "service",
        "precision": "service",
        "service": run.address.base_url or "the SDK's own address",
        "service_model": run.address.model,
        "batching": run.feed.plan.cut.mode,
        "batching_why": run.feed.plan.cut.why,
    }


def training_record(run: RemoteRun, seconds: float) -> JsonObject:
    """Return the content of `training.json`."""
    evaluations = run.progress.evaluations
    return {
        **frame.job_facts(run.job, run.progress.losses),
        "adapter_run": "yes",
        "chat_template_sha256": template_sha256(run.prepared.tokenizer),
        "renderer": choose_template("auto", run.prepared.tokenizer.chat_template).spec.name,
        **run.progress.counted.record(run.prepared.ledger),
        "steps": count_done(run.session),
        "skipped_steps": 0,
        "epochs": (count_done(run.session) if evaluations.ended else run.total_steps) / run.per_epoch,
        **({"evaluation": evaluation_record(run, held_out)} if (held_out := run.job.config.eval) else {}),
        **({"rollouts": rollouts} if (rollouts := summarize_rollouts(run.progress.kept)) else {}),
        **{name: value for name, value in begin_facts(run).items() if not name.startswith("total_")},
        "seconds": round(seconds, 3),
        "versions": {**frame.library_versions(run.job.config, "torch", "transformers", "peft"), **sdk_version(run.job)},
    }


def sdk_version(job: TrainingJob) -> dict[str, str]:
    """Return the version of the service's SDK, from the environment that has it."""
    backend = job.config.backend
    if find_external(backend) is None:
        return frame.library_versions(job.config, "tinker")
    package = require_external(backend).distribution
    return {package: list_installed(backend)[package]}


def evaluation_record(run: RemoteRun, settings: EvalSettings) -> dict[str, object]:
    """Return the results of the evaluations, and which step the result is of."""
    rows = run.held_out.rows if run.held_out else 0
    return run.progress.evaluations.record(
        settings, rows=rows, last=count_done(run.session), total_steps=run.total_steps
    )


def fetch_result(run: RemoteRun, target: Path) -> None:
    """Bring the adapter home, run it once on the base that is here, and add the tokenizer."""
    run.service.export(f"{run.job.work_name[:16]}-{RESULT_STATE}", target)
    frame.name_base(run.job, target)
    if reason := try_adapter(target, run.job.base, find_head(run.job)):
        run.events.emit("warning", text=f"The adapter was not run here: {reason}")
    run.prepared.tokenizer.save_pretrained(target / "tokenizer")
