"""A row with tools, calls and thoughts: what is trained on is what `apply_chat_template` writes, and what is served."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from trainyard.data.formats.shapes import Normaliser, detect
from trainyard.data.renderers.choice import recognise_template, template_text
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.table import RENDERERS
from trainyard.data.renderers.verify import toy_tokenizer
from trainyard.data.rows import SftRow
from trainyard.serve.protocol import ChatRequest
from trainyard.spec.axes.data import DataFormat
from trainyard.train.rows.tokens import IGNORED, encode_sft

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "clock",
            "description": "The time in a zone.",
            "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
        },
    }
]
CALL = {"id": "call00001", "type": "function", "function": {"name": "clock", "arguments": {"zone": "UTC"}}}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": "", "reasoning_content": "A clock knows.", "tool_calls": [CALL]},
    {"role": "tool", "content": "quarter past", "tool_call_id": "call00001", "name": "clock"},
    {"role": "assistant", "content": "Noon.", "reasoning_content": "It said so."},
]
SPELLINGS = ("reasoning_content", "reasoning", "thinking")
FAMILIES = ("gemma4", "lfm2.5", "nemotron3", "qwen3", "qwen3-keep", "qwen3.5")
"""Templates that take tools and show thoughts."""


@cache
def renderer(family: str) -> Renderer:
    spec = RENDERERS[family]
    text = template_text(spec, next(iter(spec.templates)))
    return Renderer(toy_tokenizer(text, recognise_template(text)))


def read_row(spelling: str = "reasoning_content") -> SftRow:
    """The conversation as a file may have it, read."""
    turns = [
        {(spelling if key == "reasoning_content" else key): value for key, value in turn.items()} for turn in TURNS
    ]
    record = {"messages": turns, "tools": TOOLS}
    read = Normaliser(detect([record], DataFormat.AUTO, "a test"))(record)[0]
    assert isinstance(read, SftRow)
    return read


def encode_row(family: str, sft_row: SftRow) -> dict[str, list[int]]:
    (example,), ledger = encode_sft([sft_row], renderer(family).tokenizer, 4096)
    assert ledger.balanced
    return example


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_ids_are_those_of_apply_chat_template(family: str, spelling: str) -> None:
    tokenizer = renderer(family).tokenizer
    template_ids = tokenizer.apply_chat_template(renderer(family).adapt_turns(TURNS), tools=TOOLS, return_dict=False)
    our_ids = encode_row(family, read_row(spelling))["input_ids"]
    assert template_ids[: len(our_ids)] == our_ids
    assert not tokenizer.decode(
        template_ids[len(our_ids) :]
    ).strip()  # only a line break may follow the last stop token


@pytest.mark.parametrize("family", FAMILIES)
def test_thoughts_and_calls_are_learned_and_results_are_not(family: str) -> None:
    example, tokenizer = encode_row(family, read_row()), renderer(family).tokenizer
    learned = tokenizer.decode([label for label in example["labels"] if label != IGNORED])
    assert all(text in learned for text in ("A clock knows.", "clock", "UTC", "It said so.", "Noon."))
    decoded = tokenizer.decode(
        [id for id, label in zip(example["input_ids"], example["labels"], strict=True) if label == IGNORED]
    )
    assert all(text in decoded for text in ("The time in a zone.", "What time is it?", "quarter past"))
    assert "quarter past" not in learned


@pytest.mark.parametrize("family", FAMILIES)
def test_a_server_asks_with_the_ids_that_training_showed(family: str) -> None:
    chat_renderer, ids = renderer(family), encode_row(family, read_row())["input_ids"]
    for num_turns in (1, 3):
        request = ChatRequest.model_validate(
            {"model": "m", "messages": spell_for_server(TURNS[:num_turns]), "tools": TOOLS}
        )
        messages = [message.for_template() for message in request.messages]
        prompt = chat_renderer.ids(chat_renderer.text(messages, request.offered(), ask=True))
        assert ids[: len(prompt)] == prompt


def spell_for_server(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns as OpenAI's protocol writes them: the arguments of a call are JSON text."""
    call = {**CALL, "function": {**CALL["function"], "arguments": '{"zone": "UTC"}'}}
    return [{**turn, "tool_calls": [call]} if "tool_calls" in turn else turn for turn in turns]


def test_thoughts_are_the_assistants() -> None:
    with pytest.raises(ValueError, match="reasoning_content belongs to an assistant's message"):
        ChatRequest.model_validate(
            {"model": "m", "messages": [{"role": "user", "content": "a", "reasoning_content": "b"}]}
        )
