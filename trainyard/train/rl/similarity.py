"""How alike two texts are: rapidfuzz's ratio, BLEU, GLEU and ROUGE, each 0 to 1.

fuzzy_match     1 − (insertions and deletions) / (characters of both): rapidfuzz.fuzz.ratio
bleu            of one sentence, n-grams of 1 to 4 words, exponential smoothing as sacreBLEU's (Chen & Cherry 2014)
gleu            the smaller of precision and recall of all n-grams of 1 to 4 words (arXiv 1609.08144)
rouge_1 … 5     F1 of n-grams (Lin 2004), of words in lower case as google-research's rouge_score cuts them
rouge_l         F1 of the longest common subsequence of words
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq

MOST_CHARS = 32_768
"""Of a text; the comparison takes time in proportion to the product of both lengths."""
LONGEST_GRAM = 4
WORD = re.compile(r"[a-z0-9]+")


def text_similarity(text: str, reference: str, metric: str) -> float:
    """Return how alike the beginnings of two texts are by a metric, 0 to 1."""
    return METRICS[metric](text[:MOST_CHARS], reference[:MOST_CHARS])


def fuzzy_match(text: str, reference: str) -> float:
    return fuzz.ratio(text, reference) / 100


def count_grams(tokens: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1))


def bleu(text: str, reference: str) -> float:
    tokens, expected = text.split(), reference.split()
    sizes = range(1, min(LONGEST_GRAM, len(tokens)) + 1)
    matches = [(count_grams(tokens, size) & count_grams(expected, size)).total() for size in sizes]
    if not matches or not matches[0]:
        return 0.0
    missing, logs = 0, []
    for size, count in zip(sizes, matches, strict=True):
        missing += not count
        logs.append(math.log((count or 0.5**missing) / (len(tokens) - size + 1)))
    brevity = min(0.0, 1 - len(expected) / len(tokens))
    return math.exp(brevity + math.fsum(logs) / len(logs))


def gleu(text: str, reference: str) -> float:
    grams, expected = (
        sum((count_grams(side.split(), size) for size in range(1, LONGEST_GRAM + 1)), Counter[tuple[str, ...]]())
        for side in (text, reference)
    )
    most = max(grams.total(), expected.total())
    return (grams & expected).total() / most if most else 0.0


def rouge(text: str, reference: str, size: int) -> float:
    grams, expected = (count_grams(WORD.findall(side.lower()), size) for side in (text, reference))
    return f1((grams & expected).total(), grams.total(), expected.total())


def rouge_l(text: str, reference: str) -> float:
    tokens, expected = (WORD.findall(side.lower()) for side in (text, reference))
    return f1(LCSseq.similarity(tokens, expected), len(tokens), len(expected))


def f1(common: int, first: int, second: int) -> float:
    """Return the harmonic mean of common / first and common / second."""
    return 2 * common / (first + second) if common else 0.0


METRICS: dict[str, Callable[[str, str], float]] = {
    "fuzzy_match": fuzzy_match,
    "bleu": bleu,
    "gleu": gleu,
    **{f"rouge_{size}": partial(rouge, size=size) for size in range(1, 6)},
    "rouge_l": rouge_l,
}
