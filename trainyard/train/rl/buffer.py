"""The completions that some steps learn from, as plain values: a checkpoint has them, and JSON keeps each float.

A row has one entry for each token that is learned from: its log-probability when it was drawn (`old`), the reference's,
the critic's value, its advantage and its return. What is not needed is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch

from trainyard.json_types import JsonObject
from trainyard.train.contracts import IGNORED, REPORTED, Batch, Encoded
from trainyard.train.losses.scoring import WITH_VALUES
from trainyard.train.rows.batching import pad

PER_TOKEN = {
    "old": "old_N",
    "reference": "reference/logprobs_N",
    "values": "values_N",
    "advantages": "advantages_N",
    "returns": "returns_N",
}
"""Field of a row -> its tensor in a batch."""


@dataclass
class DrawnRow:
    """A prompt with its completion."""

    prompt: list[int]
    ids: list[int]
    """The completion; in a conversation with an environment also what that said."""
    learned: list[bool]
    """Which of its tokens the policy drew."""
    old: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    @property
    def encoded(self) -> Encoded:
        """As a row of stage sft whose labels are what was drawn."""
        labels = [token if is_learned else IGNORED for token, is_learned in zip(self.ids, self.learned, strict=True)]
        return {"input_ids": self.prompt + self.ids, "labels": [IGNORED] * len(self.prompt) + labels}

    @property
    def num_learned(self) -> int:
        return sum(self.learned)


@dataclass
class Rollout:
    """Rollout sampled at one place of a run."""

    place: str
    rows: list[DrawnRow]
    reported: dict[str, float]

    def as_values(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_values(cls, values: JsonObject) -> Rollout:
        return cls(values["place"], [DrawnRow(**row) for row in values["rows"]], dict(values["reported"]))

    def batch(self, row_indices: Sequence[int], pad_id: int) -> Batch:
        """Return some of its rows as a batch."""
        rows = [self.rows[index] for index in row_indices]
        batch = collate(rows, pad_id)
        for name, key in PER_TOKEN.items():
            parts = [getattr(row, name) for row in rows]
            if any(parts):
                batch[key] = torch.tensor([value for part in parts for value in part])
        if "values_N" in batch:
            batch[WITH_VALUES] = torch.tensor(True)
        reported = {f"{REPORTED}{name}": torch.tensor(value) for name, value in self.reported.items()}
        return {**batch, **reported}


def collate(rows: Sequence[DrawnRow], pad_id: int) -> Batch:
    """`input_ids`, `attention_mask`, `labels` (B, T) of drawn rows."""
    return pad([row.encoded for row in rows], pad_id)


def pad_rows(rows: Sequence[Sequence[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and mask (R, T) of rows of unequal length, filled up on the right."""
    widest = max(map(len, rows))
    values_RT = torch.tensor([[*row, *[0.0] * (widest - len(row))] for row in rows])
    mask_RT = torch.tensor([[1.0] * len(row) + [0.0] * (widest - len(row)) for row in rows])
    return values_RT, mask_RT
