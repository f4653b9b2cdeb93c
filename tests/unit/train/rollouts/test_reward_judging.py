"""A judge behind an endpoint: its points, what it is asked, and what happens when it is away."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from trainyard.errors import Unavailable
from trainyard.spec.axes.rewards import JudgeReward
from trainyard.train.rollouts.judging import JudgeScorer, JudgeServer
from trainyard.train.rollouts.rewards import SampledCompletion

ASKED = JudgeReward(endpoint="wise", rubric="It is polite.")
SERVER = JudgeServer("http://judge/v1", "big", "secret")


def scorer(*replies: Any) -> tuple[JudgeScorer, list[httpx.Request]]:
    """A judge that gives these replies: a text, or a status."""
    given, asked = iter(replies), []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        reply = next(given)
        if isinstance(reply, int):
            return httpx.Response(reply)
        return httpx.Response(200, json={"choices": [{"message": {"content": reply}}]})

    return JudgeScorer({"wise": SERVER}, httpx.MockTransport(answer)), asked


@pytest.mark.parametrize(
    ("reply", "expected"), [("7", 0.7), ("Points: 8.5", 0.85), ("10", 1.0), ("99", 1.0), ("0", 0.0), ("fine", 0.0)]
)
def test_points_become_a_share(reply: str, expected: float) -> None:
    judge, _ = scorer(reply)
    assert judge.score([SampledCompletion("Please.", 2, prompt="May I?")], ASKED) == [expected]


def test_the_judge_sees_rubric_question_and_answer_and_gets_its_key() -> None:
    judge, asked = scorer("5")
    judge.score([SampledCompletion("Please.", 2, prompt="May I?")], ASKED)
    body = json.loads(asked[0].content)
    text = body["messages"][0]["content"]
    assert (body["model"], body["temperature"]) == ("big", 0)
    assert all(part in text for part in ("It is polite.", "May I?", "Please."))
    assert asked[0].headers["authorization"] == "Bearer secret"
    assert "secret" not in repr(SERVER)


def test_a_judge_that_is_busy_is_asked_again_and_one_that_refuses_is_not() -> None:
    judge, asked = scorer(503, 429, "4")
    assert judge.score([SampledCompletion("x", 1)], ASKED) == [0.4]
    assert len(asked) == 3
    judge, asked = scorer(401)
    with pytest.raises(Unavailable, match="The judge at http://judge/v1 does not answer"):
        judge.score([SampledCompletion("x", 1)], ASKED)
    assert len(asked) == 1
