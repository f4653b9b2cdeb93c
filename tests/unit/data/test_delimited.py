"""CSV and TSV as people have them: quotes, code pages, delimiters, headers; and the first fault of other files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.unit.data.reading import json_lines, read_text
from trainyard.data.readers.streams import windows_encoding
from trainyard.data.rows import SftRow
from trainyard.errors import InvalidInput, LimitExceeded

CABLES = [f"How long is cable {n}?,About {n} cm." for n in range(400)]


def make_table(rows: list[str], header: str = "instruction,output") -> str:
    return "".join(f"{line}\n" for line in (header, *rows))


def pairs(result: Any) -> list[tuple[str, str]]:
    return [(row.messages[0].content, row.messages[1].content) for row in result.rows]


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({300: 'How long?,"About'}, "302 that opens a field and is not closed before line 401"),
        (
            {100: '"How long?,About', 250: 'How "long",About'},
            "102 that opens a field and is not closed before line 252",
        ),
        ({100: '"How long?,About', 250: 'How 5",About'}, "102 that opens a field and is not closed before line 252"),
    ],
)
def test_a_quote_that_is_never_closed_is_refused_with_its_line(
    tmp_path: Path, changes: dict[int, str], lines: str
) -> None:
    rows = [changes.get(number, row) for number, row in enumerate(CABLES)]
    with pytest.raises(InvalidInput, match=f"E-DATA-UNREADABLE: rows.csv has a quote in line {lines}"):
        read_text(tmp_path, make_table(rows), "rows.csv")


def test_a_long_text_in_quotes_is_a_row_and_a_bad_row_shows_its_text(tmp_path: Path) -> None:
    poem = "\n".join(f"A line, and another {n}" for n in range(90))
    result = read_text(tmp_path, make_table([f'Say it,"{poem}"', "only one field", "a,b"]), "rows.csv")
    assert pairs(result) == [("Say it", poem), ("a", "b")]
    assert [(entry["line"], entry["reason"], entry["row"]) for entry in result.quarantine] == [
        (92, "wrong_columns", "only one field\n")
    ]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Wie groß ist die Straße? 3 € – “ja”", "windows-1252"),
        ("Où est l’élève là-bas", "windows-1252"),
        ("¿Dónde está el niño?", "windows-1252"),
        ("Smørrebrød på æblet", "windows-1252"),
    ],
)
def test_a_table_in_the_code_page_of_windows_is_read_and_the_report_says_so(
    tmp_path: Path, text: str, encoding: str
) -> None:
    result = read_text(
        tmp_path, make_table([f"{text} {n},ok {n}" for n in range(30)], "prompt,completion").encode("cp1252"), "a.csv"
    )
    assert result.rows[3].messages[0].content == f"{text} 3"
    assert (result.facts["encoding"], result.facts["notes"]) == (encoding, ["read as windows-1252, as it is not UTF-8"])


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Привет, как дела", "cp1251"), ("Καλημέρα κόσμε", "cp1253"), ("Dobře, žlutý kůň", "cp1250"),
        ("Zażółć gęślą jaźń", "cp1250"), ("これは何ですか", "shift_jis"), ("你好世界", "gb18030"),
        ("Wie groß für", "mac_roman"), ("Günaydın, nasılsın şey", "cp1254"), ("Árvíztűrő tükör", "cp1250"),
    ],
)  # fmt: skip
def test_another_code_page_is_not_taken_for_it(tmp_path: Path, text: str, encoding: str) -> None:
    content = "".join(f"{text};{n}\n" for n in range(20)).encode(encoding)
    assert windows_encoding(content) == ""
    with pytest.raises(
        InvalidInput, match=r"E-DATA-UNREADABLE: No row .* Line 2 is bad \(not_utf8\): byte \d+ of line 2"
    ):
        read_text(tmp_path, b"prompt;completion\n" + content, "rows.csv")


def test_broken_bytes_in_utf8_are_bad_rows(tmp_path: Path) -> None:
    content = make_table([f"größer {n},é" for n in range(9)], "prompt,completion").encode() + b"caf\xe9,x\n"
    result = read_text(tmp_path, content, "rows.csv")
    assert (len(result.rows), result.reasons, result.facts["encoding"]) == (9, ["not_utf8"], "utf-8")


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("a.csv", "sep=;\ninstruction;output\nSay;so, yes\n", "the delimiter is ';' by its sep= line"),
        ("a.csv", "instruction;output\nSay;so, yes\n", ""),
        ("a.csv", "instruction|output\nSay|so, yes\n", ""),
        ("a.tsv", "instruction\toutput\tnotes, tags, ids\nSay\tso, yes\tx\n", ""),
        (
            "a.csv",
            '# exported 2026-01-01\ninstruction,output\nSay,"so, yes"\n',
            "1 comment line above the header left out",
        ),
        ("a.csv", 'instruction, output\nSay, "so, yes"\n', "a space follows each delimiter"),
        (
            "a.csv",
            ' Instruction ,OUTPUT\nSay,"so, yes"\n',
            "columns read as ' Instruction ': instruction, 'OUTPUT': output",
        ),
        ("a.csv", 'instruction,output\nSay,"so, yes"\nHe said \\"hi\\",x\n', ""),
    ],
)
def test_tables_as_people_write_them(tmp_path: Path, name: str, text: str, note: str) -> None:
    result = read_text(tmp_path, text, name)
    assert pairs(result)[0] == ("Say", "so, yes")
    assert note in " ".join(result.facts.get("notes", ()))


def test_quotes_that_a_backslash_escapes(tmp_path: Path) -> None:
    text = make_table([f'"He said \\"hi\\" {n}, C:\\new",a{n}' for n in range(5)], "prompt,completion")
    result = read_text(tmp_path, text, "rows.csv")
    assert pairs(result)[2] == ('He said "hi" 2, C:\\new', "a2")
    assert result.facts["notes"] == ["quotes are escaped by a backslash"]


def test_texts_that_look_like_json_stay_texts_in_csv(tmp_path: Path) -> None:
    rows = [{"instruction": "Sort.", "input": "[3, 1]", "output": '[{"name": "Ann"}]'}]
    lines = make_table(['Sort.,"[3, 1]","[{""name"": ""Ann""}]"'], "instruction,input,output")
    assert pairs(read_text(tmp_path, lines, "rows.csv")) == pairs(read_text(tmp_path, json_lines(*rows)))
    turns = [{"role": "user", "content": "Why?"}]
    quoted = json.dumps(turns).replace('"', '""')
    assert pairs(read_text(tmp_path, f'prompt,completion\n"{quoted}",So.\n', "turns.csv")) == [("Why?", "So.")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.jsonl",
            '{"prompt": "q", "completion": "a"},\n' * 3,
            r"Line 1 is bad \(not_json\): .*: a comma follows the row",
        ),
        ("a.jsonl", "{'prompt': 'q', 'completion': 'a'}\n", "texts are in single quotes, as Python prints them"),
        ("a.jsonl", '{\n  "prompt": "q",\n  "completion": "a"\n}\n', "the value continues in the next line"),
        ("a.jsonl", "# rows\n", "the line is a comment"),
        ("a.csv", "prompt,completion\na,b,c\n", r"Line 2 is bad \(wrong_columns\): the row has 3 fields, the header 2"),
    ],
)
def test_a_file_of_which_no_row_is_read_shows_the_fault_of_the_first(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=f"E-DATA-UNREADABLE: No row of {name} can be read. .*{message}"):
        read_text(tmp_path, text, name)


def test_bytes_that_are_no_text_in_a_json_array_are_named(tmp_path: Path) -> None:
    good = '{"prompt": "größe", "completion": "a"}'.encode()
    result = read_text(tmp_path, b"[" + good + b',\n{"prompt": "caf\xe9", "completion": "a"}]', "rows.json")
    assert (result.reasons, result.quarantine[0]["detail"]) == (["not_utf8"], "a byte of line 2 is not UTF-8: 0xe9")


def parquet_bytes(rows: pa.Table) -> bytes:
    out = io.BytesIO()
    parquet.write_table(rows, out)
    return out.getvalue()


def test_labels_of_pandas_are_labels_and_missing_values_are_absent(tmp_path: Path) -> None:
    rows = pa.table({"prompt": ["a", "b", "c"], "completion": ["x", "y", "z"], "label": [1.0, 0.0, float("nan")]})
    result = read_text(tmp_path, parquet_bytes(rows), "rows.parquet")
    assert [row.label for row in result.rows] == [True, False]
    assert result.reasons == ["other_format"]


def test_maps_dates_and_decimals_of_parquet_are_json(tmp_path: Path) -> None:
    pairs_type = pa.map_(pa.string(), pa.string())
    calls = pa.struct([("name", pa.string()), ("arguments", pairs_type)])
    turn = pa.struct([("role", pa.string()), ("content", pa.string()), ("function_call", calls)])
    turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "", "function_call": {
        "name": "lamp", "arguments": [("pier", "north"), ("colour", None)]}}]  # fmt: skip
    result = read_text(
        tmp_path, parquet_bytes(pa.table({"messages": pa.array([turns], pa.list_(turn))})), "rows.parquet"
    )
    (row,) = result.rows
    assert isinstance(row, SftRow)
    assert json.loads(row.messages[1].tool_calls)[0]["function"]["arguments"] == {"pier": "north", "colour": None}


def test_rows_that_a_parquet_file_repeats_for_nothing_are_limited(tmp_path: Path) -> None:
    data = parquet_bytes(pa.table({"text": pa.array(["a"] * 300_000).dictionary_encode()}))
    assert len(data) < 20_000
    with pytest.raises(LimitExceeded, match=r"E-DATA-LIMIT: rows.parquet expands to [\d,]+ bytes out of"):
        read_text(tmp_path, data, "rows.parquet", format="text")
    assert len(read_text(tmp_path, data, "rows.parquet", format="text", max_rows=1000).rows) == 1000
