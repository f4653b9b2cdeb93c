"""How alike two texts are, against the values of the libraries that define the metrics."""

from __future__ import annotations

import pytest

from trainyard.train.rl.similarity import METRICS, text_similarity

CAT, MAT = "the cat sat on the mat today", "a cat was sitting on the mat"


@pytest.mark.parametrize("metric", METRICS)
def test_equal_texts_are_worth_one_and_others_nothing(metric: str) -> None:
    assert text_similarity("One two three four five.", "One two three four five.", metric) == pytest.approx(1.0)
    assert text_similarity("abc", "xyz", metric) == 0.0
    assert text_similarity("", "xyz", metric) == 0.0


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("fuzzy_match", 0.6428571428571428),
        ("bleu", 0.26269098944241587),
        ("gleu", 0.3181818181818182),
        ("rouge_1", 0.5714285714285714),
        ("rouge_2", 0.3333333333333333),
        ("rouge_3", 0.2),
        ("rouge_l", 0.5714285714285714),
    ],
)
def test_values_of_the_libraries(metric: str, expected: float) -> None:
    """rapidfuzz 3.14.6, sacreBLEU 2.6.0 (tokenize none, effective order), NLTK 3.10.4, rouge_score 0.1.2."""
    assert text_similarity(CAT, MAT, metric) == pytest.approx(expected, abs=1e-9)


@pytest.mark.timeout(20)
def test_a_long_text_takes_little_time() -> None:
    text = "a b " * 200_000
    assert text_similarity(text, text[::-1], "rouge_l") > 0
