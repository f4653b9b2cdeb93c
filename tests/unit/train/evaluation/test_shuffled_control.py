"""The control's derangement: nobody keeps an equal answer, nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainyard.data.rows import Message, PreferenceRow, SftRow
from trainyard.errors import InvalidInput
from trainyard.train.rows.shuffled_control import make_derangement, shuffle_answers, shuffle_preferences


@given(st.lists(st.integers(0, 12), min_size=2, max_size=60), st.integers(0, 1000))
def test_no_position_receives_an_equal_answer(answers: list[int], seed: int) -> None:
    assume(2 * max(Counter(answers).values()) <= len(answers))
    order = make_derangement(answers, seed)
    assert sorted(order) == list(range(len(answers)))
    assert all(answers[giver] != answers[position] for position, giver in enumerate(order))
    assert order == make_derangement(answers, seed)


@pytest.mark.parametrize("answers", [[], [1], [1, 1, 2]])
def test_too_uniform_answers_are_refused(answers: list[int]) -> None:
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: The answers of \d rows cannot be shuffled"):
        make_derangement(answers, 0)


def answer(text: str) -> Message:
    return Message("assistant", text)


def test_wordings_of_one_question_do_not_get_one_and_the_same_wrong_answer() -> None:
    rows = [
        SftRow([Message("user", f"wording {wording} of {pair}"), answer(f"answer {pair}")], pair=str(pair))
        for pair in range(50)
        for wording in range(3)
    ]
    shuffled = shuffle_answers(rows, 7)
    assert [row.messages[0] for row in shuffled] == [row.messages[0] for row in rows]
    assert Counter(row.messages[1].content for row in shuffled) == Counter(row.messages[1].content for row in rows)
    per_pair = [{shuffled[3 * pair + wording].messages[1].content for wording in range(3)} for pair in range(50)]
    assert sum(len(answers) for answers in per_pair) > 130


def test_calls_are_told_apart_and_travel_whole() -> None:
    """Turns that only call tools have the same, empty text."""
    tools = '[{"type": "function", "function": {"name": "weigh"}}]'
    calls = [f'[{{"type":"function","function":{{"name":"weigh","arguments":{{"n":{n}}}}}}}]' for n in range(6)]
    rows = [
        SftRow([Message("user", str(n)), Message("assistant", "", tool_calls=call)], tools=tools)
        for n, call in enumerate(calls)
    ]
    shuffled = shuffle_answers(rows, 3)
    assert sorted(row.messages[1].tool_calls or "" for row in shuffled) == sorted(calls)
    assert all(row.messages[1] != before.messages[1] for row, before in zip(shuffled, rows, strict=True))
    assert {row.tools for row in shuffled} == {tools}


def test_held_out_rows_lend_no_answer_and_unanswered_rows_stay() -> None:
    rows = [SftRow([Message("user", str(n)), answer(f"answer {n}")]) for n in range(6)]
    rows += [SftRow([Message("user", "h"), answer("held out")], split="unseen_wording"), SftRow([Message("user", "u")])]
    shuffled = shuffle_answers(rows, 3)
    assert shuffled[6:] == rows[6:]
    assert sorted(row.messages[1].content for row in shuffled[:6]) == [f"answer {n}" for n in range(6)]
    assert all(row.messages[1] != before.messages[1] for row, before in zip(shuffled[:6], rows[:6], strict=True))


def test_pairs_travel_together() -> None:
    rows = [PreferenceRow([Message("user", str(n))], [answer(f"good {n}")], [answer(f"bad {n}")]) for n in range(5)]
    for row, before in zip(shuffle_preferences(rows, 1), rows, strict=True):
        assert row.prompt == before.prompt
        assert row.chosen != before.chosen
        assert row.chosen[0].content[5:] == row.rejected[0].content[4:]
