"""Constrained decoding: whatever tokens a model wants, what comes out is an instance, within the budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest

from trainyard.errors import InvalidInput
from trainyard.serve.guided import MIN_STRING_CHARS, Grammars, bound_schema

PAIRS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "pairs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"question": {"type": "string"}, "answer": {"type": "string"}},
                "required": ["question", "answer"],
            },
        }
    },
    "required": ["pairs"],
}
TREE: dict[str, Any] = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name", "children"],
        }
    },
    "$ref": "#/$defs/node",
}


@pytest.fixture(scope="module")
def grammars(tiny_model: Path) -> Grammars:
    text = (tiny_model / "tokenizer.json").read_text()
    special = {token["content"]: token["id"] for token in json.loads(text)["added_tokens"]}
    end = special["<|im_end|>"]
    tokenizer = llguidance.LLTokenizer(text, eos_token=end)
    size = tokenizer.vocab_size
    texts = [b"" if i in special.values() else tokenizer.decode_bytes([i]) for i in range(size)]
    return Grammars(tokenizer, texts, [end])


def random_text(grammars: Grammars, schema: dict[str, Any], max_tokens: int, seed: int) -> str:
    """What an untrained model writes: any allowed token, each with the same probability."""
    constraint = grammars.constraint(schema, max_tokens)
    draw, text = np.random.default_rng(seed), b""
    for _ in range(max_tokens):
        token = constraint.accept(int(draw.choice(np.flatnonzero(constraint.allowed()))))
        if token in grammars.eos_ids:
            break
        text += grammars.token_bytes[token]
        if constraint.finished:
            break
    assert constraint.complete or constraint.finished
    return text.decode()


@pytest.mark.parametrize(
    "schema",
    [
        PAIRS,
        TREE,
        {"type": "object"},
        {"type": "integer"},
        {"type": "number"},
        {"type": "array", "items": {"type": "number"}, "minItems": 3},
        {"enum": ["a", "b", 3, None]},
        {"type": "string", "pattern": "^[a-z]{3,8}-[0-9]+$"},
        {"type": "string", "format": "date"},
        {"type": ["string", "null"], "minLength": 5},
        {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {},
    ],
)
@pytest.mark.parametrize("max_tokens", [64, 200])
def test_random_tokens_become_an_instance_within_the_budget(
    grammars: Grammars, schema: dict[str, Any], max_tokens: int
) -> None:
    for seed in range(3):
        jsonschema.validate(json.loads(random_text(grammars, schema, max_tokens, seed)), schema)


def test_a_budget_below_the_shortest_instance_is_refused(grammars: Grammars) -> None:
    with pytest.raises(InvalidInput, match=r"E-JSON-SCHEMA: .*shortest instance takes \d+ tokens and max_tokens is 8"):
        grammars.constraint(PAIRS, 8)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "string", "description": "x" * 70_000}, "longer than 65,536 bytes"),
        ({"type": "nonsense"}, "nonsense"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"type": "object", "properties": {"a": {"$ref": "http://example.org/x"}}, "required": ["a"]}, "example.org"),
        ({"type": "string", "pattern": "(?<=a)b"}, "regex"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(grammars: Grammars, schema: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=f"E-JSON-SCHEMA: The json_schema cannot be enforced: .*{why}"):
        grammars.constraint(schema, 100)


def test_a_schema_nested_without_end_is_refused(grammars: Grammars) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidInput, match="nested deeper than 64"):
        grammars.constraint(deep, 1000)


def test_free_strings_share_the_budget_and_the_callers_limits_stay() -> None:
    bounded = bound_schema(
        {
            "properties": {
                "maxLength": {"type": "string"},
                "b": {"type": "string", "maxLength": 7},
                "c": {"type": "string"},
            }
        },
        max_tokens=200,
    )
    lengths = {name: part["maxLength"] for name, part in bounded["properties"].items()}
    assert lengths == {"maxLength": 150, "b": 7, "c": 150}
    assert bounded["additionalProperties"] is False
    assert bound_schema({"type": "string"}, 2)["maxLength"] == MIN_STRING_CHARS
    assert bound_schema({"type": "string", "minLength": 900}, 2)["maxLength"] == 900


def test_a_composed_object_stays_open() -> None:
    composed = {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    assert bound_schema(composed, 100) == composed


def test_the_same_schema_is_compiled_once(grammars: Grammars) -> None:
    grammars.compiled.clear()
    first, second = grammars.constraint(PAIRS, 100), grammars.constraint(PAIRS, 100)
    assert len(grammars.compiled) == 1
    first.accept(int(np.flatnonzero(first.allowed())[0]))
    assert second.left == 100
    for number in range(70):
        grammars.constraint({"const": number}, 100)
    assert len(grammars.compiled) == 64
