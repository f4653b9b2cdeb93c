from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.data.quality import words as module
from trainyard.data.quality.words import WordTable, hash_words, split_words


def split_texts(*texts: str) -> WordTable:
    return split_words(pa.array(texts, pa.string()))


def test_case_and_punctuation_do_not_count() -> None:
    first, other = split_texts("The quick, brown fox!"), split_texts("  the QUICK (brown)\n\tfox ")
    assert first.hashes.tolist() == other.hashes.tolist()
    assert len(first.hashes) == 4


@given(st.lists(st.text("abAB 1-.\n", max_size=40), max_size=12))
def test_same_words_as_a_regular_expression_finds(texts: list[str]) -> None:
    split_words = split_texts(*texts)
    expected = [re.findall(r"[a-z0-9]+", text.lower()) for text in texts]
    assert np.diff(split_words.offsets).tolist() == [len(each) for each in expected]
    names: dict[str, int] = {}
    for word, hashed in zip((word for each in expected for word in each), split_words.hashes.tolist(), strict=True):
        assert names.setdefault(word, hashed) == hashed
    assert len(set(names.values())) == len(names)


def test_words_in_other_scripts() -> None:
    assert np.diff(split_texts("Äpfel ÉTÉ", "äpfel été", "naïve—café").offsets).tolist() == [2, 2, 2]
    assert split_texts("Äpfel ÉTÉ").hashes.tolist() == split_texts("äpfel été").hashes.tolist()
    assert np.diff(split_texts("今日は").offsets).tolist() == [3]


def test_an_ascii_text_has_the_same_words_beside_another_script() -> None:
    alone, beside = split_texts("plain words"), split_texts("plain words", "日本")
    assert beside.of(0).tolist() == alone.of(0).tolist()


def test_no_texts_and_texts_without_words() -> None:
    assert len(split_texts()) == 0
    assert np.diff(split_texts("", "...", "a").offsets).tolist() == [0, 0, 1]


def test_a_slice_of_an_array_gives_its_own_words() -> None:
    whole = pa.array(["one two", "three", "four five six"])
    assert split_words(whole.slice(1, 1)).hashes.tolist() == split_texts("three").hashes.tolist()


def test_many_texts_are_split_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"word{number} and more" for number in range(2 * module.CHUNK_TEXTS + 3)]
    split_words = split_texts(*texts)
    assert len(split_words) == len(texts)
    assert split_words.of(len(texts) - 1).tolist() == split_texts(texts[-1]).hashes.tolist()


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 17, 63, 64])
def test_every_byte_of_a_word_counts(size: int) -> None:
    base = b"a" * size
    hashes = set()
    for position in range(size):
        changed = base[:position] + b"b" + base[position + 1 :]
        hashes.add(int(hash_words(changed + b" " * 8, np.array([0]), np.array([size]))[0]))
    assert len(hashes) == size


def test_of_a_very_long_word_the_beginning_and_the_length_count() -> None:
    first, two, longer = split_texts("a" * 64 + "b"), split_texts("a" * 64 + "c"), split_texts("a" * 64 + "bb")
    assert first.hashes.tolist() == two.hashes.tolist() != longer.hashes.tolist()


def test_runs_are_all_windows_of_a_text_and_never_cross_texts() -> None:
    split_words = split_texts("a b c d", "b c", "", "x")
    runs = split_words.runs(2)
    assert np.diff(runs.offsets).tolist() == [3, 1, 0, 0]
    assert runs.of(0)[1] == runs.of(1)[0]
    assert len(set(runs.of(0).tolist())) == 3
    assert split_texts("b a").runs(2).hashes[0] != split_texts("a b").runs(2).hashes[0]


def test_text_hashes_depend_on_words_and_their_order() -> None:
    hashes = split_texts("a b c", "A, b. C", "c b a", "a b", "", "a b c c").text_hashes().tolist()
    assert hashes[0] == hashes[1]
    assert hashes[4] == 0
    assert len(set(hashes)) == 5


def test_keep_takes_the_masked_texts() -> None:
    split_words = split_texts("a b", "c", "d e f").keep(np.array([True, False, True]))
    assert split_words.of(0).tolist() == split_texts("a b").hashes.tolist()
    assert split_words.of(1).tolist() == split_texts("d e f").hashes.tolist()
    assert split_words.owners().tolist() == [0, 0, 1, 1, 1]
