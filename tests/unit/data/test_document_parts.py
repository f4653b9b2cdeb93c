"""Long documents in parts: nothing is lost, no part is too long, and the cuts are where a reader would cut."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.data.readers.parts import find_parts, split_document
from trainyard.serve.extraction.extraction import MAX_DOCUMENT_CHARS, prompt

BODY = "A line of text.\n" * 10


@given(st.text(alphabet=st.sampled_from("a# -=`~\n\t\r\u2028é"), max_size=400), st.integers(1, 60))
def test_the_parts_are_the_document(text: str, most: int) -> None:
    parts = split_document(text, most)
    assert all(len(part) <= most for part in parts)
    letters = iter(text)
    assert all(letter in letters for part in parts for letter in part)  # in their order
    assert "".join("".join(parts).split()) == "".join(text.split())


@given(st.text(alphabet=st.sampled_from("a# -=`~\n\t\r\u2028é"), max_size=400), st.integers(8, 60), st.integers(0, 7))
def test_parts_with_overlap_fit_and_leave_nothing_out(text: str, most: int, overlap: int) -> None:
    parts, plain = find_parts(text, most, overlap), find_parts(text, most - overlap)
    assert all(end - start <= most for start, end in parts)
    if len(text) > most:
        assert [end for _, end in parts] == [end for _, end in plain]
        assert all(
            0 <= overlap_start - start <= overlap for (start, _), (overlap_start, _) in zip(parts, plain, strict=True)
        )


def test_a_part_begins_with_the_last_lines_of_the_one_before() -> None:
    text = "".join(f"Line {number} of the minutes.\n" for number in range(20))
    parts = split_document(text, 200, 60)
    assert len(parts) > 2
    for before, after in pairwise(parts):
        repeated = after.splitlines(keepends=True)[:2]
        assert before.endswith("".join(repeated))
    unbroken = split_document("x" * 250, 100, 10)
    assert [len(part) for part in unbroken] == [90, 100, 80]


def test_a_short_document_is_one_part() -> None:
    assert split_document("# One\n", 400) == ("# One\n",)


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        (f"# One\n{BODY}## Two\n{BODY}# Three\n{BODY}", ["# One", "# Three"]),
        (f"One\n===\n\n{BODY}\nTwo\n---\n{BODY}{BODY}", ["One", "Two"]),
        (f"# One\n```\n{BODY}# no heading\n{BODY}```\n\nText {BODY}", ["# One", "Text"]),
        (f"{BODY}\n{BODY}\n{BODY}", ["A line", "A line"]),
        ("- id: 1\n  name: Jane\n" * 20, ["- id", "- id"]),
        ("word " * 100, ["word", "word"]),
    ],
)
def test_where_a_document_is_cut(text: str, begins: list[str]) -> None:
    parts = split_document(text, 400)
    assert [part.lstrip()[: len(beginning)] for part, beginning in zip(parts, begins, strict=False)] == begins
    assert "".join(parts) == text


@pytest.mark.slow
def test_every_part_fits_a_prompt_and_a_megabyte_is_quick() -> None:
    began = time.process_time()
    for text in ("# A\n" * 250_000, "x" * 1_000_000, "a b\n\n" * 200_000, f"# A\n{BODY}" * 6_000):
        parts = split_document(text, MAX_DOCUMENT_CHARS)
        assert "".join(parts) == text
        assert len(parts) == -(-len(text) // MAX_DOCUMENT_CHARS) or len(parts) > len(text) // MAX_DOCUMENT_CHARS
        prompt(parts[-1], "meetings")
    assert time.process_time() - began < 20
