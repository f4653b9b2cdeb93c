"""Training files as OpenAI checks them: JSONL with one object a line, and examples of the method's shape.

What OpenAI refuses when a file comes is refused then; what it finds in a job's first state, `validating_files`, makes
the job fail with `error` {code, message, param}, as there. Messages name the line or the example, counted from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

import orjson

from trainyard.json_types import JsonObject
from trainyard.stores.openai_records import WireJobError
from trainyard.surfaces.openai.errors import WireError

LEAST_EXAMPLES = 10
HINT = 4
"""Characters of a line that an error shows."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Check = Callable[[JsonObject], str]
"""Returns the fault of an example; empty if there is none."""


def read_lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line that is not blank."""
    source.seek(0)
    for number, line in enumerate(source, 1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if text.strip():
            yield number, text


def read_object(line: bytes) -> JsonObject | None:
    """Return the object of a line; None for anything else."""
    try:
        value = orjson.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def require_jsonl(source: BinaryIO) -> None:
    """Raise `WireError` 400 for a file in which a line is not a JSON object."""
    number = 0
    for number, line in read_lines(source):
        if read_object(line) is None:
            start = line.decode(errors="replace").strip()[:HINT]
            raise WireError(
                400,
                "Expected file to have JSONL format, where every line is a valid JSON dictionary. "
                f'Line {number} is not a dictionary (HINT: line starts with: "{start}...").',
                param="file",
            )
    if not number:
        raise WireError(400, "File is empty, or has no line with a JSON dictionary.", param="file", code="empty_file")


def find_fault(source: BinaryIO, method: str, param: str, answer: str | None = None) -> WireJobError | None:
    """Return why a job fails on a training file; None if it does not. Every example has the field `answer`."""
    word = "training" if param == "training_file" else "validation"
    count, check = 0, CHECKS[method]
    for count, (number, line) in enumerate(read_lines(source), 1):
        example = read_object(line)
        wrong = "is not a JSON dictionary" if example is None else check(example)
        if example is not None and not wrong and answer is not None and answer not in example:
            wrong = f"is missing the key '{answer}', which the grader compares with"
        if wrong:
            label = f"Example {count}" if count == number else f"Example {count} (line {number})"
            message = (
                f"The job failed due to a file format error in the {word} file. Invalid file format. {label} {wrong}"
            )
            return WireJobError(code="invalid_file_format", message=message, param=param)
    if count < LEAST_EXAMPLES:
        message = f"{word.capitalize()} file has {count} example(s), but must have at least {LEAST_EXAMPLES} examples"
        return WireJobError(code="invalid_n_examples", message=message, param=param)
    return None


def check_supervised(example: JsonObject) -> str:
    if "messages" not in example:
        if example.keys() >= {"prompt", "completion"}:
            return "is in the completions format (prompt, completion); the model is a chat model: expected 'messages'"
        return "is missing the key 'messages'"
    if unknown := sorted(example.keys() - {"messages", "tools", "functions", "parallel_tool_calls"}):
        return f"has the unexpected key '{unknown[0][:60]}'"
    wrong = check_messages(example["messages"], "message")
    if wrong:
        return wrong
    roles = [message["role"] for message in example["messages"]]
    return "" if "assistant" in roles else "must have at least one message from the assistant"


def check_messages(messages: object, noun: str) -> str:
    """Return the fault of a list of messages; empty if there is none."""
    if not isinstance(messages, list) or not messages:
        return f"must have a non-empty list of {noun}s"
    for number, message in enumerate(messages, 1):
        if wrong := check_message(message):
            return f"{noun} {number} {wrong}"
    return ""


def check_message(message: object) -> str:
    if not isinstance(message, Mapping):
        return "is not a dictionary"
    if "role" not in message:
        return "is missing the key 'role'"
    role = message["role"]
    if role not in ROLES:
        return f"has the invalid role {role!r:.60}; expected one of {', '.join(ROLES)}"
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        return "is missing the key 'tool_call_id'"
    return check_content(message, role) or check_weight(message, role)


def check_content(message: Mapping[str, object], role: object) -> str:
    calls = role == "assistant" and (message.get("tool_calls") or message.get("function_call"))
    content = message.get("content")
    if content is None and not calls:
        return "is missing the key 'content'"
    if content is not None and not isinstance(content, str | list):
        return "has a 'content' that is neither a string nor a list of parts"
    return ""


def check_weight(message: Mapping[str, object], role: object) -> str:
    weight = message.get("weight")
    if "weight" in message and weight is not None and (role != "assistant" or weight not in (0, 1)):
        return "has a 'weight' that is not 0 or 1, or is not the assistant's"
    return ""


def check_dpo(example: JsonObject) -> str:
    for key in ("input", "preferred_output", "non_preferred_output"):
        if key not in example:
            return f"is missing the key '{key}'"
    if not isinstance(example["input"], Mapping) or "messages" not in example["input"]:
        return "'input' is missing the key 'messages'"
    if wrong := check_messages(example["input"]["messages"], "input message"):
        return wrong
    for key in ("preferred_output", "non_preferred_output"):
        if wrong := check_messages(example[key], f"{key} message"):
            return wrong
        if example[key][0]["role"] != "assistant":
            return f"{key} message 1 must be from the assistant"
    return ""


def check_reinforcement(example: JsonObject) -> str:
    if "messages" not in example:
        return "is missing the key 'messages'"
    if wrong := check_messages(example["messages"], "message"):
        return wrong
    return "" if example["messages"][-1]["role"] == "user" else "must end with a message from the user"


CHECKS: dict[str, Check] = {
    "supervised": check_supervised,
    "dpo": check_dpo,
    "reinforcement": check_reinforcement,
}
