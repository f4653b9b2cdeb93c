from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from validating import LOOSE, PORTS, block, make_labelled, preference, qa, run, sieve

from trainyard.data.quality.filters import check_format, check_schema, quality, row_validator
from trainyard.data.quality.row_schemas import MOST_BREACHES, RowSchema
from trainyard.data.rows import Message, Row, SftRow, TextRow
from trainyard.errors import InvalidInput, LimitExceeded

CALL = '[{"type":"function","function":{"name":"now","arguments":"{}"}}]'


def chat(*turns: tuple[str, str] | tuple[str, str, str]) -> SftRow:
    return SftRow([Message(*turn) for turn in turns])


BAD_FORMAT: list[tuple[str, Row]] = [
    ("no_messages", SftRow([])),
    ("unknown_role", chat(("user", "a"), ("robot", "b"), ("assistant", "c"))),
    ("unknown_role", chat(("human", "a"), ("assistant", "c"))),
    ("empty_content", chat(("user", " \n"), ("assistant", "c"))),
    ("empty_content", chat(("user", "a"), ("assistant", ""))),
    ("empty_content", chat(("system", ""), ("user", "a"), ("assistant", "b"))),
    ("no_user", chat(("system", "a"), ("assistant", "b"))),
    ("no_user", chat(("assistant", "b"))),
    ("last_not_assistant", chat(("user", "a"))),
    ("last_not_assistant", chat(("user", "a"), ("assistant", "b"), ("user", "c"))),
    ("last_not_assistant", chat(("user", "a"), ("tool", "b"))),
    ("chosen_equals_rejected", preference("a", "same", " same\n")),
    ("empty_content", preference("a", "b", "")),
    ("empty_content", preference("", "b", "c")),
    ("empty_content", make_labelled("a", "\t")),
    ("empty_content", TextRow(" \n ")),
    ("empty_content", TextRow("")),
]
GOOD_FORMAT: list[Row] = [
    qa(),
    chat(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")),
    chat(("user", "a"), ("assistant", "", CALL)),
    chat(("user", "a"), ("assistant", "", CALL), ("tool", ""), ("assistant", "b")),
    preference(),
    make_labelled(),
    make_labelled(label=False),
    TextRow("text"),
]


@pytest.mark.parametrize(("reason", "row"), BAD_FORMAT)
def test_rows_of_a_wrong_format(tmp_path: Path, reason: str, row: Row) -> None:
    rules = sieve(tmp_path, PORTS[type(row)])
    assert len(check_format(block([row]), rules)) == 0
    assert rules.ledger.dropped == {reason: 1}


@pytest.mark.parametrize("row", GOOD_FORMAT)
def test_rows_of_a_right_format(tmp_path: Path, row: Row) -> None:
    rules = sieve(tmp_path, PORTS[type(row)])
    assert len(check_format(block([row]), rules)) == 1
    assert not rules.ledger.dropped


def test_only_the_wrong_rows_of_a_block_fall_out(tmp_path: Path) -> None:
    rows = [qa("one?"), chat(("user", "a")), qa("two?"), SftRow([]), qa("three?")]
    rules = sieve(tmp_path)
    left = check_format(block(rows), rules)
    assert left.numbers.tolist() == [1, 3, 5]
    assert left.question.to_pylist() == ["one?", "two?", "three?"]
    assert rules.ledger.dropped == {"no_messages": 1, "last_not_assistant": 1}


def test_sides_that_differ_in_a_call_only_are_two(tmp_path: Path) -> None:
    row = preference("a", "b", "b")
    row.chosen[0].tool_calls = CALL
    assert len(check_format(block([row]), sieve(tmp_path))) == 1


def test_a_missing_label(tmp_path: Path) -> None:
    rows_block = block([make_labelled(), make_labelled("b?")])
    rows_block.batch = rows_block.batch.set_column(
        rows_block.batch.schema.get_field_index("label"), "label", pa.array([None, False], pa.bool_())
    )
    rules = sieve(tmp_path, rows_block.port)
    assert check_format(rows_block, rules).numbers.tolist() == [2]
    assert rules.ledger.dropped == {"no_label": 1}


# --- JSON Schema ----------------------------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {"properties": {"messages": {"minItems": 3}}}


def test_rows_that_do_not_meet_the_schema(tmp_path: Path) -> None:
    long = chat(("system", "s"), ("user", "a"), ("assistant", "b"))
    out = run([qa(), long], tmp_path, row_schema=SCHEMA)
    assert out.facts["dropped"] == {"row_schema": 1}
    assert out.kept_rows[0].messages == long.messages
    assert out.quarantine[0]["detail"].startswith("$.messages: ")


def test_without_a_schema_nothing_is_checked(tmp_path: Path) -> None:
    assert row_validator(None) is None
    assert len(check_schema(block([qa()]), sieve(tmp_path))) == 1


def test_a_schema_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-DATA-FORMAT: row_schema is not a JSON Schema: 'wrong' is not valid"):
        row_validator({"type": "wrong"})


def test_a_schema_never_fetches_a_reference(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-DATA-FORMAT: row_schema refers to"):
        run([qa()], tmp_path, row_schema={"$ref": "http://127.0.0.1:9/schema.json"})


BACKTRACKING = {"$defs": {"slow": {"pattern": "^(a+)+$"}}, "properties": {"source": {"$ref": "#/$defs/slow"}}}


def test_rows_that_a_schema_takes_too_long_for_are_left_out(tmp_path: Path) -> None:
    """Each costs itself: the rows after it are judged, by a fresh child."""
    rows = [qa(source="aaa"), qa(source="a" * 60 + "!"), qa(source="b"), qa(source="aa"), qa(source="a" * 50 + "!")]
    rows_block = block(rows)
    rules = sieve(tmp_path)
    rules.row_validator = RowSchema(BACKTRACKING, cpu_s=0.5)
    assert check_schema(rows_block, rules).numbers.tolist() == [1, 4]
    rules.row_validator.stop()
    assert rules.ledger.dropped == {"row_schema_limit": 2, "row_schema": 1}
    assert rules.ledger.first["row_schema_limit"].endswith("used more than 0.5 s of processor time")


def test_a_set_of_slow_rows_is_refused() -> None:
    schema = RowSchema(BACKTRACKING, cpu_s=0.05)
    with pytest.raises(LimitExceeded, match=r"E-DATA-LIMIT: row_schema used more than 0.05 s of processor time for"):
        schema.judge([{"source": "a" * 60 + "!"}] * 1_000)
    assert len(schema.limits) == MOST_BREACHES
    schema.stop()


def test_unique_items_of_a_long_list_are_bounded() -> None:
    schema = RowSchema({"properties": {"messages": {"uniqueItems": True}}}, cpu_s=0.5)
    long = {"messages": [{"role": "user", "content": f"{number}"} for number in range(20_000)]}
    first, second = schema.judge([long, {"messages": [{"role": "user"}, {"role": "user"}]}])
    assert first.limit == "more than 0.5 s of processor time"
    assert "non-unique" in second.problem
    schema.stop()


DOUBLING = {f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(40)} | {"s40": {"type": "object"}}


@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        ({"$ref": "#"}, "more memory than is allowed"),
        ({"anyOf": [{"$ref": "#"}, {"not": {"$ref": "#"}}]}, "more"),
        ({"$defs": DOUBLING, "$ref": "#/$defs/s0"}, "more than 0.5 s of processor time"),
    ],
)
def test_a_schema_that_does_not_end_is_refused(schema: dict[str, Any], limit: str) -> None:
    with pytest.raises(InvalidInput, match=rf"E-DATA-FORMAT: row_schema used {limit}.* for a row without content"):
        RowSchema(schema, cpu_s=0.5)


# --- quality --------------------------------------------------------------------------------------------------------


def reasons(tmp_path: Path, row: Row, **rules: Any) -> dict[str, int]:
    of_run = sieve(tmp_path, PORTS[type(row)], quality={**LOOSE["quality"], **rules})
    quality(block([row]), of_run)
    return dict(of_run.ledger.dropped)


@pytest.mark.parametrize(
    ("reason", "answer", "rules"),
    [
        ("answer_too_short", " ab ", {"min_answer_chars": 3}),
        ("answer_too_long", "abcd", {"max_answer_chars": 3}),
        ("repeated_lines", "a\nb\na\na", {"max_repeated_line_fraction": 0.49}),
        ("symbols", "ab*#", {"max_symbol_fraction": 0.49}),
        ("symbols", "日本。。", {"max_symbol_fraction": 0.49}),
        ("refused_phrase", "As an AI model, no.", {"refuse_phrases": ("as an ai",)}),
    ],
)
def test_each_quality_rule(tmp_path: Path, reason: str, answer: str, rules: dict[str, Any]) -> None:
    assert reasons(tmp_path, qa("q?", answer), **rules) == {reason: 1}


@pytest.mark.parametrize(
    ("answer", "rules"),
    [
        ("abc", {"min_answer_chars": 3}),
        ("äöü", {"max_answer_chars": 3}),
        ("a\nb\na\na", {"max_repeated_line_fraction": 0.5}),
        ("a\n\n\nb", {"max_repeated_line_fraction": 0.0}),
        ("ab*#", {"max_symbol_fraction": 0.5}),
        ("a b\n", {"max_symbol_fraction": 0.0}),
        ("As a chain.", {"refuse_phrases": ("as an ai",)}),
    ],
)
def test_rules_hold_at_their_bound(tmp_path: Path, answer: str, rules: dict[str, Any]) -> None:
    assert reasons(tmp_path, qa("q?", answer), **rules) == {}


def test_several_broken_rules_count_once(tmp_path: Path) -> None:
    assert reasons(tmp_path, qa("q?", "*"), min_answer_chars=2, max_symbol_fraction=0) == {"answer_too_short": 1}


def test_calls_and_bad_completions_are_not_judged(tmp_path: Path) -> None:
    rules = {"min_answer_chars": 5}
    assert reasons(tmp_path, chat(("user", "a"), ("assistant", "", CALL)), **rules) == {}
    assert reasons(tmp_path, make_labelled("a", "no", label=False), **rules) == {}
    assert reasons(tmp_path, make_labelled("a", "no", label=True), **rules) == {"answer_too_short": 1}


def test_the_rejected_side_is_not_judged(tmp_path: Path) -> None:
    assert reasons(tmp_path, preference("a", "long enough", "no"), min_answer_chars=5) == {}
    assert reasons(tmp_path, preference("a", "no", "long enough"), min_answer_chars=5) == {"answer_too_short": 1}


def test_the_last_answer_of_a_conversation_is_judged(tmp_path: Path) -> None:
    row = chat(("user", "a"), ("assistant", "x"), ("user", "b"), ("assistant", "long enough"))
    assert reasons(tmp_path, row, min_answer_chars=5) == {}


def test_running_text_has_no_longest_answer(tmp_path: Path) -> None:
    assert reasons(tmp_path, TextRow("x" * 50), max_answer_chars=10) == {}
    assert reasons(tmp_path, TextRow("x"), min_answer_chars=10) == {"answer_too_short": 1}
