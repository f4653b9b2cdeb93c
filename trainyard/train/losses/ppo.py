"""PPO: completions that are worth more become likelier, by small steps (Schulman et al. 2017, arXiv 1707.06347).

loss = sum over drawn tokens of the clipped policy loss + value_coef x the clipped value loss, over all of them

The rollout computes what both compare with, once (`train/rl/drawing`): log-probabilities when drawn, values,
advantages and returns. The distance from the reference is part of the rewards (Ziegler et al. 2019, arXiv 1909.08593,
equation 2). Dropout is off, so the ratio is 1 on the first minibatch.

Shapes: B rows, T positions, N tokens that are learned from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from trainyard.spec.axes.stages import PpoSettings, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import REPORTED, Batch, Encoded, Metrics, Scores, StageSpec
from trainyard.train.losses import sft
from trainyard.train.losses.advantages import clipped_policy_loss, clipped_value_loss, is_clipped
from trainyard.train.losses.scoring import score_tokens
from trainyard.train.rows.batching import pad
from trainyard.train.rows.prompts import encode_prompts
from trainyard.train.rows.tokens import TokenLedger


def encode(
    rows: Iterable[Any], tokenizer: PreTrainedTokenizerBase, config: TrainerConfig
) -> tuple[list[Encoded], TokenLedger]:
    """Return rows as prompts with their answers."""
    return encode_prompts(rows, tokenizer, config.hyperparameters.max_length, getattr(config.stage, "rewards", ()))


def width(example: Encoded) -> int:
    return len(example["input_ids"])


def collate(examples: Sequence[Encoded], pad_id: int) -> Batch:
    """Prompts alone, which nothing is learned from: completions follow when they are drawn."""
    return pad([{"input_ids": example["input_ids"], "labels": example["input_ids"]} for example in examples], pad_id)


def loss(
    batch: Batch, policy: Scores, _reference: Scores | None, config: TrainerConfig
) -> tuple[torch.Tensor, Metrics]:
    """Clipped losses of policy and critic, summed over the tokens."""
    settings = config.stage
    assert isinstance(settings, PpoSettings), settings
    difference_N = policy["logprobs_N"] - batch.get("old_N", policy["logprobs_N"].detach())
    ratio_N, advantages_N = difference_N.exp(), batch["advantages_N"]
    policy_N = clipped_policy_loss(ratio_N, advantages_N, settings.clip)
    total = policy_N.sum()
    metrics = {
        "policy_loss": policy_N.detach().sum(),
        "clipped": is_clipped(ratio_N.detach(), advantages_N, settings.clip).float().sum(),
        "step_kl": (ratio_N.detach() - 1 - difference_N.detach()).sum(),
    }
    if "values_N" in policy:
        value_N = clipped_value_loss(policy["values_N"], batch["values_N"], batch["returns_N"], settings.value_clip)
        total = total + settings.value_coef * value_N.sum()
        metrics["value_loss"] = value_N.detach().sum()
    return total, {**metrics, **report_rollout(batch, len(ratio_N))}


def report_rollout(batch: Batch, units: int) -> Metrics:
    """Return the rollout's metrics, as sums over the units of a batch."""
    return {name.removeprefix(REPORTED): batch[name] * units for name in batch if name.startswith(REPORTED)}


def by_settings(config: TrainerConfig) -> StageSpec:
    settings = config.stage
    assert isinstance(settings, PpoSettings), settings
    return replace(PPO, score=partial(score_tokens, temperature=settings.temperature))


PPO = StageSpec(
    Stage.PPO.facts, encode, width, collate, sft.units, partial(score_tokens, temperature=1.0), loss,
    choose=by_settings, dropout=False,
)  # fmt: skip
