"""Rows of latent techniques as tokens: a prompt, the steps of its reasoning, and the answer, each of them separately.

Only the last turn of the assistant is learned, which is the one that a served model writes. The prompt has the ids that
it has when the model is served. The steps are the lines of the turn's reasoning (`reasoning_content`), or those before
a line that begins with `####`, as GSM8K writes them. Imports no torch: a check of a chain encodes rows, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial

from transformers import PreTrainedTokenizerBase

from trainyard.data.renderers.rendering import Renderer
from trainyard.data.rows import Message, SftRow
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Encoded
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
