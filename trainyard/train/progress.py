"""The progress of a run, as stored in its checkpoints: its position, its losses, and its evaluations.

What follows from an evaluation is a pure function of the numbers: a run that was stopped and continued decides as one
that was not.

Count what a run has trained on, in the batches themselves, whatever the data set contains.

A run that ends before its first epoch does has seen a part of the rows, one of three epochs has seen each row three
times. So the record of a run has two accounts: `data`, the ledger of one pass over the set, and `tokens` with `rows`,
what was in the batches. `counted` says how the second one is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import torch

from trainyard.json_types import JsonObject
from trainyard.train.contracts import IGNORED, SEQUENCES, Batch, Cursor
from trainyard.train.history import Evaluations
from trainyard.train.rows.segments import sequence_lengths
from trainyard.train.rows.tokens import TokenLedger


class Origin(StrEnum):
    """Origin of the account of a run."""

    BATCHES = "batches"
    """Counted in each batch that moved the weights."""
    PLAN = "plan"
    """The batches that were planned for an external program, which does not report what it took."""


@dataclass
class Counted:
    """Sums over batches."""

    trained: int = 0
    """Labelled tokens: those that took part in the loss, each as often as it did."""
    masked: int = 0
    """Tokens that the model was shown without a label."""
    rows: int = 0
    """Conversations, pairs, answers or blocks of text."""
    skipped: int = 0
    """Labelled tokens of steps that moved nothing, because fp16 overflowed."""

    def add(self, other: Counted) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def add_step(self, batches: Sequence[Batch], rows: Sequence[Sequence[int]], *, skipped: bool) -> None:
        """Count the batches of a step, made of these `rows`; `skipped` where the step moved nothing."""
        for batch, batch_rows in zip(batches, rows, strict=True):
            count = count_batch(batch, len(batch_rows))
            self.add(Counted(skipped=count.trained) if skipped else count)

    def record(self, ledger: TokenLedger, origin: Origin = Origin.BATCHES) -> JsonObject:
        """Return the two accounts as `training.json` has them."""
        data: JsonObject = {"tokens": ledger.tokens(), "rows": dict(ledger.rows)}
        if ledger.refused:
            data["refused"] = {reason: counted._asdict() for reason, counted in ledger.refused.items()}
        if ledger.sets:
            data["sets"] = {name: dict(account) for name, account in ledger.sets.items()}
        return {**account_fields(asdict(self), origin), "data": data}


def account_fields(counted: Mapping[str, int], origin: Origin) -> JsonObject:
    """Fields `tokens`, `rows` and `counted` of a record."""
    tokens = {"trained": counted["trained"], "masked": counted["masked"]}
    if counted.get("skipped"):
        tokens["skipped"] = counted["skipped"]
    return {"tokens": tokens, "rows": {"trained": counted["rows"]}, "counted": origin.value}


def count_batch(batch: Batch, rows: int) -> Counted:
    """Count a batch of `rows` examples. The label of a row's first position has no predecessor and takes no part.

    A prompt that several answers share counts once for each, as it does where each answer is a row.
    """
    labels_BT = batch.get("row_labels", batch["labels"])
    trained = int((labels_BT[:, 1:] != IGNORED).sum())
    if SEQUENCES in batch:
        learned_S = batch[SEQUENCES][batch["labels"] != IGNORED].unique()
        return Counted(trained, int(sequence_lengths(batch)[learned_S].sum()) - trained, rows)
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    return Counted(trained, int(mask.count_nonzero()) - trained, rows)


@dataclass
class SavedProgress:
    """Part of a checkpoint."""

    cursor: Cursor = field(default_factory=Cursor)
    losses: list[list[float]] = field(default_factory=list)
    """[step, loss, learning rate] of every step."""
    partial: dict[str, float] = field(default_factory=dict)
    """Sums over the micro-batches of a step that is not complete."""
    counted: Counted = field(default_factory=Counted)
    """Counts of rows and tokens of the complete steps."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    """Evaluations on the held-out rows."""
    kept: JsonObject = field(default_factory=dict)
    """What the next steps learn from besides the rows: completions that were drawn for several of them."""

    def as_values(self) -> JsonObject:
        plain = {"losses": list(self.losses), "partial": dict(self.partial)}
        kept = {"kept": dict(self.kept)} if self.kept else {}
        evaluations = {"evaluations": asdict(self.evaluations)} if self.evaluations.found else {}
        return {"cursor": asdict(self.cursor), **plain, "counted": asdict(self.counted), **evaluations, **kept}

    @classmethod
    def from_values(cls, values: JsonObject) -> SavedProgress:
        losses = [list(point) for point in values["losses"]]
        return cls(
            Cursor(**values["cursor"]),
            losses,
            dict(values["partial"]),
            Counted(**values.get("counted", {})),
            Evaluations(**values.get("evaluations", {})),
            dict(values.get("kept", {})),
        )
