"""KTO: single answers with a thumb up or down (Ethayarajh et al. 2024, arXiv 2402.01306, equation 7).

    desirable     weight (1 - sigmoid(beta (log-ratio - KL)))
    undesirable   weight (1 - sigmoid(beta (KL - log-ratio)))

KL is how far the policy has moved from the reference in general: the mean log-ratio of answers to prompts they do not
belong to, at least 0, without a gradient. The answers of a batch move on by one prompt to make those rows, so a batch
needs two rows or more. Where prompts are shared, each lies in one row with its own completions and the mismatched ones,
whose positions then have a graph that no gradient reaches. The estimate belongs to the micro-batch: unlike the other
losses, this one depends on the cut.

Shapes: B rows, T positions of the longest row, U positions of the longest mismatched row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from trainyard.data.rows import LabelledRow
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import KtoSettings, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import (
    IGNORED,
    SEQUENCES,
    Batch,
    Encoded,
    Head,
    Metrics,
    Scores,
    StageSpec,
    mean_over_units,
)
from trainyard.train.losses.pairs import join_answer
from trainyard.train.model.head import label_logprobs
from trainyard.train.rows.batching import pad
from trainyard.train.rows.prompts import TokenShare, encode_within_length
from trainyard.train.rows.segments import PromptGroup, RowLayout
from trainyard.train.rows.tokens import COMPLETION, TokenLedger, encode_labelled, get_answer, require_both_labels

MISMATCHED = "kl_"
"""Prefix of a batch's tensors with the mismatched rows of the KL estimate."""


def encode(
    rows: Iterable[LabelledRow], tokenizer: PreTrainedTokenizerBase, config: TrainerConfig
) -> tuple[list[Encoded], TokenLedger]:
    """Return rows as {prompt_ids, completion_ids, desirable: [0 or 1], limit: [max_length]}, and `completion_labels` of
    a completion of which a part is not learned.

    Raises `InvalidInput` (`E-BATCH`) when all rows have the same label: nothing would constrain the policy.
    """
    examples, ledger = encode_any_labels(rows, tokenizer, config)
    require_both_labels(examples)
    return examples, ledger


def encode_any_labels(
    rows: Iterable[LabelledRow], tokenizer: PreTrainedTokenizerBase, config: TrainerConfig
) -> tuple[list[Encoded], TokenLedger]:
    """Return rows whose labels may all be the same."""
    examples, ledger = encode_within_length(lambda limit: encode_labelled(rows, tokenizer, limit), width, share, config)
    limit = config.hyperparameters.max_length
    return [{**example, "limit": [limit]} for example in examples], ledger


def summarize(sums: Mapping[str, float], units: int) -> dict[str, float]:
    """Return the means, with those of each label over its own rows, and the margin between the two where both occur."""
    means = mean_over_units(sums, units)
    good, bad = sums["desirable"], units - sums["desirable"]
    sides = {
        "reward_desirable": sums["reward_desirable"] / good if good else math.nan,
        "reward_undesirable": sums["reward_undesirable"] / bad if bad else math.nan,
    }
    return {**means, **sides, "reward_margin": sides["reward_desirable"] - sides["reward_undesirable"]}


def width(example: Encoded) -> int:
    return len(example["prompt_ids"]) + len(example["completion_ids"])


def share(example: Encoded) -> TokenShare:
    trained = get_answer(example, COMPLETION).trained
    return TokenShare(trained, width(example) - trained)


def collate(examples: Sequence[Encoded], pad_id: int) -> Batch:
    """Return the rows (B, T), `desirable_B`, and as `kl_…` (B, U) each prompt with the completion of the row before
    it.
    """
    require_two(examples)
    rows = [join_answer(example["prompt_ids"], get_answer(example, COMPLETION)) for example in examples]
    mismatched_examples = [examples[-1], *examples[:-1]]
    mismatched = [
        cut(join_answer(example["prompt_ids"], get_answer(other, COMPLETION)), example["limit"][0])
        for example, other in zip(examples, mismatched_examples, strict=True)
    ]
    return {
        **pad(rows, pad_id),
        **{MISMATCHED + name: value for name, value in pad(mismatched, pad_id).items()},
        "desirable_B": desirable(examples),
    }


def require_two(examples: Sequence[Encoded]) -> None:
    """Raise `InvalidInput` (`E-BATCH`) for a batch without other rows to compare with."""
    smallest = Stage.KTO.facts.smallest_batch
    if len(examples) < smallest:
        raise InvalidInput(
            "Stage kto compares the rows of a batch, and this batch has one.",
            why="The mismatched rows of its reference point pair each prompt with another row's completion.",
            do=f"Use a batch_size of at least {smallest}.",
            code="E-BATCH",
        )


def desirable(examples: Sequence[Encoded]) -> torch.Tensor:
    return torch.tensor([bool(example["desirable"][0]) for example in examples])


def groups(examples: Sequence[Encoded]) -> list[PromptGroup]:
    """Return each prompt of the batch once, with the completions of its rows (sequences 0..B-1) and then the mismatched
    ones
    (B..2B-1)."""
    answers: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
    labels: dict[int, list[int]] = {}
    mismatched_examples = [examples[-1], *examples[:-1]]
    for at, example in enumerate(examples):
        answer = get_answer(example, COMPLETION)
        labels[at] = answer.labels
        answers.setdefault(tuple(example["prompt_ids"]), []).append((at, answer.ids))
    for at, (example, other) in enumerate(zip(examples, mismatched_examples, strict=True), len(examples)):
        prompt = example["prompt_ids"]
        mismatched_answer = get_answer(other, COMPLETION).cut(example["limit"][0] - len(prompt))
        labels[at] = mismatched_answer.labels
        answers[tuple(prompt)].append((at, mismatched_answer.ids))
    return [PromptGroup(list(prompt), completions, labels) for prompt, completions in answers.items()]


def complete(batch: Batch, examples: Sequence[Encoded]) -> Batch:
    """Return the labels of the mismatched completions as `kl_labels`, and `desirable_B`."""
    require_two(examples)
    own_BT = batch[SEQUENCES] < len(examples)
    return {
        **batch,
        "labels": batch["labels"].where(own_BT, IGNORED),
        MISMATCHED + "labels": batch["labels"].where(~own_BT, IGNORED),
        "desirable_B": desirable(examples),
    }


def cut(row: Encoded, limit: int) -> Encoded:
    """Return a mismatched row may be longer than both of the rows it comes from."""
    return {name: value[:limit] for name, value in row.items()}


def units(batch: Batch) -> int:
    """Return rows of the data; one row of the batch may have the answers of several."""
    return len(batch["desirable_B"]) if SEQUENCES in batch else batch["input_ids"].shape[0]


def score(model: Any, batch: Batch, head: Head) -> Scores:
    """`logprobs_B` of the rows' completions, and `kl_B` of the mismatched ones, without a graph."""
    rows = units(batch)
    if SEQUENCES in batch:
        labels_BT = torch.maximum(batch["labels"], batch[MISMATCHED + "labels"])
        both_S = label_logprobs(model, {**batch, "labels": labels_BT}, head).sums(2 * rows)
        return {"logprobs_B": both_S[:rows], "kl_B": both_S[rows:].detach()}
    with torch.no_grad():
        mismatched = {name.removeprefix(MISMATCHED): batch[name] for name in batch if name.startswith(MISMATCHED)}
        kl_B = label_logprobs(model, mismatched, head).sums(rows)
    return {"logprobs_B": label_logprobs(model, batch, head).sums(rows), "kl_B": kl_B}


def loss(batch: Batch, policy: Scores, reference: Scores | None, config: TrainerConfig) -> tuple[torch.Tensor, Metrics]:
    """Return the rows' losses, summed."""
    assert reference is not None
    settings, desirable_B = config.stage, batch["desirable_B"]
    assert isinstance(settings, KtoSettings), settings
    log_ratio_B = policy["logprobs_B"] - reference["logprobs_B"]
    kl = (policy["kl_B"] - reference["kl_B"]).detach().mean().clamp(min=0)
    gain_B = torch.where(desirable_B, log_ratio_B - kl, kl - log_ratio_B)
    weight_B = torch.where(desirable_B, settings.desirable_weight, settings.undesirable_weight)
    loss_B = weight_B * (1 - torch.sigmoid(settings.beta * gain_B))
    return loss_B.sum(), metrics(settings.beta * log_ratio_B.detach(), gain_B.detach(), kl, desirable_B)


def metrics(reward_B: torch.Tensor, gain_B: torch.Tensor, kl: torch.Tensor, desirable_B: torch.Tensor) -> Metrics:
    """`reward_desirable` over `desirable` is the mean reward of the desirable rows; of the others likewise."""
    return {
        "reward_accuracy": (gain_B > 0).float().sum(),
        "reward_desirable": reward_B[desirable_B].sum(),
        "reward_undesirable": reward_B[~desirable_B].sum(),
        "desirable": desirable_B.float().sum(),
        "kl": kl * len(reward_B),
    }


KTO = StageSpec(
    Stage.KTO.facts, encode, width, collate, units, score, loss, layout=RowLayout(groups, complete),
    encode_held_out=lambda rows, tokenizer, config: encode_any_labels(rows, tokenizer, config)[0],
    summarize=summarize,
)  # fmt: skip
