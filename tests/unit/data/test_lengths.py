from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc
from tokenizers import Tokenizer
from validating import PORTS, block, count_words, make_labelled, preference, qa, run, sieve

from trainyard.data.quality.blocks import read_blocks
from trainyard.data.quality.lengths import count_tokens, length, load_token_counter, longest_fit, whole_words
from trainyard.data.rows import SCHEMAS, Message, Row, SftRow, TextRow, read_rows
from trainyard.errors import InvalidInput, NotFound
from trainyard.spec.axes.data import Port

TEN = "one two three four five six seven eight nine ten"


def test_counts_of_each_shape() -> None:
    assert count_tokens(block([qa("a b", "c"), qa("a", "b")]), count_words).tolist() == [3, 2]
    assert count_tokens(block([preference("a", "b", "c d e")]), count_words).tolist() == [4]
    assert count_tokens(block([make_labelled("a b", "c")]), count_words).tolist() == [3]
    assert count_tokens(block([TextRow("a b c")]), count_words).tolist() == [3]


def test_tool_schemas_count() -> None:
    assert count_tokens(block([qa("a", "b", tools="t u v"), qa("a", "b")]), count_words).tolist() == [5, 2]


@pytest.mark.parametrize("row", [qa("a", TEN), preference("a", TEN, "b"), make_labelled("a", TEN), TextRow(f"a {TEN}")])
def test_too_long_rows_are_dropped(tmp_path: Path, row: Row) -> None:
    rules = sieve(tmp_path, PORTS[type(row)], max_tokens=10)
    assert len(length(block([row]), rules)) == 0
    assert rules.ledger.dropped == {"too_long": 1}
    assert rules.ledger.first["too_long"] == "row (line 1): 11 tokens, most 10"


@pytest.mark.parametrize("policy", ["drop", "truncate", "raise"])
def test_a_row_of_exactly_the_limit_stays(tmp_path: Path, policy: str) -> None:
    left = length(block([qa("a", TEN)]), sieve(tmp_path, max_tokens=11, too_long=policy))
    assert left.answer.to_pylist() == [TEN]
    assert left.tokens is not None
    assert left.tokens.tolist() == [11]


def test_too_short_rows_are_dropped(tmp_path: Path) -> None:
    rules = sieve(tmp_path, min_tokens=3)
    left = length(block([qa("a", "b"), qa("a", "b c")]), rules)
    assert left.numbers.tolist() == [2]
    assert rules.ledger.first["too_short"] == "row (line 1): 2 tokens, least 3"


def test_raise_names_the_row(tmp_path: Path) -> None:
    rows = [qa("a?", "b"), qa("a", TEN, source="rows.jsonl:7")]
    with pytest.raises(InvalidInput, match=r"E-DATA-TOO-LONG: Line 2 of rows.jsonl:7 has 11 tokens; max_tokens is 10"):
        run(rows, tmp_path, max_tokens=10, too_long="raise")


def test_truncate_cuts_the_end_of_the_answer_and_only_where_needed(tmp_path: Path) -> None:
    rows = [qa("a", "b"), qa("x y", TEN), qa("c", "d")]
    out = run(rows, tmp_path, max_tokens=8, too_long="truncate")
    answers = [row.messages[-1].content for row in out.kept_rows]
    assert answers == ["b", "one two three four five six", "d"]
    assert out.kept_rows[1].messages[0].content == "x y"
    assert out.facts["truncated"] == 1
    assert out.facts["tokens"] == {"read": 16, "kept": 12, "longest": 8}


def test_truncate_cuts_each_side_of_a_preference(tmp_path: Path) -> None:
    out = run([preference("a", TEN, f"no {TEN}")], tmp_path, max_tokens=8, too_long="truncate")
    assert out.kept_rows[0].chosen[0].content == "one two three four five six seven"
    assert out.kept_rows[0].rejected[0].content == "no one two three four five six"


def test_truncate_cuts_completions_and_texts(tmp_path: Path) -> None:
    assert (
        run([make_labelled("a", TEN)], tmp_path / "1", max_tokens=8, too_long="truncate")
        .kept_rows[0]
        .completion[0]
        .content.endswith("seven")
    )
    assert run([TextRow(TEN)], tmp_path / "2", max_tokens=8, too_long="truncate").kept_rows[0].text.endswith("eight")


def test_tools_leave_less_room(tmp_path: Path) -> None:
    out = run([qa("a", TEN, tools="t u v")], tmp_path, max_tokens=8, too_long="truncate")
    assert out.kept_rows[0].messages[-1].content == "one two three four"


def test_a_prompt_that_is_too_long_alone_cannot_be_truncated(tmp_path: Path) -> None:
    out = run([qa(TEN, "b"), qa("a", "b")], tmp_path, max_tokens=8, too_long="truncate")
    assert out.facts["dropped"] == {"too_long": 1}
    assert out.facts["truncated"] == 0


def test_a_call_is_never_cut(tmp_path: Path) -> None:
    call = SftRow([Message("user", TEN), Message("assistant", TEN, "[]")])
    rules = sieve(tmp_path, max_tokens=10, too_long="truncate")
    assert len(length(block([call]), rules)) == 0
    assert rules.ledger.dropped == {"too_long": 1}


def test_an_empty_block_stays(tmp_path: Path) -> None:
    empty = block([qa()]).keep(block([qa()]).numbers > 1)
    assert len(length(empty, sieve(tmp_path))) == 0


@given(st.lists(st.text("ab \n", min_size=1, max_size=60), max_size=5), st.integers(0, 12))
def test_the_longest_beginning_that_fits(texts: list[str], limit: int) -> None:
    for text, beginning in zip(
        texts, longest_fit(texts, lambda _, part: part, [limit] * len(texts), count_words), strict=True
    ):
        if beginning is None:
            assert limit == 0
            assert not text[0].isspace()
        else:
            assert text.startswith(beginning)
            assert count_words([beginning])[0] <= limit
            assert count_words([beginning])[0] >= min(limit, count_words([text])[0]) - 1


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("one two three", 13, "one two three"),
        ("one two three", 9, "one two"),
        ("one two three", 8, "one two"),
        ("one two three", 7, "one two"),
        ("abcdefghij", 5, "abcde"),
        ("a bcdefghij", 8, "a bcdefg"),
        ("    x", 3, "   "),
    ],
)
def test_cuts_go_back_to_whole_words(text: str, size: int, expected: str) -> None:
    assert whole_words(text, size) == expected


# --- the tokenizer's counter ----------------------------------------------------------------------------------------


def test_a_loaded_counter_counts_what_its_tokenizer_makes(tiny_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    counter = load_token_counter(tiny_model)

    def size(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    call = Message("assistant", "", '[{"name": "now"}]')
    items = ["A chain is a list.", "", [Message("user", "What?"), Message("assistant", "A chain.")], [call]]
    expected = [
        size("A chain is a list."),
        0,
        size("What?") + size("A chain.") + 1 + 2 * 4 + size("user") + size("assistant"),
        size('[{"name": "now"}]') + 1 + 4 + size("assistant"),
    ]
    assert counter(items) == expected
    assert counter([]) == []


def test_the_estimate_is_close_to_the_rendered_template(tiny_model: Path) -> None:
    messages = [Message("user", "What is a chain?"), Message("assistant", "A list of nodes.")]
    rendered = "".join(f"<|im_start|>{message.role}\n{message.content}<|im_end|>\n" for message in messages)
    exact = len(Tokenizer.from_file(str(tiny_model / "tokenizer.json")).encode(rendered).ids)
    assert abs(load_token_counter(tiny_model)([messages])[0] - exact) <= 2


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"E-TOKENIZER: There is no tokenizer.json in"):
        load_token_counter(tmp_path)


def test_a_broken_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"E-TOKENIZER: .*tokenizer.json is not a tokenizer"):
        load_token_counter(tmp_path)


@pytest.mark.parametrize("policy", ["drop", "truncate"])
def test_what_turns_have_beside_their_text_goes_through_a_validator(tmp_path: Path, policy: str) -> None:
    silent = Message("assistant", "one", more='{"weight":0}')
    thoughtful = Message("assistant", TEN, more='{"reasoning_content":"since"}')
    question = Message("user", "x", more='{"name":"Ada"}')
    row = SftRow([question, silent, Message("user", "y"), thoughtful])
    out = run([row, qa("a", "b")], tmp_path, max_tokens=20 if policy == "drop" else 8, too_long=policy)
    kept_row = out.kept_rows[0]
    assert [turn.more for turn in kept_row.messages] == [turn.more for turn in row.messages]
    assert kept_row.messages[-1].content == (TEN if policy == "drop" else "one two three four five")


def test_reasoning_counts_as_tokens(tiny_model: Path) -> None:
    count = load_token_counter(tiny_model)
    plain, thoughtful = Message("assistant", "Yes."), Message("assistant", "Yes.", more='{"reasoning_content":"since"}')
    assert count([[thoughtful]]) > count([[plain]])


def test_rows_of_an_earlier_release_are_read(tmp_path: Path) -> None:
    """Their turns have no field for what few turns have."""
    old = pa.list_(pa.struct([(name, pa.string()) for name in ("role", "content", "tool_calls")]))
    fields = [(field.name, old if field.name == "messages" else field.type) for field in SCHEMAS[Port.SFT]]
    turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    records = [{"messages": turns, "doc_id": "d", "source": "s", "split": "train", "pair": ""}]
    with ipc.new_file(tmp_path / "rows.arrow", pa.schema(fields)) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(records, schema=pa.schema(fields)))
    (rows_block,) = read_blocks(tmp_path / "rows.arrow", Port.SFT)
    assert rows_block.batch.schema.equals(SCHEMAS[Port.SFT])
    assert list(read_rows(tmp_path / "rows.arrow", Port.SFT)) == [qa("Why?", "Because.", doc_id="d", source="s")]
