"""Calls of tools in an answer, read by the renderer of the model's chat template, as OpenAI's API writes them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.data.renderers.contract import Termination
from trainyard.data.renderers.rendering import REASONING, Renderer
from trainyard.json_types import JsonObject


@dataclass(frozen=True)
class CallingTurn:
    """An answer that calls tools."""

    content: str | None
    """What it says besides the calls."""
    calls: list[JsonObject]
    reasoning: str = ""

    @property
    def message(self) -> JsonObject:
        """Return the fields of a message."""
        thoughts = {REASONING: self.reasoning} if self.reasoning else {}
        return {"content": self.content, "tool_calls": self.calls, **thoughts}


def read_calls(renderer: Renderer, prompt: Sequence[int], answer: Sequence[int]) -> CallingTurn | None:
    """Return an answer with calls; None for one without, and for one whose calls cannot be read: that is text."""
    opened = renderer.opening(str(renderer.tokenizer.decode(list(prompt))))
    parsed = renderer.parse(answer, opened=opened)
    calls = parsed.turn.get("tool_calls") or []
    if not calls or parsed.termination is Termination.MALFORMED:
        return None
    content = str(parsed.turn.get("content") or "").strip()
    return CallingTurn(content or None, list(map(write_call, calls)), str(parsed.turn.get(REASONING) or ""))


def write_call(call: JsonObject) -> JsonObject:
    """Return a call with an id of its own, and its arguments as JSON text."""
    function = call["function"]
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    called = {"name": str(function["name"]), "arguments": text}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": called}
