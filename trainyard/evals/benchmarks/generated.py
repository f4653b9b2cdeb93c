"""Generated answers against the accepted ones: exact match and word overlap, and final answers after reasoning.

Source of the normalisation: Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1: lower case, no punctuation, no
articles, single spaces.

A final answer is what follows the last `####` (GSM8K), or the last line (steps in words, then the answer). Tokens are
the positions that a model computed after the prompt: thoughts and pauses count as much as words, so that latent and
written reasoning can be compared. Seconds are those of one answer at a time on this machine.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from trainyard.evals.cases import Case, ScoredModel, TimedModel, Value

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


MARK = "####"
MOST_TOKENS = 512


def final_answer_of(text: str) -> str:
    """The last answer in a text, normalised as `exact_match` does."""
    last = text.rpartition(MARK)[2] if MARK in text else next(reversed(text.strip().splitlines()), "")
    return normalise(last)


def final_answer(model: TimedModel, cases: Sequence[Case]) -> list[Value]:
    """1.0 when the final answer equals that of an accepted answer, else 0.0."""
    answers = model.timed(cases, MOST_TOKENS)
    return [
        None if answer is None else float(final_answer_of(answer.text) in {final_answer_of(gold) for gold in case.gold})
        for answer, case in zip(answers, cases, strict=True)
    ]


def answer_tokens(model: TimedModel, cases: Sequence[Case]) -> list[Value]:
    """Tokens and thoughts of each answer."""
    return [None if answer is None else float(answer.tokens) for answer in model.timed(cases, MOST_TOKENS)]


def answer_seconds(model: TimedModel, cases: Sequence[Case]) -> list[Value]:
    return [None if answer is None else answer.seconds for answer in model.timed(cases, MOST_TOKENS)]
