"""Every spelling of a row becomes one of the five shapes, or a bad row with its reason."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.data.formats.records import Record
from trainyard.data.formats.shapes import SHAPES, Normaliser, detect, list_shapes
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import LabelledRow, Message, PreferenceRow, SftRow, TextRow, to_chosen_row
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import DataFormat

ASK, SAY = Message("user", "Why?"), Message("assistant", "Because.")
CHAT = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
SHAREGPT = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]
TOOLS = [{"name": "clock", "parameters": {"type": "object"}}]
CALL = '[{"type":"function","function":{"name":"clock","arguments":"{\\"zone\\":\\"UTC\\"}"}}]'


def normalise_record(record: dict[str, Any], data_format: DataFormat = DataFormat.AUTO) -> Any:
    return Normaliser(detect([record], data_format, "a test"))(record)[0]


def test_steps_are_the_reasoning_of_the_answer() -> None:
    row = normalise_record({"question": "Why?", "steps": ["It rained. ", "Rain is wet."], "answer": "Because."})
    (question, answer) = row.messages
    assert (question, answer.content) == (ASK, "Because.")
    assert answer.extras == {"reasoning_content": "It rained.\nRain is wet."}
    assert normalise_record({"question": "Why?", "steps": [], "answer": "Because."}) == SftRow([ASK, SAY])


@pytest.mark.parametrize(
    ("steps", "reason"), [("It rained.", "wrong_type"), ([3], "wrong_type"), (["a", " "], "empty")]
)
def test_steps_that_are_no_list_of_texts_make_a_bad_row(steps: Any, reason: str) -> None:
    assert find_reason({"question": "Why?", "steps": steps, "answer": "Because."})[0] == reason


def find_reason(record: Any, like: dict[str, Any] | None = None) -> tuple[str, str]:
    """Why a record is bad in a set whose first row is `like`, by default the record itself."""
    with pytest.raises(BadRow) as caught:
        Normaliser(detect([like or record], DataFormat.AUTO, "a test"))(record)
    return caught.value.reason, caught.value.detail


@pytest.mark.parametrize(
    "record",
    [
        {"messages": CHAT},
        {"conversations": SHAREGPT},
        {"conversations": CHAT},
        {"instruction": "Why?", "output": "Because."},
        {"instruction": "", "input": "Why?", "output": "Because."},
        {"instruction": "Why?", "input": "", "output": "Because."},
        {"instruction": "Why?", "input": None, "output": "Because."},
        {"prompt": "Why?", "completion": "Because."},
        {"prompt": CHAT[:1], "completion": CHAT[1:]},
        {"question": "Why?", "answer": "Because."},
        {"prompt": "Why?", "response": "Because."},
        {"query": "Why?", "response": "Because."},
        {"input": "Why?", "output": "Because."},
        {"instruction": "Why?", "response": "Because."},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}, CHAT[1]]},
    ],
)
def test_supervised_spellings_become_one_conversation(record: dict[str, Any]) -> None:
    assert normalise_record(record) == SftRow([ASK, SAY])


def test_alpaca_joins_instruction_and_input_and_keeps_history_and_system() -> None:
    record = {
        "instruction": "Add", "input": "1 2", "output": "3", "system": "Be exact.", "history": [["Hi", "Hello"]],
    }  # fmt: skip
    assert [(turn.role, turn.content) for turn in normalise_record(record).messages] == [
        ("system", "Be exact."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Add\n1 2"), ("assistant", "3"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "developer", "content": "Be kind."}, *CHAT]},
        {"conversations": SHAREGPT, "system": "Be kind."},
        {"conversations": [{"from": "system", "value": "Be kind."}, *SHAREGPT], "system": "unused"},
        {"prompt": "Why?", "completion": "Because.", "system": "Be kind."},
    ],
)
def test_system_prompts_come_first(record: dict[str, Any]) -> None:
    assert normalise_record(record) == SftRow([Message("system", "Be kind."), ASK, SAY])


@pytest.mark.parametrize(
    "record",
    [
        {
            "conversations": [
                SHAREGPT[0], {"from": "function_call", "value": '{"name": "clock", "arguments": {"zone": "UTC"}}'},
                {"from": "observation", "value": "12:00"}, {"from": "gpt", "value": "Noon."},
            ],
            "tools": json.dumps(TOOLS),
        },
        {
            "messages": [
                CHAT[0],
                {"role": "assistant", "content": None, "tool_calls": [
                    {"type": "function", "function": {"name": "clock", "arguments": '{"zone":"UTC"}'}}]},
                {"role": "tool", "content": "12:00", "tool_call_id": "1"}, {"role": "assistant", "content": "Noon."},
            ],
            "tools": TOOLS,
        },
        {
            "messages": [
                CHAT[0],
                {"role": "assistant", "function_call": {"name": "clock", "arguments": '{"zone":"UTC"}'}},
                {"role": "function", "name": "clock", "content": "12:00"}, {"role": "assistant", "content": "Noon."},
            ],
            "functions": TOOLS,
        },
    ],
)  # fmt: skip
def test_tool_calls_in_every_spelling(record: dict[str, Any]) -> None:
    row = normalise_record(record)
    assert [turn.role for turn in row.messages] == ["user", "assistant", "tool", "assistant"]
    assert row.messages[1] == Message("assistant", "", CALL)
    assert json.loads(row.tools) == TOOLS
    assert detect([record], DataFormat.AUTO, "a test").format is DataFormat.TOOL_CALLS


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
        {"question": "Why?", "chosen": "Because.", "rejected": "No."},
        {"instruction": "Why?", "chosen": "Because.", "rejected": "No."},
        {"prompt": CHAT[:1], "chosen": CHAT[1:], "rejected": [{"role": "assistant", "content": "No."}]},
        {"chosen": CHAT, "rejected": [CHAT[0], {"role": "assistant", "content": "No."}]},
        {"prompt": "Why?", "chosen": CHAT, "rejected": [CHAT[0], {"role": "assistant", "content": "No."}]},
        {"conversations": SHAREGPT[:1], "chosen": SHAREGPT[1], "rejected": {"from": "gpt", "value": "No."}},
        {
            "input": {"messages": CHAT[:1], "parallel_tool_calls": True},
            "preferred_output": CHAT[1:],
            "non_preferred_output": [{"role": "assistant", "content": "No."}],
        },
        {"chosen": "\n\nHuman: Why?\n\nAssistant: Because.", "rejected": "\n\nHuman: Why?\n\nAssistant: No."},
        {"prompt": "\n\nHuman: Why?\n\nAssistant:", "chosen": "Because.", "rejected": "No."},
    ],
)
def test_preference_spellings_become_one_pair(record: dict[str, Any]) -> None:
    row = normalise_record(record)
    assert row == PreferenceRow([ASK], [SAY], [Message("assistant", "No.")])
    assert to_chosen_row(row) == SftRow([ASK, SAY])


@pytest.mark.parametrize(
    "record",
    [
        {"messages": CHAT, "label": True},
        {"conversations": SHAREGPT, "label": "true"},
        {"prompt": "Why?", "completion": "Because.", "label": 1},
        {"instruction": "Why?", "output": "Because.", "kto_tag": True},
    ],
)
def test_labelled_spellings_become_one_row(record: dict[str, Any]) -> None:
    assert normalise_record(record) == LabelledRow([ASK], [SAY], True)
    opposite = {key: False if key in ("label", "kto_tag") else value for key, value in record.items()}
    assert normalise_record(opposite).label is False


def test_openai_carries_chats_preferences_and_labels() -> None:
    pair = {"prompt": "Why?", "chosen": "Because.", "rejected": "No."}
    rows = [normalise_record(record, DataFormat.OPENAI) for record in ({"messages": CHAT}, pair)]
    assert [type(row) for row in rows] == [SftRow, PreferenceRow]
    assert isinstance(normalise_record({"messages": CHAT, "label": False}, DataFormat.OPENAI), LabelledRow)


def test_a_prompt_that_is_a_transcript_becomes_its_turns() -> None:
    transcript = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Why?\n\nAssistant: "
    before = [Message("user", "Hi"), Message("assistant", "Hello"), ASK]
    assert normalise_record({"prompt": transcript, "response": "Because."}) == SftRow([*before, SAY])
    assert normalise_record({"prompt": transcript, "completion": "Because.", "label": 1}).prompt == before
    assert normalise_record({"prompt": transcript}).prompt == before
    for text in ("Why? Human: and Assistant:", "\n\nHuman: Why?", "\n\nAssistant:", "\n\nHuman:\n\nAssistant:"):
        assert normalise_record({"prompt": text, "completion": "Because."}).messages == [Message("user", text), SAY]


def test_text_and_documents_rows() -> None:
    assert normalise_record({"text": "Words."}) == TextRow("Words.")
    document = normalise_record({"text": "# Rails\nIron.", "id": 3}, DataFormat.DOCUMENTS)
    assert (document.title, document.kind) == ("Rails", "text")


@pytest.mark.parametrize(
    ("record", "reason", "detail"),
    [
        ({"messages": []}, "empty", "messages is an empty list"),
        ({"messages": "hello"}, "wrong_type", "messages is a string, expected a list of messages"),
        ({"messages": ["hello"]}, "wrong_type", r"messages\[0\] is a string, expected an object"),
        ({"messages": CHAT[:1]}, "no_answer", "ends with the turn of user, not of assistant"),
        ({"messages": CHAT[1:]}, "no_prompt", "has no turn before the answer"),
        ({"messages": [CHAT[0], {"role": "assistant", "content": " "}]}, "empty", "the last turn of .* is empty"),
        ({"messages": [*CHAT, {"role": "system", "content": "x"}, CHAT[1]]}, "late_system", "not the first"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "unknown_role", r"messages\[0\].role is 'wizard'"),
        ({"messages": [{"role": 3, "content": "x"}]}, "unknown_role", "is 3, expected one of system"),
        ({"messages": [{"role": "user", "content": 5}, CHAT[1]]}, "wrong_type", "content is a number, expected a str"),
        ({"messages": [{"role": "user"}, CHAT[1]]}, "wrong_type", "content is null"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, CHAT[1]]},
            "not_text", "a part of type 'image_url'; only text is read",
        ),
        ({"messages": [CHAT[0], {"role": "assistant", "tool_calls": "x"}]}, "bad_tool_call", "expected a list"),
        ({"messages": [CHAT[0], {"role": "assistant", "tool_calls": [{}]}]}, "bad_tool_call", "without function.name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "data": "x"}]}, CHAT[1]]},
            "wrong_type", r"messages\[0\].content\[0\] has no text; its keys are data, type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}, CHAT[1]]},
            "not_text", "contains reasoning, and the turn is not the assistant's",
        ),
        ({"messages": [CHAT[0], {**CHAT[1], "weight": 0.5}]}, "bad_weight", r"messages\[1\].weight is 0.5"),
        ({"messages": [CHAT[0], {**CHAT[1], "train": "no"}]}, "bad_weight", "train is 'no'"),
        ({"messages": [{**CHAT[0], "weight": 1}, CHAT[1]]}, "bad_weight", "asks to learn a turn of user"),
        ({"messages": [CHAT[0], {**CHAT[1], "weight": 0, "train": True}]}, "bad_weight", "weight, train differ"),
        ({"messages": [CHAT[0], {**CHAT[1], "weight": 0}]}, "no_target", "each of the assistant's has weight 0"),
        (
            {"prompt": "Why?", "chosen": [{**CHAT[1], "weight": 0}], "rejected": "No."},
            "no_target", "each of the assistant's has weight 0",
        ),
        (
            {"messages": [CHAT[0], {**CHAT[1], "weight": 0}, CHAT[0], {**CHAT[1], "weight": 0}], "label": True},
            "no_target", "weight 0",
        ),
        (
            {"messages": [*CHAT, CHAT[0], {**CHAT[1], "weight": 0}], "label": True},
            "bad_weight", "completion has a turn with weight 0",
        ),
        (
            {"messages": [CHAT[0], {**CHAT[1], "reasoning_content": "One.", "thinking": "Two."}]},
            "two_reasonings", "two different texts",
        ),
        ({"messages": [{**CHAT[0], "name": 3}, CHAT[1]]}, "wrong_type", r"messages\[0\].name is a number"),
        ({"messages": CHAT, "tools": "{"}, "bad_tools", "tools is not JSON"),
        ({"messages": CHAT, "tools": "{}"}, "bad_tools", "tools is not a list of objects"),
        (
            {"conversations": [SHAREGPT[0], {"from": "function_call", "value": "clock()"}]},
            "bad_tool_call", "value is not JSON",
        ),
        ({"conversations": [SHAREGPT[0], {"from": "function_call", "value": "[]"}]}, "bad_tool_call", "an empty list"),
        ({"conversations": [SHAREGPT[0], {"from": "function_call", "value": "3"}]}, "bad_tool_call", "with a name"),
        ({"instruction": "x", "output": ""}, "empty", "output is empty"),
        ({"instruction": "", "output": "x"}, "empty", "instruction is empty"),
        ({"instruction": "x", "output": "y", "history": "z"}, "wrong_type", "history is a string"),
        ({"instruction": "x", "output": "y", "history": [["a"]]}, "wrong_type", "not a pair of question and answer"),
        ({"prompt": "x", "completion": None}, "wrong_type", "completion is null, expected a string"),
        ({"prompt": "x", "chosen": "a", "rejected": "a"}, "identical_pair", "chosen and rejected are the same"),
        ({"prompt": "x", "chosen": "a", "rejected": ""}, "empty", "rejected is empty"),
        ({"chosen": "a", "rejected": "b"}, "no_prompt", "there is no prompt"),
        (
            {"chosen": CHAT, "rejected": [{"role": "user", "content": "Else?"}, CHAT[1]]},
            "prompts_differ", "chosen and rejected answer different prompts",
        ),
        (
            {"input": "x", "preferred_output": CHAT[1:], "non_preferred_output": CHAT[1:]},
            "wrong_type", "input is a string, expected an object with messages",
        ),
        ({"messages": CHAT, "label": "maybe"}, "bad_label", "label is 'maybe', expected true or false"),
        ({"messages": CHAT[:1], "label": True}, "no_answer", "ends with the turn of user"),
        ({"text": "a\0b"}, "nul_character", r"text contains the character U\+0000"),
        ({"text": "a\ud800b"}, "lone_surrogate", r"half of a surrogate pair, U\+D800"),
        ({"messages": CHAT, "tools": [{"name": "\0"}]}, "nul_character", r"tools contains the character U\+0000"),
        ({"messages": CHAT, "tools": [{"name": "\ud800"}]}, "lone_surrogate", r"tools contains half .*, U\+D800"),
        ({"messages": CHAT, "tools": [{"\udfff": 1}]}, "lone_surrogate", r"tools contains half .*, U\+DFFF"),
    ],
)  # fmt: skip
def test_bad_rows_say_why(record: dict[str, Any], reason: str, detail: str) -> None:
    found_reason, message = find_reason(record)
    assert found_reason == reason
    assert re.search(detail, message)


@pytest.mark.parametrize("key", ["images", "image", "audios", "videos"])
@pytest.mark.parametrize(
    "record", [{"messages": CHAT}, {"conversations": SHAREGPT}, {"instruction": "x", "output": "y"}]
)
def test_rows_with_pictures_sounds_or_films_are_not_text(record: dict[str, Any], key: str) -> None:
    assert find_reason({**record, key: ["a.png"]}) == ("not_text", f"the row has {key}; only text is read")
    assert normalise_record({**record, key: []}) == normalise_record(record)
    inside = [{**CHAT[0], key: ["a.png"]}, CHAT[1]]
    assert find_reason({"messages": inside}) == ("not_text", f"the row has messages[0].{key}; only text is read")


@pytest.mark.parametrize(
    ("turn", "more"),
    [
        ({"weight": 0}, {"weight": 0}),
        ({"train": False}, {"weight": 0}),
        ({"weight": 1, "training": True}, {}),
        ({"weight": None, "name": None, "reasoning_content": ""}, {}),
        ({"reasoning_content": "It rained."}, {"reasoning_content": "It rained."}),
        ({"thinking": "It rained.", "reasoning": "It rained."}, {"reasoning_content": "It rained."}),
        ({"name": "Ada"}, {"name": "Ada"}),
        ({"tool_call_id": "call1"}, {"tool_call_id": "call1"}),
        (
            {"content": [{"type": "thinking", "thinking": "It "}, {"type": "text", "value": "Because."}]},
            {"reasoning_content": "It "},
        ),
        (
            {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "It rained."}]},
                         {"type": "output_text", "text": "Because."}]},
            {"reasoning_content": "It rained."},
        ),
    ],
)  # fmt: skip
def test_what_a_turn_has_beside_its_text_is_kept(turn: dict[str, Any], more: dict[str, Any]) -> None:
    record = {"messages": [CHAT[0], {**CHAT[1], **turn}, *CHAT]}
    row = normalise_record(record)
    assert (row.messages[1].content, row.messages[1].extras) == ("Because.", more)
    assert row.messages[1].learned is (more.get("weight") != 0)
    sharegpt = [SHAREGPT[0], {**SHAREGPT[1], **{k: v for k, v in turn.items() if k != "content"}}, *SHAREGPT]
    if "content" not in turn:
        assert normalise_record({"conversations": sharegpt}) == row


def test_keys_inside_turns_that_nothing_reads_are_counted() -> None:
    turns = [{**CHAT[0], "id": "7", "thinking": "x", "empty": None}, {**CHAT[1], "score": 0.5}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Why?", "cache": 1}]}, {**CHAT[1], "value": "no"}]
    records = {
        "messages": (
            {"messages": turns, "source": "web"},
            {"source", "messages[].id", "messages[].thinking", "messages[].score"},
        ),
        "parts": ({"messages": parts}, {"messages[].content[].cache", "messages[].value"}),
        "pairs": (
            {
                "input": {"messages": turns[:1]},
                "preferred_output": turns[1:],
                "non_preferred_output": [{**CHAT[1], "content": "No."}],
            },
            {"input.messages[].id", "input.messages[].thinking", "preferred_output[].score"},
        ),
        "one turn": ({"prompt": "Why?", "chosen": {**CHAT[1], "id": 1}, "rejected": "No."}, {"chosen.id"}),
        "none": ({"messages": CHAT, "tools": [{"name": "clock", "role": "x", "other": 1}]}, set()),
    }
    for name, (record, ignored) in records.items():
        normalise = Normaliser(detect([record], DataFormat.AUTO, "a test"))
        kinds = [normalise(record)[1] for _ in range(2)]
        assert kinds[0] is kinds[1], name
        assert kinds[0].ignored == ignored, name


def test_rows_of_another_kind_do_not_slip_in() -> None:
    alpaca = {"instruction": "x", "output": "y"}
    assert find_reason({"prompt": "x", "chosen": "a", "rejected": "b"}, alpaca)[0] == "other_format"
    assert find_reason({"foo": 1}, alpaca) == ("missing_fields", "keys of no alpaca row: foo")
    assert find_reason([1], alpaca) == ("not_an_object", "the row is not a JSON object")
    assert find_reason({"messages": CHAT, "label": True}, {"messages": CHAT})[0] == "other_format"


def test_a_key_with_null_is_absent_where_the_row_has_a_shape_without_it() -> None:
    union = {"prompt": None, "completion": None, "label": None, "chosen": None, "rejected": None}
    assert normalise_record({**union, "messages": CHAT}) == SftRow([ASK, SAY])
    assert find_reason({"messages": CHAT, "label": None}, {"messages": CHAT, "label": True})[0] == "bad_label"
    assert find_reason({"prompt": "x", "completion": None}, {"prompt": "x", "completion": "y"})[0] == "wrong_type"


def test_spellings_of_the_same_port_may_be_mixed() -> None:
    normalise = Normaliser(detect([{"instruction": "x", "output": "y"}], DataFormat.AUTO, "a test"))
    assert normalise({"messages": CHAT})[0] == SftRow([ASK, SAY])


def test_unknown_format_names_the_keys() -> None:
    with pytest.raises(InvalidInput, match=r"E-DATA-FORMAT: The format of x.jsonl is not known. Why: .* foo, text2"):
        detect([{"foo": 1, "text2": 2}], DataFormat.AUTO, "x.jsonl")
    with pytest.raises(InvalidInput, match=r"none \(the rows are not objects\)"):
        detect([1, "a"], DataFormat.AUTO, "x.jsonl")


def test_a_named_format_is_enforced() -> None:
    with pytest.raises(InvalidInput, match=r"x is not in the format alpaca. .* Do: Give format: openai\."):
        detect([{"messages": CHAT}], DataFormat.ALPACA, "x")
    with pytest.raises(InvalidInput, match=r"Correct the file or the format"):
        detect([{"a": 1}], DataFormat.ALPACA, "x")


def test_every_format_of_the_axis_has_shapes() -> None:
    for name in DataFormat:
        assert name is DataFormat.AUTO or {shape.port for shape in list_shapes(name)} == set(name.facts.ports)
    assert list_shapes(DataFormat.AUTO) == SHAPES
    assert [shape.name for shape in list_shapes(DataFormat.OPENAI)] == [
        "openai_preference", "preference", "labelled", "openai",
    ]  # fmt: skip
    assert {shape.name for shape in SHAPES} == {
        "openai_preference", "preference", "labelled", "openai", "sharegpt", "alpaca", "prompt_completion", "text",
        "prompt",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("records", "advice"),
    [
        ([{"data": [{"prompt": "Why?", "completion": "So."}]}], "Write the list under 'data' as the file"),
        (
            [{"contents": [{"role": "user", "parts": []}], "model": "m"}],
            "columns: {prompt: contents, completion: model}",
        ),
        ([{"conversation": ["Why?", "So."]}], "Write each row as an object with the keys of a format"),
        ([["Why?", "So."], "Why?", None], "Write each row as an object with the keys of a format"),
    ],
)
def test_rows_of_no_format_are_told_a_form(records: list[Any], advice: str) -> None:
    with pytest.raises(InvalidInput, match=f"E-DATA-FORMAT: .*{re.escape(advice)}"):
        detect(records, DataFormat.AUTO, "rows.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "from"]), inner),
    max_leaves=8,
)
KEYS = ["messages", "conversations", "instruction", "output", "prompt", "chosen", "rejected", "label", "text", "tools"]


@given(st.dictionaries(st.sampled_from(KEYS), json_values, min_size=1))
def test_any_json_is_a_row_or_a_bad_row(record: dict[str, Any]) -> None:
    """No value makes a shape fail in any other way."""
    reasons: list[BadRow] = []
    for shape in SHAPES:
        if shape.has(frozenset(record)):
            try:
                shape.parse(Record(record))
            except BadRow as bad:
                reasons.append(bad)
    assert all(bad.reason.isidentifier() and bad.detail for bad in reasons)
