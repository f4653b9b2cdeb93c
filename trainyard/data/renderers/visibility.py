"""Parts of a conversation that its rendering does not show: a template may leave out calls, tools, turns or thoughts.

Two questions are asked of every row. Does the template show such a conversation at all? A copy with a mark in place of
each text is rendered once for each structure (roles, which fields the turns have), and the marks are searched. And does
the rendering have the texts of this row? Each is searched as it is, then word by word, because templates trim texts and
write them as JSON. The first finds what is short or occurs twice, the second what depends on the content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import orjson
from jinja2.exceptions import TemplateError

from trainyard.data.renderers.contract import Tools, Turn
from trainyard.data.renderers.turns import read_arguments
from trainyard.json_types import JsonMapping, JsonObject

SYSTEM, TURN, CALLS, RESULT, TOOLS, SCHEMA = "system", "turn", "tool_calls", "tool_result", "tools", "tool_schema"
REASONING, NAME = "reasoning_content", "name"
KINDS = (SYSTEM, TURN, CALLS, RESULT, TOOLS, SCHEMA, REASONING, NAME)
"""Parts of a row: in a ledger `hidden_system`, `hidden_turn`, …"""
CONTENT_KINDS = {"system": SYSTEM, "developer": SYSTEM, "tool": RESULT}
"""Role -> kind of its content; of other roles a turn."""
WORD = re.compile(r"\w+")
ESCAPED = str.maketrans({"\\": " ", '"': " ", "'": " "})
"""Characters that templates escape in different ways."""
MARKED_TOOL: Turn = {
    "type": "function",
    "function": {
        "name": "toolname", "description": "tooldescription",
        "parameters": {"type": "object", "properties": {"toolfield": {"type": "string", "description": "toolnote"}},
                       "required": ["toolfield"]},
    },
}  # fmt: skip

Part = tuple[str, str]
"""Kind and text."""


class Rendering(Protocol):
    """A template that renders conversations."""

    def text(self, turns: list[Turn], tools: Tools | str | None = None, *, ask: bool = False) -> str:
        """Return the text of a conversation."""


class Visibility:
    """The parts that a template hides, remembered by the structure of conversations."""

    def __init__(self, template: Rendering) -> None:
        self.template = template
        self.by_structure: dict[object, frozenset[str]] = {}
        self.tool_parts: dict[str, list[Part]] = {}

    def hidden(
        self, turns: list[Turn], tools: Tools | str | None, texts: Sequence[str], lengths: Sequence[int]
    ) -> set[str]:
        """Kinds of parts of the conversation that none of its renderings shows.

        `texts` are the renderings without marks of control tokens, each of the first so many turns (`lengths`).
        """
        structure = (tuple(map(outline_turn, turns)), bool(tools), tuple(lengths))
        if structure not in self.by_structure:
            self.by_structure[structure] = self.search_marks(turns, bool(tools), lengths)
        hidden = set(self.by_structure[structure])
        parts = [part for turn in name_turns(turns) for part in list_parts(turn)]
        for kind, text in [*self.parts_of_tools(tools), *parts]:
            if kind in hidden or any(text in rendering for rendering in texts):
                continue
            if not any(shows_words(rendering, text) for rendering in texts):
                hidden.add(kind)
        return hidden - {SCHEMA} if TOOLS in hidden else hidden

    def parts_of_tools(self, tools: Tools | str | None) -> list[Part]:
        if not tools:
            return []
        text = tools if isinstance(tools, str) else orjson.dumps(tools).decode()
        if text not in self.tool_parts:
            if len(self.tool_parts) > MOST_TOOL_LISTS:
                self.tool_parts.clear()
            self.tool_parts[text] = list(dict.fromkeys(list_tool_parts(orjson.loads(text))))
        return self.tool_parts[text]

    def search_marks(self, turns: list[Turn], has_tools: bool, lengths: Sequence[int]) -> frozenset[str]:
        """Render a copy whose texts are marks, and return the kinds of those that are missing.

        Empty where the template does not take the copy: then the texts themselves are all that is searched.
        """
        marked = [mark_turn(turn, number) for number, turn in enumerate(name_turns(turns))]
        tools = [MARKED_TOOL] if has_tools else None
        try:
            texts = [self.template.text(marked[:length], tools) for length in lengths]
        except TemplateError:
            return frozenset()
        parts = [part for turn in marked for part in list_parts(turn)]
        if tools:
            parts += [part for part in list_tool_parts(tools) if part[0] == TOOLS]
        return frozenset(kind for kind, text in parts if not any(text in rendering for rendering in texts))


MOST_TOOL_LISTS = 1000
"""Lists of tools whose texts are remembered."""


def shows_words(rendering: str, text: str) -> bool:
    """Whether the words of a text are in a rendering, in their order: templates trim texts and escape them as JSON."""
    for form in (text.translate(ESCAPED), escape_ascii(text)):
        position = 0
        for word in WORD.findall(form):
            position = rendering.find(word, position)
            if position < 0:
                break
            position += len(word)
        else:
            return True
    return False


def escape_ascii(text: str) -> str:
    """Return a text with its characters beyond ASCII as JSON escapes, which some templates write."""
    return text.encode("ascii", "backslashreplace").decode().translate(ESCAPED)


def name_turns(turns: list[Turn]) -> list[Turn]:
    """Return the turns without the names of results that are those of the row's calls: the call shows them."""
    names = {name for turn in turns for name in names_of_calls(turn)}
    return [
        {key: value for key, value in turn.items() if key != NAME}
        if turn.get("role") == "tool" and turn.get(NAME) in names
        else turn
        for turn in turns
    ]


def list_functions(turn: Turn) -> list[Mapping[str, object]]:
    """Return the functions of the calls of a turn: {name, arguments}."""
    calls = turn.get("tool_calls") or ()
    listed = [call.get("function", call) for call in calls if isinstance(call, Mapping)]
    return [function for function in listed if isinstance(function, Mapping)]


def names_of_calls(turn: Turn) -> list[str]:
    """Return the functions that a turn calls."""
    return [str(function["name"]) for function in list_functions(turn) if function.get("name")]


def list_parts(turn: Turn) -> Iterator[Part]:
    """Yield the texts of a turn, by kind."""
    role = turn.get("role")
    fields = {CONTENT_KINDS.get(str(role), TURN): turn.get("content"), REASONING: turn.get(REASONING)}
    for kind, value in {**fields, NAME: turn.get(NAME)}.items():
        if isinstance(value, str) and (text := value.strip()):
            yield kind, text
    for function in list_functions(turn):
        if function.get("name"):
            yield CALLS, str(function["name"])
        arguments = read_arguments(function.get("arguments"), str(function.get("name")))
        yield from ((CALLS, text) for text in list_texts(arguments))


def list_tool_parts(tools: Sequence[object]) -> Iterator[Part]:
    """The texts of tool schemas: names, descriptions and fields of the functions, then what describes the fields."""
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        if not isinstance(function, Mapping):
            continue
        for name in ("name", "description"):
            if isinstance(function.get(name), str) and function[name].strip():
                yield TOOLS, function[name].strip()
        parameters = function.get("parameters")
        fields = parameters.get("properties") if isinstance(parameters, Mapping) else None
        for name, field in fields.items() if isinstance(fields, Mapping) else ():
            yield TOOLS, name
            described = field.get("description") if isinstance(field, Mapping) else None
            if isinstance(described, str) and described.strip():
                yield SCHEMA, described.strip()


def list_texts(value: object) -> Iterator[str]:
    """Yield the keys and strings of a JSON value that are not blank."""
    if isinstance(value, str):
        if text := value.strip():
            yield text
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from list_texts(key)
            yield from list_texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from list_texts(part)


def outline_turn(turn: Turn) -> tuple[Any, ...]:
    """Return what a turn has, without its texts."""
    content = turn.get("content")
    return (
        turn.get("role"),
        bool(isinstance(content, str) and content.strip()),
        bool(turn.get(REASONING)),
        bool(turn.get(NAME)),
        tuple(bool(function.get("arguments") not in (None, "", {}, "{}", "null")) for function in list_functions(turn)),
    )


def mark_turn(turn: Turn, number: int) -> Turn:
    """Return a copy of a turn with a mark in place of each text; no mark is part of another."""
    marked = dict(turn)
    for field, letter in (("content", "c"), (REASONING, "r"), (NAME, "n")):
        if isinstance(turn.get(field), str) and turn[field].strip():
            marked[field] = f"m{letter}{number:04}z"
    if turn.get("tool_calls"):
        has_arguments = outline_turn(turn)[-1]
        calls = [call for call in turn["tool_calls"] if isinstance(call, Mapping)]
        marked["tool_calls"] = [
            mark_call(call, f"{number:04}x{at:03}z", with_arguments)
            for at, (call, with_arguments) in enumerate(zip(calls, has_arguments, strict=False))
        ]
    return marked


def mark_call(call: JsonMapping, mark: str, with_arguments: bool) -> JsonObject:
    function = {"name": f"mf{mark}", "arguments": {f"mk{mark}": f"mv{mark}"} if with_arguments else {}}
    return {**call, "function": function} if "function" in call else {**call, **function}
