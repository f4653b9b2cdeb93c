"""Turns of a conversation in every spelling: OpenAI (role, content) and ShareGPT (from, value), tool calls included."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from trainyard.data.formats.json_values import strict_text
from trainyard.data.formats.records import Record
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import WEIGHT, Message

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "call",
    "tool_call": "call",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
}
"""A role in any spelling -> the four roles; `call` is ShareGPT's turn with one function call."""

TEXT_PARTS = {"text", "input_text", "output_text"}
THOUGHT_PARTS = {"thinking", "reasoning", "reasoning_text", "thought"}
PART_TEXTS = ("text", "value", "content", "thinking", "reasoning", "summary")
"""Keys under which the text of a part is found."""
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
WEIGHT_KEYS = (WEIGHT, "train", "training", "loss", "loss_weight", "loss_mask")
"""Keys that say whether a turn is learned: OpenAI's weight, and those of other tools; 0 or 1, or a boolean."""
MASK_KEY = "masked"
"""Says the contrary: a turn that is masked is not learned."""
SPAN_KEYS = ("train_detail", "training_detail")
"""Keys that choose letters of a turn, which no stage can follow."""
MEDIA_KEYS = frozenset({"images", "image", "audios", "audio", "videos", "video"})
TURN_KEYS = frozenset({"name", "tool_call_id", *WEIGHT_KEYS, MASK_KEY, *SPAN_KEYS, *MEDIA_KEYS})
SPEECH_KEYS = frozenset({"tool_calls", "function_call", *REASONING_KEYS})
"""What only a turn of the assistant has."""
SYSTEM_KEYS = ("system", "system_prompt")
DIALOGUE_TURN = re.compile(r"\n\n(Human|Assistant):")


def require_storable_text(value: Any, field: str) -> str:
    """Return a string that can be stored: no NUL, no half of a surrogate pair. Raises `BadRow`."""
    if not isinstance(value, str):
        raise BadRow("wrong_type", f"{field} is {describe_kind(value)}, expected a string")
    if "\0" in value:
        raise BadRow("nul_character", f"{field} contains the character U+0000")
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError as error:
        raise lone_surrogate(error, field) from error
    return value


def lone_surrogate(error: UnicodeEncodeError, field: str) -> BadRow:
    half = f"U+{ord(error.object[error.start]):04X}"
    return BadRow("lone_surrogate", f"{field} contains half of a surrogate pair, {half}")


def describe_kind(value: object) -> str:
    """Return the JSON name of a value's type, for messages."""
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "a list", dict: "an object", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def require_text(value: object, field: str) -> str:
    """Return a string with something in it. Raises `BadRow`."""
    text = require_storable_text(value, field)
    if not text or text.isspace():
        raise BadRow("empty", f"{field} is empty")
    return text


def optional_text(record: Record, field: str) -> str:
    value = record.get(field)
    return "" if value is None else require_storable_text(value, field)


def spelling(turn: Mapping[str, object]) -> tuple[str, str, str | None]:
    """Return the keys of a turn's role and content, and its role; None for one that is not known."""
    keys = ("from", "value") if "from" in turn else ("role", "content")
    spelled = turn.get(keys[0])
    return *keys, ROLES.get(spelled) if isinstance(spelled, str) else None


def read_message(turn: Any, field: str, row: Record) -> Message:
    """Return one turn, which becomes a part of the row. Raises `BadRow` naming the field."""
    if not isinstance(turn, Mapping):
        raise BadRow("wrong_type", f"{field} is {describe_kind(turn)}, expected an object")
    role_key, content_key, role = spelling(turn)
    if role is None:
        detail = f"{field}.{role_key} is {turn.get(role_key)!r:.60}"
        raise BadRow("unknown_role", f"{detail}, expected one of {', '.join(ROLES)}")
    if len(turn) == 2 and role != "call" and isinstance(content := turn.get(content_key), str):
        return Message(role, require_storable_text(content, f"{field}.{content_key}"))
    turn = row.part(turn, field)
    turn.read |= {role_key, content_key}
    refuse_media(turn, MEDIA_KEYS & turn.keys(), f"{field}.")
    if role == "call":
        called = sharegpt_calls(turn, content_key, field)
        return Message("assistant", "", called, read_extras(turn, "assistant", "", field))
    calls = openai_calls(turn, field) if role == "assistant" else None
    content, thoughts = read_content(turn, content_key, field, optional=calls is not None)
    if thoughts and role != "assistant":
        raise BadRow("not_text", f"{field}.{content_key} contains reasoning, and the turn is not the assistant's")
    return Message(role, content, calls, read_extras(turn, role, thoughts, field))


def refuse_media(record: Mapping[str, object], keys: frozenset[str], where: str = "") -> None:
    """Raise `BadRow` for pictures, sounds or films: the text alone is not what the row means."""
    for key in sorted(keys):
        if record[key]:
            raise BadRow("not_text", f"the row has {where}{key}; only text is read")


def read_extras(turn: Record, role: str, thoughts: str, field: str) -> str | None:
    """Return what a turn has in addition to its text and calls, as the JSON text of `Message.more`; None if nothing."""
    if not thoughts and turn.keys().isdisjoint(TURN_KEYS) and turn.keys().isdisjoint(SPEECH_KEYS):
        return None
    fields: dict[str, object] = {}
    for key in ("name", "tool_call_id"):
        if turn.get(key) is not None:
            fields[key] = require_storable_text(turn[key], f"{field}.{key}")
    if role == "assistant":
        texts = [optional_text(turn, key) for key in REASONING_KEYS] + [thoughts]
        reasonings = list(dict.fromkeys(text for text in texts if text and not text.isspace()))
        if len(reasonings) > 1:
            raise BadRow("two_reasonings", f"{field} has two different texts of reasoning")
        if reasonings:
            fields["reasoning_content"] = reasonings[0]
    if not is_learned(turn, role, field):
        fields[WEIGHT] = 0
    return json_text(fields, field) if fields else None


def is_learned(turn: Record, role: str, field: str) -> bool:
    """Whether a turn's weights let it be learned. Raises `BadRow` for a weight that no stage can follow."""
    weights = {key: turn[key] for key in WEIGHT_KEYS if turn.look(key) is not None}
    if turn.look(MASK_KEY) is not None:
        masked = turn[MASK_KEY]
        weights[MASK_KEY] = not masked if masked in (0, 1) else masked
    for key in SPAN_KEYS:
        if turn.shows(key):
            raise BadRow("bad_weight", f"{field}.{key} chooses parts of a turn; a turn is learned as a whole or not")
    for key, value in weights.items():
        if value not in (0, 1):  # booleans are equal to them
            raise BadRow("bad_weight", f"{field}.{key} is {value!r:.40}; a turn is learned (1, true) or not (0, false)")
        if value and role != "assistant" and key != MASK_KEY:
            detail = f"{field}.{key} asks to learn a turn of {role}; only the assistant's are learned"
            raise BadRow("bad_weight", detail)
    if len(set(map(bool, weights.values()))) > 1:
        raise BadRow("bad_weight", f"{field} is to be learned and not to be learned: {', '.join(weights)} differ")
    return role != "assistant" or all(weights.values())


def read_content(turn: Record, key: str, field: str, *, optional: bool) -> tuple[str, str]:
    """Return a turn's text and its reasoning: of a string, of a list of parts, or nothing but tool calls."""
    value = turn.get(key)
    if value is None and (optional or isinstance(turn.look("refusal"), str)):
        return require_storable_text(turn.get("refusal") or "", f"{field}.refusal"), ""
    if not isinstance(value, list):
        return require_storable_text(value, f"{field}.{key}"), ""
    texts: dict[bool, list[str]] = {False: [], True: []}
    for index, part in enumerate(value):
        named = part.get("type") if isinstance(part, Mapping) else describe_kind(part)
        if not isinstance(part, Mapping) or named not in TEXT_PARTS | THOUGHT_PARTS:
            raise BadRow("not_text", f"{field}.{key} contains a part of type {named!r:.40}; only text is read")
        where = f"{field}.{key}[{index}]"
        texts[named in THOUGHT_PARTS].append(part_text(turn.part(part, where), where))
    return "".join(texts[False]), "\n".join(texts[True])


def part_text(part: Record, field: str) -> str:
    """The text of a part, under any of its names; reasoning may be a list of texts. Raises `BadRow` with its keys."""
    part.read.add("type")
    name = next((key for key in PART_TEXTS if part.look(key) is not None), None)
    if name is None:
        raise BadRow("wrong_type", f"{field} has no text; its keys are {', '.join(sorted(map(str, part)))[:200]}")
    value, where = part[name], f"{field}.{name}"
    if isinstance(value, list):
        return "".join(part_text(part.part(inner, where), where) for inner in value if isinstance(inner, Mapping))
    return require_storable_text(value, where)


def openai_calls(turn: Record, field: str) -> str | None:
    """Return the JSON text of `tool_calls`, or of the older `function_call`, in OpenAI's shape; None without calls."""
    calls = turn.get("tool_calls")
    if not calls and turn.shows("function_call"):
        calls = [{"type": "function", "function": turn["function_call"]}]
    if not calls:
        return None
    if isinstance(calls, str) and calls.lstrip()[:1] == "[":
        calls = parse_json(calls, f"{field}.tool_calls", "bad_tool_call")
    if not isinstance(calls, list):
        raise BadRow("bad_tool_call", f"{field}.tool_calls is {describe_kind(calls)}, expected a list")
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRow("bad_tool_call", f"{field}.tool_calls contains a call without function.name")
    return json_text([{"type": "function", **drop_nulls(call)} for call in calls], f"{field}.tool_calls")


def drop_nulls(call: Mapping[str, object]) -> dict[str, object]:
    """A call or a tool without its own empty fields and those of its function. Arguments and schemas keep theirs."""
    present = {key: value for key, value in call.items() if value is not None}
    function = present.get("function")
    if isinstance(function, Mapping):
        present["function"] = {key: value for key, value in function.items() if value is not None}
    return present


def sharegpt_calls(turn: Record, key: str, field: str) -> str:
    """ShareGPT's `function_call` turn: JSON text of one call or of a list of calls."""
    field = f"{field}.{key}"
    calls = parse_json(turn.get(key), field, "bad_tool_call")
    calls = calls if isinstance(calls, list) else [calls]
    listed = []
    for call in calls:
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise BadRow("bad_tool_call", f"{field} contains no object with a name")
        call = turn.part(call, field)
        arguments = call.get("arguments")
        if arguments is None:
            arguments = call.get("parameters")
        arguments = {} if arguments is None else arguments
        arguments = arguments if isinstance(arguments, str) else json_text(arguments, field)
        listed.append({"type": "function", "function": {"name": call["name"], "arguments": arguments}})
    if not listed:
        raise BadRow("bad_tool_call", f"{field} is an empty list")
    return json_text(listed, field)


def parse_json(value: Any, field: str, reason: str) -> Any:
    """Return a value given as JSON text or as itself."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(require_storable_text(value, field))
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRow(reason, f"{field} is not JSON ({error})") from error


def json_text(value: object, field: str) -> str:
    """Compact JSON of a parsed value, its strings checked."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise lone_surrogate(error, field) from error
    if "\\u0000" in text:
        raise BadRow("nul_character", f"{field} contains the character U+0000")
    return text


def read_tools(record: Record) -> str | None:
    """JSON text of the tool schemas of a row: `tools` (list or JSON text) or the older `functions`; None if empty."""
    if "tools" not in record and "functions" not in record:
        return None
    key = "tools" if record.shows("tools") else "functions"
    value = record.get(key)
    if not value:
        return None
    tools = parse_json(value, key, "bad_tools")
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow("bad_tools", f"{key} is not a list of objects")
    return json_text([drop_nulls(tool) for tool in tools], key) if tools else None


def read_messages(value: object, field: str, row: Record) -> list[Message]:
    """Return a list of turns, or its JSON text, not yet judged as a whole. Raises `BadRow`."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        value = turns_of_text(value, field)
    if not isinstance(value, list):
        raise BadRow("wrong_type", f"{field} is {describe_kind(value)}, expected a list of messages")
    if not value:
        raise BadRow("empty", f"{field} is an empty list")
    return [read_message(turn, f"{field}[{index}]", row) for index, turn in enumerate(value)]


def turns_of_text(text: str, field: str) -> object:
    """Return the value of a text that begins like a list: a column of a table may contain JSON."""
    try:
        return strict_text(text)
    except BadRow as fault:
        raise BadRow("wrong_type", f"{field} is a text that is not JSON: {fault.detail}") from fault


def dialogue(text: str) -> list[Message] | None:
    """Return the turns of a transcript with the speakers `Human:` and `Assistant:`; None if it is not a transcript."""
    parts = DIALOGUE_TURN.split(text)
    if len(parts) < 3 or parts[0].strip():
        return None
    roles = {"Human": "user", "Assistant": "assistant"}
    return [Message(roles[speaker], text.strip()) for speaker, text in zip(parts[1::2], parts[2::2], strict=True)]


def is_blank(message: Message) -> bool:
    return (not message.content or message.content.isspace()) and message.tool_calls is None


def check_answered(messages: list[Message], field: str) -> list[Message]:
    """Return a conversation that can be learned: a prompt, then at its end an assistant turn that says something."""
    roles = [message.role for message in messages]
    if not roles or roles[-1] != "assistant":
        raise BadRow("no_answer", f"{field} ends with the turn of {roles[-1] if roles else 'nobody'}, not of assistant")
    if is_blank(messages[-1]):
        raise BadRow("empty", f"the last turn of {field} is empty")
    if not messages[-1].learned and not any(message.learned for message in messages if message.role == "assistant"):
        raise BadRow("no_target", f"no turn of {field} is to be learned: each of the assistant's has weight 0")
    systems = roles.count("system")
    if systems and (systems > 1 or roles[0] != "system"):
        raise BadRow("late_system", f"{field} has a system turn that is not the first")
    if len(roles) - systems < 2:
        raise BadRow("no_prompt", f"{field} has no turn before the answer")
    return messages


def check_prompt(messages: list[Message], field: str) -> None:
    """Raise `BadRow` unless the turns are a prompt: something is said, and not by the assistant at last."""
    roles = [message.role for message in messages]
    if roles[-1:] == ["assistant"]:
        raise BadRow("answered", f"{field} ends with the assistant's turn, and a completion is drawn after a prompt")
    if not any(role != "system" for role in roles):
        raise BadRow("no_prompt", f"{field} has no turn but the system's")
    if "system" in roles[1:]:
        raise BadRow("late_system", f"{field} has a system turn that is not the first")
