"""What a request says reaches the prompt, or is refused by the name of its field."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from jinja2.exceptions import TemplateError

from trainyard.data.renderers.choice import choose_template
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.table import RENDERERS
from trainyard.data.renderers.verify import toy_tokenizer
from trainyard.data.renderers.visibility import shows_words
from trainyard.serve.answers import Answers
from trainyard.serve.extraction.server import RulesServer
from trainyard.serve.inference import ModelRunner, Worker
from trainyard.serve.prompt_fields import find_hidden_field
from trainyard.serve.protocol import ChatRequest
from trainyard.serve.served import ServedBase, ServedModels
from trainyard.serve.server import build_app
from trainyard.stores.models import ModelSource

USER: dict[str, Any] = {"role": "user", "content": "How heavy is it?"}
OTHER: dict[str, Any] = {"role": "user", "content": "And the pear?"}
FUNCTION = {"name": "weigh", "arguments": '{"fruit": "quince \\"old\\"", "units": ["gram"]}'}
CALL: dict[str, Any] = {"id": "call00001", "type": "function", "function": FUNCTION}
FURTHER = {**CALL, "id": "call00002", "function": {"name": "measure", "arguments": {"what": "the stalk"}}}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "Eighty."}
TOOL = {
    "type": "function",
    "function": {
        "name": "weigh", "description": "Find a weight.",
        "parameters": {"type": "object", "properties": {"fruit": {"type": "string"}}, "required": ["fruit"]},
    },
}  # fmt: skip


def make_call(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


CONVERSATIONS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [USER]},
    "system": {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    "name": {"messages": [{**USER, "name": "Roberta"}]},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "call": {"messages": [USER, make_call(CALL), RESULT], "tools": [TOOL]},
    "call with words": {"messages": [USER, make_call(CALL, content="Wait a moment."), {**RESULT, "name": "weigh"}]},
    "two calls": {"messages": [USER, make_call(CALL, FURTHER), {**RESULT, "tool_call_id": "call00002"}, RESULT]},
    "thoughts": {"messages": [USER, {"role": "assistant", "content": "80.", "reasoning_content": "Fruit."}, OTHER]},
    "thoughts and a call": {"messages": [USER, make_call(CALL, reasoning="Fruit."), RESULT]},
}


@pytest.mark.parametrize("name", RENDERERS)
def test_every_field_is_in_the_prompt_or_named(name: str) -> None:
    """The texts are looked for as they are, which the function that is tested does not do."""
    renderer = Renderer(toy_tokenizer(choose_template(name).text, RENDERERS[name]))
    for kind, body in CONVERSATIONS.items():
        request = ChatRequest(model="m", **body)
        turns, tools = request.turns(), request.offered()
        try:
            prompt = renderer.text(turns, tools, ask=True)
        except TemplateError:
            continue
        hidden = find_hidden_field(renderer, turns, tools, prompt)
        texts = list_texts(turns, tools)
        if hidden is None:
            dropped = [path for path, text in texts.items() if not shows_words(prompt, text)]
            assert set(dropped) <= {"messages.1.reasoning_content"}, "but thoughts of an earlier answer"
        else:  # the name of a tool may be in its call
            part = hidden.rpartition(".")[0]
            assert not all(shows_words(prompt, text) for path, text in texts.items() if path.startswith(part)), kind


def list_texts(turns: list[dict[str, Any]], tools: Any) -> dict[str, str]:
    """Path of a field -> its text, of arguments with the key behind it."""
    texts: dict[str, str] = {}
    for at, turn in enumerate(turns):
        texts |= {f"messages.{at}.{key}": turn[key] for key in ("content", "reasoning_content", "name") if key in turn}
        for number, call in enumerate(turn.get("tool_calls") or []):
            path, function = f"messages.{at}.tool_calls.{number}.function", call["function"]
            arguments = function["arguments"]
            values = json.loads(arguments) if isinstance(arguments, str) else arguments
            texts |= {f"{path}.name": function["name"]}
            texts |= {f"{path}.arguments.{key}": v if isinstance(v, str) else v[0] for key, v in values.items()}
    for number, tool in enumerate(tools or []):
        texts[f"tools.{number}.function.description"] = tool["function"]["description"]
        texts[f"tools.{number}.function.name"] = f"{tool['function']['name']}"
    return {path: text for path, text in texts.items() if text}


@pytest.fixture(scope="module")
def client(tiny_model: Path) -> Iterator[TestClient]:
    """The server over one network with the starter's template, and with those of three families."""
    engine, worker = ModelRunner(tiny_model), Worker()
    bases = [ServedBase(ModelSource("starter", tiny_model, "0" * 64), engine, worker)]
    for name in ("qwen2.5", "qwen3.5", "gemma"):
        other = copy.copy(engine)
        other.tokenizer = copy.deepcopy(engine.tokenizer)
        other.tokenizer.chat_template = choose_template(name).text
        bases.append(ServedBase(ModelSource(name, tiny_model, "0" * 64), other, worker))
    served = ServedModels(bases, [])
    app = build_app(served, Answers(served, max_tokens=8), token=None, hosts=["testserver"])
    with TestClient(app) as test_client:
        yield test_client
    worker.stop()


def ask(client: TestClient, model: str, *messages: dict[str, Any], **more: Any) -> tuple[int, Any, str]:
    """(status, the field that is named or the tokens of the prompt, the message)."""
    body = {"model": model, "messages": [USER, *messages], "max_tokens": 1, **more}
    answer = client.post("/v1/chat/completions", json=body)
    if answer.status_code == 200:
        return 200, answer.json()["usage"]["prompt_tokens"], ""
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


@pytest.mark.parametrize(
    ("model", "messages", "more", "field"),
    [
        ("starter", [make_call(CALL), USER], {}, "messages.1.tool_calls.0.function.name"),
        ("starter", [make_call({**CALL, "function": {"name": "f", "arguments": "{}"}}), USER], {},
         "messages.1.tool_calls.0.function.name"),
        ("starter", [{**USER, "name": "Bob"}], {}, "messages.1.name"),
        ("starter", [], {"tools": [TOOL]}, "tools"),
        ("starter", [{"role": "assistant", "content": "x", "reasoning": "Hm."}, USER], {},
         "messages.1.reasoning_content"),
        ("qwen2.5", [{"role": "assistant", "content": "x", "refusal": "No."}], {}, "messages.1.refusal"),
        ("qwen2.5", [{"role": "assistant", "content": "x", "audio": {"id": "a"}}], {}, "messages.1.audio"),
        ("qwen2.5", [{"role": "assistant", "content": "x", "function_call": FUNCTION}], {}, "messages.1.function_call"),
        ("qwen2.5", [make_call(CALL), {**RESULT, "tool_call_id": "x"}], {}, "messages.2.tool_call_id"),
        ("qwen2.5", [], {"store": True}, "store"),
        ("qwen2.5", [], {"logit_bias": {"5": 1}}, "logit_bias"),
        ("gemma", [{"role": "assistant", "content": "x"}, {"role": "system", "content": "Be."}], {}, "messages"),
        ("qwen3.5", [make_call({**CALL, "function": {"name": "f", "arguments": "not json"}}), RESULT], {}, "messages"),
        ("qwen3.5", [make_call({**CALL, "function": {"name": "f", "arguments": "[1]"}}), RESULT], {}, "messages"),
        ("qwen3.5", [make_call({**CALL, "function": {"name": "f", "arguments": '{"a":' * 900 + "1" + "}" * 900}})], {},
         "messages"),
        ("qwen3.5", [{"role": "system", "content": "late"}], {}, "messages"),
    ],
)  # fmt: skip
def test_what_would_not_reach_the_model_is_refused(
    client: TestClient, model: str, messages: list[dict[str, Any]], more: dict[str, Any], field: str
) -> None:
    status, named, message = ask(client, model, *messages, **more)
    assert (status, named) == (400, field), message
    assert message


def test_no_depth_of_arguments_is_a_crash(client: TestClient) -> None:
    for depth in (50, 200, 250, 300, 400, 500):
        nested = '{"a":' * depth + "1" + "}" * depth
        status, _, message = ask(client, "qwen2.5", make_call({**CALL, "function": {"name": "f", "arguments": nested}}))
        assert status in (200, 400), message


def test_calls_are_in_the_prompt_by_the_type_of_their_arguments(client: TestClient) -> None:
    def tokens(*arguments: Any) -> int:
        functions = [
            {"name": "weigh", **({"arguments": call_arguments} if call_arguments != "absent" else {})}
            for call_arguments in arguments
        ]
        status, count, message = ask(
            client, "qwen2.5", make_call(*({**CALL, "function": function} for function in functions))
        )
        assert status == 200, message
        return int(count)

    none = tokens("{}")
    assert [tokens(spelling) for spelling in ({}, None, "absent", "null", "")] == [none] * 5
    assert tokens('{"fruit": "quince"}') == tokens({"fruit": "quince"}) > none


def test_what_an_answer_leaves_empty_may_be_sent_back(client: TestClient) -> None:
    """`message.model_dump()` of OpenAI's client, and fields in their neutral value."""
    message = {"role": "assistant", "content": "x"}
    plain = ask(client, "qwen2.5", message, OTHER)
    empty = {"refusal": None, "audio": None, "function_call": None, "tool_calls": None, "annotations": []}
    assert ask(client, "qwen2.5", {**message, **empty}, OTHER) == plain
    neutral = {
        "store": False, "temperature": None, "top_p": None, "logit_bias": {}, "metadata": None, "tools": None,
        "parallel_tool_calls": True, "service_tier": "auto", "stream": None, "reasoning_effort": None,
    }  # fmt: skip
    assert ask(client, "qwen2.5", message, OTHER, **neutral) == plain


def test_results_are_shown_in_the_order_of_their_calls() -> None:
    turns = [USER, make_call(CALL, FURTHER)]
    results = [RESULT, {**RESULT, "tool_call_id": "call00002", "content": "Long."}]
    texts = []
    for order in (results, results[::-1]):
        request = ChatRequest(model="m", messages=[*turns, *order])
        renderer = Renderer(toy_tokenizer(choose_template("qwen2.5").text, RENDERERS["qwen2.5"]))
        texts.append(renderer.text(request.turns(), ask=True))
    assert texts[0] == texts[1]


def test_the_rules_name_what_they_do_not_read() -> None:
    body = {"model": "rules", "messages": [{**USER, "name": "Bob"}]}
    with TestClient(RulesServer().app(), base_url="http://127.0.0.1") as rules:
        error = rules.post("/v1/chat/completions", json=body).json()["error"]
    assert (error["code"], error["param"]) == (400, "messages.0.name")
