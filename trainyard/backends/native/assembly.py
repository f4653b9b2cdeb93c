"""A native training put together: data, policy, precision and session as they are at its first step (imports torch)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import orjson
import torch
import transformers
from transformers import PreTrainedTokenizerBase, set_seed

from trainyard.backends import frame
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import DECISIONS_FILE
from trainyard.backends.rewarding import find_scorer, make_environment, make_panel
from trainyard.backends.rows import evaluation_rows, list_mixed_sets, read_rows
from trainyard.backends.trl.loading import read_tokenizer
from trainyard.compute.child import Events
from trainyard.data.paths import data_roots
from trainyard.data.renderers.tokenizer import choose_for_tokenizer
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.settings import settings
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.axes.latent import LatentSettings
from trainyard.spec.axes.stages import DistillSettings, PpoSettings, Stage
from trainyard.spec.axes.strategies import TorchftSettings
from trainyard.spec.compat.advice import advice
from trainyard.spec.compat.run import length_advice
from trainyard.spec.estimate.shape import BaseFacts
from trainyard.spec.estimate.timing import default_interval, save_steps
from trainyard.spec.packages import LIGER
from trainyard.spec.training import TrainerConfig
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoint.state import restore_weights
from trainyard.train.contracts import Encoded, Head, Scores, StageSpec
from trainyard.train.evaluation import HeldOut, build_prompt
from trainyard.train.latent import table as latent
from trainyard.train.latent.contract import LatentModule
from trainyard.train.losses.served_teacher import ServedTeacher
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.composition import freeze_context
from trainyard.train.methods.contract import Policy, PolicyRequest
from trainyard.train.methods.loading import find_architecture, load_teacher
from trainyard.train.methods.table import build, counts, parameter_groups, verify_saved
from trainyard.train.methods.table import save as save_policy
from trainyard.train.model.head import require_head
from trainyard.train.model.positions import find_context
from trainyard.train.model.precision import (
    KernelChoice,
    PrecisionChoice,
    choose_attention,
    choose_fp8,
    compile_blocks,
    convert_to_fp8,
    find_accelerator,
    fuse_blocks,
)
from trainyard.train.model.sampling import find_pad_id
from trainyard.train.optimizers import make_optimizer
from trainyard.train.parallel.session import SharedSession, make_strategy
from trainyard.train.parallel.team import Team
from trainyard.train.progress import SavedProgress
from trainyard.train.rl.feed import HeldOutPrompts, RolloutFeed, RolloutPlan
from trainyard.train.rl.reward_model import attach_critic, make_critic, split_groups
from trainyard.train.rows.batching import Cut, Feed, choose_cut, make_plan, sound_cut
from trainyard.train.rows.prompts import require_any_prompt
from trainyard.train.rows.row_attention import choose_row_attention
from trainyard.train.rows.sharing import share_prompts
from trainyard.train.rows.tokens import TokenLedger, require_accepted, require_targets
from trainyard.train.schedules import LearningRate
from trainyard.train.session.determinism import find_refusal, prefer_deterministic
from trainyard.train.session.parallelism import SingleProcess
from trainyard.train.session.session import AUTOCAST, COUNTERS, Session, TrainState

LOGITS_AT_ONCE = 1 << 26
"""Most logits of a micro-batch in memory at once: 256 MiB in float32. Above it the head is chunked."""
REFERENCE_ROWS = 16
JOB, PLAN = "job", "plan"
"""What rank 0 sends to the others before the first verb."""


@dataclass(frozen=True)
class PreparedData:
    """Prepared data of a run: its rows, tokenised and accounted for."""

    tokenizer: PreTrainedTokenizerBase
    stage: StageSpec
    examples: Sequence[Encoded]
    ledger: TokenLedger
    held_out: Sequence[Encoded] = ()
    """Rows for the evaluation while it trains; empty without evaluation."""

    @property
    def widths(self) -> list[int]:
        return [self.stage.width(example) for example in self.examples]


@dataclass(frozen=True)
class RunPlan:
    """Decisions made from the data before a session is opened."""

    total_steps: int
    precision: Precision
    head: Head
    ends: bool = True
    """Whether the training ends after `total_steps`; a session continues."""


@dataclass
class NativeRun:
    """Assembled parts of one execution."""

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
    held_out: HeldOut | None = None
    """What it is evaluated on while it trains."""

    @property
    def save_steps(self) -> int:
        return save_steps(self.job.config.hyperparameters, self.total_steps)


def set_determinism(job: TrainingJob) -> None:
    """Threads, kernels and seeds, before anything draws a random number."""
    frame.fix_threads_and_seed(job)
    prefer_deterministic()
    transformers.logging.set_verbosity_error()


def assemble(job: TrainingJob, folder: Path, events: Events, device: str, team: Team | None = None) -> NativeRun:
    """Data, policy, precision, session: everything as it is at the first step of a first start."""
    config, stage = job.config, STAGES[job.config.stage.type].chosen(job.config)
    cut = choose_cut(config, stage, device)
    tokenizer = load_tokenizer(job, events)
    began = time.perf_counter()
    examples, ledger = stage.encode(read_rows(job), tokenizer, config)
    ledger.keep_sets(list_mixed_sets(job))
    by_rows_s = time.perf_counter() - began
    frame.report_ledger(events, ledger)
    require_accepted(ledger, job.config.refusal_limit)
    (require_any_prompt if stage.facts.draws_groups else require_targets)(ledger)
    prepared = PreparedData(tokenizer, stage, examples, ledger, encode_held_out(job, stage, tokenizer, events))
    frame.require_not_stopped(events.stop_requested())
    policy = make_policy(job, device, events, tokenizer)
    cut = share_prompts(sound_cut(cut, policy.model, config), config, stage, policy.model, examples)
    cut = keep_layout(folder, cut)
    feed = make_feed(job, prepared, cut, device, events)
    plan = feed.plan
    total = frame.total_steps(config.hyperparameters, plan.steps_per_epoch)
    frame.require_steps(job, total, events)
    precision = frame.decide_precision(job, device, folder)
    if team is None and config.stage.technique is None and (device == Device.CUDA or cut.mode == "packed"):
        dtype = AUTOCAST.get(precision.precision, torch.float32)
        policy.facts["row_attention"] = choose_row_attention(policy.model, device, dtype)
    decided = RunPlan(total, precision.precision, choose_head(job, policy, cut.budget))
    if team is not None:
        team.broadcast_command(PLAN, asdict(decided))
    session = open_session(job, policy, prepared.tokenizer, decided, location=(device, folder / "session"), team=team)
    held_out = hold_out(job, feed, prepared, total)
    if held_out is not None and (text := held_out.postponed):
        events.emit("warning", text=text)
    began = time.perf_counter()
    if stage.needs_reference(config) and stage.reference_per_example:
        for each in (feed, held_out.feed) if held_out else (feed,):
            each.reference = reference_scores(session, each)
        session.drop_reference()
        policy.reference = None  # a second model in memory has done its work
    if device == Device.CUDA and team is None:
        settle_kernels(session, feed, policy, events)
    events.emit("prepared", rows=len(examples), seconds=round(by_rows_s + time.perf_counter() - began, 3))
    return NativeRun(job, device, prepared, policy, feed, cut, total, precision, session, SavedProgress(), held_out)


def make_feed(job: TrainingJob, prepared: PreparedData, cut: Cut, device: str, events: Events) -> Feed:
    """Return the batches of a run; of a stage that draws completions, with what says what they are worth."""
    stage, examples, pad_id = prepared.stage, prepared.examples, find_pad_id(prepared.tokenizer)
    if not stage.facts.draws_groups:
        return Feed(examples, make_plan(examples, cut, stage), stage, pad_id)
    plan = RolloutPlan(prepared.widths, cut, stage, job.config)
    panel = make_panel(job, prepared.tokenizer, device, events.emit)
    return RolloutFeed(
        examples, plan, stage, pad_id, panel=panel, environment=make_environment(job, prepared.tokenizer)
    )


def settle_kernels(session: Session, feed: Feed, policy: Policy, events: Events) -> None:
    """Compute every step with deterministic kernels alone, unless the first one shows that the model has others.

    The step leaves no trace but its time: no gradient, and no random number. A stage that draws completions is left as
    it is: its batches are whole only inside a step.
    """
    if feed.stage.draw is not None or feed.stage.facts.draws_groups:
        policy.facts["deterministic"] = f"not looked for with stage {feed.stage.facts.word}, which draws completions"
        return

    def step() -> None:
        session.engine.strict = True
        session.backward(session.forward(feed.batch(feed.plan.steps(0)[0][0])).forward_id, measure=False)

    before = session.snapshot()
    refused = find_refusal(step)
    session.restore(replace(before, parts={"random": before.parts["random"]}))
    session.engine.strict = not refused
    policy.facts["deterministic"] = refused or "every kernel of a step"
    if refused:
        events.emit("warning", text=f"A resumed run may differ in its last bits: {refused}")


def keep_layout(folder: Path, cut: Cut) -> Cut:
    """Return the cut with the layout of the first start: a checkpoint inside a step counts micro-batches of that."""
    path = folder / DECISIONS_FILE
    decisions = orjson.loads(path.read_bytes()) if path.exists() else {}
    if not cut.shared_why:
        return cut
    if "shared_prompt" in decisions:
        return replace(cut, shared=decisions["shared_prompt"], shared_why=decisions["shared_prompt_why"])
    if decisions:
        return replace(cut, shared=False, shared_why="an earlier release started it without")
    write_json_durably(path, {"shared_prompt": cut.shared, "shared_prompt_why": cut.shared_why})
    return cut


def encode_held_out(
    job: TrainingJob, stage: StageSpec, tokenizer: PreTrainedTokenizerBase, events: Events
) -> Sequence[Encoded]:
    """Return the rows of the evaluation, encoded as those of the training are.

    Raises `InvalidInput` (`E-DATA-EMPTY`) when fewer are left than a loss can be computed on.
    """
    evaluation, config = job.config.eval, job.config
    if evaluation is None:
        return ()
    rows = evaluation_rows(job)
    encode = stage.encode_held_out or (lambda *arguments: stage.encode(*arguments)[0])
    examples = list(encode(rows, tokenizer, config))
    if config.stage.type is Stage.CPT:  # blocks, not rows
        examples = examples[: evaluation.max_rows]
    if len(examples) < stage.facts.smallest_batch:
        raise InvalidInput(
            f"Of {len(rows)} rows that are held out for evaluation, {len(examples)} can be scored; "
            f"stage {config.stage} needs {stage.facts.smallest_batch}.",
            why="The others have nothing to learn within max_length.",
            do="Hold out a larger share in eval.share, raise max_length, or remove eval.",
            code="E-DATA-EMPTY",
        )
    where = (
        f"set {evaluation.set}"
        if evaluation.set
        else f"{evaluation.held_out_share:g} of the rows, which are not trained on"
    )
    events.emit("held_out", rows=len(examples), text=f"{len(examples)} rows are evaluated ({where})")
    return examples


def hold_out(job: TrainingJob, feed: Feed, prepared: PreparedData, total_steps: int) -> HeldOut | None:
    """Return the rows of a run's evaluation and its interval; None without evaluation."""
    evaluation, stage = job.config.eval, prepared.stage
    if evaluation is None:
        return None
    examples, per_epoch = prepared.held_out, feed.plan.steps_per_epoch
    plan = make_plan(examples, feed.plan.cut, stage)
    trained_rows = round(total_steps / per_epoch * len(feed.examples))
    every = default_interval(total_steps, trained_rows, len(examples)) if evaluation.steps is None else evaluation.steps
    hyper = job.config.hyperparameters
    held_out: Feed
    if isinstance(feed, RolloutFeed):
        held_out = HeldOutPrompts(
            examples, plan, stage, feed.pad_id, config=job.config, panel=feed.panel, environment=feed.environment
        )
    else:
        held_out = Feed(examples, plan, stage, feed.pad_id)
    return HeldOut(
        held_out,
        [build_prompt(example, prepared.tokenizer) for example in examples[: evaluation.samples]],
        per_epoch if every == "epoch" else every,
        first=hyper.warmup(total_steps) + 1 if hyper.schedule.facts.warms_up else 1,
        until=job.until,
    )


def make_policy(job: TrainingJob, device: str, events: Events, tokenizer: PreTrainedTokenizerBase) -> Policy:
    """Return the model that is trained, the same in every process that makes it."""
    config = job.config
    set_seed(config.hyperparameters.seed)  # the weights of a new adapter must not depend on what was drawn before
    policy = build(policy_request(job, device), with_reference=has_reference(config))
    if job.teacher_folder is not None:
        require_other_teacher(job)
        teacher = load_teacher(job.teacher_folder, tokenizer, device, config.hyperparameters.precision)
        policy.reference = partial(freeze_context, teacher)
        events.emit(
            "teacher", text=f"the teacher {config.stage.teacher_model} has {teacher.num_parameters():,} weights"
        )
    if (server := job.teacher_server) is not None:
        assert isinstance(config.stage, DistillSettings), config.stage
        key = os.environ.get(server.api_key_env) if server.api_key_env else None
        policy.reference = ServedTeacher(server.base_url, server.model, config.stage.likeliest, tokenizer, key)
        events.emit("teacher", text=f"the teacher {server.model} is asked at {server.base_url}")
    if config.stage.technique is not None:
        attach_latent(policy, job, config.stage.technique, tokenizer)
        if latent_count := policy.facts["latent_parameters"]:
            added = f"{config.stage.technique} adds {latent_count:,} weights of its own"
            events.emit("latent", text=f"{added}, which are trained with method {config.method}")
    if isinstance(config.stage, PpoSettings) and config.stage.has_critic:
        attach_critic(policy.model, make_critic(policy_request(job, device), find_scorer(job)))
        policy.facts["critic"] = "the reward model" if job.reward_model else "the model itself, with values of 0"
    base = BaseFacts.from_config(transformers.AutoConfig.from_pretrained(job.base, trust_remote_code=False).to_dict())
    frame.report_coverage(events, policy.facts.get("coverage"))
    for warning in [*advice(config, find_accelerator(device)), *length_advice(config, base), *policy.warnings]:
        events.emit("warning", text=warning)
    if config.engine.kernels == "liger":
        policy.facts["kernels"] = fuse_blocks(policy.model, device)
    if "liger" in (config.engine.kernels, config.engine.head):
        policy.packages.append(LIGER.name)
    if fp8 := choose_fp8(config.engine.fp8, find_accelerator(device), capability=capability(device)):
        events.emit("fp8", used=bool(fp8.name), text=fp8.why)
        policy.facts["fp8"] = fp8.why
        if fp8.name:
            convert_to_fp8(policy.model)
            policy.packages.append(fp8.name)
    if config.engine.compile:
        policy.facts["compiled_blocks"] = compile_blocks(policy.model, device)
    return policy


def has_reference(config: TrainerConfig) -> bool:
    """Whether a frozen model is there: where the loss needs it, and where an adapter that is switched off gives it, so
    that ppo reports its distance although `kl_coef: 0` takes nothing off for it."""
    free = isinstance(config.stage, PpoSettings) and config.method.facts.adapter
    return config.stage.needs_reference or free


def attach_latent(
    policy: Policy, job: TrainingJob, settings: LatentSettings, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Add the weights of a latent technique to a policy: new ones, or those of the training that it continues."""
    earlier = Path(job.adapter if job.adapter is not None else job.base)
    seed = job.config.hyperparameters.seed
    module = latent.attach(policy.model, tokenizer, settings, seed=seed, earlier=earlier)
    require_room(module, find_context(policy.model.config), job.config.hyperparameters.max_length)
    added = sum(value.numel() for value in module.parameters())
    policy.facts |= {**counts(policy.model), "latent": settings.model_dump(mode="json"), "latent_parameters": added}


def require_room(module: LatentModule, context: int | None, max_length: int) -> None:
    """Raise `InvalidInput` (`E-DATA-TOO-LONG`) where rows with their thoughts could be longer than the context."""
    if context is not None and module.positions and max_length + module.positions > context:
        raise InvalidInput(
            f"Rows of {max_length} tokens and {module.positions} positions of {module.settings} are longer than the "
            f"model's context of {context}.",
            do=f"Use a max_length of at most {context - module.positions}, or fewer thoughts.",
            code="E-DATA-TOO-LONG",
        )


def gather_policy(policy: Policy, session: Session, job: TrainingJob) -> Policy:
    """Return the policy with its complete trained weights. Where they are sharded, the policy is loaded again."""
    if not session.parallelism.is_sharded:
        return policy
    weights = session.snapshot().parts["weights"]
    whole = build(policy_request(job, "cpu"), with_reference=False)
    restore_weights(whole.model, weights)
    return whole


def save_trained(policy: Policy, job: TrainingJob, device: str, target: Path, *, verify: bool = True) -> None:
    """Write the adapter or the model, and next to it the weights of its latent technique.

    With `verify` the adapter is loaded again and run once. Raises `TrainyardError` (`E-ADAPTER-INVALID`) then.
    """
    request = policy_request(job, device)
    with latent.detach_technique(policy.model) as module:
        save_policy(policy, request, target)
        if verify:
            verify_saved(policy, request, target)
    if module is not None:
        latent.save(module, target)


def require_other_teacher(job: TrainingJob) -> None:
    """Raise `InvalidInput` (`E-MODEL-INVALID`) for a teacher with the very weights that the student begins with."""
    if job.teacher_sha256 and job.teacher_sha256 == job.base_sha256 and job.adapter is None:
        raise InvalidInput(
            f"The teacher {job.config.stage.teacher_model} has the same weights as the student.",
            why="Both give the same probabilities, so there is nothing to learn.",
            do="Name a larger model of the same family as stage.teacher.",
            code="E-MODEL-INVALID",
        )


def open_session(
    job: TrainingJob,
    policy: Policy,
    tokenizer: PreTrainedTokenizerBase,
    plan: RunPlan,
    *,
    location: tuple[str, Path],
    team: Team | None,
) -> Session:
    """Open the session of a policy; each rank opens its own side. `location` is the device and a folder."""
    config, (device, folder) = job.config, location
    set_seed(config.hyperparameters.seed + (team.rank if team else 0))  # each drops out other places
    groups = parameter_groups(policy, config)
    parallelism: SingleProcess
    if isinstance(config.stage, PpoSettings):
        groups = split_groups(groups, config.stage.critic_learning_rate)
    if team is None:
        parallelism = open_island(policy, config)
        optimizer = make_optimizer(groups, config)
    else:
        parallelism = make_strategy(team, policy.model, config.launch)
        parallelism.last_step = plan.total_steps if plan.ends else None
        optimizer = parallelism.optimizer(groups, config)
    engine = TrainState(
        model=policy.model,
        reference=policy.reference,
        stage=STAGES[config.stage.type].chosen(config),
        config=config,
        optimizer=optimizer,
        rate=LearningRate(optimizer, config, plan.total_steps),
        tokenizer=tokenizer,
        device=device,
        precision=plan.precision,
        head=plan.head,
        rotation=policy.rotation,
        parallelism=parallelism,
    )
    session = Session(engine, folder) if team is None else SharedSession(engine, folder, team)
    parallelism.share_state(lambda: read_progress(session), lambda parts: session._take_over(parts, everything=True))
    return session


def read_progress(session: Session) -> JsonObject:
    """Return a copy of what an island that comes back takes over besides the weights."""
    engine = session.engine
    parts = {
        "optimizer": engine.optimizer.state_dict(),
        "rate": engine.rate.state_dict(),
        "scaler": session.scaler.state_dict(),
        "counters": {name: getattr(session, name) for name in COUNTERS},
    }
    return deepcopy(parts)


def open_island(policy: Policy, config: TrainerConfig) -> SingleProcess:
    """Return the island of torchft that this process is, or a process alone."""
    if not isinstance(config.launch.diloco, TorchftSettings):
        return SingleProcess()
    from trainyard.train.parallel.torchft_island import TorchftIsland  # torchft is an extra

    return TorchftIsland(policy.model, config.launch.diloco)


def load_tokenizer(job: TrainingJob, events: Events) -> PreTrainedTokenizerBase:
    """The base's tokenizer with the chat template that `engine.template` chooses; it is saved with the result."""
    tokenizer = read_tokenizer(job)
    template = choose_for_tokenizer(tokenizer, job.config.engine.template, roots=data_roots(settings()))
    if template.note:
        events.emit("warning", text=template.note)
    tokenizer.chat_template = template.text
    return tokenizer


def policy_request(job: TrainingJob, device: str) -> PolicyRequest:
    return PolicyRequest(
        config=job.config,
        base=job.base,
        head=STAGES[job.config.stage.type].head,
        device=device,
        base_sha256=job.base_sha256,
        adapter=Path(job.adapter) if job.adapter else None,
        attention=choose_attention_kernel(job, device).name,
    )


def choose_attention_kernel(job: TrainingJob, device: str) -> KernelChoice:
    """Return the attention kernel of a job's base on a device, and why."""
    architecture = find_architecture(job.base, STAGES[job.config.stage.type].head)
    requested, stage = job.config.engine.attention, job.config.stage
    masked = stage.asks_shared is True or (stage.technique is not None and stage.technique.facts.own_masks)
    kind, device_capability = find_accelerator(device), capability(device)
    return choose_attention(requested, kind, capability=device_capability, architecture=architecture, flash=not masked)


def capability(device: str) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability() if device == "cuda" else None


def choose_head(job: TrainingJob, policy: Policy, positions: int) -> Head:
    """Return the output layer as asked for; `auto` keeps all logits of so many positions while they are small."""
    requested = job.config.engine.head
    if job.config.stage.facts.compares_logits:
        return Head.FULL
    if requested != "auto":
        require_head(Head(requested), str(policy.model.device.type))
        return Head(requested)
    vocabulary = policy.model.config.get_text_config().vocab_size
    return Head.CHUNKED if positions * vocabulary > LOGITS_AT_ONCE else Head.FULL


def reference_scores(session: Session, feed: Feed) -> list[dict[str, float]]:
    """Return what the frozen reference says of every example, once: each further epoch is a forward pass cheaper."""
    row_scores: list[dict[str, float]] = [{} for _ in feed.examples]
    for rows, batch in feed.in_order(REFERENCE_ROWS):
        scores: Scores = session.reference_scores(batch)
        for name, values in scores.items():
            for row, value in zip(rows, values.float().tolist(), strict=True):
                row_scores[row][name] = value
    return row_scores
