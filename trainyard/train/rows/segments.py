"""Several sequences in one row: which token sees which, and to which sequence a label belongs.

    as two rows    prompt chosen    prompt rejected
    as one row     prompt chosen l rejected            l: the last token of the prompt

All answers to a prompt lie behind it in one row, so that it is computed once (arXiv 2410.20305). Each answer sees the
prompt and itself, and its positions continue those of the prompt: its log-probabilities are the same but for rounding.
A label is predicted from the position before it. Each answer after the first therefore begins with the last token of
the prompt once more, which costs one position an answer.

Besides the tensors of every batch, one of such rows has (B, T)

    position_ids    positions within the own sequence
    sequence_ids    number of the sequence; a shared prompt has that of its first answer; -1: padding
    prompt_groups   number of the prompt that a token sees, from 1; negative on the tokens that are shared; 0: padding

Without `prompt_groups`, each sequence sees itself alone, which attention reads from the positions.

Shapes: B rows, T positions, S sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.utils.rnn import pad_sequence

from trainyard.train.contracts import IGNORED, MASK_GROUPS, SEQUENCES, Batch, Encoded


@dataclass(frozen=True)
class PromptGroup:
    """A prompt with its answers, each with its number among the sequences of the batch."""

    prompt: list[int]
    answers: Sequence[tuple[int, list[int]]]
    labels: Mapping[int, list[int]] = field(default_factory=dict)
    """Sequence -> labels of its answer, where they are not its ids."""

    @property
    def width(self) -> int:
        """Positions of the group in a row."""
        repeated = (len(self.answers) - 1) * len(self.prompt[-1:])
        return len(self.prompt) + sum(len(answer) for _, answer in self.answers) + repeated

    def separate(self) -> list[PromptGroup]:
        """Return each answer with a prompt of its own."""
        return [PromptGroup(self.prompt, [answer], self.labels) for answer in self.answers]

    def row(self, number: int) -> Encoded:
        """Return the group as a row of tokens, `number` being its prompt's."""
        shared, last = self.prompt[:-1], self.prompt[-1:]
        row: Encoded = {
            "input_ids": [*shared],
            "labels": [IGNORED] * len(shared),
            "position_ids": [*range(len(shared))],
            SEQUENCES: [self.answers[0][0]] * len(shared),
            MASK_GROUPS: [-number] * len(shared),
        }
        for sequence, answer in self.answers:
            answer_ids = [*last, *answer]
            row["input_ids"] += answer_ids
            labels = [*last, *self.labels.get(sequence, answer)]
            row["labels"] += [IGNORED, *labels[1:]]
            row["position_ids"] += range(len(shared), len(shared) + len(answer_ids))
            row[SEQUENCES] += [sequence] * len(answer_ids)
            row[MASK_GROUPS] += [number] * len(answer_ids)
        return row


def collate_rows(groups: Sequence[PromptGroup], pad_id: int) -> Batch:
    """Return a row for each group, filled up on the right to the longest."""
    rows = [group.row(number) for number, group in enumerate(groups, 1)]
    filled = {"input_ids": pad_id, "labels": IGNORED, "position_ids": 0, SEQUENCES: -1, MASK_GROUPS: 0}
    batch = {
        name: pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=value)
        for name, value in filled.items()
    }
    return {**batch, "attention_mask": (batch[SEQUENCES] >= 0).long()}


def collate_packed(groups: Iterable[PromptGroup], *, shared: bool) -> Batch:
    """Return all groups end to end in one row (1, T); unless `shared`, each answer has a prompt of its own."""
    apart = groups if shared else (separate_group for group in groups for separate_group in group.separate())
    rows = [group.row(number) for number, group in enumerate(apart, 1)]
    names = [name for name in rows[0] if shared or name != MASK_GROUPS]
    return {name: torch.tensor([[value for row in rows for value in row[name]]]) for name in names}


def sequence_lengths(batch: Batch) -> torch.Tensor:
    """Return tokens of each sequence with its prompt, however often that is computed: (S,)."""
    own_N = batch[SEQUENCES] >= 0
    lengths_S = torch.zeros(int(batch[SEQUENCES].max()) + 1, dtype=torch.long, device=own_N.device)
    return lengths_S.scatter_reduce(0, batch[SEQUENCES][own_N], batch["position_ids"][own_N] + 1, "amax")


@dataclass(frozen=True)
class RowLayout:
    """Layout of the examples of a stage in rows that have several sequences each."""

    groups: Callable[[Sequence[Encoded]], list[PromptGroup]]
    """Examples of a batch -> its prompts, each with its answers."""
    complete: Callable[[Batch, Sequence[Encoded]], Batch]
    """Adds what else the loss of the stage reads."""

    def collate(self, examples: Sequence[Encoded], pad_id: int, *, shared: bool, packed: bool) -> Batch:
        """(examples, padding id) -> batch on the CPU."""
        groups = self.groups(examples)
        batch = collate_packed(groups, shared=shared) if packed else collate_rows(groups, pad_id)
        return self.complete(batch, examples)

    def width(self, example: Encoded, *, shared: bool) -> int:
        """Positions that an example takes in a batch."""
        groups = self.groups([example])
        return sum(part.width for group in groups for part in ([group] if shared else group.separate()))
