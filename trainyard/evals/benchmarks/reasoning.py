"""Answers after reasoning: whether the final answer is right, and what it took in tokens and seconds.

The final answer is what follows the last `####` (GSM8K), or the last line (steps in words, then the answer). Tokens are
the positions that a model computed after the prompt: thoughts and pauses count as much as words, so that latent and
written reasoning can be compared. Seconds are those of one answer at a time on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.evals.benchmarks.generated import normalise
from trainyard.evals.cases import Case, TimedModel, Value

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
