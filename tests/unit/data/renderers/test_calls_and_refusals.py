"""Calls in the form that a template takes, by the type of their arguments; and what a template raises, by one name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError

from tests.unit.data.renderers.toys import assistant, toy, user
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.table import RENDERERS
from trainyard.data.renderers.turns import TemplateRefusal, read_arguments, sort_results
from trainyard.data.renderers.verify import toy_tokenizer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NOTHING: list[dict[str, Any]] = [{"arguments": value} for value in ({}, "{}", " { } ", '"{}"', None, "null", "")] + [{}]


def make_call(**function: Any) -> dict[str, Any]:
    call = {"id": "call00001", "type": "function", "function": {"name": "list_lamps", **function}}
    return assistant("", tool_calls=[call])


def render_call(name: str, turn: dict[str, Any]) -> str:
    """The text of a conversation with one call, or that it is refused."""
    result = {"role": "tool", "tool_call_id": "call00001", "content": "[]"}
    try:
        return toy(name).text([user("Which lamps?"), turn, result, assistant("None.")])
    except TemplateError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("name", RENDERERS)
def test_every_spelling_of_no_arguments_is_the_same(name: str) -> None:
    assert len({render_call(name, make_call(**spelling)) for spelling in NOTHING}) == 1


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize("wrong", ["all of them", "[1, 2]", [1, 2], 7, True, '"text"', "{'a': 1}"])
def test_arguments_that_are_no_object_are_refused_with_the_name_of_the_call(name: str, wrong: Any) -> None:
    with pytest.raises(TemplateRefusal, match=r"the arguments of the call of 'list_lamps' are not an object"):
        toy(name).text([user("Which lamps?"), make_call(arguments=wrong)])


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_arguments_are_an_object_or_refused(value: Any) -> None:
    spellings = [value, json.dumps(value), json.dumps(json.dumps(value))]
    expected: Any = value if isinstance(value, dict) else {} if value in (None, "") else None
    if isinstance(value, str) and value:
        return  # JSON text inside of text is read on, and may be anything
    for spelling in spellings:
        if expected is None:
            with pytest.raises(TemplateRefusal, match="not an object"):
                read_arguments(spelling, "f")
        else:
            assert read_arguments(spelling, "f") == expected


def test_results_follow_the_order_of_their_calls() -> None:
    calls = [{"id": id, "type": "function", "function": {"name": id}} for id in ("a", "b", "c")]
    results = [{"role": "tool", "tool_call_id": id, "content": id} for id in ("c", "a", "b")]
    turns = [user("?"), assistant("", tool_calls=calls), *results, assistant(".")]
    assert [turn["content"] for turn in sort_results(turns)[2:5]] == ["a", "b", "c"]
    assert sort_results([*turns[:2], results[0], turns[-1]])[2] is results[0]
    unnamed = [{"role": "tool", "content": text} for text in ("2", "1")]
    assert sort_results([*turns[:2], *unnamed])[2:] == unnamed


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ messages[0].content.items() }}", "UndefinedError|has no attribute 'items'"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ {}['a'] | tojson }}", "Undefined"),
        ("{{ raise_exception('no system here') }}", "^no system here$"),
    ],
)
def test_whatever_a_template_raises_is_a_refusal(template: str, words: str) -> None:
    trusted = Renderer(toy_tokenizer(template))
    trusted.is_trusted = True  # rendered in this process, as a template of the table is
    for renderer in (trusted, Renderer(toy_tokenizer(template))):
        with pytest.raises(TemplateError, match=words):
            renderer.text([user("a")])
