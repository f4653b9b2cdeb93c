"""JSON arrays, CSV and Parquet: the same rows, the same reasons, the same caps."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from tests.unit.data.reading import json_lines, read_text
from trainyard.data.readers.streams import Limits
from trainyard.data.readers.tables import ValueStream
from trainyard.data.rows import Message, PreferenceRow, SftRow
from trainyard.errors import InvalidInput, LimitExceeded

ROWS = [{"instruction": f"Why {n}? é", "output": "Because."} for n in range(2500)]
GOOD = json.dumps(ROWS[0])


@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_gives_its_objects_with_line_and_offset(tmp_path: Path, indent: int | None) -> None:
    text = json.dumps(ROWS, indent=indent, ensure_ascii=False)
    result = read_text(tmp_path, text, "rows.json")
    assert len(result.rows) == 2500
    line = text[: text.index('"Why 2499?')].count("\n") + 1 - (0 if indent is None else 1)
    assert result.rows[-1].source == f"rows.json:{line}"
    assert result.facts["format"] == "alpaca"


def test_bad_values_of_an_array_cost_only_themselves(tmp_path: Path) -> None:
    bad = ['{"instruction": "a", "output": "b", "output": "c"}', '{"instruction": NaN, "output": "b"}', "7",
           '{"instruction": "a", "output": "b", "n": 1e999}', '{"instruction": "\\ud800", "output": "b"}']  # fmt: skip
    text = "[\n" + ",\n".join([GOOD, *bad, GOOD]) + "\n]\n"
    result = read_text(tmp_path, text, "rows.json", max_bad_fraction=0.9)
    assert result.reasons == ["duplicate_key", "not_a_number", "not_an_object", "not_a_number", "lone_surrogate"]
    assert [entry["line"] for entry in result.quarantine] == [3, 4, 5, 6, 7]
    assert [text[entry["offset"]] for entry in result.quarantine] == ["{", "{", "7", "{", "{"]
    assert [row.source for row in result.rows] == ["rows.json:2", "rows.json:8"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"[{GOOD}, {{", "line 1, byte 57: Expecting property name"),
        (f"[{GOOD},\n{GOOD[:-5]}]", r"line 2, byte \d+: "),
        (f"[{GOOD}, " + "[" * 100_000, "it is nested too deeply"),
        (f"[{GOOD}] {GOOD}", "text follows the end of the array"),
        (f"[{GOOD}, {'9' * 5000}]", "a number has too many digits"),
    ],
)
def test_a_broken_array_fails_where_it_breaks(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"E-DATA-UNREADABLE: rows.json is not valid JSON in the value at .*{why}"):
        read_text(tmp_path, text, "rows.json")


def test_one_huge_value_of_an_array_is_refused(tmp_path: Path) -> None:
    text = f'[{GOOD}, {{"instruction": "{"x" * 100_000}", "output": "y"}}]'
    with pytest.raises(InvalidInput, match=r"E-DATA-UNREADABLE: .* one value is longer than 1,000 characters"):
        read_text(tmp_path, text, "rows.json", limits=Limits(line=1000))
    assert len(read_text(tmp_path, text, "rows.json").rows) == 2


@pytest.mark.parametrize("seed", range(5))
def test_values_do_not_depend_on_where_blocks_end(seed: int) -> None:
    text = json.dumps(
        [{"a": "é\n", "b": [1.5, -2e3, 17, True, None]}, 12345, "x", [], {}] * 5, indent=seed % 3
    ).encode()
    chance = random.Random(seed)
    blocks, at = [], 0
    while at < len(text):
        size = chance.randint(1, 9)
        blocks.append(text[at : at + size])
        at += size
    values = list(ValueStream(iter(blocks), "x", Limits()))
    assert [value for _, _, value, _ in values] == json.loads(text)
    assert [json.JSONDecoder().raw_decode(text[offset:].decode())[0] for _, offset, *_ in values] == json.loads(text)


def test_json_by_content_not_by_name(tmp_path: Path) -> None:
    lines = json_lines(*ROWS[:3])
    assert len(read_text(tmp_path, lines, "rows.json").rows) == 3
    assert len(read_text(tmp_path, json.dumps(ROWS[:3]), "rows.jsonl").rows) == 3
    apart = "\n".join(json.dumps(row, indent=2) for row in ROWS[:3])
    assert len(read_text(tmp_path, apart, "rows.json").rows) == 3
    assert len(read_text(tmp_path, '{"instruction": "a", "output": "b", "n": NaN}\n' + lines, "rows.json").rows) == 3


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_with_quotes_and_line_ends_in_fields(tmp_path: Path, delimiter: str) -> None:
    text = (
        f'instruction{delimiter}output\r\n"Why,;\tso?\nYes"{delimiter}Because.\r\n\r\nWho?{delimiter}"Me ""too"""\r\n'
    )
    result = read_text(tmp_path, text, "rows.csv")
    assert [row.messages for row in result.rows] == [
        [Message("user", "Why,;\tso?\nYes"), Message("assistant", "Because.")],
        [Message("user", "Who?"), Message("assistant", 'Me "too"')],
    ]
    assert [row.source for row in result.rows] == ["rows.csv:2", "rows.csv:5"]


def test_bad_csv_rows_and_their_places(tmp_path: Path) -> None:
    good = "a,b\n"
    start = "instruction,output\né,ü\nc\na,b,c\n,x\n".encode()
    content = start + b"caf\xe9,x\n" + b'"q"x,y\n' + good.encode() * 5
    result = read_text(tmp_path, content, "rows.csv", max_bad_fraction=0.9)
    assert result.reasons == ["wrong_columns", "wrong_columns", "empty", "not_utf8", "bad_csv"]
    assert result.quarantine[3]["detail"] == "byte 3 of line 6 is not UTF-8"
    assert [entry["line"] for entry in result.quarantine] == [3, 4, 5, 6, 7]
    assert [content[entry["offset"] :][:1] for entry in result.quarantine] == [b"c", b"a", b",", b"c", b'"']
    assert len(result.rows) == 6


def test_csv_header_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-DATA-UNREADABLE: rows.csv has two columns of the same name"):
        read_text(tmp_path, "output,output\na,b\n", "rows.csv")
    with pytest.raises(InvalidInput, match=r"E-DATA-UNREADABLE: rows.csv has a header that cannot be read \(new-line"):
        read_text(tmp_path, "in\rput,output\na,b\n", "rows.csv")
    mapped = r"columns: \{prompt: two words, completion: one\} \(`-p 'dataset.columns.prompt=two words'` of a job"
    with pytest.raises(InvalidInput, match=rf"E-DATA-FORMAT: .* keys: two words, one\. .*{mapped}"):
        read_text(tmp_path, "two words,one\na,b\n", "rows.csv")
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY"):
        read_text(tmp_path, "instruction,output\n", "rows.csv")
    with pytest.raises(LimitExceeded, match=r"E-DATA-UNREADABLE: Line 2 of rows.csv has [\d,]+ bytes"):
        read_text(tmp_path, "instruction,output\n" + "x" * 90_000 + ",y\n", "rows.csv", limits=Limits(line=1000))


def test_csv_columns_may_hold_json(tmp_path: Path) -> None:
    turns = json.dumps([{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}])
    quoted = turns.replace('"', '""')
    result = read_text(tmp_path, f'messages,id\n"{quoted}",1\n[broken,2\n', "rows.csv")
    assert result.rows[0].messages == [Message("user", "Why?"), Message("assistant", "So.")]
    assert result.reasons == ["wrong_type"]
    labels = read_text(tmp_path, "prompt,completion,label\na,b,True\na,c,false\n", "rows.csv")
    assert [row.label for row in labels.rows] == [True, False]


def write_parquet(path: Path, rows: list[dict[str, object]], **options: object) -> bytes:
    parquet.write_table(pa.Table.from_pylist(rows), path, **options)
    return path.read_bytes()


def test_parquet_rows(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Why?", "tool_calls": None}, {"role": "assistant", "content": "So.",
             "tool_calls": None}]  # fmt: skip
    data = write_parquet(tmp_path / "p", [{"messages": chat, "id": n, "label": None} for n in range(2100)])
    result = read_text(tmp_path, data, "rows.parquet")
    assert len(result.rows) == 2100
    assert result.rows[-1] == SftRow(
        [Message("user", "Why?"), Message("assistant", "So.")], result.rows[0].doc_id, "rows.parquet:2100"
    )
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "chosen": None, "rejected": "c"}]
    result = read_text(tmp_path, write_parquet(tmp_path / "p", pairs), "rows.parquet")
    assert isinstance(result.rows[0], PreferenceRow)
    assert [(entry["line"], entry["reason"]) for entry in result.quarantine] == [(2, "missing_fields")]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["Why?"]), pa.array(["So."]), pa.array(["No."])], ["prompt", "completion", "completion"]
    )
    parquet.write_table(table, tmp_path / "p")
    with ipc.new_file(tmp_path / "a", table.schema) as writer:
        writer.write_table(table)
    for name, data in (("rows.parquet", (tmp_path / "p").read_bytes()), ("rows.arrow", (tmp_path / "a").read_bytes())):
        with pytest.raises(InvalidInput, match=rf"E-DATA-UNREADABLE: {name} has two columns of the name 'completion'"):
            read_text(tmp_path, data, name)


def test_a_damaged_or_exploding_parquet_file_is_refused(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "p", [{"text": "x" * 1000}] * 2000, use_dictionary=False, compression="zstd")
    with pytest.raises(InvalidInput, match=r"E-DATA-UNREADABLE: rows.parquet is not a readable Parquet file"):
        read_text(tmp_path, data[:-20], "rows.parquet")
    with pytest.raises(LimitExceeded, match=r"E-DATA-LIMIT: rows.parquet expands to [\d,]+ bytes out of"):
        read_text(tmp_path, data, "rows.parquet", limits=Limits(expansion_grace=1000))
