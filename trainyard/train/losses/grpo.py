"""GRPO: PPO without a critic, whose place the other completions of a prompt take (Shao et al. 2024, arXiv 2402.03300).

loss of a token = clipped policy loss + beta x (the k3 estimate of the divergence from the reference), averaged over

    grpo      the tokens of each completion, then the completions
    dapo      all tokens of the step (Yu et al. 2025, arXiv 2503.14476)
    bnpo      the tokens of each micro-batch, then the micro-batches
    dr_grpo   the completions, each divided by its greatest possible length (Liu et al. 2025, arXiv 2503.20783)

The divergence is multiplied by the ratio, whose gradient makes its own unbiased (DeepSeek-V3.2, arXiv 2512.02556,
section 3.1). The values are those of TRL's GRPOTrainer. Dropout is off.

Shapes: B rows, N tokens that are learned from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from trainyard.spec.axes.stages import GrpoSettings, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Batch, Metrics, Scores, StageSpec
from trainyard.train.losses import ppo, sft
from trainyard.train.losses.advantages import clipped_policy_loss, estimate_kl, is_clipped
from trainyard.train.losses.scoring import score_tokens


def loss(batch: Batch, policy: Scores, reference: Scores | None, config: TrainerConfig) -> tuple[torch.Tensor, Metrics]:
    """Return the clipped loss and the weighted divergence, summed over the units of the average."""
    settings = config.stage
    assert isinstance(settings, GrpoSettings), settings
    logprobs_N, advantages_N = policy["logprobs_N"], batch["advantages_N"]
    ratio_N = (logprobs_N - batch.get("old_N", logprobs_N.detach())).exp()
    loss_N = clipped_policy_loss(ratio_N, advantages_N, settings.epsilon)
    metrics = {"clipped": is_clipped(ratio_N.detach(), advantages_N, settings.epsilon).float()}
    if reference is not None:
        kl_N = estimate_kl(logprobs_N, reference["logprobs_N"], "k3")
        loss_N = loss_N + settings.beta * ratio_N * kl_N
        metrics["kl"] = kl_N.detach()
    units = UNITS[settings.loss](batch)
    means = {name: value_N.mean() * units for name, value_N in metrics.items()}
    return AVERAGES[settings.loss](loss_N, batch, settings), {**means, **ppo.report_rollout(batch, units)}


def sum_tokens(loss_N: torch.Tensor, _batch: Batch, _settings: GrpoSettings) -> torch.Tensor:
    return loss_N.sum()


def sum_row_means(loss_N: torch.Tensor, batch: Batch, _settings: GrpoSettings) -> torch.Tensor:
    rows_N = sft.find_labelled_rows(batch)
    return (loss_N / rows_N.bincount()[rows_N]).sum()


def batch_mean(loss_N: torch.Tensor, _batch: Batch, _settings: GrpoSettings) -> torch.Tensor:
    return loss_N.mean()


def sum_by_longest(loss_N: torch.Tensor, _batch: Batch, settings: GrpoSettings) -> torch.Tensor:
    return loss_N.sum() / settings.max_completion_length


def count_batch(batch: Batch) -> int:
    return int(sft.units(batch) > 0)


AVERAGES: dict[str, Callable[[torch.Tensor, Batch, GrpoSettings], torch.Tensor]] = {
    "grpo": sum_row_means,
    "dapo": sum_tokens,
    "bnpo": batch_mean,
    "dr_grpo": sum_by_longest,
}
"""`stage.loss` -> the sum over the units."""
UNITS: dict[str, Callable[[Batch], int]] = {
    "grpo": sft.row_units,
    "dapo": sft.units,
    "bnpo": count_batch,
    "dr_grpo": sft.row_units,
}
"""`stage.loss` -> unit of the mean of a step."""


def by_settings(config: TrainerConfig) -> StageSpec:
    settings = config.stage
    assert isinstance(settings, GrpoSettings), settings
    tempered = partial(score_tokens, temperature=settings.temperature)
    return replace(GRPO, score=tempered, units=UNITS[settings.loss])


GRPO = StageSpec(
    Stage.GRPO.facts, ppo.encode, ppo.width, ppo.collate, sft.units, partial(score_tokens, temperature=1.0), loss,
    choose=by_settings, dropout=False,
)  # fmt: skip
