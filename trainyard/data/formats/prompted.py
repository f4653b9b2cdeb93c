"""Prompts without answers: completions are sampled for them, and rewards compare these with the row's answer."""

from __future__ import annotations

from typing import Any

from trainyard.data.formats.messages import check_prompt, describe_kind, read_tools, require_storable_text
from trainyard.data.formats.records import Record
from trainyard.data.formats.supervised import Keys, RowShape, conversation, read_prompt
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import PromptRow
from trainyard.spec.axes.data import DataFormat, Port

QUESTION_KEYS = ("prompt", "question", "query", "instruction", "problem")
CHAT_KEYS = ("messages", "conversations")
ANSWER_KEYS = ("solution", "answer", "ground_truth", "reference_answer", "reference", "target")
"""Names of what a completion is compared with; the first that has a value counts."""
OTHER_ROWS = frozenset(
    {
        *CHAT_KEYS, "completion", "response", "output", "chosen", "rejected", "label", "kto_tag", "instruction",
        "question", "query", "text", "preferred_output", "non_preferred_output",
    }
)  # fmt: skip
"""Next to one of these, `prompt` alone does not say that the row is a prompt without an answer."""


def prompt_row(record: Record) -> PromptRow:
    """A row of `prompt` (text or turns), or under `format: prompts` of a question or turns under another name."""
    named = [key for key in (*QUESTION_KEYS, *CHAT_KEYS) if key in record]
    key = next(filter(record.shows, named), named[0])
    turns = conversation(record) if key in CHAT_KEYS else read_prompt(record, key)
    check_prompt(turns, key)
    return PromptRow(turns, read_answer(record), tools=read_tools(record))


def read_answer(record: Record) -> str:
    """Return the text that rewards compare with; empty where the row has none."""
    verifier = record.look("reward_model")
    if isinstance(verifier, dict) and "ground_truth" in verifier:
        return answer_text(record.part(record["reward_model"], "reward_model")["ground_truth"], "ground_truth")
    key = next((key for key in ANSWER_KEYS if record.shows(key)), None)
    return "" if key is None else answer_text(record[key], key)


def answer_text(value: Any, key: str) -> str:
    """Return a text or a number as text. Raises `BadRow`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise BadRow(
            "wrong_type", f"{key} is {describe_kind(value)}, expected a text that completions are compared with"
        )
    return require_storable_text(value or "", key)


def is_prompt(keys: Keys) -> bool:
    return "prompt" in keys and keys.isdisjoint(OTHER_ROWS)


def has_question(keys: Keys) -> bool:
    return not keys.isdisjoint((*QUESTION_KEYS, *CHAT_KEYS))


SHAPES = (RowShape("prompt", Port.PROMPTS, (DataFormat.PROMPTS,), is_prompt, prompt_row),)
NAMED = RowShape("named_prompt", Port.PROMPTS, (DataFormat.PROMPTS,), has_question, prompt_row)
"""What `format: prompts` reads as well: rows of other shapes, whose question is the prompt."""
