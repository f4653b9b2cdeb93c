"""Check that every field of a conversation reaches the prompt.

A template may leave out what it does not know: a call, a name, a thought. The answer would then be to another
conversation than the one that the client sent. So a copy of the turns and tools with a mark in place of each text is
rendered, and the marks are looked for. (`data.renderers.visibility` counts the kinds of hidden parts of training rows;
here each field has its path in the request.)

What a template hides by a rule of its own is not missing: thoughts of earlier answers, messages before a window. There
the mark is shown in the conversation that ends with its turn.

A model's chat template is a program of a stranger: it is tried in a child process with limits before it is used.

Sample conversations are rendered in jinja's immutable sandbox, under limits of memory and processor time
(`trainyard.data.renderers.limited`). What passes may still be refused later for a conversation that it does not
support; it cannot reach Python's objects, the disk or the net.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from jinja2.exceptions import TemplateError

from trainyard.data.renderers.contract import Tools, Turn
from trainyard.data.renderers.limited import LimitedTemplate, TemplateLimit
from trainyard.data.renderers.turns import read_arguments
from trainyard.data.renderers.visibility import shows_words
from trainyard.data.template_child import Unsupported
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.stores.models import chat_template

if TYPE_CHECKING:
    from trainyard.data.renderers.spans import TemplateText  # imports transformers, which `check` does not need

TEXTS = ("content", "reasoning_content", "name")
MARK = re.compile(r"mark\d+x")
OFFERED = "offered"
FUNCTIONS = "functions"
"""Kinds that end so are names of tools, calls and results: equal ones have the same mark."""


@dataclass(frozen=True)
class MarkedField:
    """A text of a request with its mark."""

    path: str
    """The field, such as `messages.1.tool_calls.0.function.name`."""
    kind: str
    """What a template shows or hides alike: the field of a role, and whether a call is a further one."""
    turn: int | None
    """None for a tool that is offered."""
    mark: str
    text: str


@dataclass
class MarkedCopy:
    """The marked copy of turns and tools."""

    fields: list[MarkedField] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """Name of a function -> mark."""

    def mark(self, text: str, path: str, kind: str, turn: int | None) -> str:
        """Return the mark of a text, which is entered; a blank text stays."""
        if not text.strip():
            return text
        mark = f"mark{len(self.fields):05}x"
        if kind.endswith(FUNCTIONS):
            mark = self.names.setdefault(text, mark)
        self.fields.append(MarkedField(path, kind, turn, mark, text))
        return mark

    def copy_turn(self, turn: Turn, index: int) -> Turn:
        path, role, marked = f"messages.{index}", turn["role"], dict(turn)
        for name in TEXTS:
            if name in turn:
                kind = FUNCTIONS if (role, name) == ("tool", "name") else name
                marked[name] = self.mark(turn[name], f"{path}.{name}", f"{role} {kind}", index)
        if turn.get("tool_calls"):
            calls = enumerate(turn["tool_calls"])
            marked["tool_calls"] = [self.copy_call(call, f"{path}.tool_calls.{at}", index) for at, call in calls]
        return marked

    def copy_call(self, call: JsonObject, path: str, index: int) -> JsonObject:
        kind = "first call" if path.endswith(".0") else "further call"
        function, path = call["function"], f"{path}.function"
        name = self.mark(function["name"], f"{path}.name", f"{kind} {FUNCTIONS}", index)
        values = read_arguments(function["arguments"], function["name"])
        arguments = self.copy_value(values, f"{path}.arguments", f"{kind} arguments", index)
        return {**call, "function": {**function, "name": name, "arguments": arguments}}

    def copy_value(self, value: object, path: str, kind: str, index: int) -> object:
        """Return a value of a call's arguments; numbers and constants stay."""
        if isinstance(value, str):
            return self.mark(value, path, kind, index)
        if isinstance(value, list):
            return [self.copy_value(part, path, kind, index) for part in value]
        if isinstance(value, dict):
            named = [(self.mark(key, path, kind, index), part) for key, part in value.items()]
            return {key: self.copy_value(part, path, kind, index) for key, part in named}
        return value

    def copy_tool(self, tool: JsonObject, index: int) -> JsonObject:
        """Return a tool with name, description and the names of its parameters as marks."""
        path, function = f"tools.{index}.function", tool["function"]
        marked = {**function, "name": self.mark(function["name"], f"{path}.name", f"{OFFERED} {FUNCTIONS}", None)}
        if function.get("description"):
            marked["description"] = self.mark(function["description"], f"{path}.description", OFFERED, None)
        schema = function.get("parameters") or {}
        if isinstance(properties := schema.get("properties"), dict):
            named = {name: self.mark(name, f"{path}.parameters", OFFERED, None) for name in properties}
            marked["parameters"] = {**schema, "properties": {named[name]: properties[name] for name in properties}}
            if isinstance(required := schema.get("required"), list):
                marked["parameters"]["required"] = [named.get(name, name) for name in required]
        return {**tool, "function": marked}


def find_hidden_field(renderer: TemplateText, turns: list[Turn], tools: Tools | None, prompt: str) -> str | None:
    """Return the first field of a request that the model would not see; None if its prompt contains all.

    `prompt` is the template's text for the turns and tools.
    """
    from trainyard.data.renderers.spans import ASKED  # imports transformers

    copy = MarkedCopy()
    offered = None if tools is None else [copy.copy_tool(tool, index) for index, tool in enumerate(tools)]
    marked = [copy.copy_turn(turn, index) for index, turn in enumerate(turns)]
    text = write(renderer, marked, offered, ask=True)
    if not text:  # it takes these texts and no marks
        return next((entry.path for entry in copy.fields if not shows_words(prompt, entry.text)), None)
    hidden: dict[str, list[MarkedField]] = {}
    marks = set(MARK.findall(text))
    for entry in copy.fields:
        if entry.mark not in marks:
            hidden.setdefault(entry.kind, []).append(entry)
    for entries in hidden.values():
        turn = entries[-1].turn
        shorter = [ASKED] if turn is None else marked[: turn + 1]
        marks = set(MARK.findall(write(renderer, shorter, offered, ask=False)))
        for entry in copy.fields if turn is None else entries:
            if entry.turn == turn and entry.mark not in marks:
                return entry.path
    return None


def write(renderer: TemplateText, turns: list[Turn], tools: Tools | None, *, ask: bool) -> str:
    """Return the template's text; empty if it does not take the turns."""
    try:
        return renderer.text(turns, tools, ask=ask)
    except TemplateError:
        return ""


CPU_S = 3.0
MAX_TEMPLATE_CHARS = 256 << 10
MAX_RENDERED_CHARS = 64 << 10
"""A template adds some hundred characters to the samples; one that adds more is not a chat template."""
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "tools": None}
SAMPLES: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello. How can I help?"},
        {"role": "user", "content": "Tell me more."},
    ],
)


def check_folder(folder: Path) -> None:
    """Check a model folder's template; a folder without one passes. Raises as `check_chat_template`."""
    text = chat_template(folder)
    if text is not None:
        check_chat_template(text)


def check_chat_template(text: str, *, cpu_s: float = CPU_S) -> None:
    """Try a template in a child process. Raises `InvalidInput` (`E-CHAT-TEMPLATE`) with what it did."""
    if len(text) > MAX_TEMPLATE_CHARS:
        raise refused_error(f"it has {len(text):,} characters; {MAX_TEMPLATE_CHARS:,} are allowed")
    child = LimitedTemplate(text, cpu_s=cpu_s)
    try:
        for number, messages in enumerate(SAMPLES):
            for ask in (True, False):
                try_sample(child, messages, ask=ask, required=number == 0)
    finally:
        child.stop()


def try_sample(child: LimitedTemplate, messages: list[dict[str, str]], *, ask: bool, required: bool) -> None:
    """Render one sample; a template need not support those that are not required."""
    try:
        rendered = child.render(json.dumps({**NAMES, "messages": messages, "add_generation_prompt": ask}))
    except Unsupported as error:
        if required:
            raise refused_error(f"it takes no plain user message ({error})") from error
        return
    except (TemplateLimit, jinja2.TemplateError) as error:
        raise refused_error(error.what if isinstance(error, TemplateLimit) else str(error)) from error
    if len(rendered) > MAX_RENDERED_CHARS:
        length = sum(len(message["content"]) for message in messages)
        raise refused_error(f"it turned {length} characters into {len(rendered):,}")


def refused_error(why: str) -> InvalidInput:
    return InvalidInput(
        f"The chat template is refused: {why.rstrip('.')}.",
        why="A chat template is a program; it may only arrange messages.",
        do="Use the template of the model's maker, or a plain one such as ChatML.",
        code="E-CHAT-TEMPLATE",
    )
