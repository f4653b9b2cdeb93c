"""A judge of completions: what it is asked, and what its replies are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from trainyard.spec.axes.rewards import JudgeReward
from trainyard.train.rl.rewards import JudgeScorer, SampledCompletion

ASKED = JudgeReward(endpoint="wise", rubric="It is polite.")


def scorer(reply: str) -> tuple[JudgeScorer, list[tuple[str, dict[str, Any]]]]:
    requests: list[tuple[str, dict[str, Any]]] = []

    def answer(prompts: Sequence[str], schema: dict[str, Any]) -> list[str]:
        requests.extend((prompt, schema) for prompt in prompts)
        return [reply for _ in prompts]

    return JudgeScorer({"wise": answer}), requests


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"points": 7}', 0.7), ('{"points": 8.5}', 0.85), ("7", 0.7), ("Points: 10", 1.0), ("99", 1.0), ("0", 0.0),
        ("fine", 0.0), ("", 0.0),
    ],
)  # fmt: skip
def test_points_become_a_share(reply: str, expected: float) -> None:
    judge, _ = scorer(reply)
    assert judge.score([SampledCompletion("Please.", 2, prompt="May I?")], ASKED) == [expected]


def test_the_judge_sees_rubric_question_and_answer_and_has_a_form_to_reply_in() -> None:
    judge, requests = scorer("5")
    judge.score([SampledCompletion("Please.", 2, prompt="May I?"), SampledCompletion("No.", 2, prompt="So?")], ASKED)
    (first, schema), (second, _) = requests
    assert all(part in first for part in ("It is polite.", "May I?", "Please.", '{"points": NUMBER}'))
    assert "So?" in second
    assert schema["required"] == ["points"]


def test_a_judge_has_one_address() -> None:
    there = JudgeReward(base_url="http://127.0.0.1:8000/v1", model="big", rubric="Short.")
    assert there.server == "http://127.0.0.1:8000/v1 big"
    assert (ASKED.server, ASKED.model_copy(update={"model": "small"}).server) == ("wise", "wise small")
    with pytest.raises(ValidationError, match="either an endpoint or a base_url"):
        JudgeReward(rubric="Short.")
    with pytest.raises(ValidationError, match="either an endpoint or a base_url"):
        JudgeReward(endpoint="wise", base_url="http://127.0.0.1:8000", model="big", rubric="Short.")
    with pytest.raises(ValidationError, match="needs the server's name of its model"):
        JudgeReward(base_url="http://127.0.0.1:8000", rubric="Short.")
