"""Generated answers against the accepted ones: exact match and word overlap, with the SQuAD normalisation.

Source: Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1: lower case, no punctuation, no articles, single spaces.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from trainyard.evals.cases import Case, ScoredModel, Value

MAX_ANSWER_TOKENS = 64
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def best_match(match: Callable[[str, str], float]) -> Callable[[ScoredModel, Sequence[Case]], list[Value]]:
    """A benchmark: how well the greedy answer matches the accepted one that it matches best; (answer, accepted)."""

    def score(model: ScoredModel, cases: Sequence[Case]) -> list[Value]:
        answers = model.generate(cases, MAX_ANSWER_TOKENS)
        return [
            None if answer is None else max(match(answer, text) for text in case.gold)
            for answer, case in zip(answers, cases, strict=True)
        ]

    return score


def normalise(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def word_f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall over words, counted with repetition; two empty answers agree."""
    said_words, gold_words = normalise(answer).split(), normalise(gold).split()
    if not said_words or not gold_words:
        return float(said_words == gold_words)
    shared = sum((Counter(said_words) & Counter(gold_words)).values())
    return 2 * shared / (len(said_words) + len(gold_words))


exact_match = best_match(lambda answer, gold: float(normalise(answer) == normalise(gold)))
"""1.0 when the greedy answer equals an accepted one after normalisation, else 0.0."""
quotes = best_match(lambda answer, gold: float(f" {normalise(gold)} " in f" {normalise(answer)} "))
"""1.0 when the greedy answer contains an accepted one word for word (after normalisation), else 0.0."""
f1 = best_match(word_f1)
"""Word overlap F1 with the best accepted answer, between 0 and 1."""
