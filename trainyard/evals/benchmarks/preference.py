"""Preference pairs: whether the chosen answer is preferred, by the model's own likelihood or by a reward model.

The implicit reward of an answer is its log-likelihood under the model minus that under the base (Rafailov et al. 2023,
arXiv 2305.18290, equation 5, without the factor beta, which does not change the order). A reward model's pairs in the
right order are counted as RewardBench does (Lambert et al. 2024, arXiv 2403.13787); a base has no trained score, so the
baseline is chance: half of every pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.evals.cases import Case, RewardScorer, ScoredModel, Turn, Value


def pairwise_reward_accuracy(model: ScoredModel, cases: Sequence[Case]) -> list[Value]:
    """1.0 when the chosen answer's reward is the higher one, 0.5 for a tie (the base against itself), else 0.0."""
    chosen = [(case, require(case.answer)) for case in cases]
    rejected = [(case, require(case.rejected)) for case in cases]
    rewards = zip(implicit_rewards(model, chosen), implicit_rewards(model, rejected), strict=True)
    return [None if a is None or b is None else 0.5 if a - b == 0 else float(a > b) for a, b in rewards]


def implicit_rewards(model: ScoredModel, pairs: Sequence[tuple[Case, Turn]]) -> list[Value]:
    """Sum of log-probabilities under the model minus that under the base, for each answer."""
    both = zip(model.answers(pairs), model.reference.answers(pairs), strict=True)
    return [reference.nll - policy.nll if policy and reference else None for policy, reference in both]


def require(turn: Turn | None) -> Turn:
    assert turn is not None, "the runner passes only cases that have both sides"
    return turn


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
    """The reward of the chosen answer. Chance gives 0; only scores of one reward model can be compared."""
    assert isinstance(model, RewardScorer), "the evaluation of a reward model has reward models as participants"
    return model.rewards([(case, require(case.answer)) for case in cases])
