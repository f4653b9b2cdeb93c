"""Likelihood of the given answers: how surprised a model is by what it should have said.

Both values are means over the tokens of one answer, so that a long answer weighs as much as a short one and the rows
can be paired. The prompt is rendered with the same chat template for every model, and its tokens do not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.evals.cases import AnswerScore, Case, ScoredModel, Value


def heldout_loss(model: ScoredModel, cases: Sequence[Case]) -> list[Value]:
    """Mean negative log-likelihood (nats) of an answer's tokens; lower is better."""
    return [score.nll / score.tokens if score else None for score in scores(model, cases)]


def token_accuracy(model: ScoredModel, cases: Sequence[Case]) -> list[Value]:
    """Share of an answer's tokens that the model would have chosen itself, the earlier ones given."""
    return [score.correct / score.tokens if score else None for score in scores(model, cases)]


def scores(model: ScoredModel, cases: Sequence[Case]) -> list[AnswerScore | None]:
    """The answers' scores; rows that are plain text are scored as text."""
    talks = [index for index, case in enumerate(cases) if case.answer is not None]
    plain = [index for index, case in enumerate(cases) if case.answer is None and case.text]
    results: list[AnswerScore | None] = [None] * len(cases)
    pairs = [(cases[index], answer) for index in talks if (answer := cases[index].answer) is not None]
    for index, score in zip(talks, model.answers(pairs), strict=True):
        results[index] = score
    for index, score in zip(plain, model.texts([cases[index].text or "" for index in plain]), strict=True):
        results[index] = score
    return results
