"""Our losses over log-probabilities that a service computes.

A stage scores a batch by `label_logprobs(model, …)`. Here the model is a `ServiceModel`, which asks the service and
hands the answer out as leaves of a graph: the gradient of a loss stops there, and is what the service needs for
its own
backward pass.

Shapes: B rows, T positions, N labelled positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from trainyard.backends.remote_steps.service import ServiceRow
from trainyard.train.contracts import IGNORED, Batch
from trainyard.train.model.head import LabelLogprobs

Ask = Callable[[Sequence[ServiceRow]], list[torch.Tensor]]
"""Rows -> the log-probability of each target, (T,) a row."""


@dataclass(frozen=True)
class BatchRows:
    """The rows of a batch that have a label, as a service takes them."""

    rows: list[ServiceRow]
    numbers: list[int]
    """Row of the batch of each."""
    learned: list[torch.Tensor]
    """(T,) of each: which targets are labels."""

    @classmethod
    def read(cls, batch: Batch) -> BatchRows:
        """Return the rows of `input_ids`, `attention_mask` and `labels`, without padding and rows without labels."""
        rows, numbers, learned = [], [], []
        for number, (ids_T, mask_T, labels_T) in enumerate(
            zip(batch["input_ids"], batch["attention_mask"].bool(), batch["labels"], strict=True)
        ):
            ids, labels = ids_T[mask_T], labels_T[mask_T][1:]
            if bool((labels != IGNORED).any()):
                targets = torch.where(labels != IGNORED, labels, ids[1:])
                rows.append(ServiceRow(ids[:-1].tolist(), targets.tolist()))
                numbers.append(number)
                learned.append(labels != IGNORED)
        return cls(rows, numbers, learned)

    def pick(self, logprobs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the log-probabilities of the labels, in the order of rows and positions: (N,)."""
        picked = [values_T[mask_T] for values_T, mask_T in zip(logprobs, self.learned, strict=True)]
        return torch.cat(picked) if picked else torch.zeros(0)

    def spread(self, values_N: torch.Tensor) -> list[torch.Tensor]:
        """Return a value for each target of each row, 0 where it is not a label."""
        counts = [int(mask_T.sum()) for mask_T in self.learned]
        return [
            torch.zeros(len(mask_T)).masked_scatter_(mask_T, part.float())
            for mask_T, part in zip(self.learned, values_N.split(counts), strict=True)
        ]

    @property
    def row_numbers(self) -> torch.Tensor:
        """Row of the batch of every label: (N,)."""
        counts = torch.tensor([int(mask_T.sum()) for mask_T in self.learned], dtype=torch.long)
        return torch.tensor(self.numbers, dtype=torch.long).repeat_interleave(counts)


@dataclass
class ServiceModel:
    """The model as a stage sees it: it scores labels by what `ask` returns."""

    ask: Ask
    asked: list[tuple[BatchRows, torch.Tensor]] = field(default_factory=list)
    """Rows that were scored with a graph, and their log-probabilities as a leaf of it."""

    def score_labels(self, batch: Batch) -> LabelLogprobs:
        """Return the log-probability of every label."""
        rows = BatchRows.read(batch)
        logprobs_N = rows.pick(self.ask(rows.rows) if rows.rows else [])
        if torch.is_grad_enabled():
            logprobs_N.requires_grad_()
            self.asked.append((rows, logprobs_N))
        return LabelLogprobs(logprobs_N, rows.row_numbers)

    def weights(self) -> list[tuple[BatchRows, torch.Tensor]]:
        """Return the scored rows with the weight of each label, after a backward pass: minus its gradient, (N,)."""
        return [(rows, -leaf_N.grad) for rows, leaf_N in self.asked if leaf_N.grad is not None]


def ask_zeros(rows: Sequence[ServiceRow]) -> list[torch.Tensor]:
    """Return zeros: a loss that is linear in log-probabilities has the same gradient everywhere."""
    return [torch.zeros(len(row.targets)) for row in rows]
