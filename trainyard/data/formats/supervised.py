"""Row shapes, and those that become SftRow, TextRow or DocumentRow: chat, Alpaca, prompt and completion, text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainyard.data.formats import messages
from trainyard.data.formats.messages import (
    SYSTEM_KEYS,
    check_answered,
    describe_kind,
    read_tools,
    require_storable_text,
    require_text,
)
from trainyard.data.formats.records import Record
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import DocumentRow, Message, Row, SftRow, TextRow
from trainyard.spec.axes.data import DataFormat, Port

Keys = frozenset[str]


@dataclass(frozen=True)
class RowShape:
    """A spelling of a row."""

    name: str
    port: Port
    formats: tuple[DataFormat, ...]
    """The formats that may have it; a reader reports the first where `auto` was requested."""
    has: Callable[[Keys], bool]
    """Whether a row with these keys has the shape."""
    parse: Callable[[Record], Row]
    """Reads what it uses from the record; what it leaves unread is counted as ignored. Raises `BadRow`."""


def having(*names: str) -> Callable[[Keys], bool]:
    return frozenset(names).issubset


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
TOOL_KEYS = ("tools", "functions")
ADDED_KEYS = ("input", "context")
"""Texts that belong to a prompt and follow it on a line of their own, as Alpaca's input does."""


def conversation(record: Record) -> list[Message]:
    """`messages` (OpenAI) or `conversations` (ShareGPT), with the row's `system` key put first."""
    key = "messages" if "messages" in record else "conversations"
    return with_system(record, messages.read_messages(record[key], key, record))


def with_system(record: Record, turns: list[Message]) -> list[Message]:
    """The turns after the row's system text. A system turn of their own wins, and another text counts as ignored."""
    if record.keys().isdisjoint(SYSTEM_KEYS):
        return turns
    key = next((key for key in SYSTEM_KEYS if record.shows(key)), None)
    if key is None:
        return turns
    if turns and turns[0].role == "system":
        if turns[0].content == record.look(key):
            record.read.add(key)
        return turns
    return [Message("system", require_storable_text(record[key], key)), *turns]


def chat(record: Record) -> SftRow:
    return SftRow(check_answered(conversation(record), "the conversation"), tools=read_tools(record))


def read_prompt(record: Record, key: str, *, strict: bool = False) -> list[Message]:
    """Return the turns of a prompt: system text, history, then the text under `key` with what belongs to it.

    `strict` is Alpaca's rule: `input` is a text and `history` a list, or the row is bad. In other shapes such a value
    under these names is something else, and counts as ignored.
    """
    value = record[key]
    if isinstance(value, list | dict) and not strict:
        turns = read_turns(record, key, "user")
    else:
        text = require_storable_text(value, key)
        if not record.keys().isdisjoint(ADDED_KEYS):
            texts = (
                require_storable_text(record[name], name) for name in list_continuations(record, key, strict=strict)
            )
            text = "\n".join(filter(None, (text, *texts)))
        turns = read_transcript(text) or [Message("user", require_text(text, key))]
    earlier = read_history(record, strict=strict) if "history" in record else []
    if earlier and turns[0].role == "system":
        return [turns[0], *earlier, *turns[1:]]
    return with_system(record, [*earlier, *turns])


def read_transcript(text: str) -> list[Message] | None:
    """Return the turns of a prompt that is a transcript up to the empty turn of `Assistant:`; None for other texts."""
    turns = messages.dialogue(text)
    if turns is None or turns[-1] != Message("assistant", "") or any(map(messages.is_blank, turns[:-1])):
        return None
    return turns[:-1] or None


def list_continuations(record: Record, key: str, *, strict: bool = False) -> list[str]:
    """Keys of the texts that follow the prompt under `key`."""
    names = [name for name in ADDED_KEYS if name != key and record.shows(name)]
    return [name for name in names if isinstance(record.look(name), str) or (strict and name == "input")]


def read_history(record: Record, *, strict: bool) -> list[Message]:
    """Return the turns of `history`: pairs of a question and its answer, or turns."""
    if not record.shows("history"):
        return []
    history = record.look("history")
    if isinstance(history, str) and history.lstrip()[:1] == "[":
        history = messages.turns_of_text(history, "history")
    if not isinstance(history, list):
        if strict:
            raise BadRow("wrong_type", f"history is {describe_kind(history)}, expected a list of pairs")
        return []
    record.read.add("history")
    if all(isinstance(turn, dict) for turn in history):
        return messages.read_messages(history, "history", record) if history else []
    turns = []
    for index, pair in enumerate(history):
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRow("wrong_type", f"history[{index}] is not a pair of question and answer")
        for role, part in zip(("user", "assistant"), pair, strict=True):
            turns.append(Message(role, require_storable_text(part, f"history[{index}]")))
    return turns


def alpaca_prompt(record: Record) -> list[Message]:
    """instruction, a newline and input, after the `history` of earlier questions and answers."""
    return read_prompt(record, "instruction", strict=True)


def alpaca(record: Record) -> SftRow:
    prompt = alpaca_prompt(record)
    answer = Message("assistant", require_text(record["output"], "output"))
    tools = None if record.keys().isdisjoint(TOOL_KEYS) or not has_tools(record) else read_tools(record)
    return SftRow([*prompt, answer], tools=tools)


def has_tools(record: Record) -> bool:
    """Whether `tools` of an Alpaca row is a list of schemas: other rows of this shape have a text under that name."""
    value = record.look("tools") or record.look("functions")
    if isinstance(value, list):
        return all(isinstance(tool, dict) for tool in value)
    return isinstance(value, str) and value.lstrip()[:2] == "[{"


def find_pair(keys: Any) -> tuple[str, str] | None:
    """Return the names of a row's prompt and completion."""
    return next((pair for pair in PAIRS if pair[0] in keys and pair[1] in keys), None)


def read_turns(record: Record, key: str, role: str) -> list[Message]:
    """Return a string as one turn of `role`, an object as one turn, a list as turns."""
    value = record[key]
    if isinstance(value, dict):
        return [messages.read_message(value, key, record)]
    if isinstance(value, list):
        return messages.read_messages(value, key, record)
    return [Message(role, require_text(value, key))]


def prompt_completion(record: Record) -> SftRow:
    pair = find_pair(record)
    assert pair is not None
    prompt = read_prompt(record, pair[0])
    answer = with_steps(record, read_turns(record, pair[1], "assistant"))
    return SftRow(check_answered([*prompt, *answer], f"{pair[0]} + {pair[1]}"), tools=read_tools(record))


def with_steps(record: Record, answer: list[Message]) -> list[Message]:
    """Return the answer with the row's `steps` as the reasoning of its last turn, one a line."""
    steps = record.get("steps")
    if isinstance(steps, str) and steps.lstrip()[:1] == "[":
        steps = messages.turns_of_text(steps, "steps")
    if not steps:
        return answer
    if not isinstance(steps, list):
        raise BadRow("wrong_type", f"steps is {describe_kind(steps)}, expected a list of strings")
    lines = [require_text(step, f"steps[{index}]").strip() for index, step in enumerate(steps)]
    last = answer[-1]
    if "reasoning_content" in last.extras:
        raise BadRow("two_reasonings", "the row has steps, and its answer has a text of reasoning")
    more = json.dumps({**last.extras, "reasoning_content": "\n".join(lines)}, ensure_ascii=False)
    return [*answer[:-1], Message(last.role, last.content, last.tool_calls, more)]


def plain_text(record: Record) -> TextRow:
    return TextRow(require_text(record["text"], "text"))


def document(record: Record) -> DocumentRow:
    """Return a row of a documents file: `text`, and `title` if it has one."""
    text = require_text(record["text"], "text")
    title = messages.optional_text(record, "title") or text.strip().splitlines()[0].lstrip("# ")
    return DocumentRow("", "", "text", title[:200], text)


def has_pair(keys: Keys) -> bool:
    return find_pair(keys) is not None


SHAPES = (
    RowShape("openai", Port.SFT, (DataFormat.OPENAI, DataFormat.TOOL_CALLS), having("messages"), chat),
    RowShape("sharegpt", Port.SFT, (DataFormat.SHAREGPT, DataFormat.TOOL_CALLS), having("conversations"), chat),
    RowShape("alpaca", Port.SFT, (DataFormat.ALPACA,), having("instruction", "output"), alpaca),
    RowShape("prompt_completion", Port.SFT, (DataFormat.PROMPT_COMPLETION,), has_pair, prompt_completion),
    RowShape("text", Port.TEXT, (DataFormat.TEXT,), having("text"), plain_text),
)
DOCUMENT = RowShape("document", Port.DOCUMENTS, (DataFormat.DOCUMENTS,), having("text"), document)
