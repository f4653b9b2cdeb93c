"""Likelihood of text: of held-out answers, of the choices of a question, and of general text (forgetting).

Values are means over the tokens of one text, so that a long one weighs as much as a short one (a long choice does not
lose for its length alone) and rows can be paired. The prompt is rendered with the same chat template for every model,
and its tokens do not count. The general set is a fixed file of this package (`general.jsonl`), so that the metric means
the same in every report: what training on new rows costs on text that has nothing to do with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard.evals.cases import AnswerScore, Case, ScoredModel, Value, assistant


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


def multiple_choice(model: ScoredModel, cases: Sequence[Case]) -> list[Value]:
    """1.0 when the likeliest choice is the right one, else 0.0; None when one choice does not fit the context."""
    pairs = [(case, assistant(choice)) for case in cases for choice in case.choices]
    scores = iter(model.answers(pairs))
    values: list[Value] = []
    for case in cases:
        losses = [score.nll / score.tokens if score else None for score in (next(scores) for _ in case.choices)]
        valid = [loss for loss in losses if loss is not None]
        if len(valid) < len(losses):
            values.append(None)
        else:
            values.append(float(case.choices[valid.index(min(valid))] in case.gold))
    return values


GENERAL_SET = Path(__file__).with_name("general.jsonl")


def general_loss(model: ScoredModel, cases: Sequence[Case]) -> list[Value]:
    """Mean negative log-likelihood (nats) of each general text's tokens; lower is better."""
    scores = model.texts([case.text or "" for case in cases])
    return [score.nll / score.tokens if score else None for score in scores]
