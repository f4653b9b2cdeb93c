"""The training child of the `native` backend (imports torch).

Reads `spec.json`, builds policy, data and session, continues from the newest valid checkpoint, and leaves
`result/adapter` or `result/model` with a `training.json`. Stopped anywhere, also inside an accumulation or by SIGKILL
after a checkpoint, it goes on to the same bits: one thread count, one seed and deterministic kernels are fixed before
the first number is drawn.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import peft
import torch
import transformers
from transformers import AutoConfig, PreTrainedTokenizerBase, set_seed

from trainyard.backends.base import CHECKPOINT_FOLDER, DECISIONS_FILE, FITTED_FILE, RESULT_FOLDER, TRAINING_FILE
from trainyard.backends.job import TrainingJob
from trainyard.backends.native.data import PreparedData, prepare
from trainyard.backends.results import tell_restart
from trainyard.backends.trl.loading import load_tokenizer, pick_device, template_sha256
from trainyard.compute.child import SPEC_FILE, Events, Stopped, faultpoint
from trainyard.compute.lease import device_locks
from trainyard.data.paths import data_roots
from trainyard.data.renderers.choice import choose
from trainyard.errors import TrainyardError
from trainyard.settings import settings
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.compat.advice import advice
from trainyard.spec.estimate.cascade import choose as choose_knobs
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import write_json_durably
from trainyard.train.autotune import free_bytes
from trainyard.train.batching import BatchPlan, Cut, Feed, choose_cut, sound_cut
from trainyard.train.checkpoints import require_space, seal, whole_or_nothing
from trainyard.train.head import Head, require_head
from trainyard.train.loop import StepRecord, done
from trainyard.train.loop import train as run_loop
from trainyard.train.methods.contract import Policy, PolicyRequest
from trainyard.train.methods.loading import architecture_of
from trainyard.train.methods.table import build, parameter_groups
from trainyard.train.methods.table import save as save_policy
from trainyard.train.optimizers import make_optimizer, optimizer_facts
from trainyard.train.parallel.session import SharedSession
from trainyard.train.parallel.strategies import STRATEGIES
from trainyard.train.parallel.team import Team
from trainyard.train.precision import (
    KernelChoice,
    PrecisionChoice,
    choose_attention,
    choose_fp8,
    choose_precision,
    convert_to_fp8,
    native_bf16,
)
from trainyard.train.reporting.reporting import Reporting, memory_bytes, reporting
from trainyard.train.reporting.trackers import TrackedRun
from trainyard.train.resume.progress import SavedProgress
from trainyard.train.resume.snapshot import Snapshot, require_same
from trainyard.train.resume.state import restore_weights
from trainyard.train.resume.writer import CheckpointWriter, load_checkpoint, newest
from trainyard.train.schedules import LearningRate
from trainyard.train.session.session import Session, TrainState
from trainyard.train.session.sharing import Alone
from trainyard.train.stages.contract import Scores
from trainyard.train.stages.table import STAGES

LOCK_WAIT_S = 600
ADAM_COPIES = 4
CHECKPOINTS_PER_RUN, LEAST_SAVE_STEPS, MOST_SAVE_STEPS = 5, 50, 500
LOGITS_AT_ONCE = 1 << 26
"""Most logits of a micro-batch that are held at once: 256 MiB in float32. Above it the head is chunked."""
REFERENCE_ROWS = 16
JOB, SETTLED = "job", "settled"
"""What the process that leads tells the others before the first verb."""


@dataclass(frozen=True)
class Settled:
    """What is decided where the data is known, before a session is opened."""

    total_steps: int
    precision: Precision
    head: Head


@dataclass
class NativeRun:
    """One execution, put together."""

    job: TrainingJob
    device: str
    prepared: PreparedData
    policy: Policy
    feed: Feed
    cut: Cut
    total_steps: int
    precision: PrecisionChoice
    session: Session
    progress: SavedProgress

    @property
    def save_steps(self) -> int:
        asked = self.job.config.hyperparameters.save_steps
        share = math.ceil(self.total_steps / CHECKPOINTS_PER_RUN)
        return asked or min(MOST_SAVE_STEPS, max(LEAST_SAVE_STEPS, share))


def train(folder: Path, events: Events, team: Team | None = None) -> None:
    """Run the job of `folder/spec.json` to its end, alone or as the one that leads a team."""
    job = TrainingJob.model_validate_json((folder / SPEC_FILE).read_text(encoding="utf-8"))
    device = pick_device(job.config.device)
    fix_numbers(job)
    job = fitted(job, folder, events, device)
    if team is not None:
        team.tell(JOB, job.model_dump(mode="json"))
    places, give_up = Path(job.locks), events.stop_requested
    with device_locks(places, device, job.devices, work=folder, run=job.run, wait_s=LOCK_WAIT_S, give_up=give_up):
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
    """Threads, kernels and seeds, before anything draws a random number."""
    torch.set_num_threads(max(1, job.threads // job.config.launch.processes))
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    set_seed(job.config.hyperparameters.seed)
    transformers.logging.set_verbosity_error()


def fitted(job: TrainingJob, folder: Path, events: Events, device: str) -> TrainingJob:
    """The job with the knobs that make it fit, where `engine.autotune` asks for that; a restart takes the same ones.

    Raises `LimitExceeded` (`E-MEMORY-FIT`) with the deficit when nothing of the asked method fits.
    """
    if not job.config.engine.autotune:
        return job
    path = folder / FITTED_FILE
    if not path.exists():
        shape = ModelShape.from_config(AutoConfig.from_pretrained(job.base, trust_remote_code=False).to_dict())
        if shape is None:
            events.emit("warning", text="The memory was not fitted: this model's layout is not one that is estimated.")
            return job
        choice = choose_knobs(shape, job.config, free_bytes(Device(device)), Device(device), rungs=(job.config.method,))
        write_json_durably(path, {"config": choice.config.model_dump(mode="json"), "lines": choice.lines()})
    known = orjson.loads(path.read_bytes())
    for line in known["lines"]:
        print(f"autotune: {line}", flush=True)
        events.emit("autotune", text=line)
    return job.model_copy(update={"config": TrainerConfig.model_validate(known["config"])})


def train_on(job: TrainingJob, folder: Path, events: Events, device: str, team: Team | None = None) -> None:
    mirror = mirror_of(job)
    found = newest(folder / CHECKPOINT_FOLDER, mirror)
    restarted_from = tell_restart(folder / DECISIONS_FILE, found, events)
    run = assemble(job, folder, events, device, team)
    moving = [value for value in run.policy.model.parameters() if value.requires_grad]
    require_space(folder, ADAM_COPIES * sum(value.numel() * value.element_size() for value in moving))
    if found.path is not None:
        resume(run, found.path, events)
    events.emit("begin", restarted_from=restarted_from, **begin_facts(run))
    started = time.monotonic()
    place = TrackedRun(folder, "trainyard", job.digest[:12], job.config.model_dump(mode="json"))
    with (
        CheckpointWriter(
            folder / CHECKPOINT_FOLDER,
            keep=job.config.engine.keep_checkpoints,
            mirror=mirror,
            at=faultpoint,
            report=lambda fields: events.emit("warning" if "code" in fields else "checkpoint", **fields),
            may_overflow=("state/gradients/", "state/peers/gradients/") if run.session.scaler.is_enabled() else (),
        ) as writer,
        reporting(events.emit, place, trackers=job.config.engine.trackers) as report,
    ):
        finished = run_loop(
            run.session,
            run.feed,
            run.progress,
            total_steps=run.total_steps,
            save=lambda session, progress: save_checkpoint(writer, session, progress),
            save_steps=run.save_steps,
            stop=events.stop_requested,
            hooks=[StepReporter(run, report)],
        )
    if not finished:
        raise Stopped("asked to stop; a checkpoint is saved", step=done(run.session))
    run.session.show_served()
    run.policy = served_policy(run)
    record = training_record(run, time.monotonic() - started)
    save_result(run, folder, record)
    events.emit("metrics", **{name: record[name] for name in ("steps", "first_loss", "final_loss", "seconds")})


def mirror_of(job: TrainingJob) -> str | None:
    """The job's own folder in the object store: another job must never continue from it."""
    address = job.config.engine.mirror
    return f"{address.rstrip('/')}/{job.digest}" if address else None


def assemble(job: TrainingJob, folder: Path, events: Events, device: str, team: Team | None = None) -> NativeRun:
    """Data, policy, precision, session: everything as it is at the first step of a first start."""
    config, stage = job.config, STAGES[job.config.stage]
    cut = choose_cut(config, stage, device)
    prepared = prepare(job, stage, tokenizer_of(job, events), events)
    if events.stop_requested():
        raise Stopped("asked to stop before the first step", step=0)
    policy = make_policy(job, device, events)
    cut = sound_cut(cut, policy.model, config)
    plan = BatchPlan(prepared.widths, cut, stage)
    feed = Feed(prepared.examples, plan, stage, int(prepared.tokenizer.pad_token_id))
    precision = decide_precision(job, policy, feed, device, folder)
    settled = Settled(total_steps(job, plan), precision.precision, choose_head(job, policy, cut))
    if team is not None:
        team.tell(SETTLED, asdict(settled))
    session = open_session(job, policy, prepared.tokenizer, settled, place=(device, folder / "session"), team=team)
    if stage.needs_reference(config) and stage.reference_per_example:
        feed.reference = reference_scores(session, feed)
        session.drop_reference()
        policy.reference = None  # a second model in memory has done its work
    return NativeRun(job, device, prepared, policy, feed, cut, settled.total_steps, precision, session, SavedProgress())


def make_policy(job: TrainingJob, device: str, events: Events) -> Policy:
    """The model that is trained, the same in every process that makes it."""
    config = job.config
    set_seed(config.hyperparameters.seed)  # the weights of a new adapter must not depend on what was drawn before
    policy = build(policy_request(job, device), with_reference=STAGES[config.stage].needs_reference(config))
    for warning in [*advice(config, Device(device)), *policy.warnings]:
        events.emit("warning", text=warning)
    if fp8 := choose_fp8(config.engine.fp8, device, capability=capability(device)):
        events.emit("fp8", used=bool(fp8.name), text=fp8.why)
        policy.facts["fp8"] = fp8.why
        if fp8.name:
            convert_to_fp8(policy.model)
    return policy


def open_session(
    job: TrainingJob,
    policy: Policy,
    tokenizer: PreTrainedTokenizerBase,
    settled: Settled,
    *,
    place: tuple[str, Path],
    team: Team | None,
) -> Session:
    """The session of a policy; of several processes each opens its side. `place` is the device and a folder."""
    config, (device, folder) = job.config, place
    set_seed(config.hyperparameters.seed + (team.rank if team else 0))  # each drops out other places
    groups, sharing = parameter_groups(policy, config), Alone()
    if team is None:
        optimizer = make_optimizer(groups, config)
    else:
        sharing = STRATEGIES[config.launch.strategy](team, policy.model, config.launch)
        optimizer = sharing.optimizer(groups, config)
    engine = TrainState(
        model=policy.model,
        reference=policy.reference,
        stage=STAGES[config.stage],
        config=config,
        optimizer=optimizer,
        rate=LearningRate(optimizer, config, settled.total_steps),
        tokenizer=tokenizer,
        device=device,
        precision=settled.precision,
        head=settled.head,
        sharing=sharing,
    )
    return Session(engine, folder) if team is None else SharedSession(engine, folder, team)


def tokenizer_of(job: TrainingJob, events: Events) -> PreTrainedTokenizerBase:
    """The base's tokenizer with the chat template that `engine.template` chooses; it is saved with the result."""
    tokenizer = load_tokenizer(job)
    chosen = choose(job.config.engine.template, tokenizer.chat_template, roots=data_roots(settings()))
    if chosen.note:
        events.emit("warning", text=chosen.note)
    tokenizer.chat_template = chosen.text
    return tokenizer


def policy_request(job: TrainingJob, device: str) -> PolicyRequest:
    return PolicyRequest(
        config=job.config,
        base=job.base,
        head=STAGES[job.config.stage].head,
        device=device,
        base_sha256=job.base_sha256,
        adapter=Path(job.adapter) if job.adapter else None,
        attention=attention_of(job, device).name,
    )


def attention_of(job: TrainingJob, device: str) -> KernelChoice:
    """The attention kernel of a job's base on a device, and why."""
    architecture = architecture_of(job.base, STAGES[job.config.stage].head)
    asked = job.config.engine.attention
    return choose_attention(asked, device, capability=capability(device), architecture=architecture)


def capability(device: str) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability() if device == "cuda" else None


def total_steps(job: TrainingJob, plan: BatchPlan) -> int:
    hyper = job.config.hyperparameters
    return hyper.max_steps or max(1, math.ceil((hyper.epochs or 3.0) * plan.steps_per_epoch))


def choose_head(job: TrainingJob, policy: Policy, cut: Cut) -> Head:
    """The output layer as asked for; `auto` keeps all logits while they are small."""
    asked = job.config.engine.head
    if asked != "auto":
        require_head(Head(asked), str(policy.model.device.type))
        return Head(asked)
    vocabulary = policy.model.config.get_text_config().vocab_size
    return Head.CHUNKED if cut.budget * vocabulary > LOGITS_AT_ONCE else Head.FULL


def reference_scores(session: Session, feed: Feed) -> list[dict[str, float]]:
    """What the frozen reference says of every example, once: each further epoch is a forward pass cheaper."""
    found: list[dict[str, float]] = [{} for _ in feed.examples]
    for rows, batch in feed.in_order(REFERENCE_ROWS):
        scores: Scores = session.reference_scores(batch)
        for name, values in scores.items():
            for row, value in zip(rows, values.float().tolist(), strict=True):
                found[row][name] = value
    return found


def decide_precision(job: TrainingJob, policy: Policy, feed: Feed, device: str, folder: Path) -> PrecisionChoice:
    """The precision of this job: measured at its first start, remembered for every later one."""
    path = folder / DECISIONS_FILE
    if path.exists():
        known = orjson.loads(path.read_bytes())
        return PrecisionChoice(Precision(known["precision"]), known["why"])
    choice = choose_precision(
        job.config.hyperparameters.precision,
        device,
        native=native_bf16(device),
        seconds_per_step=lambda bf16: seconds_per_step(policy, feed, device, bf16=bf16),
    )
    write_json_durably(path, {"precision": choice.precision.value, "why": choice.why})
    return choice


def seconds_per_step(policy: Policy, feed: Feed, device: str, *, bf16: bool) -> float:
    """Fastest of three forward and backward passes over the first step's first batch, after one to warm up."""
    batch = {name: value.to(device) for name, value in feed.batch(feed.plan.steps(0)[0][0]).items()}
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids") if name in batch}
    times = []
    for _ in range(4):
        started = time.perf_counter()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            policy.model(**given, use_cache=False).logits.float().mean().backward()
        times.append(time.perf_counter() - started)
        policy.model.zero_grad(set_to_none=True)
    return min(times[1:])


# Checkpoints


def save_checkpoint(writer: CheckpointWriter, session: Session, progress: SavedProgress) -> None:
    tensors, values = session.snapshot().flat()
    writer.save(done(session), tensors, {**values, "progress": progress.as_values()})


def resume(run: NativeRun, path: Path, events: Events, *, dropped: frozenset[str] = frozenset()) -> None:
    """Take over a checkpoint, without the parts of the state that are `dropped` (by a proof that must fail).

    Raises `Corrupt` when it belongs to another config or other library versions.
    """
    tensors, values = load_checkpoint(path, verify=False)  # `newest` has just compared every byte
    snapshot = Snapshot.from_flat(tensors, values)
    for difference in require_same(snapshot, run.session.identity()):
        events.emit("warning", text=f"Since the checkpoint was made: {difference}. The bits may differ.")
    run.session.restore(replace(snapshot, parts={k: v for k, v in snapshot.parts.items() if k not in dropped}))
    if "progress" not in dropped:
        run.progress = SavedProgress.from_values(values["progress"])
        if "counted" not in values["progress"]:
            text = "An earlier release made the checkpoint: what was trained before it is not in the account."
            events.emit("warning", text=text)


class StepReporter:
    """Reports each step, and dies where a fault is injected."""

    def __init__(self, run: NativeRun, report: Reporting) -> None:
        self.run, self.report, self.started, self.tokens = run, report, time.monotonic(), 0

    def on_step(self, record: StepRecord) -> None:
        self.tokens += record.tokens
        per_epoch = self.run.feed.plan.steps_per_epoch
        told = {
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
        self.report.on_step({**told, **record.metrics})
        faultpoint(f"step.{record.step}")


# The result


def begin_facts(run: NativeRun) -> dict[str, Any]:
    return {
        "total_steps": run.total_steps,
        "total_epochs": round(run.total_steps / run.feed.plan.steps_per_epoch, 4),
        "device": run.device,
        "threads": torch.get_num_threads(),
        "precision": run.precision.precision.value,
        "precision_why": run.precision.why,
        **optimizer_facts(run.session.engine.optimizer),
        "batching": run.cut.mode,
        "batching_why": run.cut.why,
        "padding_ratio": round(run.feed.plan.padding_ratio(), 4),
        "head": run.session.engine.head.value,
        "attention": str(run.policy.model.config._attn_implementation),
        "attention_why": attention_of(run.job, run.device).why,
    }


def served_policy(run: NativeRun) -> Policy:
    """The policy with its trained weights whole. Where several processes hold them in parts, it is made anew."""
    if not run.session.sharing.in_parts:
        return run.policy
    weights = run.session.snapshot().parts["weights"]
    whole = build(policy_request(run.job, "cpu"), with_reference=False)
    restore_weights(whole.model, weights)
    return whole


def training_record(run: NativeRun, seconds: float) -> dict[str, Any]:
    """`training.json`: what was done, to the token."""
    job, config, losses = run.job, run.job.config, run.progress.losses
    return {
        "stage": config.stage.value,
        "method": config.method.value,
        "backend": config.backend.value,
        "base_model": config.base_model,
        "base_path": job.base,
        "base_sha256": job.base_sha256,
        "chat_template_sha256": template_sha256(run.prepared.tokenizer),
        "renderer": choose("auto", run.prepared.tokenizer.chat_template).spec.name,
        "hyperparameters": config.hyperparameters.model_dump(mode="json"),
        "preference": config.preference.model_dump(mode="json") if run.prepared.stage.sequences == 2 else None,
        "lora": run.policy.facts,
        "control": config.control,
        "parents": list(job.parents),
        "lineage": run.policy.lineage,
        **run.progress.counted.record(run.prepared.ledger),
        "steps": done(run.session),
        "skipped_steps": run.session.skipped,
        "epochs": run.total_steps / run.feed.plan.steps_per_epoch,
        "first_loss": losses[0][1],
        "final_loss": losses[-1][1],
        "losses": losses,
        **{name: value for name, value in begin_facts(run).items() if not name.startswith("total_")},
        "launch": run.session.sharing.layout,
        "seconds": round(seconds, 3),
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, peft)},
    }


def save_result(run: NativeRun, folder: Path, record: dict[str, Any]) -> None:
    """Write adapter or model whole, or not at all."""
    final = folder / RESULT_FOLDER
    temporary = folder / f".{RESULT_FOLDER}.tmp"
    for leftover in (temporary, final):  # of a start that died while saving
        shutil.rmtree(leftover, ignore_errors=True)
    require_finite_weights(run.policy.model)
    with whole_or_nothing(temporary):
        target = temporary / run.job.output.value
        save_policy(run.policy, policy_request(run.job, run.device), target)
        adapter = run.job.output.value == "adapter"
        run.prepared.tokenizer.save_pretrained(target / "tokenizer" if adapter else target)
        write_json_durably(target / TRAINING_FILE, record)
        faultpoint("result.written")
        seal(temporary)
        temporary.rename(final)


def require_finite_weights(model: torch.nn.Module) -> None:
    """Raise `E-WEIGHTS-NONFINITE` naming the first trained tensor that holds NaN or infinity."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not torch.isfinite(parameter).all():
            raise TrainyardError(
                f"The trained weights hold NaN or infinite numbers, first in {name}.",
                why="The training diverged; nothing of it is worth keeping.",
                do="Lower hyperparameters.learning_rate, or use precision: fp32.",
                code="E-WEIGHTS-NONFINITE",
            )
