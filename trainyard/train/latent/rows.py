"""Rows of latent techniques as batches: the model's own vectors between a prompt and what is learned after it.

Shapes: B rows, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from trainyard.json_types import JsonMapping
from trainyard.train.contracts import IGNORED, Batch, Encoded
from trainyard.train.latent.rollout import SLOTS
from trainyard.train.rows.reasoning import ANSWER, LENGTHS, PROMPT, STEPS, encode, text_width

__all__ = ["ANSWER", "LENGTHS", "PROMPT", "STEPS", "encode", "text_width"]


def encode_steps(example: Encoded) -> list[list[int]]:
    """Return the ids of each step."""
    ids, steps = example[STEPS], []
    for length in example[LENGTHS]:
        steps.append(ids[:length])
        ids = ids[length:]
    return steps


def build_row(prompt: Sequence[int], slots: Sequence[int], learned: Sequence[int]) -> Encoded:
    """Return a row as a model reads it: the prompt, own vectors by their numbers, and the labelled tokens."""
    visible_length = len(prompt) + len(slots)
    return {
        "input_ids": [*prompt, *[0] * len(slots), *learned],
        "labels": [*[IGNORED] * visible_length, *learned],
        SLOTS: [*[0] * len(prompt), *slots, *[0] * len(learned)],
    }


def collate(
    examples: Sequence[Encoded], pad_id: int, arrange: Callable[[Encoded], Encoded], *, around: bool = False
) -> Batch:
    """Return a batch with `input_ids`, `attention_mask`, `labels` and `slots` (B, T).

    An example that is not laid out yet is arranged first, as the model is served. `around` puts the first own vector of
    every row into one column.
    """
    laid_out = [example if SLOTS in example else arrange(example) for example in examples]
    return (fill_up_around if around else pad_rows)(laid_out, pad_id)


def pad_rows(rows: Sequence[JsonMapping], pad_id: int) -> Batch:
    """Return rows of different lengths as one batch, with padding on the right."""
    fills = {"input_ids": pad_id, "labels": IGNORED, SLOTS: 0}
    batch = {
        name: pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=fill)
        for name, fill in fills.items()
    }
    masks = [torch.ones(len(row["input_ids"]), dtype=torch.long) for row in rows]
    return {**batch, "attention_mask": pad_sequence(masks, batch_first=True)}


def fill_up_around(rows: Sequence[Encoded], pad_id: int) -> Batch:
    """Return the same with the ends of all prompts in one column: padding is on the left too, and has no mask.

    The passes of a rollout are then those of the row with the most thoughts, whatever the lengths of the prompts.
    """
    starts = [
        next(index for index, (slot, label) in enumerate(zip(row[SLOTS], row["labels"], strict=True))
             if slot or label != IGNORED)
        for row in rows
    ]  # fmt: skip
    fills = {"input_ids": pad_id, "labels": IGNORED, SLOTS: 0}
    before = [max(starts) - start for start in starts]
    moved = [
        {name: [fill] * left + row[name] for name, fill in fills.items()}
        for row, left in zip(rows, before, strict=True)
    ]
    batch = pad_rows(moved, pad_id)
    columns_T = torch.arange(batch["input_ids"].shape[1])
    seen_BT = columns_T >= torch.tensor(before)[:, None]
    return {**batch, "attention_mask": batch["attention_mask"] * seen_BT}
