"""Files of rows, good and bad: nothing is lost, each bad row is named, and each broken file says what is wrong."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.unit.data.reading import Result, json_lines, read_all, read_text, settings_for
from trainyard.data.formats.fast import fast_decoder, key_bounds
from trainyard.data.formats.shapes import Normaliser, detect
from trainyard.data.quarantine import BadRow
from trainyard.data.readers import tables
from trainyard.data.readers.chunks import Chunk
from trainyard.data.readers.streams import Limits, LineBlock
from trainyard.data.rows import SftRow
from trainyard.data.sources import jsonl_to_arrow
from trainyard.errors import InvalidInput, LimitExceeded
from trainyard.spec.axes.data import DataFormat, Port

GOOD = {"instruction": "Why?", "output": "Because."}
LINE = json.dumps(GOOD)
CHAT = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}


def test_rows_say_where_they_come_from(tmp_path: Path) -> None:
    result = read_text(tmp_path, f"{LINE}\n\n   \n{LINE}\n")
    assert [row.source for row in result.rows] == ["rows.jsonl:1", "rows.jsonl:4"]
    assert result.rows[0].doc_id == result.rows[1].doc_id
    assert re.fullmatch("[0-9a-f]{16}", result.rows[0].doc_id)
    assert result.facts["format"] == "alpaca"
    assert result.facts["encoding"] == "utf-8"


@pytest.mark.parametrize(
    ("bad", "reason", "detail"),
    [
        (b"{not json", "not_json", "Expecting property name"),
        (b'{"instruction": "a", "output": "b"} x', "not_json", "Extra data"),
        (b'{"instruction": "a\x00b", "output": "c"}', "not_json", "Invalid control character"),
        (b'{"instruction": "a\\u0000b", "output": "c"}', "nul_character", r"contains the character U\+0000"),
        (b'{"instruction": "a\\ud800b", "output": "c"}', "lone_surrogate", r"half of a surrogate pair, U\+D800"),
        (b'{"instruction": "a\xed\xa0\x80b", "output": "c"}', "not_utf8", "byte 18 of the row is not UTF-8"),
        (b'{"instruction": "caf\xe9", "output": "c"}', "not_utf8", "byte 20 of the row is not UTF-8"),
        (b'{"instruction": NaN, "output": "c"}', "not_a_number", "NaN is not JSON"),
        (b'{"instruction": "a", "output": -Infinity}', "not_a_number", "-Infinity is not JSON"),
        (b'{"instruction": "a", "output": "b", "score": 1e999}', "not_a_number", "1e999 is too large"),
        (b'{"instruction": "a", "output": "b", "n": ' + b"9" * 5000 + b"}", "bad_number", "too many digits"),
        (b'{"instruction": "a", "output": "b", "output": "c"}', "duplicate_key", "'output' occurs twice"),
        (b'{"instruction": "a", "output" : "b", "output": "c"}', "duplicate_key", "'output' occurs twice"),
        (b'{"instruction": "a", "output": "b", "x": {"k": 1, "k": 2}}', "duplicate_key", "'k' occurs twice"),
        (b'{"instruction": "a", "outpu\\u0074": "b", "output": "c"}', "duplicate_key", "'output' occurs twice"),
        (b"[" * 100_000, "too_deep", "nested too deeply"),
        (b'{"a":' * 100_000, "too_deep", "nested too deeply"),
        (b'{"instruction": "a"}', "missing_fields", "keys of no alpaca row: instruction"),
        (b'{"question": 1}', "missing_fields", "keys of no alpaca row: question"),
        (b'{"instruction": null, "output": "b"}', "wrong_type", "instruction is null, expected a string"),
        (b'["a", "b"]', "not_an_object", "not a JSON object"),
        (b"null", "not_an_object", "not a JSON object"),
        (b"7", "not_an_object", "not a JSON object"),
    ],
)
def test_bad_rows_go_to_quarantine_with_line_offset_and_reason(
    tmp_path: Path, bad: bytes, reason: str, detail: str
) -> None:
    good = LINE.encode() + b"\n"
    result = read_text(tmp_path, good * 2 + bad + b"\n" + good)
    (entry,) = result.quarantine
    assert (entry["line"], entry["offset"], entry["source"]) == (3, 2 * len(good), "rows.jsonl:3")
    assert entry["reason"] == reason
    assert re.search(detail, entry["detail"])
    assert len(entry["row"]) <= 2000
    assert result.report["dropped"] == {reason: 1}
    assert [row.source for row in result.rows] == ["rows.jsonl:1", "rows.jsonl:2", "rows.jsonl:4"]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"messages": [{"role": "user", "role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "messages": []}',
        b'{"messages": [], "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content" : "x", "content":"b"}]}',
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content"\t:"x", "content":"b"}]}',
    ],
)
def test_duplicate_keys_in_chats_are_found(tmp_path: Path, bad: bytes) -> None:
    result = read_text(tmp_path, json_lines(CHAT).encode() + bad + b"\n")
    assert result.reasons == ["duplicate_key"]


def test_text_that_looks_like_keys_is_no_duplicate(tmp_path: Path) -> None:
    tricky = {
        "messages": [{"role": "user", "content": 'a : b, "x": 1, {"role":"y"}'}, {"role": "assistant", "content": "\\"}]
    }
    result = read_text(tmp_path, json_lines(CHAT, tricky))
    assert result.rows[1].messages[0].content == tricky["messages"][0]["content"]


def test_unknown_keys_are_ignored_and_counted(tmp_path: Path) -> None:
    rows = json_lines(*[{**CHAT, "id": number, "tag": "x"} for number in range(5)], {**CHAT, "other": {"a": [1]}})
    result = read_text(tmp_path, rows)
    assert len(result.rows) == 6
    assert result.report["ignored_keys"] == {"id": 5, "other": 1, "tag": 5}


@pytest.mark.parametrize("key", ["to\nols", 'a "b"', "a\\b", "\x1f"])
def test_a_key_that_is_escaped_is_ignored_and_counted(tmp_path: Path, key: str) -> None:
    result = read_text(tmp_path, json_lines(*[{**CHAT, key: number} for number in range(5)]))
    assert len(result.rows) == 5
    assert result.report["ignored_keys"] == {key: 5}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_keys_inside_turns_are_kept_counted_or_refused_in_every_kind_of_file(tmp_path: Path, name: str) -> None:
    """A plain first row makes the fast decoder, which must not swallow what later rows have."""
    ask, say = CHAT["messages"]
    records = [
        {"messages": [ask, say]},
        {"messages": [ask, {**say, "weight": 0}, ask, {**say, "reasoning_content": "It rained.", "score": 2}]},
        {"messages": [ask, say], "images": ["a.png"]},
        {"messages": [ask, {**say, "train": False}]},
    ]
    result = read_text(tmp_path, write_records(records, name, tmp_path), name)
    assert [[turn.extras for turn in row.messages] for row in result.rows] == [
        [{}, {}], [{}, {"weight": 0}, {}, {"reasoning_content": "It rained."}]
    ]  # fmt: skip
    assert result.report["ignored_keys"] == {"messages[].score": 1}
    assert result.reasons == ["not_text", "no_target"]
    assert result.report["dropped"] == {"no_target": 1, "not_text": 1}


def write_records(records: list[dict[str, Any]], name: str, folder: Path) -> bytes:
    if name.endswith(".jsonl"):
        return json_lines(*records).encode()
    if name.endswith(".json"):
        return json.dumps(records).encode()
    if name.endswith(".parquet"):
        whole = [{"images": None, **record} for record in records]
        parquet.write_table(pa.Table.from_pylist(whole), folder / "made.parquet")
        return (folder / "made.parquet").read_bytes()
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["messages", "images"])
    writer.writerows([json.dumps(record["messages"]), ";".join(record.get("images", []))] for record in records)
    return out.getvalue().encode()


def test_a_file_whose_first_row_has_empty_images_is_read(tmp_path: Path) -> None:
    rows = [{**CHAT, "images": []}, {**CHAT, "images": ["a.png"]}, {**CHAT, "images": None}]
    result = read_text(tmp_path, json_lines(*rows))
    assert (len(result.rows), result.reasons) == (2, ["not_text"])
    assert result.report["ignored_keys"] == {}


def test_many_unknown_keys_do_not_fill_the_report(tmp_path: Path) -> None:
    rows = json_lines(*[{**GOOD, f"key{number}": 1} for number in range(300)])
    counted = read_text(tmp_path, rows).report["ignored_keys"]
    assert len(counted) == 101
    assert sum(counted.values()) == 300


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (codecs.BOM_UTF8 + json_lines(GOOD, GOOD).encode(), "utf-8-sig"),
        (json_lines(GOOD, GOOD).encode("utf-16"), "utf-16-le"),
        (codecs.BOM_UTF16_BE + json_lines(GOOD, GOOD).encode("utf-16-be"), "utf-16-be"),
        (json_lines(GOOD, GOOD).encode("utf-16-le"), "utf-16-le"),
        (json_lines(GOOD, GOOD).encode("utf-16-be"), "utf-16-be"),
        (json_lines(GOOD, GOOD).replace("\n", "\r\n").encode(), "utf-8"),
        (json_lines(GOOD, GOOD).replace("\n", "\r").encode(), "utf-8"),
        (json_lines(GOOD, GOOD).strip().encode(), "utf-8"),
    ],
)
def test_encodings_and_line_ends(tmp_path: Path, content: bytes, encoding: str) -> None:
    result = read_text(tmp_path, content)
    assert [row.source for row in result.rows] == ["rows.jsonl:1", "rows.jsonl:2"]
    assert result.facts["encoding"] == encoding
    assert result.quarantine == []


def test_a_half_surrogate_in_utf16_becomes_the_replacement_character(tmp_path: Path) -> None:
    content = json.dumps({"instruction": "a\ud800b", "output": "c"}, ensure_ascii=False) + "\n"
    result = read_text(tmp_path, codecs.BOM_UTF16_LE + content.encode("utf-16-le", "surrogatepass"))
    assert result.rows[0].messages[0].content == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bytes(range(256)) * 40, "control characters"),
        (b"\x7fELF" + bytes(4000), "control characters"),
        (codecs.BOM_UTF32_LE + LINE.encode("utf-32-le"), "it is UTF-32 text"),
        (b"\x28\xb5\x2f\xfd" + bytes(range(50)), "it is compressed with zstd"),
        (b"PK\x03\x04" + bytes(50), "it is a zip archive"),
    ],
)
def test_a_binary_file_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"E-DATA-UNREADABLE: rows.jsonl is a binary file, not text: .*{why}"):
        read_text(tmp_path, content)


@pytest.mark.parametrize("content", [b"", b"\n\n  \r\n", gzip.compress(b"", mtime=0)])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes, name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"E-DATA-EMPTY: {name} contains nothing to read\. Why: It has no rows\."):
        read_text(tmp_path, content, name, format="alpaca")


def test_a_line_over_the_cap_is_skipped_without_being_held(tmp_path: Path) -> None:
    limits = Limits(line=1000)
    content = LINE.encode() + b"\n" + b"x" * 50_000 + b"\n" + LINE.encode() + b"\n" + b"y" * 9000
    result = read_text(tmp_path, content, limits=limits)
    assert [row.source for row in result.rows] == ["rows.jsonl:1", "rows.jsonl:3"]
    assert [(entry["line"], entry["offset"], entry["detail"]) for entry in result.quarantine] == [
        (2, 46, "the row has 50,000 bytes"),
        (4, 46 + 50_001 + 46, "the row has 9,000 bytes"),
    ]


@pytest.mark.slow
def test_two_gigabytes_in_one_line_take_little_memory(tmp_path: Path) -> None:
    """A sparse file: LINE, then 2 GB of NUL without a line end."""
    folder = tmp_path / "given"
    folder.mkdir()
    with (folder / "rows.jsonl").open("wb") as stream:
        stream.write(LINE.encode() + b"\n" + b" " * 8192)
        stream.truncate(2 << 30)
    program = (
        "from pathlib import Path; from tests.unit.data.reading import *\n"
        f"place = Path({str(folder)!r})\n"
        "result = read_all(place.parent / 'out', settings_for(place), path=str(place / 'rows.jsonl'), "
        "max_bad_fraction=0.5)[Port.SFT]\n"
        "assert result.reasons == ['line_too_long'], result.reasons\n"
        # Not getrusage: its maximum counts what the parent held when it forked.
        "peak = next(line for line in Path('/proc/self/status').open() if line.startswith('VmHWM'))\n"
        "print(int(peak.split()[1]) // 1024)"
    )
    import_run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(import_run.stdout) < 512


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    whole = gzip.compress(json_lines(GOOD).encode()) + gzip.compress(json_lines(GOOD).encode()) + bytes(8)
    for name in ("rows.jsonl.gz", "rows.jsonl"):
        result = read_text(tmp_path, whole, name)
        assert len(result.rows) == 2
        assert result.facts["compressed"] is True


def test_a_truncated_gzip_fails_the_run(tmp_path: Path) -> None:
    whole = gzip.compress("".join(json.dumps({**GOOD, "id": n}) + "\n" for n in range(5000)).encode())
    with pytest.raises(InvalidInput, match=r"E-DATA-UNREADABLE: rows.jsonl.gz is not a whole gzip file: it ends in"):
        read_text(tmp_path, whole[: len(whole) // 2], "rows.jsonl.gz")
    with pytest.raises(InvalidInput, match=r"E-DATA-UNREADABLE: .* it ends in the middle"):
        read_text(tmp_path, whole[:-4], "rows.jsonl.gz")
    damaged = bytearray(whole)
    damaged[-6] ^= 0xFF
    with pytest.raises(InvalidInput, match=r"E-DATA-UNREADABLE: .* it is damaged after"):
        read_text(tmp_path, bytes(damaged), "rows.jsonl.gz")


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz", "rows.csv.gz", "notes.md.gz", "notes.txt.gz"])
def test_a_gzip_bomb_is_refused(tmp_path: Path, name: str) -> None:
    bomb = gzip.compress(LINE.encode() + b"\n" + b" " * 20_000_000)
    assert len(bomb) * 900 < 20_000_000
    with pytest.raises(LimitExceeded, match=r"E-DATA-LIMIT: .* expands to more than is read: [\d,]+ bytes out of"):
        read_text(tmp_path, bomb, name)
    with pytest.raises(LimitExceeded, match=r"E-DATA-LIMIT: .* The caps are 100000 to 1 and 1,000,000 bytes"):
        read_text(tmp_path, bomb, name, limits=Limits(expanded=1_000_000, expansion=100_000))


def test_a_set_of_which_every_row_may_be_bad_says_that_none_is_left(tmp_path: Path) -> None:
    """As a preview reads it, which shows what there is."""
    with pytest.raises(InvalidInput) as caught:
        read_text(tmp_path, json_lines(*[{"messages": [{"role": "system", "content": "a"}]}] * 3), max_bad_fraction=1.0)
    assert "rows.jsonl are bad (100.0%). Why: No row is left. The first: " in str(caught.value)
    assert "max_bad_fraction" not in str(caught.value)


def test_too_many_bad_rows_fail_the_run_and_keep_the_quarantine(tmp_path: Path, home: Path) -> None:
    content = json_lines(*[GOOD] * 9) + "{\n"
    with pytest.raises(InvalidInput) as caught:
        read_text(tmp_path, content, max_bad_fraction=0.05)
    assert str(caught.value).startswith(
        "E-DATA-BAD-ROWS: 1 of 10 rows of rows.jsonl are bad (10.0%). Why: At most 5.0% may be. The first: "
        "rows.jsonl:10 not_json (Expecting property name enclosed in double quotes at character 1: the value continues"
    )
    quarantine_path = home / "quarantine" / "rows.jsonl.quarantine.jsonl"
    assert str(quarantine_path) in caught.value.do
    assert json.loads(quarantine_path.read_text())["line"] == 10
    assert len(read_text(tmp_path, content, max_bad_fraction=0.1).rows) == 9


def test_a_set_without_a_good_row_fails_whatever_the_fraction(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-DATA-BAD-ROWS: 2 of 2 rows"):
        read_text(tmp_path, '{"instruction": "", "output": "x"}\n{\n', max_bad_fraction=1.0)


def test_the_quarantine_of_a_very_bad_file_stays_small(tmp_path: Path) -> None:
    bad = b'{"instruction": "' + b"x" * 100 + b'", "output": ""}\n'
    result = read_text(tmp_path, LINE.encode() + b"\n" + bad * 10_050, max_bad_fraction=1.0)
    assert "row" in result.quarantine[9_999]
    assert "row" not in result.quarantine[10_000]
    assert result.quarantine[10_049]["line"] == 10_051


def test_max_rows_takes_the_first_good_rows(tmp_path: Path) -> None:
    content = json_lines(GOOD) + "{\n" + json_lines(GOOD, GOOD) + "{\n" * 50
    result = read_text(tmp_path, content, max_rows=2)
    assert [row.source for row in result.rows] == ["rows.jsonl:1", "rows.jsonl:3"]
    assert result.report["read"] == 3
    assert len(read_text(tmp_path, json_lines(*[CHAT] * 3000), max_rows=2500).rows) == 2500


def test_exact_duplicates_are_dropped_when_asked(tmp_path: Path) -> None:
    same = '{"output": "Because.", "input": "", "instruction": "Why?"}\n'
    rows = json_lines(GOOD, {"instruction": "Who?", "output": "Me."}, GOOD) + same
    path = tmp_path / "rows.jsonl"
    path.write_text(rows * 3)
    report = jsonl_to_arrow(path, tmp_path / "out")
    assert (report["read"], report["kept"], report["duplicates"]) == (12, 2, 10)
    assert jsonl_to_arrow(path, tmp_path / "all", deduplicate=False)["kept"] == 12


def test_a_file_whose_first_rows_are_bad_is_still_read(tmp_path: Path) -> None:
    result = read_text(tmp_path, "{\n" * 3 + json_lines(GOOD, GOOD, GOOD))
    assert len(result.rows) == 3
    late = "".join("{" + "x" * 2000 + "\n" for _ in range(1000)) + json_lines(*[GOOD] * 1000)
    assert len(read_text(tmp_path, late).rows) == 1000


def test_values_of_other_types_in_a_row_are_ignored_not_refused(tmp_path: Path) -> None:
    rows = json_lines({**GOOD, "n": 1, "f": 0.5, "b": True, "z": None}, {**GOOD, "n": [1, {"a": 2}]})
    assert len(read_text(tmp_path, rows).rows) == 2


# The fast way means what the strict way means


def read_both_ways(data: bytes, first: dict[str, Any]) -> tuple[Chunk, Chunk]:
    """Chunks of a text of whole lines, read by the fast decoder for rows like `first`, and without it."""
    normalise = Normaliser(detect([first], DataFormat.AUTO, "a test"))
    newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    block = LineBlock(data + b'{"tail": ', newlines, 1, 0)
    fast, strict = Chunk("x"), Chunk("x")
    tables.convert(block, fast, normalise, fast_decoder(normalise, frozenset(first)))
    tables.convert(block, strict, normalise, None)
    return fast, strict


def flatten_chunk(chunk: Chunk) -> tuple[Any, ...]:
    rows = [(type(row), [(turn.role, turn.content) for turn in row.messages]) for row in chunk.rows]  # type: ignore[union-attr]
    bad = [(bad.before, bad.line, bad.offset, bad.reason.reason) for bad in chunk.bad]
    return rows, bad, chunk.sources, [(kind.shape.name, kind.ignored) for kind in chunk.kinds]


texts = st.text(max_size=12) | st.sampled_from(['" :', '\\":', "a : b", "\\", "\0", "é", " ", ""])
turns = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool", "x"]), "content": texts})
sharegpt_turns = st.fixed_dictionaries(
    {"from": st.sampled_from(["human", "gpt", "system", "observation"]), "value": texts}
)
records = st.one_of(
    st.fixed_dictionaries({"messages": st.lists(turns, max_size=4)}, optional={"id": texts, "tools": texts}),
    st.fixed_dictionaries(
        {"conversations": st.lists(sharegpt_turns, max_size=4)}, optional={"id": texts, "system": texts}
    ),
    st.fixed_dictionaries({"instruction": texts, "output": texts}, optional={"input": texts, "n": st.integers()}),
)
spellings = st.sampled_from([None, (", ", " : "), (",", ":")])
line_ends = st.sampled_from(["\n", "\n", "\n", "\r\n", "\n\n", "", " "])
positions = st.integers(0, 400)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(st.tuples(records, st.booleans(), spellings, line_ends), max_size=5),
    st.lists(st.tuples(positions, st.sampled_from(["", "}", "{", "\n", "}\n{", '"', ":", ",", "}{"])), max_size=2),
    st.sampled_from([CHAT, GOOD, {"conversations": [], "id": 1}, {**CHAT, "id": "x"}]),
)
def test_fast_and_strict_agree(
    written: list[tuple[Any, bool, Any, str]], changes: list[tuple[int, str]], first: dict[str, Any]
) -> None:
    """On rows in any spelling and at any line ends, some of them damaged."""
    text = "".join(
        json.dumps(record, ensure_ascii=escaped, separators=spelling) + end
        for record, escaped, spelling, end in written
    )
    for position, change in changes:
        text = text[:position] + change + text[position + 1 :]
    fast, strict = read_both_ways(f"{text}\n".encode(), first)
    assert flatten_chunk(fast) == flatten_chunk(strict)


def test_key_bounds_count_every_key() -> None:
    lines = [b'{"a":1, "b" : 2}', b'{"a": "x\\":"}', b'{"a": "b : c"}', b"", b":"]
    text = np.frombuffer(b"".join(line + b"\n" for line in lines), np.uint8)
    assert key_bounds(text, np.flatnonzero(text == ord("\n"))) == [2, 1, 2, 0, 1]


@pytest.mark.parametrize(
    "text",
    [
        b'{"instruction":"a","output":"b"}{"instruction":"a","output":"b"}\n\n',
        b'{"instruction":"a","output":"b"}{"instruction":"a","output":"b"}\n{"instruction":"a","output":"b"}\n',
        b'{"instruction":"a","output":"b"\n}{"instruction":"a","output":"b"}\n',
        b'{"instruction":"a",\n"output":"b"}\n{"instruction":"a","output":"b"} {"instruction":"a","output":"b"}\n',
    ],
)
def test_values_that_do_not_stand_one_a_line_are_no_rows(text: bytes) -> None:
    fast, strict = read_both_ways(text, GOOD)
    assert flatten_chunk(fast) == flatten_chunk(strict)
    assert fast.bad


def test_strict_json_accepts_what_rfc_8259_accepts() -> None:
    assert tables.strict_json(b' {"a": [1, 2.5, true, null, "\\ud83d\\ude00"]} ') == {"a": [1, 2.5, True, None, "😀"]}
    with pytest.raises(BadRow, match="not_json"):
        tables.strict_json(codecs.BOM_UTF8 + b"{}")


# The public sample data sets


@pytest.mark.parametrize(
    ("name", "port", "data_format", "row_count"),
    [
        ("alpaca_en_demo.json", Port.SFT, "alpaca", 999),
        ("dpo_en_demo.json", Port.PREFERENCE, "preference", 300),
        ("kto_en_demo.json", Port.LABELLED, "labelled", 300),
        ("glaive_toolcall_en_demo.json", Port.SFT, "tool_calls", 300),
        ("gsm8k_train.jsonl", Port.SFT, "prompt_completion", 7473),
        ("gsm8k_test.jsonl", Port.SFT, "prompt_completion", 1319),
        ("prosqa_valid.json", Port.SFT, "prompt_completion", 300),
        ("prosqa_test.json", Port.SFT, "prompt_completion", 500),
        ("wiki_demo.txt", Port.DOCUMENTS, "documents", 1),
        ("hh_rlhf_harmless_test.jsonl.gz", Port.PREFERENCE, "preference", 2308),
    ],
)
def test_public_data_sets_load(  # noqa: PLR0917
    shared_data: Path, tmp_path: Path, name: str, port: Port, data_format: str, row_count: int
) -> None:
    (result,) = read_all(tmp_path / "out", settings_for(shared_data), path=str(shared_data / name)).values()
    assert (result.port, result.facts["format"], len(result.rows)) == (port, data_format, row_count)


def test_the_sharegpt_samples_load_under_their_own_name_too(shared_data: Path, tmp_path: Path) -> None:
    results: list[Result] = []
    for name in ("dpo_en_demo.json", "glaive_toolcall_en_demo.json"):
        where = {"path": str(shared_data / name), "format": "sharegpt"}
        results += read_all(tmp_path / name, settings_for(shared_data), **where).values()
    assert [result.port for result in results] == [Port.PREFERENCE, Port.SFT]
    calls = [turn.tool_calls for row in results[1].rows if isinstance(row, SftRow) for turn in row.messages]
    assert sum(call is not None for call in calls) == 211
