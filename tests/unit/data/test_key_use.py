"""A key of a row is read, counted or refused by its use: what other tools mean by it is not lost without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.reading import json_lines, read_all, read_text, settings_for
from trainyard.data.formats.shapes import Normaliser, detect
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import PromptRow
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import DataFormat, Port

ASK, SAY = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}
WHOLE = {"chosen": [ASK, SAY], "rejected": [ASK, {**SAY, "content": "No."}]}
PAIR = {"prompt": "Why?", "response": "Because."}
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {}}}]


def read(record: dict[str, Any], data_format: DataFormat = DataFormat.AUTO) -> tuple[Any, frozenset[str]]:
    """The row, and the keys that count as ignored."""
    row, kind = Normaliser(detect([record], data_format, "a test"))(record)
    return row, kind.ignored


def list_texts(record: dict[str, Any]) -> list[str]:
    row, _ = read(record)
    turns = row.messages if hasattr(row, "messages") else row.prompt
    return [f"{turn.role}: {turn.content}" for turn in turns]


@pytest.mark.parametrize(
    ("record", "prompt"),
    [
        ({"instruction": "Say", "input": "it", "response": "it"}, ["user: Say\nit", "assistant: it"]),
        ({"instruction": "Say", "context": "it", "response": "it"}, ["user: Say\nit", "assistant: it"]),
        ({"instruction": "Say", "context": "", "response": "it"}, ["user: Say", "assistant: it"]),
        (
            {"instruction": "Say", "input": "it", "context": "now", "output": "x"},
            ["user: Say\nit\nnow", "assistant: x"],
        ),
        ({"prompt": "Say", "input": "it", "chosen": "it", "rejected": "no"}, ["user: Say\nit"]),
        ({"prompt": "Say", "input": "it", "response": "it", "label": True}, ["user: Say\nit"]),
        ({"query": "Say", "response": "it", "history": [["a", "b"]]},
         ["user: a", "assistant: b", "user: Say", "assistant: it"]),
        ({"prompt": "Say", "history": [["a", "b"]], "chosen": "it", "rejected": "no", "system": "S"},
         ["system: S", "user: a", "assistant: b", "user: Say"]),
        ({"prompt": [{"role": "system", "content": "S"}, ASK], "history": [["a", "b"]], "completion": "it"},
         ["system: S", "user: a", "assistant: b", "user: Why?", "assistant: it"]),
        ({**PAIR, "history": [ASK, SAY]}, ["user: Why?", "assistant: Because.", "user: Why?", "assistant: Because."]),
        ({**PAIR, "system_prompt": "S"}, ["system: S", "user: Why?", "assistant: Because."]),
        ({**WHOLE, "system": "S"}, ["system: S", "user: Why?"]),
        ({**WHOLE, "prompt": [{"role": "system", "content": "S"}, ASK]}, ["system: S", "user: Why?"]),
    ],
)  # fmt: skip
def test_a_known_meaning_is_read(record: dict[str, Any], prompt: list[str]) -> None:
    assert list_texts(record) == prompt
    assert read(record)[1] == frozenset()


@pytest.mark.parametrize(
    ("record", "ignored"),
    [
        ({"system": "Row.", "messages": [{"role": "system", "content": "Turn."}, ASK, SAY]}, {"system"}),
        ({"system": "Turn.", "messages": [{"role": "system", "content": "Turn."}, ASK, SAY]}, set()),
        ({**PAIR, "question": "Where?"}, {"question"}),
        ({"question": "Why?", "answer": "So.", "response": "Else."}, {"response"}),
        ({"instruction": "Why?", "output": "So.", "response": "Else."}, {"response"}),
        ({"prompt": "Why?", "question": "Where?", "chosen": "a", "rejected": "b"}, {"question"}),
        ({"prompt": "Why?", "chosen": "a", "rejected": "b", "steps": ["x"]}, {"steps"}),
        ({**WHOLE, "prompt": "Why?"}, set()),
        ({**WHOLE, "prompt": "Else?"}, {"prompt"}),
        ({"messages": [ASK, SAY], "prompt": "Why?", "history": [["a", "b"]]}, {"prompt", "history"}),
        ({"messages": [ASK, SAY], "tools": TOOLS, "functions": TOOLS, "parallel_tool_calls": False},
         {"functions", "parallel_tool_calls"}),
        ({"messages": [ASK, {**SAY, "tool_calls": [], "score": 0}]}, {"messages[].score"}),
        ({**PAIR, "context": ["a", "list"], "history": "a text", "empty": "", "nothing": None, "none": []},
         {"context", "history"}),
        ({"instruction": "Cook", "output": "x", "tools": "a knife"}, {"tools"}),
        ({"text": "x", "title": "y", "meta": {"a": 1}}, {"title", "meta"}),
        ({"conversations": [{"from": "human", "value": "x"}, {"from": "function_call", "value":
            json.dumps({"name": "clock", "arguments": {}, "id": "7"})}]}, {"conversations[].value.id"}),
    ],
)  # fmt: skip
def test_what_is_not_read_is_counted_by_its_name(record: dict[str, Any], ignored: set[str]) -> None:
    assert read(record)[1] == ignored


def test_tools_of_an_alpaca_row_are_read() -> None:
    row, ignored = read({"instruction": "Why?", "output": "So.", "tools": TOOLS})
    assert (json.loads(row.tools), ignored) == (TOOLS, frozenset())


@pytest.mark.parametrize(
    "weight",
    [{"loss": False}, {"loss_weight": 0.0}, {"weight": 0}, {"train": False}, {"training": 0}, {"loss_mask": 0},
     {"masked": True}],
)  # fmt: skip
def test_a_turn_without_loss_in_every_spelling(weight: dict[str, Any]) -> None:
    (key,) = weight
    learned = {key: not weight[key]}
    row, ignored = read({"messages": [ASK, {**SAY, **weight}, ASK, {**SAY, **learned}]})
    assert [turn.learned for turn in row.messages] == [True, False, True, True]
    assert ignored == frozenset()


@pytest.mark.parametrize("weight", [{"loss": 0.5}, {"loss_weight": 2}, {"masked": "no"}, {"train_detail": [{"a": 1}]}])
def test_a_weight_that_no_stage_follows_is_refused_with_its_key(weight: dict[str, Any]) -> None:
    with pytest.raises(BadRow) as caught:
        read({"messages": [ASK, {**SAY, **weight}]})
    assert caught.value.reason == "bad_weight"
    assert next(iter(weight)) in caught.value.detail


def test_nulls_of_arguments_and_schemas_stay_in_json_lines_and_go_where_parquet_added_them() -> None:
    call = {"id": None, "type": "function", "function": {"name": "lamp", "arguments": {"pier": None}, "x": None}}
    tool = {"type": "function", "function": {"name": "lamp", "strict": None, "parameters": {"default": None}}}
    row, _ = read({"messages": [ASK, {**SAY, "content": None, "tool_calls": [call]}], "tools": [tool]})
    assert row.messages[1].tool_calls == '[{"type":"function","function":{"name":"lamp","arguments":{"pier":null}}}]'
    assert row.tools == '[{"type":"function","function":{"name":"lamp","parameters":{"default":null}}}]'


@given(st.dictionaries(st.sampled_from(["id", "score", "Source", "a b"]), st.none() | st.text() | st.integers()))
def test_every_foreign_key_with_a_value_is_counted(extra: dict[str, Any]) -> None:
    filled = {key for key, value in extra.items() if value not in (None, "")}
    assert read({**PAIR, **extra})[1] == filled
    assert read({"messages": [ASK, {**SAY, **extra}]})[1] == {f"messages[].{key}" for key in filled}


def test_empty_values_are_not_counted_by_the_fast_decoder(tmp_path: Path) -> None:
    chat = {"messages": [ASK, SAY]}
    rows = [{**chat, "meta": value} for value in (None, "", [], {}, "x", 0, [1])]
    text = json_lines(*rows) + '{"messages": ' + json.dumps(chat["messages"]) + ', "meta": [  \t ]}\n'
    assert read_text(tmp_path, text).report["ignored_keys"] == {"meta": 3}
    flat = json_lines(*[{**PAIR, "meta": value} for value in (None, "", "x", 0)])
    assert read_text(tmp_path, flat).report["ignored_keys"] == {"meta": 2}


# Prompts


@pytest.mark.parametrize(
    ("record", "answer"),
    [
        ({"prompt": "Why?"}, ""),
        ({"prompt": [ASK], "solution": "So."}, "So."),
        ({"prompt": "Why?", "answer": 42}, "42"),
        ({"prompt": "Why?", "ground_truth": "So."}, "So."),
        ({"prompt": [ASK], "reward_model": {"ground_truth": "So."}}, "So."),
    ],
)
def test_a_prompt_without_an_answer_is_a_row(record: dict[str, Any], answer: str) -> None:
    row, ignored = read(record)
    assert (type(row), [turn.content for turn in row.prompt], row.answer) == (PromptRow, ["Why?"], answer)
    assert ignored == frozenset()


def test_a_format_of_prompts_reads_the_questions_of_other_rows() -> None:
    row, ignored = read({"question": "Why?", "answer": "So.", "id": 1}, DataFormat.PROMPTS)
    assert (row.prompt[0].content, row.answer, ignored) == ("Why?", "So.", {"id"})
    assert read({"messages": [ASK]}, DataFormat.PROMPTS)[0].prompt[0].content == "Why?"
    for wrong, reason in (({"messages": [ASK, SAY]}, "answered"), ({"prompt": "x", "solution": ["a"]}, "wrong_type")):
        with pytest.raises(BadRow) as caught:
            read(wrong, DataFormat.PROMPTS)
        assert caught.value.reason == reason


def test_prompts_fill_their_own_port_and_no_other(tmp_path: Path) -> None:
    result = read_text(tmp_path, json_lines({"prompt": "Why?", "solution": "So.", "level": 3}))
    assert (result.port, result.facts["format"], result.report["ignored_keys"]) == (
        Port.PROMPTS,
        "prompts",
        {"level": 1},
    )
    rows_path = str(tmp_path / "given" / "rows.jsonl")
    with pytest.raises(InvalidInput, match=r"E-DATA-FORMAT: The set 'sft' contains rows for prompts"):
        read_all(tmp_path / "sft", settings_for(tmp_path), sets={"sft": {"path": rows_path}})


def test_a_set_of_answers_does_not_take_rows_that_lack_theirs() -> None:
    normalise = Normaliser(detect([PAIR], DataFormat.AUTO, "a test"))
    with pytest.raises(BadRow, match="missing_fields"):
        normalise({"prompt": "Why?"})
