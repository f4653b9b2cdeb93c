"""Shapes that become PreferenceRow or LabelledRow: pairs of a better and a worse answer, answers with a label."""

from __future__ import annotations

import itertools

from trainyard.data.formats import supervised
from trainyard.data.formats.messages import (
    check_answered,
    describe_kind,
    dialogue,
    parse_json,
    read_messages,
    read_tools,
    require_storable_text,
    require_text,
)
from trainyard.data.formats.records import Record
from trainyard.data.formats.supervised import Keys, RowShape, conversation, having, read_prompt, read_turns, with_system
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import LabelledRow, Message, PreferenceRow
from trainyard.spec.axes.data import DataFormat, Port

PROMPT_KEYS = ("prompt", "question", "query", "input")
LABEL_KEYS = ("label", "kto_tag")
LABELS: dict[bool | float | str, bool] = {
    True: True, False: False, "true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False,
}  # fmt: skip
"""A label in any spelling; numbers are equal to booleans, and tables write 0 and 1 as 0.0 and 1.0."""


def read_prompt_field(record: Record) -> list[Message] | None:
    """Return the prompt that a row names next to its answers; None if the answers contain the whole conversation."""
    if "messages" in record or "conversations" in record:
        return conversation(record)
    if "instruction" in record:
        return supervised.alpaca_prompt(record)
    key = next((key for key in PROMPT_KEYS if record.look(key) is not None), None)
    return None if key is None else read_prompt(record, key)


def side(record: Record, key: str) -> list[Message]:
    value = record[key]
    if isinstance(value, str):
        return dialogue(require_text(value, key)) or [Message("assistant", value)]
    return read_turns(record, key, "assistant")


def preference(record: Record) -> PreferenceRow:
    chosen, rejected = side(record, "chosen"), side(record, "rejected")
    whole = chosen[0].role != "assistant" and rejected[0].role != "assistant"
    if not whole:
        prompt = read_prompt_field(record)
        if prompt is None:
            raise BadRow("no_prompt", "there is no prompt, and chosen and rejected are not whole conversations")
        return pair(prompt, chosen, rejected, read_tools(record))
    pairs = zip(chosen[:-1], rejected[:-1], strict=False)
    shared = [left for left, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    prompt = with_system(record, with_named_prompt(record, shared))
    return pair(prompt, chosen[len(shared) :], rejected[len(shared) :], read_tools(record))


def with_named_prompt(record: Record, shared: list[Message]) -> list[Message]:
    """Return the turns with which two whole conversations begin, with those before them that the row's prompt adds.

    A prompt that repeats these turns, or the last of them, is read; one that says something else counts as ignored.
    """
    key = next((key for key in ("messages", "conversations", "instruction", *PROMPT_KEYS) if record.shows(key)), None)
    if key is None or not shared:
        return shared
    value = record.look(key)
    if isinstance(value, str):
        if value in (shared[-1].content, shared[0].content):
            record.read.add(key)
        return shared
    turns = read_messages(value, key, Record({})) if isinstance(value, list) and value else []
    if turns[-len(shared) :] != shared:
        return shared
    record.read.add(key)
    return turns


def openai_preference(record: Record) -> PreferenceRow:
    """OpenAI's fine-tuning spelling: input.messages, preferred_output, non_preferred_output."""
    value = record["input"]
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        value = parse_json(value, "input", "wrong_type")
    if not isinstance(value, dict):
        raise BadRow("wrong_type", f"input is {describe_kind(value)}, expected an object with messages")
    body = record.part(value, "input")
    prompt = with_system(record, read_messages(body.get("messages"), "input.messages", record))
    chosen = read_messages(record["preferred_output"], "preferred_output", record)
    rejected = read_messages(record["non_preferred_output"], "non_preferred_output", record)
    tools = body if body.shows("tools") or body.shows("functions") else record
    return pair(prompt, chosen, rejected, read_tools(tools))


def pair(prompt: list[Message], chosen: list[Message], rejected: list[Message], tools: str | None) -> PreferenceRow:
    """Both answers follow the same prompt, and they differ."""
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not prompt or not answer or answer[0].role != "assistant":
            raise BadRow("prompts_differ", "chosen and rejected answer different prompts")
        check_answered([*prompt, *answer], f"prompt + {name}")
        require_whole(answer, name)
    if chosen == rejected:
        raise BadRow("identical_pair", "chosen and rejected are the same")
    return PreferenceRow(prompt, chosen, rejected, tools=tools)


def require_whole(answer: list[Message], name: str) -> None:
    """An answer is judged as a whole: a turn of it without a loss cannot be had."""
    if not all(message.learned for message in answer):
        raise BadRow("bad_weight", f"{name} has a turn with weight 0, and an answer is compared as a whole")


def read_labelled_row(record: Record) -> LabelledRow:
    if "messages" in record or "conversations" in record:
        *prompt, last = conversation(record)
        completion = [last]
    elif "instruction" in record and "output" in record:
        prompt, completion = supervised.alpaca_prompt(record), read_turns(record, "output", "assistant")
    else:
        names = supervised.find_pair(record)
        assert names is not None
        prompt, completion = read_prompt(record, names[0]), read_turns(record, names[1], "assistant")
    check_answered([*prompt, *completion], "prompt + completion")
    require_whole(completion, "completion")
    key = next((key for key in LABEL_KEYS if record.shows(key)), LABEL_KEYS[0])
    return LabelledRow(prompt, completion, read_label(record, key), tools=read_tools(record))


def read_label(record: Record, key: str) -> bool:
    value = record.get(key)
    label = require_storable_text(value, key).strip().lower() if isinstance(value, str) else value
    if not isinstance(label, bool | int | float | str) or label not in LABELS:
        raise BadRow("bad_label", f"{key} is {label!r:.40}, expected true or false")
    return LABELS[label]


def has_label(keys: Keys) -> bool:
    answered = bool(keys & {"messages", "conversations"}) or {"instruction", "output"} <= keys
    return bool(keys & set(LABEL_KEYS)) and (answered or supervised.has_pair(keys))


SHAPES = (
    RowShape(
        "openai_preference", Port.PREFERENCE, (DataFormat.PREFERENCE, DataFormat.OPENAI),
        having("input", "preferred_output", "non_preferred_output"), openai_preference,
    ),
    RowShape(
        "preference", Port.PREFERENCE, (DataFormat.PREFERENCE, DataFormat.OPENAI, DataFormat.SHAREGPT),
        having("chosen", "rejected"), preference,
    ),
    RowShape(
        "labelled", Port.LABELLED, (DataFormat.LABELLED, DataFormat.OPENAI, DataFormat.SHAREGPT), has_label,
        read_labelled_row,
    ),
)  # fmt: skip
"""Files in OpenAI's and ShareGPT's spelling carry chats, preferences and labels."""
