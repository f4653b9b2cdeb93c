"""Reading YAML and JSON: what is a value, and what is refused before it can do harm."""

from __future__ import annotations

import json
import math
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import Refused
from trainyard.spec.load.text import (
    FLOAT,
    MAX_DEPTH,
    MAX_INTEGER_DIGITS,
    MAX_SPEC_BYTES,
    MAX_VALUES,
    NOT_FINITE,
    parse_text,
)


def refusal(text: str | bytes) -> str:
    with pytest.raises(Refused) as refused:
        parse_text(text)
    assert "cannot be read as a spec" in refused.value.what
    (reason,) = refused.value.reasons
    return reason.line()


def test_yaml_scalars_follow_the_core_schema() -> None:
    text = """
    rate: 2e-4
    half: .5
    whole: 3
    minus: -7
    hex: 0x1F
    octal: 0o17
    no: no
    on: on
    yes: true
    off: False
    nothing: ~
    blank:
    word: null
    date: 2026-01-02
    time: 12:30:45
    quoted: '12'
    version: 1.2.3
    block: |
      two
      lines
    tagged: !!str 5
    """
    assert parse_text(text) == {
        "rate": 2e-4, "half": 0.5, "whole": 3, "minus": -7, "hex": 31, "octal": 15, "no": "no", "on": "on", "yes": True,
        "off": False, "nothing": None, "blank": None, "word": None, "date": "2026-01-02", "time": "12:30:45",
        "quoted": "12", "version": "1.2.3", "block": "two\nlines\n", "tagged": "5",
    }  # fmt: skip


def test_keys_are_texts() -> None:
    assert parse_text("1: a\ntrue: b\n2.5: c\n") == {"1": "a", "true": "b", "2.5": "c"}
    assert "E-SPEC-SYNTAX line 1: A key is not a text." in refusal("? [a]\n: b\n")
    assert "A key is not a text. Instead: Write texts as keys." in refusal("~: b\n")


def test_flow_style_that_looks_like_json_is_still_yaml() -> None:
    assert parse_text("{name: chain, nodes: [a, b]}") == {"name": "chain", "nodes": ["a", "b"]}


def test_json_is_read_as_json() -> None:
    assert parse_text('{"a": [1, 2.5, true, null, "x\\u00e9"], "b": {}}') == {"a": [1, 2.5, True, None, "xé"], "b": {}}
    assert parse_text("[1, 2]") == [1, 2]


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_text(b"\xef\xbb\xbfname: x\n") == {"name": "x"}
    assert parse_text("\ufeff{}") == {}


def test_windows_line_ends_change_nothing() -> None:
    assert parse_text(b"a: 1\r\nb:\r\n  - c\r\n") == {"a": 1, "b": ["c"]}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_refused(encoding: str) -> None:
    line = refusal("\ufeffname: x".encode(encoding) if encoding.endswith("e") else "name: x".encode(encoding))
    assert line == "E-SPEC-SYNTAX chain: The file is UTF-16 or UTF-32. Instead: Save it as UTF-8."


def test_surrogate_pairs_are_one_character() -> None:
    assert parse_text('{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


@pytest.mark.parametrize(
    "text", ["a: &x 1\n", "a: 1\nb: *a\n", "a: &x [1]\n", "a: &x {b: 1}\n", "<<: *base\n", "a: &anchor\n"]
)
def test_anchors_and_aliases_are_refused(text: str) -> None:
    assert "The file uses an anchor or an alias of YAML. Instead: Write the value out in full." in refusal(text)


def test_an_alias_bomb_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    started = time.perf_counter()
    assert refusal("\n".join(lines)).startswith("E-SPEC-SYNTAX line 1:")
    assert time.perf_counter() - started < 20, "expanded, it has a hundred thousand million values"


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", '{"b": {"a": 1, "a": 2}}'])
def test_a_key_that_is_written_twice_is_refused(text: str) -> None:
    assert "The key 'a' is written twice. Instead: Keep one of the two." in refusal(text)
    assert "E-SPEC-SYNTAX" in refusal(text)


@pytest.mark.parametrize(
    "text", ["a: .nan", "a: .inf", "a: -.INF", "a: NaN", "a: 1e999", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}']
)
def test_numbers_that_are_not_finite_are_refused(text: str) -> None:
    assert "is not a finite number. Instead: Write a finite number." in refusal(text)
    assert refusal(text).startswith("E-SPEC-SYNTAX")


def test_a_quoted_infinity_is_a_text() -> None:
    assert parse_text("name: 'Infinity'") == parse_text('{"name": "Infinity"}') == {"name": "Infinity"}


@pytest.mark.parametrize("wrap", ["a: {}", '{{"a": {}}}'])
def test_numbers_have_a_longest_length(wrap: str) -> None:
    assert parse_text(wrap.format("1" * MAX_INTEGER_DIGITS))["a"] == int("1" * MAX_INTEGER_DIGITS)
    line = refusal(wrap.format("1" * (MAX_INTEGER_DIGITS + 1)))
    assert "A number has 101 digits. Instead: Write at most 100 digits." in line


@pytest.mark.parametrize(
    ("opened", "closed"), [("[", "]"), ('{"a":', "}"), ("- " * 0 + "[", "]")], ids=["list", "mapping", "flow"]
)
def test_nesting_has_a_deepest_level(opened: str, closed: str) -> None:
    fits = opened * (MAX_DEPTH - 1) + "[1]" + closed * (MAX_DEPTH - 1)
    assert parse_text(fits) is not None
    deep = opened * MAX_DEPTH + "[1]" + closed * MAX_DEPTH
    assert "E-SPEC-SYNTAX line 1: The file is nested deeper than 64 levels. Instead: A chain needs" in refusal(deep)


def test_yaml_nesting_has_the_same_deepest_level() -> None:
    assert parse_text("x: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))
    assert refusal("x: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH).startswith("E-SPEC-SYNTAX line 1")
    indented = "\n".join(f"{'  ' * level}a:" for level in range(MAX_DEPTH + 2))
    assert refusal(indented).startswith("E-SPEC-SYNTAX line ")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "- " * 100_000, "a: " + "[" * 100_000])
def test_a_hundred_thousand_levels_are_refused_without_a_crash(text: str) -> None:
    assert refusal(text).split()[0] in ("E-SPEC-SYNTAX", "E-SPEC-SYNTAX")


def test_a_file_has_a_largest_size() -> None:
    assert parse_text("a: '" + "x" * (MAX_SPEC_BYTES - 5) + "'")["a"].startswith("x")
    line = refusal(b"a: '" + b"x" * MAX_SPEC_BYTES + b"'")
    assert "E-SPEC-SYNTAX chain: The file has 2,097,157 bytes; at most 2,097,152 are read." in line
    assert line.endswith("Put data into a data set and name its path.")
    assert "E-SPEC-SYNTAX" in refusal("é" * (MAX_SPEC_BYTES // 2 + 1))


def test_a_file_has_a_largest_number_of_values() -> None:
    many = MAX_VALUES + 2
    assert f"The file contains more than {MAX_VALUES:,} values." in refusal("[" + "1," * many + "1]")
    assert f"The file contains more than {MAX_VALUES:,} values." in refusal("a: [" + "b," * many + "b]")


def test_a_comment_alone_is_null() -> None:
    assert parse_text("# nothing\n") is None


EMPTY = "E-SPEC-SYNTAX chain: The file is empty. Instead: Write a chain: `nodes:` with a list of nodes."
TAG = ("E-SPEC-SYNTAX line 1: The file uses the YAML tag '", "Remove the tag; specs are data only.")
CHARACTER = "Instead: Remove it; texts are Unicode without NUL."


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        (b"name: \xff\n", "E-SPEC-SYNTAX byte 6: The file is not UTF-8: invalid start byte.", "Save it as UTF-8."),
        *((text, EMPTY, EMPTY) for text in ("", "  \n\t\n", b"\xef\xbb\xbf\n")),
        *((f"a: {text}\n", *TAG) for text in ("!!python/object:os.system x", "!!python/tuple [1]", "!mine {b: 1}")),
        ("a: 1\nb: x\0y\n", "E-SPEC-SYNTAX line 2: The text contains a NUL character.", CHARACTER),
        ("a: 1\nb: \ud800\n", "E-SPEC-SYNTAX line 2: The text contains a lone surrogate (U+D800).", CHARACTER),
        ('{"a": "\\ud83d"}', "E-SPEC-SYNTAX chain: The text contains a lone surrogate (U+D83D).", CHARACTER),
        ('{"a\\u0000": [1]}', "E-SPEC-SYNTAX chain: The text contains a NUL character.", CHARACTER),
        ('a: "x\\0y"\n', "E-SPEC-SYNTAX line 1: The text contains a NUL character.", CHARACTER),
        ("a: 1\nb: 2\na: 3\n", "E-SPEC-SYNTAX line 3:", ""),
        ('{"a": 1', "E-SPEC-SYNTAX line 1: This is not JSON: Expecting ',' delimiter.", ""),
        ('{"a":\n tru}', "E-SPEC-SYNTAX line 2: This is not JSON: Expecting value.", ""),
        ('{"a": 1}\ntrailing', "E-SPEC-SYNTAX line 2: This is not JSON: Extra data.", ""),
        ("a: [1\nb: 2\n", "E-SPEC-SYNTAX line 2: This is not YAML: did not find expected", ""),
        (
            "a: 1\n\tb: 2\n",
            "E-SPEC-SYNTAX line 2: This is not YAML: found a tab character that violates indentation.",
            "",
        ),
        ("a: 'x\n", "E-SPEC-SYNTAX line 2: This is not YAML: found unexpected end of stream.", ""),
        ("a: 1\n---\nb: 2\n", "E-SPEC-SYNTAX chain: The file contains 2 documents. Instead: ", ""),
        ("a: \x07\n", "E-SPEC-SYNTAX", ""),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str | bytes, start: str, end: str) -> None:
    assert refusal(text).startswith(start)
    assert refusal(text).endswith(end)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc_-", min_size=1), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN)
def test_json_round_trip(value: object) -> None:
    assert parse_text(json.dumps({"v": value})) == {"v": value}


def spells_a_number(value: object) -> bool:
    """Whether a text in it is read as a number unless it is quoted, which PyYAML does for those of YAML 1.1 alone."""
    if isinstance(value, dict | list):
        return any(map(spells_a_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and any(number.match(value) for number in (FLOAT, NOT_FINITE))


@given(PLAIN.filter(lambda value: not spells_a_number(value)))
def test_yaml_spells_the_same_values(value: object) -> None:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, _data: object) -> bool:
            return True

    assert same(parse_text(yaml.dump({"v": value}, Dumper=Plain, allow_unicode=True)), {"v": value})


def same(first: object, other: object) -> bool:
    """Equal, with floats compared by value: PyYAML writes 1e+16 with another number of digits."""
    if isinstance(first, dict) and isinstance(other, dict):
        return first.keys() == other.keys() and all(same(first[key], other[key]) for key in first)
    if isinstance(first, list) and isinstance(other, list):
        return len(first) == len(other) and all(map(same, first, other))
    if isinstance(first, float | int) and isinstance(other, float) and not isinstance(first, bool):
        return math.isclose(first, other, rel_tol=1e-15)
    return first == other and type(first) is type(other)


def list_refused_codes(text: str | bytes) -> set[str]:
    try:
        parse_text(text)
    except Refused as refused:
        return {reason.code for reason in refused.reasons}
    return set()


@given(st.binary(max_size=300))
def test_any_bytes_give_a_value_or_a_refusal(data: bytes) -> None:
    assert list_refused_codes(data) <= {"E-SPEC-SYNTAX"}


@given(st.text(alphabet="{}[]:,-&*!|>'\"#%@ \nab01.\\\u2028\0\ud800", max_size=60))
def test_any_text_gives_a_value_or_a_refusal(text: str) -> None:
    assert list_refused_codes(text) <= {"E-SPEC-SYNTAX"}
