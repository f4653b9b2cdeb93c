"""Multiple choice from JSONL task files: the choice whose tokens are likeliest on average counts as the answer.

The mean over tokens (not the sum) keeps a long choice from losing for its length alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.evals.cases import Case, ScoredModel, Value, assistant


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
