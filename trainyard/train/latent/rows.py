"""Rows of latent techniques as tokens: a prompt, the steps of its reasoning, and the answer, each of them separately.

Only the last turn of the assistant is learned, which is the one that a served model writes. The prompt has the ids that
it has when the model is served. The steps are the lines of the turn's reasoning (`reasoning_content`), or those before
a line that begins with `####`, as GSM8K writes them.

Shapes: B rows, T positions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from trainyard.data.renderers.rendering import Renderer
from trainyard.data.rows import Message, SftRow
from trainyard.json_types import JsonMapping
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, Batch, Encoded
from trainyard.train.latent.rollout import SLOTS
from trainyard.train.rows.prompts import TokenShare, encode_within_length
from trainyard.train.rows.tokens import TokenLedger, encode_answers, encode_rows

PROMPT, STEPS, LENGTHS, ANSWER = "prompt_ids", "step_ids", "step_lengths", "answer_ids"
"""What an example has: ids of the prompt, of all steps one after another, their lengths, and ids of the answer."""
MARK = "####"


def encode(
    rows: Iterable[SftRow], tokenizer: PreTrainedTokenizerBase, config: TrainerConfig, *, steps: bool
) -> tuple[list[Encoded], TokenLedger]:
    """Return the examples of the rows; with `steps`, a row that has none is dropped and counted.

    A row above `max_length` is dropped: cut, it would have no answer.
    """
    return encode_within_length(
        lambda limit: encode_rows(rows, tokenizer, limit, partial(encode_row, steps=steps)), text_width, share, config
    )


def encode_row(renderer: Renderer, row: SftRow, max_length: int, ledger: TokenLedger, *, steps: bool) -> Encoded | None:
    *before, last = row.messages
    lines, final_message = split_steps(last) if steps else ([], last)
    prompt, (encoded,) = encode_answers(renderer, before, [[final_message]], row.tools, ledger)
    answer = encoded.ids
    written = [renderer.ids(f"{line}\n", start=False) for line in lines]
    example = {
        PROMPT: prompt,
        STEPS: [token for ids in written for token in ids],
        LENGTHS: [len(ids) for ids in written],
        ANSWER: answer,
    }
    learned = last.role == "assistant" and last.learned
    lost = "" if learned else "no_target"
    if not lost and steps and not lines:
        lost = "no_steps"
    if not lost and text_width(example) > max_length:
        lost = "truncated"
    trained = len(example[STEPS]) + len(answer)
    ledger.enter(len(prompt) + trained, trained, len(prompt), lost)
    return None if lost else example


def split_steps(message: Message) -> tuple[list[str], Message]:
    """Return the steps of a turn of the assistant, and the turn without them."""
    extras = message.extras
    reasoning, content = str(extras.pop("reasoning_content", "")), message.content
    before, mark, after = content.rpartition(f"\n{MARK}")
    if not reasoning and mark:
        reasoning, content = before, after
    lines = [line.strip() for line in reasoning.splitlines() if line.strip()]
    more = json.dumps(extras) if extras else None
    return lines, Message(message.role, content.strip() if lines else message.content, message.tool_calls, more)


def text_width(example: Encoded) -> int:
    """Return tokens of a row with all of its steps in words."""
    return sum(len(example[name]) for name in (PROMPT, STEPS, ANSWER))


def share(example: Encoded) -> TokenShare:
    return TokenShare(len(example[STEPS]) + len(example[ANSWER]), len(example[PROMPT]))


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
