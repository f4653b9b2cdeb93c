"""Turns of a conversation in every spelling: OpenAI (role, content) and ShareGPT (from, value), tool calls included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trainyard.data.quarantine import BadRow
from trainyard.data.rows import Message

Record = Mapping[str, Any]

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
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
}
"""A role in any spelling -> our four roles; `call` is ShareGPT's turn that holds one function call."""

TEXT_PARTS = {"text", "input_text", "output_text"}


def text_of(value: Any, field: str) -> str:
    """A string that can be stored: no NUL, no half of a surrogate pair. Raises `BadRow`."""
    if not isinstance(value, str):
        raise BadRow("wrong_type", f"{field} is {kind_of(value)}, expected a string")
    if "\0" in value:
        raise BadRow("nul_character", f"{field} holds the character U+0000")
    if not value.isascii():
        refuse_surrogates(value, field)
    return value


def refuse_surrogates(value: str, field: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(value[error.start]):04X}"
        raise BadRow("lone_surrogate", f"{field} holds half of a surrogate pair, {half}") from error


def kind_of(value: Any) -> str:
    """The JSON name of a value's type, for messages."""
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "a list", dict: "an object", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def filled(value: Any, field: str) -> str:
    """A string with something in it. Raises `BadRow`."""
    text = text_of(value, field)
    if not text or text.isspace():
        raise BadRow("empty", f"{field} is empty")
    return text


def optional_text(record: Record, field: str) -> str:
    value = record.get(field)
    return "" if value is None else text_of(value, field)


def read_message(turn: Any, field: str) -> Message:
    """One turn. Raises `BadRow` naming the field."""
    if not isinstance(turn, Mapping):
        raise BadRow("wrong_type", f"{field} is {kind_of(turn)}, expected an object")
    role_key, content_key = ("from", "value") if "from" in turn else ("role", "content")
    spelled = turn.get(role_key)
    role = ROLES.get(spelled) if isinstance(spelled, str) else None
    if role is None:
        raise BadRow("unknown_role", f"{field}.{role_key} is {spelled!r:.60}, expected one of {', '.join(ROLES)}")
    if role == "call":
        return Message("assistant", "", sharegpt_calls(turn.get(content_key), f"{field}.{content_key}"))
    calls = openai_calls(turn, field) if role == "assistant" else None
    return Message(role, content_of(turn, content_key, field, optional=calls is not None), calls)


def content_of(turn: Record, key: str, field: str, *, optional: bool) -> str:
    """A turn's text: a string, a list of text parts, or nothing beside tool calls."""
    value = turn.get(key)
    if value is None and (optional or isinstance(turn.get("refusal"), str)):
        return text_of(turn.get("refusal") or "", f"{field}.refusal")
    if not isinstance(value, list):
        return text_of(value, f"{field}.{key}")
    for part in value:
        if not isinstance(part, Mapping) or part.get("type") not in TEXT_PARTS:
            named = part.get("type") if isinstance(part, Mapping) else kind_of(part)
            raise BadRow("not_text", f"{field}.{key} holds a part of type {named!r:.40}; only text is read")
    return "".join(text_of(part.get("text"), f"{field}.{key}[{i}].text") for i, part in enumerate(value))


def openai_calls(turn: Record, field: str) -> str | None:
    """The JSON text of `tool_calls`, or of the older `function_call`, in OpenAI's shape; None without calls."""
    calls = turn.get("tool_calls")
    if not calls and turn.get("function_call"):
        calls = [{"type": "function", "function": turn["function_call"]}]
    if not calls:
        return None
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise BadRow("bad_tool_call", f"{field}.tool_calls is {kind_of(calls)}, expected a list")
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRow("bad_tool_call", f"{field}.tool_calls holds a call without function.name")
    return json_text([{"type": "function", **without_nulls(call)} for call in calls], f"{field}.tool_calls")


def without_nulls(value: Any) -> Any:
    """Parquet gives every struct all keys of the column; the absent ones are null."""
    if isinstance(value, Mapping):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def sharegpt_calls(value: Any, field: str) -> str:
    """ShareGPT's `function_call` turn: JSON text of one call or of a list of calls."""
    calls = parsed(value, field, "bad_tool_call")
    calls = calls if isinstance(calls, list) else [calls]
    listed = []
    for call in calls:
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise BadRow("bad_tool_call", f"{field} holds no object with a name")
        arguments = call.get("arguments", {})
        arguments = arguments if isinstance(arguments, str) else json_text(arguments, field)
        listed.append({"type": "function", "function": {"name": call["name"], "arguments": arguments}})
    if not listed:
        raise BadRow("bad_tool_call", f"{field} holds an empty list")
    return json_text(listed, field)


def parsed(value: Any, field: str, reason: str) -> Any:
    """A value given as JSON text or as itself."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(text_of(value, field))
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRow(reason, f"{field} is not JSON ({error})") from error


def json_text(value: Any, field: str) -> str:
    """Compact JSON of a parsed value, its strings checked."""
    text = msgspec.json.encode(value).decode("utf-8", "surrogatepass")
    if "\\u0000" in text:
        raise BadRow("nul_character", f"{field} holds the character U+0000")
    refuse_surrogates(text, field)
    return text


def tools_of(record: Record) -> str | None:
    """JSON text of the tool schemas of a row: `tools` (list or JSON text) or the older `functions`; None if empty."""
    key = "tools" if record.get("tools") else "functions"
    value = record.get(key)
    if not value:
        return None
    tools = parsed(value, key, "bad_tools")
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow("bad_tools", f"{key} is not a list of objects")
    return json_text([without_nulls(tool) for tool in tools], key) if tools else None


def read_messages(value: Any, field: str) -> list[Message]:
    """A list of turns, not yet judged as a whole. Raises `BadRow`."""
    if not isinstance(value, list):
        raise BadRow("wrong_type", f"{field} is {kind_of(value)}, expected a list of messages")
    if not value:
        raise BadRow("empty", f"{field} is an empty list")
    return [read_message(turn, f"{field}[{index}]") for index, turn in enumerate(value)]


def is_blank(message: Message) -> bool:
    return (not message.content or message.content.isspace()) and message.tool_calls is None


def check_answered(messages: list[Message], field: str) -> list[Message]:
    """A conversation that can be learned: a prompt, then at its end an assistant turn that says something."""
    roles = [message.role for message in messages]
    if not roles or roles[-1] != "assistant":
        raise BadRow("no_answer", f"{field} ends with the turn of {roles[-1] if roles else 'nobody'}, not of assistant")
    if is_blank(messages[-1]):
        raise BadRow("empty", f"the last turn of {field} is empty")
    systems = roles.count("system")
    if systems and (systems > 1 or roles[0] != "system"):
        raise BadRow("late_system", f"{field} has a system turn that is not the first")
    if len(roles) - systems < 2:
        raise BadRow("no_prompt", f"{field} has no turn before the answer")
    return messages
