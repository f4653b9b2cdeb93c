"""Reward model: one number for a whole row, higher for the better answer (Bradley-Terry).

loss of a pair = -log sigmoid(r_chosen - r_rejected - margin) + c (r_chosen + r_rejected)^2

The centring term (Eisenstein et al. 2023, arXiv 2312.09244) keeps the rewards near zero, which pairs alone do not;
0.01 is a usual weight. The model is transformers' `AutoModelForSequenceClassification` with one label: it reads the
reward off the last token that is not padding, so its config must name the padding token.

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


def score(model: Any, batch: Batch, _head: Head) -> Scores:
    """`rewards_B`, in float32."""
    model_inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return {"rewards_B": model(**model_inputs, use_cache=False).logits[:, 0].float()}


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
