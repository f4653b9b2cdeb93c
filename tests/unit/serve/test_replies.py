"""Replies for a training from a real server: busy, away, and refusing."""

from __future__ import annotations

import time

import pytest

from trainyard.errors import Unavailable
from trainyard.serve.client.replies import JudgeServer
from trainyard.testing.scripted_server import ScriptedServer, drop, ok, status
from trainyard.train.rl.rewards import SCHEMA


def judge(server: ScriptedServer) -> JudgeServer:
    return JudgeServer(server.url, "big", "secret", first_wait_s=0.01)


def test_replies_come_in_the_order_of_the_prompts_with_the_schema_and_the_key() -> None:
    with ScriptedServer(then=ok(lambda exchange: exchange.body["messages"][0]["content"])) as server:
        assert judge(server)([f"{n}" for n in range(20)], SCHEMA) == [f"{n}" for n in range(20)]
        request = server.requests[0]
        assert server.headers[0]["authorization"] == "Bearer secret"
        assert request["response_format"]["json_schema"]["schema"] == SCHEMA
        assert (request["temperature"], request["model"]) == (0, "big")
    assert "secret" not in repr(judge(server))


def test_a_busy_server_is_waited_for_as_long_as_it_says() -> None:
    with ScriptedServer([status(429, retry_after=1), drop(), status(503)], then=ok('{"points": 4}')) as server:
        started = time.monotonic()
        assert judge(server)(["x"], SCHEMA) == ['{"points": 4}']
        assert time.monotonic() - started >= 1
        assert len(server.requests) == 4


def test_a_server_that_refuses_is_asked_once() -> None:
    with ScriptedServer(then=status(401)) as server:
        with pytest.raises(Unavailable, match="refused with status 401"):
            judge(server)(["x"], SCHEMA)
        assert len(server.requests) == 1
