"""Thoughts and calls of tools in an answer, read by the renderer of the chat template, as OpenAI's API has them.

Thoughts are read from an answer that begins with them, or whose prompt has opened them; their text is sent as it comes.
Calls are read where tools are offered, from the whole answer.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.data.renderers.contract import Grammar, Termination
from trainyard.data.renderers.rendering import REASONING, Renderer
from trainyard.json_types import JsonObject
from trainyard.serve.inference import Generation, Step, TextWriter

CONTENT = "content"
OPTIONAL_SPACE = re.compile(r"\\[ns][?*]")
"""White space of a pattern that may be absent."""


@dataclass(frozen=True)
class AnsweredTurn:
    """An answer as the fields of a message."""

    content: str | None
    """What it says besides its thoughts and calls."""
    calls: Sequence[JsonObject] = ()
    reasoning: str = ""

    @property
    def message(self) -> JsonObject:
        """Return the fields of a message."""
        called = {"tool_calls": list(self.calls)} if self.calls else {}
        return {CONTENT: self.content, **called, **({REASONING: self.reasoning} if self.reasoning else {})}


def read_calls(renderer: Renderer, prompt: Sequence[int], answer: Sequence[int]) -> AnsweredTurn | None:
    """Return an answer with calls; None for one without, and for one whose calls cannot be read: that is text."""
    opened = renderer.opening(str(renderer.tokenizer.decode(list(prompt))))
    parsed = renderer.parse(answer, opened=opened)
    calls = parsed.turn.get("tool_calls") or []
    if not calls or parsed.termination is Termination.MALFORMED:
        return None
    content = str(parsed.turn.get(CONTENT) or "").strip()
    return AnsweredTurn(content or None, list(map(write_call, calls)), str(parsed.turn.get(REASONING) or ""))


def write_call(call: JsonObject) -> JsonObject:
    """Return a call with an id of its own, and its arguments as JSON text."""
    function = call["function"]
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    called = {"name": str(function["name"]), "arguments": text}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": called}


def list_markers(grammar: Grammar) -> list[str]:
    """Return what an answer begins with that is not text, such as `<think>`; none for a model without thoughts."""
    if REASONING not in grammar:
        return []
    parts = (grammar[REASONING], grammar[CONTENT])
    texts = (str(part.get("open") or OPTIONAL_SPACE.sub("", str(part.get("open_pattern", "")))) for part in parts)
    return [text for text in texts if text]


class ThoughtReader:
    """Reads thoughts and answer apart, token by token. Each character is returned once, in its field.

    An answer that does not begin with thoughts is returned as it is.
    """

    def __init__(self, renderer: Renderer, generation: Generation) -> None:
        opened = renderer.opening(str(renderer.tokenizer.decode(generation.prompt)))
        self.markers = list_markers(renderer.spec.grammar)
        self.parser = renderer.open_parser(opened)
        self.writer = TextWriter(renderer.tokenizer, generation.stops, skips_special=False)
        self.thinks: bool | None = True if opened else None if self.markers else False
        """None until it is known."""
        self.start, self.plain, self.space = "", "", ""
        """The beginning that may be a marker, with and without special tokens; the last white space of the thoughts."""
        self.fields = {REASONING: "", CONTENT: ""}

    def add(self, step: Step) -> dict[str, str]:
        """Return the text that a step adds to each field."""
        if self.thinks is False:
            return {CONTENT: step.text} if step.text else {}
        text = self.writer.add(step.token) if step.token >= 0 else ""
        if self.thinks:
            return self.feed(text)
        self.start, self.plain = (self.start + text).lstrip(), self.plain + step.text
        if any(map(self.start.startswith, self.markers)):
            self.thinks = True
            return self.feed(self.start)
        if any(marker.startswith(self.start) for marker in self.markers):
            return {}
        self.thinks = False
        return {CONTENT: self.plain} if self.plain else {}

    def end(self) -> dict[str, str]:
        """Return what waited for the end of the answer."""
        if self.thinks is None:
            self.thinks = False
            return {CONTENT: self.plain} if self.plain else {}
        if self.thinks is False:
            return {}
        delta = self.feed(self.writer.finish())
        for name, text in self.sort(self.parser.finalize()[1]).items():
            delta[name] = delta.get(name, "") + text
        return delta

    def feed(self, text: str) -> dict[str, str]:
        return self.sort(self.parser.feed(text))

    def sort(self, events: Sequence[dict[str, Any]]) -> dict[str, str]:
        """Return the text of the parser's events by field. The thoughts begin and end without white space."""
        delta: dict[str, str] = {}
        for event in events:
            if event["type"] != "region_chunk":
                continue
            name, text = event["field"], str(event["text"])
            if name == REASONING:
                text = self.space + text
                text = text if self.fields[name] else text.lstrip()
                self.space = text[len(text.rstrip()) :]
                text = text.rstrip()
            self.fields[name] += text
            if text:
                delta[name] = delta.get(name, "") + text
        return delta


@dataclass(frozen=True)
class TurnReader:
    """Reads the answers to a request."""

    find_renderer: Callable[[], Renderer]
    """Called once a prompt has been written."""
    offers_tools: bool
    single_call: bool
    """Whether an answer has at most one call: the first."""

    def read(self, generation: Generation, steps: Sequence[Step]) -> AnsweredTurn | None:
        """Return an answer that has ended, with its calls or its thoughts; None for one that is plain text."""
        renderer = self.find_renderer()
        if self.offers_tools and generation.finish_reason == "stop":
            turn = read_calls(renderer, generation.prompt, [step.token for step in steps if step.token >= 0])
            if turn is not None:
                return AnsweredTurn(turn.content, turn.calls[:1] if self.single_call else turn.calls, turn.reasoning)
        if generation.schema is not None:  # its first character is the schema's, whatever the prompt has opened
            return None
        reader = ThoughtReader(renderer, generation)
        for step in steps:
            reader.add(step)
        reader.end()
        return AnsweredTurn(reader.fields[CONTENT], (), reader.fields[REASONING]) if reader.thinks else None

    def follow(self, generation: Generation) -> ThoughtReader | None:
        """Return what reads an answer as it comes; None where it is sent as it is."""
        return None if generation.schema is not None else ThoughtReader(self.find_renderer(), generation)
