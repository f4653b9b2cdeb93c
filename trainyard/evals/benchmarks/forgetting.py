"""Forgetting: what training on new rows costs on text that has nothing to do with them.

The general set is a fixed file of this package (`general.jsonl`), so that the metric means the same in every report.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard.evals.cases import Case, ScoredModel, Value

GENERAL_SET = Path(__file__).with_name("general.jsonl")


def general_loss(model: ScoredModel, cases: Sequence[Case]) -> list[Value]:
    """Mean negative log-likelihood (nats) of each general text's tokens; lower is better."""
    scores = model.texts([case.text or "" for case in cases])
    return [score.nll / score.tokens if score else None for score in scores]
