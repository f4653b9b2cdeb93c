"""Rewards for JSON and for Python code: what is accepted, what is not, and what a schema may not reach."""

from __future__ import annotations

import time

import pytest

from trainyard.errors import InvalidInput
from trainyard.spec.axes.rewards import JsonSchemaReward, PythonReward
from trainyard.train.rl.rewards import SampledCompletion, json_schema, python, require_sound

PERSON = JsonSchemaReward(
    definition={
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
        "required": ["name"],
        "additionalProperties": False,
        "$defs": {"age": {"type": "integer", "minimum": 0}},
    }
)


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ('{"name": "Ann", "age": 3}', 1.0),
        ('{"name": "Ann"}', 1.0),
        ('Here it is:\n```json\n{"name": "Ann"}\n```\nDone.', 1.0),
        ('```json\n{"name": 1}\n```\n```json\n{"name": "Ann"}\n```', 1.0),
        ('```json\n{"name": "Ann"}\n```\n```json\n{"name": 1}\n```', 0.0),
        ('{"name": "Ann", "age": -1}', 0.0),
        ('{"name": "Ann", "more": 1}', 0.0),
        ("{}", 0.0),
        ('Sure: {"name": "Ann"}', 0.0),
        ('{"name": "Ann"', 0.0),
        ("", 0.0),
    ],
)
def test_json_is_worth_something_where_the_schema_accepts_it(text: str, worth: float) -> None:
    assert json_schema(SampledCompletion(text, 1), "", PERSON) == worth


def test_a_schema_reaches_nothing_outside_itself() -> None:
    remote = JsonSchemaReward(definition={"$ref": "http://127.0.0.1:9/schema.json"})
    with pytest.raises(InvalidInput, match="E-REWARD: The schema of a json_schema reward refers to what it does not"):
        json_schema(SampledCompletion("{}", 1), "", remote)
    with pytest.raises(InvalidInput, match="is not a JSON Schema"):
        require_sound([JsonSchemaReward(definition={"type": 7})])


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("def double(n): return 2 * n", 1.0),
        ("I write:\n```python\ndef double(n):\n    return 2 * n\n```\nThat is all.", 1.0),
        ("def double(n): return 3 * n", 0.0),
        ("def double(n) return 2 * n", 0.0),
        ("import sys\nsys.exit(0)", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("import socket\nsocket.socket()\ndef double(n): return 2 * n", 0.0),
        ("open('x', 'w')\ndef double(n): return 2 * n", 0.0),
        ("while True: pass", 0.0),
    ],
)
def test_code_is_worth_something_where_it_and_the_assertions_of_the_row_run(text: str, worth: float) -> None:
    settings = PythonReward(timeout_s=1 if "while" in text else 60)
    assert python(SampledCompletion(text, 1), "assert double(4) == 8", settings) == worth


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({"properties": {"a": {"pattern": "^(a+)+$"}}}, '{"a": "%s!"}' % ("a" * 40)),
        ({"patternProperties": {"^(a|a)*$": {}}}, '{"%s!": 1}' % ("a" * 40)),
        ({"uniqueItems": True}, str([{"a": n} for n in range(20_000)]).replace("'", '"')),
        ({"type": "object", "items": {"$ref": "#"}, "not": {"$ref": "#"}}, "[]"),
        ({"$ref": "#"}, "1"),
        ({"items": {"$ref": "#"}, "type": "array"}, "[" * 900 + "]" * 900),
        ({}, "[" * 5_000),
    ],
)  # fmt: skip
def test_a_schema_that_takes_too_long_or_too_deep_is_worth_nothing(definition: dict[str, object], text: str) -> None:
    started = time.monotonic()
    assert json_schema(SampledCompletion(text, 1), "", JsonSchemaReward(definition=definition)) == 0.0
    assert time.monotonic() - started < 60
