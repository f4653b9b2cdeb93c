"""Conversations that are generated, for the tests that compare a row with its rendering.

Every text is a word of its own, so that a search in the rendering is exact; no word is a part of another.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from trainyard.data.rows import Message, SftRow

FIELDS = ("name", "tool_call_id", "reasoning_content", "weight")


@dataclass
class Generated:
    """A row, and its texts by kind."""

    row: SftRow
    texts: dict[str, list[str]] = field(default_factory=dict)


class Writer:
    """Writes one conversation; the same seed gives the same."""

    def __init__(self, seed: int) -> None:
        self.dice, self.count, self.texts = random.Random(seed), 0, dict[str, list[str]]()

    def word(self, kind: str) -> str:
        self.count += 1
        text = f"{kind[:2]}{self.count:03}q"
        self.texts.setdefault(kind, []).append(text)
        return text

    def write(self) -> Generated:
        """A system turn or none, then one to three questions, each with up to two rounds of calls."""
        dice, turns = self.dice, list[Message]()
        calls = dice.random() < 0.6
        tools = json.dumps([self.tool() for _ in range(dice.randint(1, 2))]) if calls else None
        if dice.random() < 0.4:
            turns.append(Message("system", self.word("system")))
        for number in range(dice.randint(1, 3)):
            named = {"name": self.word("name")} if dice.random() < 0.15 else {}
            turns.append(message("user", self.word("turn"), **named))
            for _ in range(dice.randint(1, 2) if calls and dice.random() < 0.7 else 0):
                turns += self.round_of_calls()
            empty = dice.random() < 0.1 and number == 0
            turns.append(self.answer("" if empty else self.word("turn")))
        turns.append(Message("user", self.word("turn")))
        turns.append(message("assistant", self.word("turn")))  # what ends a row says something and is learned
        return Generated(SftRow(turns, tools=tools), self.texts)

    def tool(self) -> dict[str, Any]:
        properties = {self.word("tools"): {"type": "string", "description": self.word("schema")}}
        parameters = {"type": "object", "properties": properties}
        function = {"name": self.word("tools"), "description": self.word("tools"), "parameters": parameters}
        return {"type": "function", "function": function}

    def round_of_calls(self) -> list[Message]:
        """A turn of one or two calls with all spellings of arguments, and its results in any order."""
        ids = [f"call{self.count + at:05}" for at in range(1 if self.dice.random() < 0.8 else 2)]
        functions = [{"name": self.word("calls"), **self.arguments()} for _ in ids]
        calls = [
            {"id": id, "type": "function", "function": function} for id, function in zip(ids, functions, strict=True)
        ]
        content = self.word("turn") if self.dice.random() < 0.2 else ""
        results = [
            message("tool", self.word("result"), tool_call_id=id, name=function["name"])
            for id, function in zip(ids, functions, strict=True)
        ]
        self.dice.shuffle(results)
        return [self.answer(content, json.dumps(calls)), *results]

    def arguments(self) -> dict[str, Any]:
        value = {self.word("calls"): self.word("calls"), "n": 3, "flags": [True, None]}
        spellings: list[dict[str, Any]] = [
            {"arguments": value}, {"arguments": json.dumps(value)}, {"arguments": json.dumps(json.dumps(value))},
            {"arguments": {}}, {"arguments": "{}"}, {"arguments": None}, {"arguments": "null"}, {},
        ]  # fmt: skip
        call = self.dice.choice(spellings)
        if not any(self.texts["calls"][-1] in str(part) for part in call.values()):
            del self.texts["calls"][-2:]
        return call

    def answer(self, content: str, calls: str | None = None) -> Message:
        more: dict[str, Any] = {}
        if self.dice.random() < 0.3:
            more["reasoning_content"] = self.word("reasoning")
        if self.dice.random() < 0.15:
            more["weight"] = 0
        return message("assistant", content, calls, **more)


def message(role: str, content: str, calls: str | None = None, **more: Any) -> Message:
    return Message(role, content, calls, json.dumps(more) if more else None)
