"""The engine: eight verbs over one model. The loop, rollouts and the wire call these and nothing else.

    forward     scores a batch and keeps ONE graph; its id is good for one backward
    backward    adds to the gradients
    step        clips, moves the weights, moves the schedule; the gradients stay and are stale
    zero_grad   clears them
    generate    samples with a generator of its own: training draws the same numbers with or without it
    logprobs    log-probabilities of given tokens
    save, load  the whole state or the weights alone, whole and verified or not at all

A call may carry `op_seq`: the same number again returns the first reply, so that a request that was sent twice over a
network does not count twice. Deferred unscale: with fp16 the gradients carry the scaler's factor until `step`; a state
that is saved in between says so, and continues to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from trainyard.errors import Conflict, InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.stages import SftSettings
from trainyard.spec.chain import digest
from trainyard.spec.training import TrainerConfig
from trainyard.train.checkpoint import state
from trainyard.train.checkpoint import state as snapshots
from trainyard.train.checkpoint.state import Snapshot
from trainyard.train.checkpoint.streams import Sealer
from trainyard.train.contracts import Batch, Generated, Head, Sampling, Scores, StageSpec
from trainyard.train.history import require_finite_gradients
from trainyard.train.methods.contract import BlockRotation
from trainyard.train.model.head import require_known_logits
from trainyard.train.model.positions import find_context
from trainyard.train.model.sampling import (
    PromptQuestions,
    PromptScores,
    choose_reader,
    find_pad_id,
    sample,
    score_prompt,
    token_logprobs,
)
from trainyard.train.optimizers import switch_to_eval, switch_to_train
from trainyard.train.schedules import LearningRate
from trainyard.train.session.determinism import OwnGenerators, draw_own, fork_rng, strict_kernels
from trainyard.train.session.noise import EmbeddingNoise
from trainyard.train.session.parallelism import Found, SingleProcess
from trainyard.train.session.replies import (
    Backward,
    Evaluated,
    Forward,
    Replies,
    Stepped,
    dump_output,
    read_outputs,
    require_outputs,
)

AUTOCAST = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
"""Precision -> the dtype of its autocast; fp32 has none."""
FIRST_SCALE = 1024.0
"""fp16's first loss scale: torch's 65,536 overflows small models for their first dozens of steps."""

COUNTERS = ("global_step", "accumulated", "stale", "skipped")


@dataclass
class TrainState:
    """Dependencies of a session; `train.loop` and the native backend put it together."""

    model: Any
    reference: Callable[[], AbstractContextManager[Any]] | None
    stage: StageSpec
    config: TrainerConfig
    optimizer: Any
    rate: LearningRate
    tokenizer: Any
    device: str = "cpu"
    precision: Precision = Precision.FP32
    head: Head = Head.FULL
    rotation: BlockRotation | None = None
    """Draws the blocks that are trainable, where they change."""
    parallelism: SingleProcess = field(default_factory=SingleProcess)
    """How the work is shared with other processes."""
    strict: bool = False
    """Whether forward and backward take deterministic kernels alone (`session/determinism.py`)."""


class Session:
    """A model in training. Not thread-safe."""

    def __init__(self, engine: TrainState, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.config_sha256 = digest(engine.config)
        half = engine.precision is Precision.FP16
        self.scaler = torch.amp.GradScaler(engine.device, init_scale=FIRST_SCALE, enabled=half)
        self.parallelism = engine.parallelism
        self.parameters = self.parallelism.parameters(engine.model)
        self.accumulated = 0
        self.stale = False
        self.global_step = 0
        self.skipped = 0
        self.num_forwards = 0
        """Passes so far; their ids are counted by it."""
        self._pending: tuple[str, torch.Tensor] | None = None
        self._replies = Replies()
        self.sealer: Sealer | None = None
        """The key of the states that `save` writes."""
        if engine.stage.head == "causal":
            self.parallelism.run(engine.model, require_known_logits)
        stage = engine.config.stage
        if isinstance(stage, SftSettings) and stage.neftune_alpha is not None:
            EmbeddingNoise(engine.model, stage.neftune_alpha)
        self._train()
        self.generators = OwnGenerators(engine.device)

    # The eight verbs

    def forward(
        self,
        batch: Batch,
        *,
        normalizer: float | None = None,
        outputs: Sequence[str] = (),
        inline: bool = False,
        op_seq: int | None = None,
    ) -> Forward:
        """Score a batch in training mode (dropout draws) and keep its graph for one `backward`.

        `normalizer` divides the sum over the units; by default the batch's own units. A step that is cut
        into micro-batches gives the units of the whole step. `outputs` may name `logits` and `hidden_states` of the
        batch's `input_ids`, from a pass of their own that draws the same dropout; they go by file unless `inline`.
        A batch without `labels` has no loss to keep a graph for: the reply contains its outputs (by default `logits`),
        an empty id and NaN as its loss; a pending graph stays.
        Raises `InvalidInput` (`E-DATA-EMPTY`, `E-STEP`, `E-NAME`), and then nothing has changed.
        """
        arguments = (batch, normalizer, list(outputs), inline)
        return self._replies.once(op_seq, "forward", lambda: self._run(Session._forward, *arguments))

    def backward(
        self, forward_id: str, *, scale: float = 1.0, measure: bool = True, op_seq: int | None = None
    ) -> Backward:
        """Add the gradients of a forward's loss times `scale`. `measure` computes their norm, which synchronises.

        Raises `Conflict`: `E-STEP` after a step without `zero_grad`, `E-STEP` for an id whose graph is
        gone (used, replaced by a later forward, or dropped).
        """
        arguments = (forward_id, scale, measure)
        return self._replies.once(op_seq, "backward", lambda: self._run(Session._backward, *arguments))

    def step(
        self,
        *,
        max_grad_norm: float | None = None,
        learning_rate: float | None = None,
        metric: float | None = None,
        options: Mapping[str, object] | None = None,
        op_seq: int | None = None,
    ) -> Stepped:
        """Move the weights by what has been accumulated; a step with non-finite fp16 gradients is skipped and counted.

        `max_grad_norm` defaults to the config's, `learning_rate` overrides the schedule for this step, `metric` feeds a
        schedule that waits for a plateau, `options` replace those of the optimizer's groups (`betas`, `eps`, …) for
        this step. Raises `Conflict` (`E-STEP`) when nothing was accumulated.
        """
        arguments = (max_grad_norm, learning_rate, metric, options or {})
        return self._replies.once(op_seq, "step", lambda: self._run(Session._step, *arguments))

    def zero_grad(self, *, op_seq: int | None = None) -> None:
        """Clear the gradients and drop a pending graph."""
        return self._replies.once(op_seq, "zero_grad", lambda: self._run(Session._zero_grad))

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None, *, op_seq: int | None = None
    ) -> list[Generated]:
        """Continue token prompts, left-padded together, with a generator seeded by `sampling.seed` alone.

        Raises `InvalidInput` (`E-SAMPLING`, and `E-STEP` for a reward model); so does `logprobs`.
        """
        arguments = ([list(prompt) for prompt in prompts], asdict(sampling or Sampling()))
        return self._replies.once(op_seq, "generate", lambda: self._run(Session._generate, *arguments))

    def logprobs(self, rows: Sequence[Sequence[int]], *, op_seq: int | None = None) -> list[list[float | None]]:
        """Log-probability of every token given those before it, without dropout; None for the first of a row."""
        token_rows = [list(row) for row in rows]
        return self._replies.once(op_seq, "logprobs", lambda: self._run(Session._logprobs, token_rows))

    def save(self, name: str, *, kind: str = "full", op_seq: int | None = None) -> JsonObject:
        """Write the state (`full`) or the weights (`weights`) under `name`; returns {name, path, sha256}.

        Raises `InvalidInput` (`E-NAME`, `E-STEP`) and `Conflict` (`E-FILE-EXISTS`): nothing is overwritten.
        """
        return self._replies.once(op_seq, "save", lambda: self._save(name, kind))

    def load(self, name: str, *, optimizer: bool = True, op_seq: int | None = None) -> JsonObject:
        """Take a saved state back; without `optimizer` only the weights. A pending graph and gradients are dropped.

        Raises `NotFound` (`E-NOT-FOUND`), `InvalidInput` (`E-STEP`) when only weights were saved and more is
        asked for, and `Corrupt` when bytes (`E-CHECKPOINT-CORRUPT`), config, versions or shapes
        (`E-CHECKPOINT-MISMATCH`) are not what they were; then nothing has changed. Weights alone may come from another
        config of the same model and method.
        """
        return self._replies.once(op_seq, "load", lambda: self._load(name, optimizer))

    # What they do

    def _run(self, verb: Callable[..., Found], *arguments: Any) -> Found:
        """Carry out a verb; in distributed training, on all ranks."""
        return verb(self, *arguments)

    @draw_own
    def _forward(self, batch: Batch, normalizer: float | None, outputs: Sequence[str], inline: bool) -> Forward:
        engine = self.engine
        on_device = {name: value.to(engine.device, non_blocking=True) for name, value in batch.items()}
        if "labels" not in batch:
            tensors = self._outputs(on_device, outputs or ("logits",), inline)
            self.num_forwards += 1
            return Forward("", torch.tensor(math.nan), 0, {}, tensors)
        units = engine.stage.units(batch)
        if not units:
            raise InvalidInput(
                "The batch has nothing to learn: all of its labels are masked.",
                do="Give rows with an assistant turn, a pair or a label.",
                code="E-DATA-EMPTY",
            )
        tensors = self._outputs(on_device, outputs, inline) if outputs else {}
        if engine.rotation is not None:
            engine.rotation.show(self.global_step, engine.optimizer)
        part, factor = self.parallelism.cut_batch(engine.stage, on_device)
        reference = self._reference_scores(part)
        with strict_kernels(engine.strict), self.autocast():
            scores = self.parallelism.scores(engine.stage, engine.model, part, engine.head)
            total, metrics = engine.stage.loss(part, scores, reference, engine.config)
        if factor != 1.0:
            total, metrics = total * factor, {name: value * factor for name, value in metrics.items()}
        loss = total / (normalizer if normalizer is not None else units)
        return Forward(self.keep_graph(loss), loss.detach(), units, metrics, tensors)

    def _reference_scores(self, batch: Batch) -> Scores | None:
        """Scores of the frozen reference, from the batch where they were computed before (`reference/...`)."""
        engine = self.engine
        if not engine.stage.needs_reference(engine.config):
            return None
        reference = {name.removeprefix("reference/"): batch[name] for name in batch if name.startswith("reference/")}
        return reference or self.reference_scores(batch)

    @property
    def has_reference(self) -> bool:
        return self.engine.reference is not None

    def reference_scores(self, batch: Batch) -> Scores:
        """Score a batch on the engine's device with the frozen reference: no gradients, no dropout."""
        assert self.engine.reference is not None, "a stage with a reference is built with one"
        on_device = {name: value.to(self.engine.device) for name, value in batch.items()}
        with self.engine.reference() as model, torch.no_grad(), self.autocast():
            return self.parallelism.scores(self.engine.stage, model, on_device, self.engine.head)

    @property
    def pad_id(self) -> int:
        return find_pad_id(self.engine.tokenizer)

    @cached_property
    def context(self) -> int | None:
        """Return tokens that the model can see at once; None where its config does not say."""
        return find_context(self.engine.model.config)

    def scores(self, batch: Batch) -> Scores:
        """Return the policy's scores of a batch, without dropout and without a graph."""
        engine = self.engine
        on_device = {name: value.to(engine.device) for name, value in batch.items()}
        return self._quietly(lambda model: engine.stage.score(model, on_device, engine.head))

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        """Continue token prompts with the frozen reference, as `generate` does with the model."""
        assert self.engine.reference is not None, "a stage with a reference is built with one"
        with self.engine.reference() as model, torch.no_grad(), fork_rng(self.engine.device), self.autocast():
            return sample(model, self.engine.tokenizer, prompts, sampling)

    def evaluate(self, batch: Batch) -> Evaluated:
        """Score a batch as `forward` does, but without dropout and without a graph. Nothing that training reads is
        changed, its random numbers included; a pending graph stays."""
        engine = self.engine
        on_device = {name: value.to(engine.device) for name, value in batch.items()}
        with self.quiet():
            reference = self._reference_scores(on_device)
            scores = self.parallelism.scores(engine.stage, engine.model, on_device, engine.head)
            total, metrics = engine.stage.loss(on_device, scores, reference, engine.config)
        sums = {name: float(value) for name, value in {"loss": total, **metrics}.items()}
        return Evaluated(sums, engine.stage.units(batch))

    def _outputs(self, batch: Batch, names: Sequence[str], inline: bool) -> JsonObject:
        require_outputs(names)
        with torch.no_grad(), self.autocast(), fork_rng(self.engine.device):
            outputs = self.parallelism.run(self.engine.model, lambda model: read_outputs(model, batch, names))
        if not self.parallelism.leading:
            return {}
        at = self.folder / "outputs" / f"forward-{self.num_forwards + 1}"
        return {
            name: dump_output(name, value, at.with_name(f"{at.name}-{name}.safetensors"), inline=inline)
            for name, value in outputs.items()
        }

    @draw_own
    def _backward(self, forward_id: str, scale: float, measure: bool) -> Backward:
        self.require_fresh_gradients()
        if self._pending is None or self._pending[0] != forward_id:
            raise Conflict(
                f"The graph of {forward_id!r} is not there any more.",
                why="A forward's graph is good for one backward, and a later forward replaces it.",
                do="Call forward again and use its id.",
                code="E-STEP",
            )
        loss, self._pending = self._pending[1], None
        self.parallelism.before_backward(self.parameters)
        with strict_kernels(self.engine.strict):
            self.scaler.scale(loss * scale if scale != 1.0 else loss).backward()
        self.parallelism.after_backward(self.parameters)
        self.accumulated += 1
        if not measure:
            return Backward(self.accumulated)
        norm = self._grad_norm()
        return Backward(self.accumulated, norm, not math.isfinite(norm))

    def keep_graph(self, loss: torch.Tensor) -> str:
        """Keep the graph of a loss that a caller computed for one `backward`, and return its id."""
        self.num_forwards += 1
        self._pending = (f"forward-{self.num_forwards}", loss)
        return self._pending[0]

    def require_fresh_gradients(self) -> None:
        """Raise `Conflict` (`E-STEP`) after a step without `zero_grad`."""
        if self.stale:
            raise Conflict(
                "The gradients belong to a step that is done.",
                why="A backward now would use them a second time.",
                do="Call zero_grad first.",
                code="E-STEP",
            )

    def _grad_norm(self) -> float:
        """Norm of the gradients without the scaler's factor, which stays in them."""
        scale = self.scaler.get_scale() if self.scaler.is_enabled() else 1
        return float(self.parallelism.norm(self.parameters)) / scale

    @draw_own
    def _step(
        self,
        max_grad_norm: float | None,
        learning_rate: float | None,
        metric: float | None,
        options: Mapping[str, object],
    ) -> Stepped:
        if not self.accumulated:
            raise Conflict("There is no gradient to step with.", do="Call forward and backward first.", code="E-STEP")
        engine = self.engine
        self.parallelism.sync_gradients(self.parameters, scaled=self.scaler.is_enabled())
        self.scaler.unscale_(engine.optimizer)
        limit = engine.config.hyperparameters.max_grad_norm if max_grad_norm is None else max_grad_norm
        norm = self.parallelism.clip(self.parameters, limit)
        if not self.scaler.is_enabled():
            require_finite_gradients(float(norm), self.global_step + 1)
        used = self._override_groups(learning_rate, options)
        before = self.scaler.get_scale()
        self.scaler.step(engine.optimizer)
        self.scaler.update()
        skipped = self.scaler.is_enabled() and self.scaler.get_scale() < before
        self._restore_groups(used)
        self.accumulated, self.stale = 0, True
        rate = engine.optimizer.param_groups[0]["lr"] if learning_rate is None else learning_rate
        if skipped:
            self.skipped += 1
        else:
            self.global_step += 1
            engine.rate.step(metric)
        self.parallelism.after_step(self.global_step + self.skipped)
        return Stepped(skipped, self.global_step, float(rate), norm)

    def _override_groups(self, learning_rate: float | None, options: Mapping[str, object]) -> list[JsonObject]:
        """Set a step's own rate, keeping the ratio of the groups, and options; returns the previous values."""
        groups = self.engine.optimizer.param_groups
        names = [*options, *(["lr"] if learning_rate is not None else [])]
        before = [{name: group[name] for name in names if name in group} for group in groups]
        first = float(groups[0].get("initial_lr", groups[0]["lr"])) or 1.0
        for group in groups:
            group.update({name: value for name, value in options.items() if name in group})
            if learning_rate is not None:
                group["lr"] = learning_rate * float(group.get("initial_lr", group["lr"])) / first
        return before

    def _restore_groups(self, before: list[JsonObject]) -> None:
        for group, values in zip(self.engine.optimizer.param_groups, before, strict=True):
            group.update(values)

    def _zero_grad(self) -> None:
        self.engine.optimizer.zero_grad(set_to_none=True)
        self.parallelism.clear(self.engine.model)
        self.accumulated, self.stale, self._pending = 0, False, None

    def _generate(self, prompts: Sequence[Sequence[int]], sampling: JsonObject) -> list[Generated]:
        self._require_logits()
        arguments = (self.engine.tokenizer, prompts, Sampling(**sampling))
        return self._quietly(lambda model: sample(model, *arguments, reader=choose_reader(model)))

    def _logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float | None]]:
        self._require_logits()
        return self._quietly(lambda model: token_logprobs(model, self.engine.tokenizer, rows))

    def score_prompt(self, prompt: Sequence[int], questions: PromptQuestions) -> PromptScores:
        """Return more about the tokens of one prompt than `logprobs` does. Raises as that."""
        self._require_logits()
        return self._quietly(lambda model: score_prompt(model, prompt, questions))

    def _require_logits(self) -> None:
        if self.engine.stage.head != "causal":
            raise InvalidInput(
                "A reward model gives a number to a row, and no probability to a token.",
                do="Use forward with outputs: logits, which are its rewards.",
                code="E-STEP",
            )

    def _save(self, name: str, kind: str) -> JsonObject:
        if kind != "weights":
            return snapshots.save_snapshot(self.folder, name, self.snapshot(), kind, self.sealer)
        self.show_served()
        try:
            return snapshots.save_snapshot(self.folder, name, self.snapshot(), kind, self.sealer)
        finally:
            self.show_trained()

    def _load(self, name: str, optimizer: bool) -> JsonObject:
        snapshot, facts = snapshots.load_snapshot(self.folder, name, self.sealer)
        if optimizer:
            snapshots.require_whole(snapshot, name)
            snapshots.require_same(snapshot, self.identity())
        self.restore(snapshot, optimizer=optimizer)
        return facts

    # State

    @draw_own
    def snapshot(self) -> Snapshot:
        """Return everything that decides the next number, as live tensors and plain values. Nothing is copied."""
        engine, parallelism = self.engine, self.parallelism
        self._open_blocks()
        parts = {
            "weights": parallelism.weights(engine.model),
            "optimizer": engine.optimizer.state_dict(),
            "rate": engine.rate.state_dict(),
            "scaler": {**self.scaler.state_dict(), "deferred_unscale": bool(self.accumulated)},
            "gradients": parallelism.gradients(engine.model) if self.accumulated or self.stale else {},
            "random": state.random_state(),
            "counters": {name: getattr(self, name) for name in COUNTERS},
            **parallelism.own_parts(),
        }
        return Snapshot(parts, self.identity())

    def identity(self) -> JsonObject:
        """Return what a state has to have in common with this session so that it continues here."""
        return snapshots.identity(self.config_sha256, self.engine.precision.value, self.parallelism.layout)

    def restore(self, snapshot: Snapshot, *, optimizer: bool = True) -> None:
        """Load a snapshot and continue from it; with `optimizer=False` load only its weights.

        Raises `Corrupt` for one that does not fit, and then nothing has changed.
        """
        self.require_fit(snapshot, everything=optimizer)
        self._zero_grad()
        self._take_over(snapshot.parts, everything=optimizer)

    def require_fit(self, snapshot: Snapshot, *, everything: bool) -> None:
        """Raise `Corrupt` for parts that do not belong to this session's model, schedule or devices."""
        parts = snapshot.parts
        self._open_blocks()
        if "weights" in parts:
            state.require_same_weights(self.engine.model, parts["weights"])
        if everything and "rate" in parts:
            self.engine.rate.require_same(parts["rate"])
        if everything and "random" in parts:
            state.require_same_devices(parts["random"])

    @draw_own
    def _take_over(self, parts: JsonMapping, *, everything: bool) -> None:
        """Take over the parts; only the weights unless `everything`. A part that is missing is left as it is."""
        engine = self.engine
        self._open_blocks()
        if "weights" in parts:
            self.parallelism.take_weights(engine.model, parts["weights"])
        if not everything:
            self.parallelism.begin_from_weights()
            return
        self.parallelism.take_own_parts(parts)
        if "optimizer" in parts:
            engine.optimizer.load_state_dict(parts["optimizer"])
        if "rate" in parts:
            engine.rate.load_state_dict(parts["rate"])
        if "scaler" in parts and self.scaler.is_enabled():
            self.scaler.load_state_dict({k: v for k, v in parts["scaler"].items() if k != "deferred_unscale"})
        if "gradients" in parts:
            self.parallelism.take_gradients(engine.model, parts["gradients"])
        if "counters" in parts:
            for name, value in parts["counters"].items():
                setattr(self, name, value)
        if "random" in parts:
            state.restore_random_state(parts["random"])

    def _open_blocks(self) -> None:
        """Let every weight that is trained at some step count as trainable; the next forward closes the others."""
        if self.engine.rotation is not None:
            self.engine.rotation.open()

    def show_served(self) -> None:
        """Put the weights in place that are served: schedule-free AdamW's average, not the point that it trains at."""
        switch_to_eval(self.engine.optimizer)
        self.parallelism.show_served()

    def show_trained(self) -> None:
        """Put the weights in place that the next step moves."""
        self.parallelism.show_trained()
        switch_to_train(self.engine.optimizer)

    def finish(self) -> None:
        """End a training: processes that trained apart come together."""
        self.parallelism.finish()

    def count_forwards_from(self, number: int) -> None:
        """Number the next passes after those of the session that is continued."""
        self.num_forwards = number

    def reset_optimizer(self) -> None:
        """Let the optimizer begin again with what it had before its first step."""
        self.engine.optimizer.state.clear()

    def drop_reference(self) -> None:
        """Free the frozen reference, when its scores are known for every example."""
        self.engine.reference = None

    @property
    def has_graph(self) -> bool:
        """Return whether a forward waits for its backward; a saved state does not contain its graph."""
        return self._pending is not None

    # Surroundings

    def autocast(self) -> AbstractContextManager[Any]:
        half = AUTOCAST.get(self.engine.precision)
        return torch.autocast(self.engine.device, dtype=half or torch.bfloat16, enabled=half is not None)

    def _train(self) -> None:
        self.engine.model.train(self.engine.stage.dropout)
        switch_to_train(self.engine.optimizer)

    def _quietly(self, work: Callable[[Any], Found]) -> Found:
        """`work(model)` without dropout, gradients, or a trace in the generators that training draws from."""
        with self.quiet():
            return self.parallelism.run(self.engine.model, work)

    @contextmanager
    def showing(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Other trained weights in place while the block runs; a graph that is pending is as good as before.

        Raises `Corrupt` (`E-CHECKPOINT-MISMATCH`) for those of another model or method.
        """
        state.require_same_weights(self.engine.model, weights)
        with _unsafe_preserve_version_counter(tuple(self.parameters)):
            weights_before = {
                name: value.detach().clone() for name, value in self.parallelism.weights(self.engine.model).items()
            }
            self.parallelism.take_weights(self.engine.model, dict(weights))
            try:
                yield
            finally:
                self.parallelism.take_weights(self.engine.model, weights_before)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """The model in evaluation mode, as it is served, while the block runs.

        A schedule-free optimizer shows its average meanwhile and then puts back the same bits: a graph that is pending
        is as good as before, which autograd cannot know.
        """
        with _unsafe_preserve_version_counter(tuple(self.parameters)):
            self.engine.model.eval()
            switch_to_eval(self.engine.optimizer)
            try:
                with torch.no_grad(), fork_rng(self.engine.device), self.autocast():
                    yield
            finally:
                self._train()
