from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validating import block, make_labelled, preference, qa, run, sieve

from trainyard.data.quality import duplicates
from trainyard.data.quality.duplicates import Shingles, bands, identities, jaccard
from trainyard.data.quality.filters import exact_duplicates
from trainyard.data.quality.words import split_words
from trainyard.data.rows import Message, Row, SftRow, TextRow

VOCABULARY = [f"w{number}" for number in range(2000)]


def make_text(chance: random.Random, size: int = 60) -> list[str]:
    return chance.choices(VOCABULARY, k=size)


def find_near(texts: list[str], threshold: float = 0.9, pairs: list[int] | None = None) -> dict[int, int]:
    shingles = Shingles()
    for start in range(0, len(texts), 7):
        shingles.add_words(split_words(pa.array(texts[start : start + 7], pa.string())))
    return shingles.near_duplicates(threshold, None if pairs is None else np.array(pairs, np.uint64))


def exact_similarity(first: str, other: str) -> float:
    sets = []
    for each in (first.split(), other.split()):
        sets.append(set(pairwise(each)) or set(each))
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


# --- exact ----------------------------------------------------------------------------------------------------------


def test_the_first_of_equal_rows_stays(tmp_path: Path) -> None:
    rules = sieve(tmp_path)
    first = exact_duplicates(block([qa("a"), qa("b"), qa("a", source="x:3")]), rules)
    second = exact_duplicates(block([qa("b"), qa("c")]), rules)
    assert first.numbers.tolist() == [1, 2]
    assert second.numbers.tolist() == [2]
    assert rules.ledger.dropped == {"exact_duplicate": 2}
    assert rules.ledger.first["exact_duplicate"] == "x:3 (line 3): an earlier row is the same"


def test_exact_duplicates_can_be_kept(tmp_path: Path) -> None:
    assert len(run([qa(), qa()], tmp_path, exact_duplicates=False).kept_rows) == 2


@pytest.mark.parametrize(
    ("first", "other", "same"),
    [
        (qa("a", doc_id="1", pair="p", split="unseen_wording"), qa("a"), True),
        (qa("a", "b"), qa("a", "B"), False),
        (qa("a", "b"), qa("ab", ""), False),
        (qa("a", tools="[]"), qa("a"), False),
        (qa("a"), SftRow([Message("system", "a"), *qa("a").messages]), False),
        (qa("a", "b"), SftRow([Message("user", "a"), Message("tool", "b")]), False),
        (qa("a", "b"), SftRow([Message("user", "a"), Message("assistant", "b", "[]")]), False),
        (preference("a", "b", "c"), preference("a", "b", "c"), True),
        (preference("a", "b", "c"), preference("a", "c", "b"), False),
        (make_labelled("a", "b", True), make_labelled("a", "b", False), True),
        (make_labelled("a", "b"), make_labelled("a", "c"), False),
        (TextRow("a"), TextRow("a", source="s"), True),
        (TextRow("a"), TextRow("a "), False),
    ],
)
def test_what_makes_rows_equal(first: Row, other: Row, same: bool) -> None:
    keys = identities(block([first, other]))
    assert (keys[0] == keys[1]) is same


# --- near -----------------------------------------------------------------------------------------------------------


def test_a_changed_word_in_a_long_text() -> None:
    chance = random.Random(1)
    base_text, two = make_text(chance), make_text(chance)
    copy = [*base_text[:30], "other", *base_text[31:]]
    assert find_near([" ".join(base_text), " ".join(two), " ".join(copy)]) == {2: 0}
    assert find_near([" ".join(base_text), " ".join(two), " ".join(copy)], threshold=0.95) == {}


def test_case_and_punctuation_do_not_count() -> None:
    base_text = " ".join(make_text(random.Random(2)))
    assert find_near([base_text, base_text.upper().replace(" ", ", ") + "!"], threshold=1.0) == {1: 0}


def test_the_order_of_words_counts() -> None:
    base_text = make_text(random.Random(3))
    assert find_near([" ".join(base_text), " ".join(reversed(base_text))], threshold=0.5) == {}


def test_one_word_texts_and_texts_without_words() -> None:
    assert find_near(["one", "One!", "two", "", "?", "one two"]) == {1: 0}
    assert find_near([]) == {}
    assert find_near(["", ""]) == {}


def test_wordings_of_one_question_are_not_duplicates() -> None:
    base_text = " ".join(make_text(random.Random(4)))
    assert find_near([base_text, base_text, base_text], pairs=[5, 5, 6]) == {2: 0}
    assert find_near([base_text, base_text], pairs=[0, 0]) == {1: 0}


def test_a_duplicate_of_a_second_wording_is_found() -> None:
    chance = random.Random(5)
    base_text = make_text(chance)
    two = [*base_text[:20], "x", *base_text[21:]]
    three = [*base_text[:20], "x", *base_text[21:40], "y", *base_text[41:]]
    assert (
        exact_similarity(" ".join(base_text), " ".join(three))
        < 0.92
        <= exact_similarity(" ".join(two), " ".join(three))
    )
    assert find_near([" ".join(x) for x in (base_text, two, three)], threshold=0.92, pairs=[1, 1, 2]) == {2: 1}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.7, 0.8, 0.9, 0.95]))
def test_dropped_rows_are_similar_to_a_kept_one_and_similar_rows_are_found(seed: int, threshold: float) -> None:
    chance = random.Random(seed)
    texts = [make_text(chance, chance.randint(20, 60)) for _ in range(12)]
    for _ in range(12):
        copy = list(chance.choice(texts))
        for _ in range(chance.randint(0, 6)):
            copy[chance.randrange(len(copy))] = chance.choice(VOCABULARY)
        texts.append(copy)
    lines = [" ".join(each) for each in texts]
    duplicate_of = find_near(lines, threshold)
    for row, earlier in duplicate_of.items():
        assert earlier < row
        assert earlier not in duplicate_of
        assert exact_similarity(lines[row], lines[earlier]) >= threshold
    distinct = [row for row in range(len(lines)) if row not in duplicate_of]
    missed = [
        (later, other)
        for index, later in enumerate(distinct)
        for other in distinct[:index]
        if exact_similarity(lines[later], lines[other]) >= threshold
    ]
    # The signature finds a pair at the threshold in at least 999 of 1000 cases, and sooner above it.
    assert len(missed) <= 1


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_bands_find_a_pair_at_the_threshold(threshold: float) -> None:
    count = bands(threshold)
    assert duplicates.SIGNATURE % count == 0
    assert 1 - (1 - threshold ** (duplicates.SIGNATURE // count)) ** count >= 0.998


def test_the_documented_number_of_bands() -> None:
    assert bands(0.9) == 16


def test_jaccard_of_sets() -> None:
    first, two, three = frozenset({b"a", b"b"}), frozenset({b"b", b"c"}), frozenset[bytes]()
    assert jaccard(first, two) == pytest.approx(1 / 3)
    assert jaccard(first, first) == 1
    assert jaccard(first, three) == 0
    assert jaccard(three, three) == 1


def test_work_is_bounded_where_thousands_are_alike() -> None:
    """Rows that are all a little under the threshold of each other are compared with 256 others, not with all."""
    chance = random.Random(6)
    shared = make_text(chance, 80)
    lines = []
    for _ in range(700):
        copy = list(shared)
        for position in chance.sample(range(80), 3):
            copy[position] = chance.choice(VOCABULARY)
        lines.append(" ".join(copy))
    assert find_near(lines, 0.95) == {}


# --- in the validator -----------------------------------------------------------------------------------------------


def long_answer(seed: int, change: int | None = None) -> str:
    answer_words = make_text(random.Random(seed), 60)
    if change is not None:
        answer_words[change] = "changed"
    return " ".join(answer_words)


def count_dropped(tmp_path: Path, rows: list[Any], **more: Any) -> dict[str, int]:
    return dict(run(rows, tmp_path, near_duplicates=0.9, **more).facts["dropped"])


def test_near_duplicates_of_each_shape(tmp_path: Path) -> None:
    answer, same = long_answer(1), long_answer(1, change=5)
    assert count_dropped(tmp_path / "sft", [qa("q?", answer), qa("q?", same)]) == {"near_duplicate": 1}
    assert count_dropped(tmp_path / "text", [TextRow(answer), TextRow(same)]) == {"near_duplicate": 1}
    rows = [preference("q?", answer, "bad"), preference("q?", same, "bad")]
    assert count_dropped(tmp_path / "pref", rows) == {"near_duplicate": 1}
    assert count_dropped(tmp_path / "kto", [make_labelled("q?", answer), make_labelled("q?", same)]) == {
        "near_duplicate": 1
    }


def test_the_quarantine_names_the_row_that_is_repeated(tmp_path: Path) -> None:
    rows = [qa("z", "y"), qa("q?", long_answer(1)), qa("q?", long_answer(1, 5), source="rows.jsonl:9")]
    entry = run(rows, tmp_path, near_duplicates=0.9).quarantine[0]
    assert (entry["line"], entry["source"], entry["detail"]) == (3, "rows.jsonl:9", "almost the same as line 2")


def test_other_answers_about_one_long_context_are_kept(tmp_path: Path) -> None:
    context = " ".join(make_text(random.Random(8), 300))
    assert count_dropped(tmp_path, [qa(context, "yes it is"), qa(context, "no it never was")]) == {}
    assert count_dropped(tmp_path / "same", [qa(context + " a", "yes it is"), qa(context, "yes it is")]) == {
        "near_duplicate": 1
    }


def test_a_shared_system_message_does_not_make_rows_alike(tmp_path: Path) -> None:
    system = Message("system", " ".join(make_text(random.Random(9), 300)))
    rows = [SftRow([system, *qa(f"question {name}", "the same long answer").messages]) for name in ("one", "two")]
    assert count_dropped(tmp_path, rows) == {}


def test_wordings_of_a_pair_stay(tmp_path: Path) -> None:
    rows = [qa("q?", long_answer(1), pair="p", doc_id="d"), qa("q!", long_answer(1), pair="p", doc_id="d")]
    assert count_dropped(tmp_path, rows) == {}
    rows[1].pair = "other"
    assert count_dropped(tmp_path / "2", rows) == {"near_duplicate": 1}
    rows[1].pair, rows[1].doc_id = "p", "e"
    assert count_dropped(tmp_path / "3", rows) == {"near_duplicate": 1}
