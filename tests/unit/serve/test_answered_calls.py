"""Calls that the embedded server reads out of answers: Llama 3.1's template, and a schema that makes the model call."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from trainyard.data.renderers.choice import find_renderer, template_text
from trainyard.serve.answers import Answers
from trainyard.serve.inference import ModelRunner, Worker
from trainyard.serve.served import ServedBase, ServedModels
from trainyard.serve.server import build_app
from trainyard.stores.models import ModelSource

NAME = "acme/tiny"
CHAT = "/v1/chat/completions"
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "What does it weigh?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weigh",
        "description": "Weigh a fruit.",
        "parameters": {"type": "object", "properties": {"fruit": {"type": "string"}}},
    },
}
CALLED = {"name": {"const": "weigh"}, "parameters": {"const": {"fruit": "kiwi"}}}
SCHEMA = {"type": "object", "properties": CALLED, "required": ["name", "parameters"], "additionalProperties": False}
FORCED = {"response_format": {"type": "json_schema", "json_schema": {"name": "call", "schema": SCHEMA}}}


@pytest.fixture(scope="module")
def client(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("served") / "model"
    shutil.copytree(tiny_model, folder)
    engine, worker = ModelRunner(folder), Worker()
    engine.tokenizer.chat_template = template_text(find_renderer("llama3.1"), "llama3_1")
    served = ServedModels([ServedBase(ModelSource(NAME, folder, "0" * 64), engine, worker)], [])
    app = build_app(served, Answers(served, max_tokens=400), token=None, hosts=["testserver"])
    with TestClient(app) as test_client:
        yield test_client
    worker.stop()


def ask(client: TestClient, **more: Any) -> dict[str, Any]:
    answer = client.post(CHAT, json={"model": NAME, "messages": ASKED, "seed": 5, **FORCED, "tools": [TOOL], **more})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def test_a_call_is_read_out_of_the_answer_and_taken_back(client: TestClient) -> None:
    choice = ask(client)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "weigh"
    assert json.loads(call["function"]["arguments"]) == {"fruit": "kiwi"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "80 gram"}
    again = ask(client, messages=[*ASKED, message, result])
    assert again["finish_reason"] == "tool_calls"


def test_a_stream_has_the_call_whole_at_its_end(client: TestClient) -> None:
    body = {"model": NAME, "messages": ASKED, "seed": 5, **FORCED, "tools": [TOOL], "stream": True}
    lines = [line.removeprefix("data: ") for line in client.post(CHAT, json=body).text.splitlines() if line]
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    (call,) = choices[1]["delta"]["tool_calls"]
    assert (call["index"], call["function"]["name"]) == (0, "weigh")
    assert [choice["finish_reason"] for choice in choices] == [None, None, "tool_calls"]


@pytest.mark.parametrize("more", [{"max_tokens": 8, "response_format": None}, {"tool_choice": "none"}])
def test_an_answer_that_is_no_call_stays_text(client: TestClient, more: dict[str, Any]) -> None:
    choice = ask(client, **more)
    assert "tool_calls" not in choice["message"]
    assert isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] != "tool_calls"


def test_text_is_streamed_whole_where_tools_are_offered(client: TestClient) -> None:
    body = {"model": NAME, "messages": ASKED, "seed": 5, "tools": [TOOL], "max_tokens": 8}
    whole = client.post(CHAT, json=body).json()["choices"][0]["message"]["content"]
    lines = [line.removeprefix("data: ") for line in client.post(CHAT, json={**body, "stream": True}).text.splitlines()]
    chunks = [json.loads(line) for line in lines if line and line != "[DONE]"]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole
