"""Assignment of rows to optimizer steps, and the split of a step into micro-batches.

The rows of a step are the same whatever the cut, and the loss is a mean over the whole step: so the cut decides speed
and memory and never the gradient (but for rounding).

    padded    batch_size rows at a time, each filled up to the longest of them
    buckets   rows of similar length together, as many as fit a budget of positions
    packed    rows end to end in one long row; attention stays inside each (by its position ids)

Answers to one prompt, such as those of a pair, may lie in one row behind it (`Cut.shared`, `rows/segments`).

Padding is the largest waste on chat rows: drawing steps from rows of similar length alone saves half of the positions.
The order is a pure function of seed and epoch, so a resumed run needs only its cursor.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorWithFlattening

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, Batch, CompletionWriter, Cursor, Encoded, StageSpec
from trainyard.train.model.head import evaluating, label_logprobs

GROUP_STEPS = 50
"""Steps' worth of rows that are sorted by length together: enough for even batches, small enough to mix."""

Mode = Literal["padded", "buckets", "packed"]
StepRows = list[list[int]]
"""The rows of one optimizer step, by micro-batch."""


@dataclass(frozen=True)
class Cut:
    """Settings of the steps: their rows and micro-batches."""

    mode: Mode
    why: str
    rows_per_step: int
    rows_per_batch: int
    budget: int
    """Most positions of a micro-batch (buckets, packed)."""
    seed: int
    shared: bool = False
    """Whether a prompt is computed once for all of its answers in a micro-batch."""
    shared_why: str = ""

    @property
    def lays_out(self) -> bool:
        """Return whether rows have several sequences, where the stage knows how they lie in them."""
        return self.shared or self.mode == "packed"


def choose_cut(config: TrainerConfig, stage: StageSpec, device: str) -> Cut:
    """Return the cut that was requested, or the one that suits the device.

    Raises `InvalidInput` (`E-BATCH`) when rows that are scored as wholes should be packed, and (`E-BATCH`)
    when a step has fewer rows than the loss compares.
    """
    hyper, batching = config.hyperparameters, config.engine.batching
    if batching == "packed" and not stage.facts.packable:
        raise InvalidInput(
            f"Rows of stage {config.stage} cannot be packed: their loss needs each row separately.",
            do="Use batching: auto or buckets.",
            code="E-BATCH",
        )
    require_rows(config)
    mode, why = batching, "asked for"
    if mode == "auto":
        mode = "packed" if device == "cuda" and stage.facts.packable and stage.sequences == 1 else "buckets"
        why = "packed rows on CUDA" if mode == "packed" else "rows of similar length waste no positions on this device"
    if stage.facts.compares_rows and mode == "buckets":
        mode, why = "padded", f"stage {config.stage} compares the rows of a batch"
    if config.stage.drawn_tokens and mode == "buckets":
        mode, why = "padded", f"the rows of stage {config.stage} grow by what is drawn"
    budget = config.engine.token_budget or max(hyper.max_length, hyper.batch_size * hyper.max_length // 2)
    each = config.launch.processes  # a batch is shared by all of them
    rows = hyper.batch_size * hyper.gradient_accumulation * each
    return Cut(mode, why, rows, hyper.batch_size * each, budget * each, hyper.seed)


def require_rows(config: TrainerConfig) -> None:
    """Raise `InvalidInput` (`E-BATCH`) when a batch has fewer rows than the loss compares."""
    batch_size, smallest = config.hyperparameters.batch_size, config.stage.facts.smallest_batch
    if batch_size < smallest:
        raise InvalidInput(
            f"Stage {config.stage} compares the rows of a batch, and batch_size is {batch_size}.",
            do=f"Use a batch_size of at least {smallest}.",
            code="E-BATCH",
        )


def sound_cut(cut: Cut, model: Any, config: TrainerConfig) -> Cut:
    """Return the cut, but for packed rows that this model would mix: `auto` then takes buckets and says so.

    Raises `InvalidInput` (`E-BATCH`) when packing was requested by name.
    """
    if cut.mode != "packed" or keeps_rows_apart(model):
        return cut
    why = f"{type(model).__name__} does not keep packed rows apart"
    if config.engine.batching == "packed":
        raise InvalidInput(
            f"{why}.",
            why="A token of one row would change what is predicted in another.",
            do="Use batching: auto or buckets.",
            code="E-BATCH",
        )
    return replace(cut, mode="buckets", why=why)


def keeps_rows_apart(model: Any) -> bool:
    """Return whether the first of two packed rows leaves the second one alone.

    Attention has to read the borders from the position ids, which not every family's does; a recurrent layer cannot.
    """
    vocab_size = model.config.get_text_config().vocab_size
    last = [token % vocab_size for token in range(5, 12)]
    hidden_states = []
    with evaluating(model):
        for first in ([1, 2, 3, 4], [4, 1, 1, 2]):
            rows = [{"input_ids": row, "labels": row} for row in ([token % vocab_size for token in first], last)]
            batch = {name: value.to(model.device) for name, value in pack(rows, 0).items()}
            hidden_states.append(label_logprobs(model, batch).logprobs_N[-len(last) + 1 :])
    exact = model.dtype is torch.float32 and getattr(model.config, "quantization_config", None) is None
    close = 1e-4 if exact else 2e-2
    first_N, second_N = hidden_states
    return torch.allclose(first_N, second_N, rtol=close, atol=close, equal_nan=True)


class BatchPlan:
    """The steps of every epoch over rows of known widths."""

    def __init__(self, widths: Sequence[int], cut: Cut, stage: StageSpec, extents: Sequence[int] | None = None) -> None:
        """`extents` are the positions of each example, where all of its sequences lie in one row.

        The rows of a step follow from `widths` alone, so they are the same with every layout.
        """
        self.widths, self.cut, self.stage = widths, cut, stage
        self.extents = widths if extents is None else extents
        self.rows_each = stage.sequences if extents is None else 1
        self._epoch_steps: tuple[int, list[StepRows]] | None = None

    @property
    def steps_per_epoch(self) -> int:
        full, rest = divmod(len(self.widths), self.cut.rows_per_step)
        return max(1, full + (rest >= self.stage.facts.smallest_batch))

    def steps(self, epoch: int) -> list[StepRows]:
        """Return the steps of an epoch, each cut into micro-batches; every row occurs once."""
        if self._epoch_steps is None or self._epoch_steps[0] != epoch:
            self._epoch_steps = (epoch, self._draw(epoch))
        return self._epoch_steps[1]

    def at(self, cursor: Cursor) -> StepRows:
        return self.steps(cursor.epoch)[cursor.step]

    def after(self, cursor: Cursor) -> Cursor:
        """Return the cursor after the micro-batch at `cursor`."""
        if cursor.micro + 1 < len(self.at(cursor)):
            return Cursor(cursor.epoch, cursor.step, cursor.micro + 1)
        if cursor.step + 1 < len(self.steps(cursor.epoch)):
            return Cursor(cursor.epoch, cursor.step + 1, 0)
        return Cursor(cursor.epoch + 1, 0, 0)

    def padding_ratio(self, epoch: int = 0) -> float:
        """Return the share of an epoch's positions that are padding."""
        slots = sum(self._positions(micro) for step in self.steps(epoch) for micro in step)
        return 1 - sum(self.extents) / slots if slots else 0.0

    def _positions(self, rows: list[int]) -> int:
        extents = [self.extents[row] for row in rows]
        return sum(extents) if self.cut.mode == "packed" else len(extents) * max(extents)

    def _draw(self, epoch: int) -> list[StepRows]:
        generator = random.Random(f"{self.cut.seed}:{epoch}")
        rows = list(range(len(self.widths)))
        generator.shuffle(rows)
        size = self.cut.rows_per_step
        if self.cut.mode == "buckets":
            group = size * GROUP_STEPS
            parts = [sorted(rows[at : at + group], key=self.widths.__getitem__) for at in range(0, len(rows), group)]
            steps = [part[at : at + size] for part in parts for at in range(0, len(part), size)]
            generator.shuffle(steps)
        else:
            steps = [rows[at : at + size] for at in range(0, len(rows), size)]
        steps = merge_small(steps, self.stage.facts.smallest_batch)
        return [self.cut_rows(step) for step in steps]

    def cut_rows(self, rows: list[int]) -> StepRows:
        """Return the same rows in micro-batches."""
        if self.cut.mode == "padded":
            size = self.cut.rows_per_batch
            parts = [rows[at : at + size] for at in range(0, len(rows), size)]
            return merge_small(parts, self.stage.facts.smallest_batch)
        ordered = sorted(rows, key=lambda row: (-self.extents[row], row))
        micros: StepRows = [[]]
        for row in ordered:
            if micros[-1] and self._positions([*micros[-1], row]) * self.rows_each > self.cut.budget:
                micros.append([])
            micros[-1].append(row)
        return micros


def make_plan(examples: Sequence[Encoded], cut: Cut, stage: StageSpec) -> BatchPlan:
    """Return the plan of these examples, in the layout of the cut."""
    layout, widths = stage.layout, [stage.width(example) for example in examples]
    if layout is None or not cut.lays_out:
        return BatchPlan(widths, cut, stage)
    return BatchPlan(widths, cut, stage, [layout.width(example, shared=cut.shared) for example in examples])


@dataclass
class Feed:
    """The batches of a run: examples, the plan of their steps, and scores of the reference where they are known."""

    examples: Sequence[Encoded]
    plan: BatchPlan
    stage: StageSpec
    pad_id: int
    reference: Sequence[Mapping[str, float]] | None = None
    """Scores of the frozen reference, one mapping an example: computed once, used in every epoch."""

    def step(self, cursor: Cursor) -> list[Batch]:
        """Return all micro-batches of the step at `cursor`."""
        return [self.batch(rows, cursor.epoch) for rows in self.plan.at(cursor)]

    def draw_batches(
        self, cursor: Cursor, writer: CompletionWriter, config: TrainerConfig, state: JsonObject
    ) -> list[Batch]:
        """Return the same, with the completions that the stage draws. All of them are of the weights before the step,
        so a
        run that is resumed inside it draws the same. What more than one step learns from goes to `state`."""
        draw, batches = self.stage.draw, self.step(cursor)
        if draw is None:
            return batches
        positions = (f"{cursor.epoch}:{cursor.step}:{micro}" for micro in range(len(batches)))
        return [
            draw(writer, batch, config, self.pad_id, position)
            for batch, position in zip(batches, positions, strict=True)
        ]

    def batch(self, rows: Sequence[int], epoch: int | None = None) -> Batch:
        """Return a batch of rows, as they are learned in an epoch or, without one, as the model is served."""
        batch = self._collate(rows, packed=self.plan.cut.mode == "packed", epoch=epoch)
        if self.reference is not None:
            names = self.reference[rows[0]]
            reference = {name: torch.tensor([self.reference[row][name] for row in rows]) for name in names}
            batch |= {f"reference/{name}": value for name, value in reference.items()}
        return batch

    def in_order(self, rows_per_batch: int) -> Iterator[tuple[list[int], Batch]]:
        """Yield every example once, in batches of similar length that depend on the examples alone."""
        order = sorted(range(len(self.examples)), key=lambda row: (self.plan.widths[row], row))
        for at in range(0, len(order), rows_per_batch):
            rows = order[at : at + rows_per_batch]
            yield rows, self._collate(rows, packed=False)

    def _collate(self, rows: Sequence[int], *, packed: bool, epoch: int | None = None) -> Batch:
        examples, shared = [self.examples[row] for row in rows], self.plan.cut.shared
        if self.stage.at_epoch is not None and epoch is not None:
            examples = [self.stage.at_epoch(self.examples[row], row, epoch) for row in rows]
        if self.stage.layout is not None and (packed or shared):
            return self.stage.layout.collate(examples, self.pad_id, shared=shared, packed=packed)
        return (pack if packed else self.stage.collate)(examples, self.pad_id)


def merge_small(parts: list[list[int]], least: int) -> list[list[int]]:
    """Return the same parts, with one that has fewer than `least` rows joined to the one before it."""
    if len(parts) > 1 and len(parts[-1]) < least:
        return [*parts[:-2], parts[-2] + parts[-1]]
    return parts


def pack(examples: Sequence[Encoded], _pad_id: int) -> Batch:
    """Return rows end to end as one row (1, T) with position ids that begin again at each; no mask is needed."""
    batch: Batch = DataCollatorWithFlattening()(examples)
    return batch


def pad(examples: Sequence[Encoded], pad_id: int) -> Batch:
    """Return rows filled up on the right to the longest: `input_ids`, `attention_mask`, `labels` (B, T)."""
    ids = [torch.tensor(example["input_ids"]) for example in examples]
    labels = [torch.tensor(example["labels"]) for example in examples]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad_id),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }
