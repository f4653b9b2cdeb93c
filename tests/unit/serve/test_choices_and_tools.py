"""Several choices, tools and single models of the embedded server, over its application in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.serve.template_server import serve_template
from trainyard.serve.protocol import MAX_CHOICES

NAME = "acme/tiny"
CHAT, TEXT, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "What is a chain?"}]
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Look a word up.", "parameters": {"type": "object"}},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "chain"}'}}
WITH_TOOLS = (
    "{%- if tools -%}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{%- endif -%}"
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{%- for call in message.tool_calls or [] -%}[{{ call.function.name }} {{ call.function.arguments | tojson }}]"
    "{%- endfor -%}<|im_end|>\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)


@pytest.fixture(scope="module")
def client(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The server over a model whose chat template has a place for tools."""
    with serve_template(tiny_model, tmp_path_factory.mktemp("served") / "model", NAME, WITH_TOOLS) as test_client:
        yield test_client


def chat(client: TestClient, **more: Any) -> dict[str, Any]:
    answer = client.post(CHAT, json={"model": NAME, "messages": MESSAGES, "max_tokens": 8, "seed": 5, **more})
    assert answer.status_code == 200, answer.text
    completion: dict[str, Any] = answer.json()
    return completion


def stream_lines(client: TestClient, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = client.post(path, json={"model": NAME, "max_tokens": 8, "seed": 5, "stream": True, **body})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def refusal(client: TestClient, path: str, **body: Any) -> tuple[int, str, str | None]:
    answer = client.post(path, json={"model": NAME, **body})
    error = answer.json()["error"]
    return answer.status_code, error["message"], error["param"]


def test_one_model_is_shown_by_its_name_with_slashes(client: TestClient) -> None:
    card = client.get(f"{MODELS}/{NAME}").json()
    assert card == client.get(MODELS).json()["data"][0]
    assert (card["id"], card["object"], card["owned_by"]) == (NAME, "model", "trainyard")
    unknown = client.get(f"{MODELS}/gpt-4")
    assert unknown.status_code == 404
    error = unknown.json()["error"]
    assert error["message"] == f"The model `gpt-4` does not exist. Served are: `{NAME}`."
    assert (error["type"], error["param"], error["code"]) == ("NotFoundError", "model", 404)


def test_a_wrong_model_lists_the_names(client: TestClient) -> None:
    client.post("/v1/aliases", json={"alias": "live", "model": NAME})
    try:
        refused_with = refusal(client, CHAT, model="gpt-4", messages=MESSAGES)
        assert refused_with == (404, f"The model `gpt-4` does not exist. Served are: `{NAME}`, `live`.", "model")
        assert client.get(f"{MODELS}/live").json()["alias_of"] == NAME
    finally:
        client.post("/v1/aliases", json={"alias": "live", "model": None})


def test_several_choices_have_their_own_seeds(client: TestClient) -> None:
    several = chat(client, n=3, logprobs=True)
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in several["choices"]]
    alone = [chat(client, seed=seed)["choices"][0]["message"]["content"] for seed in (5, 6, 7)]
    assert texts == alone
    assert len(set(texts)) > 1
    usage = chat(client)["usage"]
    assert several["usage"]["prompt_tokens"] == usage["prompt_tokens"]
    counted = sum(len(choice["logprobs"]["content"]) for choice in several["choices"])
    assert counted <= several["usage"]["completion_tokens"] <= 24


def test_a_stream_has_every_choice(client: TestClient) -> None:
    whole = chat(client, n=2)["choices"]
    chunks = stream_lines(client, CHAT, messages=MESSAGES, n=2, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] <= 16
    for index, choice in enumerate(whole):
        choice_chunks = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == index]
        assert choice_chunks[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"].get("content", "") for part in choice_chunks) == choice["message"]["content"]
        assert [part["finish_reason"] for part in choice_chunks if part["finish_reason"]] == [choice["finish_reason"]]


def test_choices_of_text_completions_follow_their_prompts(client: TestClient) -> None:
    body = {"prompt": ["A chain", "The quick"], "n": 2, "max_tokens": 4, "seed": 1, "model": NAME}
    answer = client.post(TEXT, json=body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    second = client.post(TEXT, json={**body, "prompt": "The quick"}).json()
    assert [choice["text"] for choice in answer["choices"][2:]] == [choice["text"] for choice in second["choices"]]
    chunks = stream_lines(client, TEXT, prompt="A chain", n=2)
    assert {chunk["choices"][0]["index"] for chunk in chunks} == {0, 1}


@pytest.mark.parametrize("n", [0, MAX_CHOICES + 1])
def test_the_number_of_choices_has_a_cap(client: TestClient, n: int) -> None:
    status, message, param = refusal(client, CHAT, messages=MESSAGES, n=n)
    assert (status, param) == (400, "n")
    assert "equal to" in message


def test_tools_reach_the_prompt(client: TestClient) -> None:
    plain = chat(client)["usage"]["prompt_tokens"]
    with_tools = chat(client, tools=[TOOL])["usage"]["prompt_tokens"]
    assert with_tools > plain + 10
    assert chat(client, tools=[TOOL], tool_choice="auto")["usage"]["prompt_tokens"] == with_tools
    assert chat(client, tools=[TOOL], tool_choice="none")["usage"]["prompt_tokens"] == plain


def test_a_call_and_its_result_are_messages(client: TestClient) -> None:
    called = {"role": "assistant", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "A list of nodes."}
    longer = chat(client, messages=[*MESSAGES, called, result], tools=[TOOL])["usage"]["prompt_tokens"]
    without = chat(client, messages=[*MESSAGES, {"role": "assistant", "content": ""}, result], tools=[TOOL])
    assert longer > without["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tools": []}, "tools: "),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type: "),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice: Input should be 'auto' or 'none'"),
        ({"messages": [{"role": "assistant", "content": None}]}, "content is null"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "tool_calls belong to an assistant's"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "tool_call_id belongs to a tool's"),
    ],
)
def test_what_is_no_tool_is_refused(client: TestClient, body: dict[str, Any], message: str) -> None:
    status, reason, _ = refusal(client, CHAT, **{"messages": MESSAGES, **body})
    assert status == 400
    assert message in reason
