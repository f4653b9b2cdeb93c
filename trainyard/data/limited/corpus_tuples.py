"""The tuples of a corpus in their one spelling: commits for sft, corrections for dpo (`data/corpora`).

The process from which reading processes are forked imports this, so it imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.data.limited.requests import MOST_CHARS
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping

TURN_KEYS = ("role", "content")
EMPTY: tuple[object, ...] = (None, "", [], {})
Value = dict[str, Any]


def bad(why: str) -> InvalidInput:
    return InvalidInput(
        "This is not a tuple of the bucket.",
        why=why,
        do="Write {diff, message, brief} for sft, {prompt, shadow, verdict} for dpo; docs/nightly.md has examples.",
        code="E-CORPUS",
    )


def spell(value: object, method: str) -> Value:
    """Return a tuple in its one spelling. Raises `InvalidInput` (`E-CORPUS`) with the reason."""
    if not isinstance(value, Mapping):
        raise bad("it is not a JSON object")
    return engineering(value) if method == "sft" else apprenticeship(value)


def engineering(value: Mapping[str, object]) -> Value:
    if "messages" in value:
        messages = turns(value["messages"], "messages")
        if messages[-1]["role"] != "assistant":
            raise bad("its last message is not the assistant's")
        return {"messages": messages}
    spelt = {"diff": require_text(value, "diff"), "message": require_text(value, "message")}
    return {**spelt, "brief": require_text(value, "brief")} if value.get("brief") else spelt


def apprenticeship(value: Mapping[str, object]) -> Value:
    shadow = require_text(value, "shadow" if "shadow" in value else "rejected")
    verdict = require_text(value, "verdict" if "verdict" in value else "chosen")
    if shadow == verdict:
        raise bad("shadow and verdict are the same text, so there is nothing to prefer")
    prompt = value.get("prompt")
    question = turns(prompt, "prompt") if isinstance(prompt, list) else require_text(value, "prompt")
    return {"prompt": question, "shadow": shadow, "verdict": verdict}


def require_text(value: JsonMapping, key: str) -> str:
    content = value.get(key)
    if not isinstance(content, str) or not content.strip():
        raise bad(f"`{key}` is not a string" if key in value else f"`{key}` is missing")
    if len(content) > MOST_CHARS:
        raise bad(f"`{key}` has {len(content):,} characters; at most {MOST_CHARS:,} are read")
    if "\ud800" <= max(content) <= "\udfff":
        raise bad(f"`{key}` contains an unpaired surrogate")
    return content.strip()


def turns(value: Any, key: str) -> list[Value]:
    if not isinstance(value, list) or not value or not all(isinstance(turn, Mapping) for turn in value):
        raise bad(f"`{key}` is not a list of messages")
    unread = sorted(
        {name for turn in value for name, content in turn.items() if name not in TURN_KEYS and content not in EMPTY}
    )
    if unread:
        raise bad(f"`{key}` has turns with {', '.join(unread)[:200]}, and only role and content are read")
    return [{"role": require_text(turn, "role"), "content": require_text(turn, "content")} for turn in value]
