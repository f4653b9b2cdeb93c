"""Preference pairs: make the chosen answer likelier than the rejected one. Six losses over the same pairs.

log pi and log ref are sums over an answer's tokens; `d` is (log pi - log ref) of the chosen answer minus that of the
rejected one; a bar marks means per token.

    sigmoid   -log sigmoid(beta d)                                             Rafailov et al. 2023, arXiv 2305.18290
              with label smoothing e: (-(1-e) log sigmoid(beta d) + e log sigmoid(-beta d)) / (1-2e)
                                                                               Chowdhury et al. 2024, arXiv 2403.00409
    hinge     max(0, 1 - beta d)                                               Zhao et al. 2023, arXiv 2305.10425
    ipo       (d-bar - 1 / (2 beta))^2                                         Azar et al. 2023, arXiv 2310.12036
    kto_pair  mean of 1 - sigmoid(beta (chosen - KL_rejected)) and 1 - sigmoid(beta (KL_chosen - rejected)), where KL is
              the batch's mean log-ratio, at least 0                           Ethayarajh et al. 2024, arXiv 2402.01306
    orpo      mean NLL of the chosen row with its prompt - beta log sigmoid(log odds ratio), odds from means; no
              reference                                                        Hong et al. 2024, arXiv 2403.07691
    simpo     -log sigmoid(beta (log pi-bar chosen - rejected) - gamma); no reference
                                                                               Meng et al. 2024, arXiv 2405.14734

A pair may lie in one row, behind the prompt that its answers share, and several pairs in one packed row.

Every loss is a sum over pairs, so that the cut of a step into micro-batches does not move the gradient; kto_pair's KL
alone is a mean over the micro-batch.

Shapes: P pairs, B rows, 2P (chosen first) unless a row has several sequences, T positions, N labelled positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from trainyard.data.rows import PreferenceRow
from trainyard.spec.axes.stages import DpoSettings, PreferenceLoss, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, SEQUENCES, Batch, Encoded, Head, Metrics, Scores, StageSpec
from trainyard.train.losses import pairs
from trainyard.train.model.head import LabelLogprobs, label_logprobs
from trainyard.train.rows.segments import RowLayout
from trainyard.train.rows.tokens import TokenLedger

NEARLY_CERTAIN = -1e-7
"""Odds are clamped above this log-probability: those of an answer with log-probability 0 are infinite."""
IMITATE = "imitate"
"""Mark of an example whose chosen row is imitated as a whole."""

PairLoss = Callable[[Scores, Scores, DpoSettings], torch.Tensor]
"""(policy, reference, settings) -> loss of each pair (P,)."""


def encode(
    rows: Iterable[PreferenceRow], tokenizer: PreTrainedTokenizerBase, config: TrainerConfig
) -> tuple[list[Encoded], TokenLedger]:
    """Pairs; where ORPO imitates the chosen row as a whole, its prompt is learned and the ledger says so."""
    examples, ledger = pairs.encode(rows, tokenizer, config)
    if not isinstance(config.stage, DpoSettings) or config.stage.loss is not PreferenceLoss.ORPO:
        return examples, ledger
    learned = sum(max(0, len(example["prompt_ids"]) - 1) for example in examples)
    ledger.trained += learned
    ledger.masked -= learned
    return [{**example, IMITATE: []} for example in examples], ledger


def collate(examples: Sequence[Encoded], pad_id: int) -> Batch:
    """Pairs as a batch; for ORPO also `row_labels` (B, T), which label the chosen rows from their first token on."""
    batch = pairs.collate(examples, pad_id)
    if IMITATE in examples[0]:
        positions_T = torch.arange(batch["input_ids"].shape[1])
        prompt_BT = positions_T < prompt_lengths(examples)[:, None]
        chosen_BT = torch.where(prompt_BT, batch["input_ids"][: len(examples)], batch["labels"][: len(examples)])
        batch["row_labels"] = torch.cat([chosen_BT, batch["labels"][len(examples) :]])
    return batch


def prompt_lengths(examples: Sequence[Encoded]) -> torch.Tensor:
    """Return tokens of the prompt of each pair: (P,)."""
    return torch.tensor([len(example["prompt_ids"]) for example in examples])


def complete(batch: Batch, examples: Sequence[Encoded]) -> Batch:
    """Return the same for rows that have several sequences; the first token of one has no predecessor."""
    if IMITATE in examples[0]:
        chosen_BT = (batch[SEQUENCES] < len(examples)) & (batch[SEQUENCES] >= 0)
        prompt_BT = batch["position_ids"] < prompt_lengths(examples)[batch[SEQUENCES].clamp(0, len(examples) - 1)]
        learned_BT = chosen_BT & prompt_BT & (batch["position_ids"] > 0)
        batch["row_labels"] = torch.where(learned_BT, batch["input_ids"], batch["labels"])
    return batch


def score(model: Any, batch: Batch, head: Head) -> Scores:
    """Sums of the answers' log-probabilities and their numbers of tokens, by side (P,).

    With `row_labels` also `chosen_nll_P`, the mean cross-entropy of the chosen rows with their prompts.
    """
    rows = pairs.sequences(batch)
    if "row_labels" not in batch:
        return split_sides(label_logprobs(model, batch, head), rows)
    labels_BT, row_labels_BT = batch["labels"][:, 1:], batch["row_labels"][:, 1:]
    logprobs = label_logprobs(model, {**batch, "labels": batch["row_labels"]}, head)
    answer_N = (labels_BT != IGNORED)[row_labels_BT != IGNORED]
    answers = LabelLogprobs(logprobs.logprobs_N[answer_N], logprobs.rows_N[answer_N])
    nll_B = -logprobs.sums(rows) / logprobs.counts(rows).clamp(min=1)
    return {**split_sides(answers, rows), "chosen_nll_P": nll_B[: rows // 2]}


def split_sides(logprobs: LabelLogprobs, rows: int) -> Scores:
    halves = (*logprobs.sums(rows).chunk(2), *logprobs.counts(rows).clamp(min=1).chunk(2))
    return dict(zip(("chosen_P", "rejected_P", "chosen_count_P", "rejected_count_P"), halves, strict=True))


def loss(
    _batch: Batch, policy: Scores, reference: Scores | None, config: TrainerConfig
) -> tuple[torch.Tensor, Metrics]:
    """Return the chosen loss, summed over pairs, with the implicit rewards (beta times the log-ratio to the
    reference).
    """
    settings = config.stage
    assert isinstance(settings, DpoSettings), settings
    assert reference is not None or not settings.loss.facts.needs_reference, settings.loss
    against = reference if reference is not None else zero_scores(policy)
    loss_P = LOSSES[settings.loss](policy, against, settings)
    return loss_P.sum(), metrics(policy, against, settings)


def zero_scores(policy: Scores) -> Scores:
    """Return the scores of no reference: log-ratios to it are the log-probabilities themselves."""
    return {name: torch.zeros_like(policy[name]) for name in ("chosen_P", "rejected_P")}


def log_ratios(policy: Scores, reference: Scores) -> tuple[torch.Tensor, torch.Tensor]:
    """log pi - log ref of both sides: (P,), (P,)."""
    return policy["chosen_P"] - reference["chosen_P"], policy["rejected_P"] - reference["rejected_P"]


def metrics(policy: Scores, reference: Scores, settings: DpoSettings) -> Metrics:
    with torch.no_grad():
        chosen_P, rejected_P = log_ratios(policy, reference)
        return {
            "reward_accuracy": (chosen_P > rejected_P).float().sum(),
            "reward_margin": settings.beta * (chosen_P - rejected_P).sum(),
            "reward_chosen": settings.beta * chosen_P.sum(),
            "reward_rejected": settings.beta * rejected_P.sum(),
            "logprobs_chosen": policy["chosen_P"].sum(),
            "logprobs_rejected": policy["rejected_P"].sum(),
        }


def sigmoid(policy: Scores, reference: Scores, settings: DpoSettings) -> torch.Tensor:
    chosen_P, rejected_P = log_ratios(policy, reference)
    scaled_P = settings.beta * (chosen_P - rejected_P)
    noise = settings.label_smoothing
    clean_P, flipped_P = -functional.logsigmoid(scaled_P), -functional.logsigmoid(-scaled_P)
    return ((1 - noise) * clean_P - noise * flipped_P) / (1 - 2 * noise) if noise else clean_P


def hinge(policy: Scores, reference: Scores, settings: DpoSettings) -> torch.Tensor:
    chosen_P, rejected_P = log_ratios(policy, reference)
    return torch.relu(1 - settings.beta * (chosen_P - rejected_P))


def ipo(policy: Scores, reference: Scores, settings: DpoSettings) -> torch.Tensor:
    """Log-ratios per token, as the paper's authors ran it: beta then means the same for short and long answers."""
    chosen_P, rejected_P = log_ratios(policy, reference)
    gap_P = chosen_P / policy["chosen_count_P"] - rejected_P / policy["rejected_count_P"]
    return (gap_P - 1 / (2 * settings.beta)) ** 2


def kto_pair(policy: Scores, reference: Scores, settings: DpoSettings) -> torch.Tensor:
    """Return each answer against the mean log-ratio of the other side's answers, which no gradient goes through."""
    chosen_P, rejected_P = log_ratios(policy, reference)
    chosen_kl, rejected_kl = (side_P.detach().mean().clamp(min=0) for side_P in (chosen_P, rejected_P))
    chosen_loss_P = 1 - torch.sigmoid(settings.beta * (chosen_P - rejected_kl))
    rejected_loss_P = 1 - torch.sigmoid(settings.beta * (chosen_kl - rejected_P))
    return (chosen_loss_P + rejected_loss_P) / 2


def orpo(policy: Scores, _reference: Scores, settings: DpoSettings) -> torch.Tensor:
    """Return the odds of an answer are p / (1 - p) with p = exp(mean log-probability)."""
    chosen_P = policy["chosen_P"] / policy["chosen_count_P"]
    rejected_P = policy["rejected_P"] / policy["rejected_count_P"]
    log_odds_P = (chosen_P - rejected_P) - (log1mexp(chosen_P) - log1mexp(rejected_P))
    return policy["chosen_nll_P"] - settings.beta * functional.logsigmoid(log_odds_P)


def log1mexp(x: torch.Tensor) -> torch.Tensor:
    """log(1 - exp(x)) for x <= 0 without cancellation (Mächler 2012, vignette of R's package Rmpfr, equation 7).

    Each branch sees only inputs that it can take: a branch that is not chosen would still spoil the gradient with NaN.
    """
    x = x.clamp(max=NEARLY_CERTAIN)
    small = x > -math.log(2)
    near = torch.log(-torch.expm1(torch.where(small, x, -1.0)))
    far = torch.log1p(-torch.exp(torch.where(small, -1.0, x)))
    return torch.where(small, near, far)


def simpo(policy: Scores, _reference: Scores, settings: DpoSettings) -> torch.Tensor:
    chosen_P = policy["chosen_P"] / policy["chosen_count_P"]
    rejected_P = policy["rejected_P"] / policy["rejected_count_P"]
    return -functional.logsigmoid(settings.beta * (chosen_P - rejected_P) - settings.gamma)


LOSSES: dict[PreferenceLoss, PairLoss] = {
    PreferenceLoss.SIGMOID: sigmoid,
    PreferenceLoss.HINGE: hinge,
    PreferenceLoss.IPO: ipo,
    PreferenceLoss.KTO_PAIR: kto_pair,
    PreferenceLoss.ORPO: orpo,
    PreferenceLoss.SIMPO: simpo,
}

DPO = StageSpec(
    Stage.DPO.facts, encode, pairs.width, collate, pairs.units, score, loss,
    layout=RowLayout(pairs.groups, complete), reference_per_example=True,
)  # fmt: skip
