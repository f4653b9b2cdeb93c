"""Rows as prompts whose completions are drawn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedTokenizerBase

from trainyard.data.renderers.rendering import Renderer, turn_of
from trainyard.data.rows import SftRow
from trainyard.errors import InvalidInput
from trainyard.train.tokens import TokenLedger, encode_answers, encode_rows


def encode_prompts(
    rows: Iterable[SftRow], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[list[dict[str, Any]], TokenLedger]:
    """Rows as {input_ids: the prompt, answer: the text of the last turn of the assistant, question: the turn before,
    messages: all turns before it}.

    The prompt is the text before that turn. One of more than `max_length` tokens is left out and counted: cut, it
    would ask something else.
    """
    return encode_rows(rows, tokenizer, max_length, encode_prompt)


def encode_prompt(renderer: Renderer, row: SftRow, max_length: int, ledger: TokenLedger) -> dict[str, Any] | None:
    last = max((at for at, message in enumerate(row.messages) if message.role == "assistant"), default=0)
    if last == 0:
        ledger.rows["dropped_no_target"] += 1
        return None
    prompt, _ = encode_answers(renderer, row.messages[:last], (row.messages[last : last + 1],), row.tools, ledger)
    ledger.read += len(prompt)
    if len(prompt) > max_length:
        ledger.dropped += len(prompt)
        ledger.rows["dropped_truncated"] += 1
        return None
    ledger.masked += len(prompt)
    ledger.rows["trained"] += 1
    return {
        "input_ids": prompt,
        "answer": row.messages[last].content,
        "question": row.messages[last - 1].content,
        "messages": [turn_of(message) for message in row.messages[:last]],
    }


def require_any_prompt(ledger: TokenLedger) -> None:
    """Raise `InvalidInput` (`E-DATA-EMPTY`) where no row has a prompt that is short enough."""
    if ledger.rows["trained"]:
        return
    reasons = ", ".join(f"{n} {name}" for name, n in sorted(ledger.rows.items()) if name.startswith("dropped"))
    raise InvalidInput(
        f"None of {ledger.rows['read']} rows has a prompt to answer.",
        why=f"Rows by reason: {reasons}.",
        do="Raise max_length, or check that the rows have a turn of the user before one of the assistant.",
        code="E-DATA-EMPTY",
    )
