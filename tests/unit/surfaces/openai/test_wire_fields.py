"""Every parameter of OpenAI's SDK is taken or refused by its name, and docs/reference/openai.md says which."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.conftest import REPOSITORY
from trainyard.serve.protocol import ApiError, ChatRequest, CompletionRequest, parse
from trainyard.surfaces.openai.errors import WireError
from trainyard.surfaces.openai.fields import CHAT, COMPLETIONS, JOBS, REFUSED, TAKEN, refuse_fields
from trainyard.surfaces.openai.job_bodies import CreateJobBody

PARAMETERS = json.loads((REPOSITORY / "tests" / "resources" / "openai_parameters.json").read_text())
BODIES: dict[str, type[BaseModel]] = {CHAT: ChatRequest, COMPLETIONS: CompletionRequest, JOBS: CreateJobBody}
ASKED = {"model": "starter", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}
TOOL = {"type": "function", "function": {"name": "double", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True}}
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "frequency_penalty": ([-2, 2], [2.1]),
    "presence_penalty": ([-2, 0.5], [-2.1]),
    "logit_bias": ([{"5": -100}, {}], [{"5": 101}, {"x": 1}, {"-1": 1}]),
    "logprobs": ([True, False], [3]),
    "top_logprobs": ([0, 20], [21]),
    "max_completion_tokens": ([1], [0]),
    "max_tokens": ([4096], ["many"]),
    "metadata": ([{}], [{"a": "b"}]),
    "store": ([False], [True]),
    "modalities": ([["text"]], [["audio"]]),
    "n": ([1, 8], [0, 9]),
    "parallel_tool_calls": ([True, False], ["maybe"]),
    "response_format": ([{"type": "text"}, {"type": "json_object"}, SCHEMA], [{"type": "xml"}]),
    "seed": ([0, -5], ["x"]),
    "service_tier": (["auto", "default"], ["flex"]),
    "stop": (["a", ["a", "b"]], [3]),
    "stream": ([True, False], ["maybe"]),
    "temperature": ([0, 2], [2.1]),
    "tool_choice": (["auto", "none"], ["required", {"type": "function", "function": {"name": "double"}}]),
    "tools": ([[TOOL]], [[], [{"type": "custom", "custom": {"name": "x"}}]]),
    "top_p": ([0.1, 1], [0]),
    "user": (["me"], [3]),
    "safety_identifier": (["me"], [3]),
    "prompt_cache_key": (["me"], [3]),
}
"""Field of a chat -> values that are taken, and values that are refused."""


@pytest.mark.parametrize("path", BODIES)
def test_every_parameter_is_taken_or_refused(path: str) -> None:
    assert sorted({*TAKEN[path], *REFUSED[path]}) == PARAMETERS[path]
    assert not TAKEN[path].keys() & REFUSED[path].keys()
    assert TAKEN[path].keys() <= BODIES[path].model_fields.keys()
    for name in REFUSED[path]:
        with pytest.raises(WireError) as caught:
            refuse_fields(path, {name: "x"})
        assert (caught.value.status, caught.value.param, caught.value.code) == (400, name, "unsupported_parameter")
        refuse_fields(path, {name: None})


def test_the_values_of_a_chat_are_those_of_the_table() -> None:
    assert VALUES.keys() | {"messages", "model", "stream_options"} == TAKEN[CHAT].keys()
    for name, (taken, refused) in VALUES.items():
        for value in taken:
            assert parse(ChatRequest, json.dumps({**ASKED, name: value}).encode()), name
        for value in refused:
            with pytest.raises(ApiError) as caught:
                parse(ChatRequest, json.dumps({**ASKED, name: value}).encode())
            assert str(caught.value.param).partition(".")[0] == name
            assert caught.value.status == 400
