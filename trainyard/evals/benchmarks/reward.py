"""Pairs by a reward model: does it score the chosen answer higher than the rejected one, and how high?

The share of held-out pairs in the right order, as RewardBench counts them (Lambert et al. 2024, arXiv 2403.13787). A
base has no trained score, so the baseline is chance: half of every pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.evals.benchmarks.preference import require
from trainyard.evals.cases import Case, RewardScorer, ScoredModel, Value


def reward_accuracy(model: ScoredModel | RewardScorer, cases: Sequence[Case]) -> list[Value]:
    """1.0 when the chosen answer has the higher reward, 0.5 for a tie, else 0.0."""
    assert isinstance(model, RewardScorer), "the evaluation of a reward model has reward models as participants"
    chosen = model.rewards([(case, require(case.answer)) for case in cases])
    rejected = model.rewards([(case, require(case.rejected)) for case in cases])
    return [
        None if a is None or b is None else 0.5 if a == b else float(a > b)
        for a, b in zip(chosen, rejected, strict=True)
    ]


def mean_reward(model: ScoredModel | RewardScorer, cases: Sequence[Case]) -> list[Value]:
    """Return the reward of the chosen answer. Chance gives 0; only scores of one reward model can be compared."""
    assert isinstance(model, RewardScorer), "the evaluation of a reward model has reward models as participants"
    return model.rewards([(case, require(case.answer)) for case in cases])
