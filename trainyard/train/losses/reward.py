"""Reward model: one number for a whole row, higher for the better answer (Bradley-Terry).

loss of a pair = -log sigmoid(r_chosen - r_rejected - margin) + c (r_chosen + r_rejected)^2

The centring term (Eisenstein et al. 2023, arXiv 2312.09244) keeps the rewards near zero, which pairs alone do not;
0.01 is a usual weight. The model is transformers' `AutoModelForSequenceClassification` with one label; the reward is
read off the last token of a row, in the evaluator and where completions are scored, too.

Shapes: P pairs, B = 2P rows (chosen first).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from trainyard.spec.axes.stages import RewardSettings, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Batch, Head, Metrics, Scores, StageSpec
from trainyard.train.losses import pairs
from trainyard.train.model.head import row_scores


def score(model: Any, batch: Batch, _head: Head) -> Scores:
    """`rewards_B`, in float32."""
    return {"rewards_B": row_scores(model, batch["input_ids"], batch["attention_mask"])}


def loss(
    batch: Batch, policy: Scores, _reference: Scores | None, config: TrainerConfig
) -> tuple[torch.Tensor, Metrics]:
    """Return the pairs' losses, summed; `margin_P` of the batch says by how much a chosen answer is better, where
    known.
    """
    chosen_P, rejected_P = policy["rewards_B"].chunk(2)
    gap_P = chosen_P - rejected_P
    loss_P = -functional.logsigmoid(gap_P - batch["margin_P"] if "margin_P" in batch else gap_P)
    assert isinstance(config.stage, RewardSettings), config.stage
    if centering := config.stage.centering:
        loss_P = loss_P + centering * (chosen_P + rejected_P) ** 2
    return loss_P.sum(), metrics(chosen_P.detach(), rejected_P.detach())


def metrics(chosen_P: torch.Tensor, rejected_P: torch.Tensor) -> Metrics:
    return {
        "reward_accuracy": (chosen_P > rejected_P).float().sum(),
        "reward_margin": (chosen_P - rejected_P).sum(),
        "reward_chosen": chosen_P.sum(),
        "reward_rejected": rejected_P.sum(),
    }


REWARD = StageSpec(Stage.REWARD.facts, pairs.encode, pairs.width, pairs.collate, pairs.units, score, loss)
