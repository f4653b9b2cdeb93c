"""Thoughts of an answer as a field of their own, in an answer and in a stream, and the logits that a request shifts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from tests.unit.data.renderers.toys import toy
from tests.unit.serve.template_server import serve_template
from trainyard.serve.calls import ThoughtReader, TurnReader
from trainyard.serve.inference import Generation, Step, TextWriter, shift_logits

NAME, CHAT = "acme/thinker", "/v1/chat/completions"
ASKED = [{"role": "user", "content": "What is a chain?"}]
OPENS = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n<think>\n{%- endif -%}"
)
"""A template that begins the thoughts in the prompt, as DeepSeek R1's."""


def read_answer(
    name: str, prompt: str, text: str, *, stops: tuple[str, ...] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fields of an answer whose tokens come one by one, and the same as `TurnReader` reads the whole."""
    renderer = toy(name)
    tokenizer = renderer.tokenizer
    generation = Generation(tokenizer.encode(prompt, add_special_tokens=False), 64, stops=list(stops))
    ids = tokenizer.encode(text, add_special_tokens=False)
    writer = TextWriter(tokenizer, generation.stops)
    steps = []
    for token in ids:
        steps.append(Step(token, writer.add(token), None))
        if writer.stopped:
            break
    reader = ThoughtReader(renderer, generation)
    sent: dict[str, str] = {"reasoning_content": "", "content": ""}
    for delta in (*map(reader.add, steps), reader.end()):
        assert all(delta.values())
        sent = {key: sent[key] + delta.get(key, "") for key in sent}
    turn = TurnReader(lambda: renderer, False, False).read(generation, steps)
    plain = "".join(step.text for step in steps) + writer.finish()
    whole = {"content": plain} if turn is None else turn.message
    return sent, whole


@pytest.mark.parametrize(
    ("name", "text", "thoughts", "content"),
    [
        ("qwen3", "<think>\nA list? Yes.\n</think>\n\nA list of nodes.", "A list? Yes.", "A list of nodes."),
        ("qwen3", "A list of nodes.", "", "A list of nodes."),
        ("qwen3", "<think>and so on", "and so on", ""),
        ("qwen3", "A <think>late</think> thought.", "", "A <think>late</think> thought."),
        ("qwen3", "<tho", "", "<tho"),
        ("glm4.5", "\n<think>Hm.</think>\nYes.", "Hm.", "Yes."),
        ("llama3.1", "<think>Hm.</think>Yes.", "", "<think>Hm.</think>Yes."),
        ("gpt-oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
         "Hm.", "Yes."),
        ("gpt-oss", "<|channel|>final<|message|>Yes.", "", "Yes."),
    ],
)  # fmt: skip
def test_thoughts_and_answer_are_told_apart(name: str, text: str, thoughts: str, content: str) -> None:
    sent, whole = read_answer(name, "", text)
    assert sent == {"reasoning_content": thoughts, "content": content}
    assert (whole.get("reasoning_content", ""), whole["content"]) == (thoughts, content)


def test_a_prompt_may_have_begun_the_thoughts() -> None:
    sent, whole = read_answer("qwen3", "<|im_start|>assistant\n<think>\n", "Hm.\n</think>\n\nYes.")
    assert sent == {"reasoning_content": "Hm.", "content": "Yes."} == whole


def test_a_stop_text_ends_both() -> None:
    sent, whole = read_answer("qwen3", "", "<think>Hm.</think>Yes. STOP more", stops=("STOP",))
    assert sent == {"reasoning_content": "Hm.", "content": "Yes. "} == whole


@pytest.fixture(scope="module")
def client(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serve_template(tiny_model, tmp_path_factory.mktemp("served") / "model", NAME, OPENS) as test_client:
        yield test_client


def chat(client: TestClient, **more: Any) -> dict[str, Any]:
    answer = client.post(CHAT, json={"model": NAME, "messages": ASKED, "max_tokens": 12, "seed": 5, **more})
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


def test_the_server_answers_and_streams_thoughts(client: TestClient) -> None:
    message = chat(client)
    assert message["content"] == ""
    assert message["reasoning_content"]
    body = {"model": NAME, "messages": ASKED, "max_tokens": 12, "seed": 5, "stream": True, "n": 2}
    lines = [line.removeprefix("data: ") for line in client.post(CHAT, json=body).text.splitlines() if line]
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    first = [choice["delta"] for choice in choices if choice["index"] == 0]
    assert "".join(delta.get("reasoning_content", "") for delta in first) == message["reasoning_content"]
    assert sum(len(delta.get("reasoning_content", "")) > 0 for delta in first) > 1
    assert any(choice["delta"].get("reasoning_content") for choice in choices if choice["index"] == 1)


def test_an_answer_by_a_schema_is_its_content(client: TestClient) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "boolean"}}}
    message = chat(client, response_format=schema)
    assert isinstance(json.loads(message["content"]), bool)
    assert "reasoning_content" not in message


def test_penalties_and_biases_shift_logits() -> None:
    generation = Generation([1], 4, frequency_penalty=0.5, presence_penalty=1.0, logit_bias={0: 3.0, 2: -1.0})
    shifted = shift_logits(torch.zeros(4), generation, {2: 3, 3: 1})
    assert shifted.tolist() == [3.0, 0.0, -3.5, -1.5]
    plain = torch.arange(4.0)
    assert shift_logits(plain, Generation([1], 4), {2: 3}) is plain


def test_biases_and_penalties_reach_the_answer(client: TestClient) -> None:
    body = {"model": NAME, "prompt": "A chain", "max_tokens": 6, "temperature": 0, "logprobs": 0}
    token = 40

    def tokens(**more: Any) -> list[str]:
        answer = client.post("/v1/completions", json={**body, **more})
        assert answer.status_code == 200, answer.text
        texts: list[str] = answer.json()["choices"][0]["logprobs"]["tokens"]
        return texts

    forced = tokens(logit_bias={str(token): 100})
    assert len(set(forced)) == 1
    assert len(set(tokens(logit_bias={str(token): 100, "41": 99.5}, frequency_penalty=2))) == 2
    assert tokens(frequency_penalty=0, presence_penalty=0, logit_bias={}) == tokens()


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ],
)
def test_settings_out_of_range_are_refused(client: TestClient, more: dict[str, Any], param: str) -> None:
    answer = client.post(CHAT, json={"model": NAME, "messages": ASKED, **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
