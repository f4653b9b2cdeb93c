"""Turns in the form that a template takes: contents as blocks, arguments of calls as objects or as text.

The refusals of chat templates: what a template raises for a conversation that it does not take, under one name.

A template is a program, and a conversation that it was not written for ends in whatever its expressions raise. Every
rendering passes through `refusals`, so a caller catches `TemplateError` (or `TemplateRefusal`) alone and has the
template's own words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson
from jinja2.exceptions import TemplateError

from trainyard.data.renderers.contract import Turn
from trainyard.json_types import JsonObject

REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template raises for a conversation that it does not take."""


class TemplateRefusal(TemplateError):
    """A conversation that a chat template does not take; its text is the template's own, or says what was raised."""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise a `TemplateRefusal` in place of anything that a template raises for a conversation.

    `TemplateLimit`, of a template that used up its limits, passes.
    """
    try:
        yield
    except TemplateError:
        raise
    except REFUSALS as error:
        raise TemplateRefusal(f"{type(error).__name__}: {error}") from error


MAX_NESTING = 3
"""Times that arguments may be JSON text inside JSON text; twice is seen in the wild."""
SHOWN_CHARS = 80
"""Characters of wrong arguments that an error quotes."""


def to_blocks(turns: list[Turn]) -> list[Turn]:
    """Return the turns with their contents as lists of one text block."""
    return [{**turn, "content": [{"type": "text", "text": turn.get("content") or ""}]} for turn in turns]


def sort_results(turns: list[Turn]) -> list[Turn]:
    """Return the turns with the results of a turn's calls in the order of the calls.

    Most templates write no ids, so a model distinguishes results by their order. A run of results stays as it is unless
    each has the id of another call.
    """
    ordered = list(turns)
    for start, turn in enumerate(turns):
        ids = [call.get("id") for call in turn.get("tool_calls") or () if isinstance(call, Mapping)]
        if len(ids) < 2:
            continue
        end = start + 1
        while end < len(turns) and turns[end].get("role") == "tool":
            end += 1
        answered = [result.get("tool_call_id") for result in turns[start + 1 : end]]
        if None not in answered and len(set(answered)) == len(answered) and set(answered) <= set(ids):
            results = dict(zip(answered, turns[start + 1 : end], strict=True))
            ordered[start + 1 : end] = [results[id] for id in ids if id in results]
    return ordered


def with_arguments(turn: Turn, *, as_text: bool) -> Turn:
    """Return a turn with the arguments of its calls as objects, or as the JSON text of objects.

    Raises `TemplateRefusal` for arguments that are not an object.
    """
    if not turn.get("tool_calls"):
        return turn
    return {**turn, "tool_calls": [convert_call(call, as_text=as_text) for call in turn["tool_calls"]]}


def convert_call(call: JsonObject, *, as_text: bool) -> JsonObject:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    value = function.get("arguments")
    arguments: object = read_arguments(value, str(function.get("name")))
    if as_text:
        is_object_text = isinstance(value, str) and value.lstrip().startswith("{") and arguments
        arguments = value if is_object_text else orjson.dumps(arguments).decode()
    return {**call, "function": {**function, "arguments": arguments}}


def read_arguments(value: Any, name: str) -> JsonObject:
    """Return the arguments of a call as an object, by their type: an object, its JSON text, or nothing, which is `{}`.

    Raises `TemplateRefusal` for a list, a number, or text that is not the JSON of an object.
    """
    arguments = value
    for _ in range(MAX_NESTING):
        if not isinstance(arguments, str):
            break
        try:
            arguments = json.loads(arguments, strict=False) if arguments.strip() else {}
        except json.JSONDecodeError:
            break
    if arguments is None:
        return {}
    if isinstance(arguments, Mapping):
        return dict(arguments)
    text = repr(value) if len(repr(value)) <= SHOWN_CHARS else f"{repr(value)[:SHOWN_CHARS]}…"
    raise TemplateRefusal(f"the arguments of the call of {name!r} are not an object: {text}")
