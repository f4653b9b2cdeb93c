"""What completions are worth: each type of reward by its definition, and what no pattern may cost."""

from __future__ import annotations

import time
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from trainyard.spec.axes.rewards import Reward
from trainyard.train.rl.rewards import MODEL_REWARDS, REWARDS, SampledCompletion, name_rewards

READ: TypeAdapter[Any] = TypeAdapter(Reward)


def worth(completion: str, answer: str = "Yes", tokens: int = 4, **settings: Any) -> float:
    read = READ.validate_python(settings)
    return REWARDS[read.type](SampledCompletion(completion, tokens), answer, read)


def test_every_type_has_its_function() -> None:
    type_names = {reward_type.model_fields["type"].default for reward_type in get_args(get_args(Reward)[0])}
    assert type_names == REWARDS.keys() | set(MODEL_REWARDS)


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        (" Yes\n", {"type": "exact_match"}, 1.0),
        ("yes", {"type": "exact_match"}, 0.0),
        ("yes", {"type": "exact_match", "ignore_case": True}, 1.0),
        ("Yes.", {"type": "exact_match"}, 0.0),
        ("No. #### No #### Yes ", {"type": "exact_match", "after": "####"}, 1.0),
        ("Yes", {"type": "exact_match", "after": "####"}, 0.0),
        ("", {"type": "exact_match"}, 0.0),
        ("It is: Yes.", {"type": "contains"}, 1.0),
        ("It is: yes.", {"type": "contains"}, 0.0),
        ("It is: YES.", {"type": "contains", "ignore_case": True}, 1.0),
        ("The STRASSE", {"type": "contains", "text": "straße", "ignore_case": True}, 1.0),
        ("so 42 it is", {"type": "regex", "pattern": r"\b\d+\b"}, 1.0),
        ("so 42 it is", {"type": "regex", "pattern": r"\d+", "full": True}, 0.0),
        (" 42\n", {"type": "regex", "pattern": r"\d+", "full": True}, 1.0),
        ("ab", {"type": "regex", "pattern": "a|b", "full": True}, 0.0),
        ("a\nb", {"type": "regex", "pattern": "(?s)a.b", "full": True}, 1.0),
    ],
)
def test_texts(text: str, settings: dict[str, Any], expected: float) -> None:
    assert worth(text, **settings) == expected


def test_an_empty_answer_is_contained_nowhere() -> None:
    assert worth("anything", answer=" ", type="contains") == 0.0


@pytest.mark.parametrize(
    ("tokens", "settings", "expected"),
    [
        (10, {"target_tokens": 10}, 1.0),
        (5, {"target_tokens": 10}, 0.5),
        (15, {"target_tokens": 10}, 0.5),
        (40, {"target_tokens": 10}, 0.0),
        (0, {"target_tokens": 10}, 0.0),
        (1, {"max_tokens": 10}, 1.0),
        (10, {"max_tokens": 10}, 1.0),
        (15, {"max_tokens": 10}, 0.5),
        (21, {"max_tokens": 10}, 0.0),
    ],
)
def test_lengths(tokens: int, settings: dict[str, Any], expected: float) -> None:
    assert worth("", tokens=tokens, type="length", **settings) == pytest.approx(expected)


def test_a_catastrophic_pattern_takes_linear_time() -> None:
    """`re` would need years for a thousandth of this text."""
    started = time.process_time()
    assert worth("a" * 100_000, type="regex", pattern=r"^(([a-z])+.)+[A-Z]([a-z])+$") == 0.0
    assert worth("a" * 100_000 + "!", type="regex", pattern="(a+)+", full=True) == 0.0
    assert time.process_time() - started < 20


def test_rewards_have_names_of_their_own() -> None:
    rewards = [{"type": "regex", "pattern": "a"}, {"type": "exact_match"}, {"type": "regex", "pattern": "b"}]
    by_name = name_rewards([READ.validate_python(each) for each in rewards])
    assert list(by_name) == ["regex", "exact_match", "regex_2"]
    assert by_name["regex_2"].pattern == "b"
