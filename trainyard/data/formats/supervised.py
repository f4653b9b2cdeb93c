"""What a shape is, and those that become SftRow, TextRow or DocumentRow: chat, Alpaca, prompt and completion, text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.data.formats import messages
from trainyard.data.formats.messages import Record, check_answered, optional_text, require_text, tools_of
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import DocumentRow, Message, Row, SftRow, TextRow
from trainyard.spec.axes.data import DataFormat, Port

Keys = frozenset[str]


@dataclass(frozen=True)
class RowShape:
    """One spelling of a row."""

    name: str
    port: Port
    formats: tuple[DataFormat, ...]
    """The formats that may have it; a reader reports the first where `auto` was asked for."""
    has: Callable[[Keys], bool]
    """Whether a row with these keys has the shape."""
    known: Keys
    """Keys that the shape reads; every other key is ignored and counted."""
    parse: Callable[[Mapping[str, Any]], Row]


def having(*names: str) -> Callable[[Keys], bool]:
    return frozenset(names).issubset


ALPACA_KEYS = frozenset({"instruction", "input", "output", "system", "history"})
PAIRS = (
    ("prompt", "completion"),
    ("question", "answer"),
    ("prompt", "response"),
    ("question", "response"),
    ("query", "response"),
    ("instruction", "response"),
    ("input", "output"),
)
"""Names of a prompt and its completion, the first pair that a row has counts."""
PAIR_KEYS = frozenset(name for pair in PAIRS for name in pair)
NEXT_TO_PAIRS = frozenset({"system", "tools", "steps"})
CHAT_KEYS = frozenset({"tools", "functions", "parallel_tool_calls", "system"})


def conversation(record: Record) -> list[Message]:
    """`messages` (OpenAI) or `conversations` (ShareGPT), with the row's `system` key put first."""
    key = "messages" if "messages" in record else "conversations"
    return with_system(record, messages.read_messages(record[key], key))


def with_system(record: Record, turns: list[Message]) -> list[Message]:
    system = optional_text(record, "system")
    return [Message("system", system), *turns] if system and turns[0].role != "system" else turns


def chat(record: Record) -> SftRow:
    return SftRow(check_answered(conversation(record), "the conversation"), tools=tools_of(record))


def alpaca_prompt(record: Record) -> list[Message]:
    """instruction, a newline and input, after the `history` of earlier questions and answers."""
    instruction, added = messages.text_of(record["instruction"], "instruction"), optional_text(record, "input")
    prompt = f"{instruction}\n{added}" if instruction and added else instruction or added
    turns = []
    history = record.get("history") or []
    if not isinstance(history, list):
        raise BadRow("wrong_type", f"history is {messages.kind_of(history)}, expected a list of pairs")
    for index, pair in enumerate(history):
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRow("wrong_type", f"history[{index}] is not a pair of question and answer")
        said = zip(("user", "assistant"), pair, strict=True)
        turns += [Message(role, messages.text_of(part, f"history[{index}]")) for role, part in said]
    return with_system(record, [*turns, Message("user", require_text(prompt, "instruction"))])


def alpaca(record: Record) -> SftRow:
    return SftRow([*alpaca_prompt(record), Message("assistant", require_text(record["output"], "output"))])


def pair_of(keys: Any) -> tuple[str, str] | None:
    """Return the names of a row's prompt and completion."""
    return next((pair for pair in PAIRS if pair[0] in keys and pair[1] in keys), None)


def as_turns(value: Any, role: str, field: str) -> list[Message]:
    """A string as one turn of `role`, an object as one turn, a list as turns."""
    if isinstance(value, list | dict):
        return messages.read_messages([value] if isinstance(value, dict) else value, field)
    return [Message(role, require_text(value, field))]


def prompt_completion(record: Record) -> SftRow:
    pair = pair_of(record)
    assert pair is not None
    prompt = with_system(record, as_turns(record[pair[0]], "user", pair[0]))
    answer = with_steps(record, as_turns(record[pair[1]], "assistant", pair[1]))
    return SftRow(check_answered([*prompt, *answer], f"{pair[0]} + {pair[1]}"), tools=tools_of(record))


def with_steps(record: Record, answer: list[Message]) -> list[Message]:
    """The answer with the row's `steps` as the reasoning of its last turn, one a line."""
    steps = record.get("steps")
    if not steps:
        return answer
    if not isinstance(steps, list):
        raise BadRow("wrong_type", f"steps is {messages.kind_of(steps)}, expected a list of strings")
    lines = [require_text(step, f"steps[{index}]").strip() for index, step in enumerate(steps)]
    last = answer[-1]
    if "reasoning_content" in last.extras:
        raise BadRow("two_reasonings", "the row has steps, and its answer has a text of reasoning")
    more = json.dumps({**last.extras, "reasoning_content": "\n".join(lines)}, ensure_ascii=False)
    return [*answer[:-1], Message(last.role, last.content, last.tool_calls, more)]


def plain_text(record: Record) -> TextRow:
    return TextRow(require_text(record["text"], "text"))


def document(record: Record) -> DocumentRow:
    """A row of a documents file: `text`, and `title` if it has one."""
    text = require_text(record["text"], "text")
    title = optional_text(record, "title") or text.strip().splitlines()[0].lstrip("# ")
    return DocumentRow("", "", "text", title[:200], text)


def has_pair(keys: Keys) -> bool:
    return pair_of(keys) is not None


SHAPES = (
    RowShape(
        "openai", Port.SFT, (DataFormat.OPENAI, DataFormat.TOOL_CALLS), having("messages"),
        CHAT_KEYS | {"messages"}, chat,
    ),
    RowShape(
        "sharegpt", Port.SFT, (DataFormat.SHAREGPT, DataFormat.TOOL_CALLS), having("conversations"),
        CHAT_KEYS | {"conversations"}, chat,
    ),
    RowShape("alpaca", Port.SFT, (DataFormat.ALPACA,), having("instruction", "output"), ALPACA_KEYS, alpaca),
    RowShape(
        "prompt_completion", Port.SFT, (DataFormat.PROMPT_COMPLETION,), has_pair, PAIR_KEYS | NEXT_TO_PAIRS,
        prompt_completion,
    ),
    RowShape("text", Port.TEXT, (DataFormat.TEXT,), having("text"), frozenset({"text"}), plain_text),
)  # fmt: skip
DOCUMENT = RowShape(
    "document", Port.DOCUMENTS, (DataFormat.DOCUMENTS,), having("text"), frozenset({"text", "title"}), document
)
