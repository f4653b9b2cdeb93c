"""Prompts of rollouts contain the tools, calls and results of their rows."""

from __future__ import annotations

import pytest

from trainyard.data.renderers.choice import choose_template
from trainyard.data.renderers.table import RENDERERS
from trainyard.data.renderers.verify import toy_tokenizer
from trainyard.data.rows import Message, SftRow
from trainyard.train.rows.prompts import encode_prompts

TOOLS = (
    '[{"type": "function", "function": {"name": "weigh", "description": "Find a weight.", '
    '"parameters": {"type": "object", "properties": {"fruit": {"type": "string"}}}}}]'
)
CALL = '[{"id": "call00001", "type": "function", "function": {"name": "weigh", "arguments": {"fruit": "quince"}}}]'
FREE_TEXT = '[{"id": "call00001", "type": "function", "function": {"name": "weigh", "arguments": "no JSON"}}]'


def make_row(call: str) -> SftRow:
    messages = [
        Message("user", "How heavy is it?"),
        Message("assistant", "", tool_calls=call),
        Message("tool", "Eighty."),
        Message("assistant", "80 gram."),
    ]
    return SftRow(messages, tools=TOOLS)


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "qwen3.5", "llama3.1", "mistral", "gpt-oss"])
def test_a_prompt_has_tools_calls_and_results(name: str) -> None:
    tokenizer = toy_tokenizer(choose_template(name).text, RENDERERS[name])
    (example,), ledger = encode_prompts([make_row(CALL)], tokenizer, 4000)
    prompt = tokenizer.decode(example["input_ids"])
    assert all(text in prompt for text in ("Find a weight.", "quince", "Eighty."))
    assert (example["answer"], "80 gram." in prompt) == ("80 gram.", False)
    assert [message["role"] for message in example["messages"]] == ["user", "assistant", "tool"]
    assert ledger.rows["trained"] == 1


def test_a_refused_prompt_is_counted() -> None:
    tokenizer = toy_tokenizer(choose_template("qwen3.5").text, RENDERERS["qwen3.5"])
    examples, ledger = encode_prompts([make_row(FREE_TEXT), make_row(CALL)], tokenizer, 4000)
    assert len(examples) == 1
    assert ledger.rows["dropped_template"] == 1
