"""SFT: imitate the assistant's turns.

loss = - sum over labelled tokens of log p(token | everything before it)

The unit is the token, so a token counts the same in a short row and in a long one, however a step is cut. With
`average: row` the unit is the row: each counts the same, with the mean over its labelled tokens.

Shapes: B rows, T positions, N labelled tokens, R rows with a labelled token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from trainyard.data.rows import SftRow
from trainyard.spec.axes.stages import SftSettings, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, Batch, Encoded, Head, Metrics, Scores, StageSpec
from trainyard.train.latent.table import TECHNIQUES
from trainyard.train.model.head import label_logprobs
from trainyard.train.rows.batching import pad
from trainyard.train.rows.prompts import TokenShare, encode_within_length
from trainyard.train.rows.tokens import TokenLedger, encode_sft


def encode(
    rows: Iterable[SftRow], tokenizer: PreTrainedTokenizerBase, config: TrainerConfig
) -> tuple[list[Encoded], TokenLedger]:
    """Conversations as {input_ids, labels}."""
    last = learns_last(config)
    return encode_within_length(lambda limit: encode_sft(rows, tokenizer, limit, last_turn=last), width, share, config)


def learns_last(config: TrainerConfig) -> bool:
    """Return whether only the last turn of the assistant is learned."""
    return isinstance(config.stage, SftSettings) and config.stage.turns == "last"


def width(example: Encoded) -> int:
    return len(example["input_ids"])


def share(example: Encoded) -> TokenShare:
    trained = sum(label != IGNORED for label in example["labels"])
    return TokenShare(trained, len(example["labels"]) - trained)


def units(batch: Batch) -> int:
    """Return tokens that are learned; the label of a row's first position has no predecessor and takes no part."""
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def score(model: Any, batch: Batch, head: Head) -> Scores:
    """`logprobs_N`: log-probability of every labelled token."""
    return {"logprobs_N": label_logprobs(model, batch, head).logprobs_N}


def loss(
    _batch: Batch, policy: Scores, _reference: Scores | None, _config: TrainerConfig
) -> tuple[torch.Tensor, Metrics]:
    """Cross-entropy, summed over the labelled tokens."""
    return -policy["logprobs_N"].sum(), {}


def find_labelled_rows(batch: Batch) -> torch.Tensor:
    """Return the row of every labelled token, counted over the rows that have one: (N,). Packed rows begin where their
    positions do."""
    labels_BT = batch["labels"]
    starts_BT = torch.zeros_like(labels_BT)
    starts_BT[:, 0] = 1
    if "position_ids" in batch:
        starts_BT = (batch["position_ids"] == 0).long()
    rows_BT = starts_BT.flatten().cumsum(0).view_as(labels_BT)
    return torch.unique(rows_BT[:, 1:][labels_BT[:, 1:] != IGNORED], return_inverse=True)[1]


def row_units(batch: Batch) -> int:
    """Return rows with something to learn."""
    rows_N = find_labelled_rows(batch)
    return int(rows_N.max()) + 1 if len(rows_N) else 0


def row_loss(
    batch: Batch, policy: Scores, _reference: Scores | None, _config: TrainerConfig
) -> tuple[torch.Tensor, Metrics]:
    """Return the mean cross-entropy of each row, summed over the rows."""
    rows_N = find_labelled_rows(batch)
    return -(policy["logprobs_N"] / rows_N.bincount()[rows_N]).sum(), {}


def by_settings(config: TrainerConfig) -> StageSpec:
    settings = config.stage
    assert isinstance(settings, SftSettings), settings
    recipe = replace(SFT, units=row_units, loss=row_loss) if settings.average == "row" else SFT
    return TECHNIQUES[settings.latent.type].stage(recipe, config) if settings.latent is not None else recipe


SFT = StageSpec(Stage.SFT.facts, encode, width, pad, units, score, loss, choose=by_settings)
