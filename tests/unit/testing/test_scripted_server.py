"""The double answers in the API's shapes and fails exactly as told. It is met over raw sockets and plain httpx."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import jsonschema
import pytest

from trainyard.testing.scripted_server import (
    Behaviour,
    ScriptedServer,
    body,
    die,
    drop,
    error_body,
    example,
    garbage,
    half_json,
    half_reply,
    hang,
    no_choices,
    ok,
    slow,
    status,
    wrong_types,
)

QUESTION = {"model": "scripted", "messages": [{"role": "user", "content": "two words"}]}


def ask(server: ScriptedServer, question: dict[str, Any] | None = None, *, timeout: float = 5) -> httpx.Response:
    return httpx.post(f"{server.url}/chat/completions", json=question or QUESTION, timeout=timeout, trust_env=False)


def test_it_answers_with_a_chat_completion() -> None:
    with ScriptedServer() as server:
        reply = ask(server).json()
    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "Reply 0.", "refusal": None}
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert server.requests == [QUESTION]


def test_it_honours_a_json_schema_with_texts_that_do_not_repeat() -> None:
    schema = {
        "type": "object",
        "properties": {
            "pairs": {"type": "array", "items": {"type": "string"}, "minItems": 3},
            "kind": {"enum": ["a", "b"]},
            "size": {"type": "integer", "minimum": 4},
            "yes": {"type": "boolean"},
        },
    }
    request_fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}}
    with ScriptedServer() as server:
        values = [
            json.loads(ask(server, QUESTION | request_fields).json()["choices"][0]["message"]["content"])
            for _ in range(2)
        ]
    for value in values:
        jsonschema.validate(value, schema)
    assert len({text for value in values for text in value["pairs"]}) == 6
    assert example({"type": "number"}, 0) == 0


def test_the_script_is_followed_in_order_and_then_it_answers() -> None:
    with ScriptedServer([status(503), status(429, retry_after=7)], then=ok("fine", finish_reason="length")) as server:
        first, second, third = ask(server), ask(server), ask(server)
    assert (first.status_code, second.status_code, third.status_code) == (503, 429, 200)
    assert first.json() == {
        "error": {"message": "scripted failure", "type": "server_error", "param": None, "code": None}
    }
    assert second.headers["retry-after"] == "7"
    assert third.json()["choices"][0]["finish_reason"] == "length"


def test_a_reply_may_be_made_of_the_request() -> None:
    with ScriptedServer(then=ok(lambda exchange: exchange.body["messages"][0]["content"])) as server:
        assert ask(server).json()["choices"][0]["message"]["content"] == "two words"


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (hang(), httpx.ReadTimeout),
        (slow(30), httpx.ReadTimeout),
        (drop(), httpx.RemoteProtocolError),
        (half_reply(), httpx.RemoteProtocolError),
    ],
    ids=["hang", "slow", "drop", "half_reply"],
)
def test_failures_of_the_connection(behaviour: Behaviour, error: type[Exception]) -> None:
    with ScriptedServer([behaviour]) as server, pytest.raises(error):
        ask(server, timeout=0.2)


@pytest.mark.parametrize("behaviour", [half_json(), garbage()], ids=["half_json", "garbage"])
def test_bodies_that_are_not_json(behaviour: Behaviour) -> None:
    with ScriptedServer([behaviour]) as server:
        reply = ask(server)
        assert reply.status_code == 200
        with pytest.raises(json.JSONDecodeError):
            reply.json()


@pytest.mark.parametrize(
    ("behaviour", "key"),
    [(error_body(), "error"), (wrong_types(), "choices"), (no_choices(), "choices"), (body({"x": 1}), "x")],
)
def test_bodies_of_another_form(behaviour: Behaviour, key: str) -> None:
    with ScriptedServer([behaviour]) as server:
        assert key in ask(server).json()


def test_slow_answers_in_the_end() -> None:
    with ScriptedServer([slow(0.05, status(500))]) as server:
        assert ask(server).status_code == 500


def test_a_dead_server_is_dead_for_everybody() -> None:
    with ScriptedServer([die()]) as server:
        with pytest.raises(httpx.TransportError):
            ask(server)
        with pytest.raises(httpx.ConnectError):
            ask(server)


def test_models_and_health() -> None:
    with ScriptedServer(model="base") as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        assert client.get(server.url.removesuffix("/v1") + "/health").status_code == 200
        models = client.get("/models").json()["data"]
        assert [(model["id"], model["parent"]) for model in models] == [("base", None)]
        assert client.get("/nothing").status_code == 404


def test_a_key_is_asked_for_when_one_is_set() -> None:
    with ScriptedServer(api_key="right") as server:
        assert ask(server).status_code == 401
        allowed = httpx.post(
            f"{server.url}/chat/completions", json=QUESTION, headers={"authorization": "Bearer right"}, trust_env=False
        )
    assert allowed.status_code == 200
    assert len(server.requests) == 1


def test_as_a_program_it_prints_its_address_and_ends_with_its_input() -> None:
    command = [sys.executable, "-m", "trainyard.testing.scripted_server", "--slots", "2", "--service-ms", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        reply = httpx.post(f"{url}/chat/completions", json=QUESTION, trust_env=False)
        assert reply.json()["choices"][0]["message"]["content"] == "Reply."
        process.stdin.close()
        assert process.wait(timeout=120) == 0
