"""Contract of latent techniques: their own weights, how it reads a prompt, and the form that it gives to stage sft.

    prepare    the own weights for a model: vectors for no word, a projection, a head, an indexer
    stage      encode, collate, score and loss, as those of any stage; `at_epoch` where rows change while it trains
    open, step how a prompt and its answer are read when the model generates or is served

The vectors take the place of embeddings and are never among the targets, so that no vocabulary grows: they are trained
with every method and every causal model of transformers, and a model cannot write them.

Shapes: B rows, T positions, K own vectors, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from trainyard.spec.axes.latent import LatentSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import AtEpoch, Batch, Encoded, Head, Scores, StageSpec
from trainyard.train.latent import rollout, rows
from trainyard.train.model.head import logprobs_of_hidden, read_output
from trainyard.train.model.sampling import LATENT, PLAIN, Reading


class LatentModule(nn.Module):
    """The weights that a technique adds to a model, and how it reads; alone, it reads as any model does."""

    def __init__(self, settings: LatentSettings) -> None:
        super().__init__()
        self.settings = settings

    @property
    def positions(self) -> int:
        """Positions that an answer takes in the model's context besides its tokens and those of the prompt."""
        return self.settings.cost.added

    def num_read(self, num_answered: int) -> int:
        """Return tokens and thoughts that the model computes for an answer of so many tokens."""
        return num_answered + self.positions

    def attach(self, model: Any) -> None:
        """Become a part of the model, so that the weights are trained and saved with its own."""
        setattr(model, LATENT, self)

    def detach(self, model: Any) -> None:
        """Leave the model as it was before `attach`."""
        delattr(model, LATENT)

    def hidden_states(self, model: Any, batch: Batch) -> torch.Tensor:
        """Hidden states of a batch after the final norm, with a graph: (B, T, D)."""
        return rollout.run(model, model.get_input_embeddings()(batch["input_ids"]), batch["attention_mask"])

    def open(self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        """Read prompts that are padded on the left, and think: the first logits of the answer too (B, V)."""
        return PLAIN.open(model, ids_BT, mask_BT)

    def step(self, model: Any, reading: Reading, token_B: torch.Tensor) -> tuple[Reading, torch.Tensor]:
        """Read one more token of each answer: the next logits too (B, V)."""
        return PLAIN.step(model, reading, token_B)


@dataclass(frozen=True)
class LatentSpec:
    """A technique."""

    prepare: Callable[[Any, Any, LatentSettings], LatentModule]
    """(model, tokenizer, settings) -> the own weights, drawn from torch's generator, on the model's device."""
    stage: Callable[[StageSpec, TrainerConfig], StageSpec]
    """(stage sft, config) -> the form of it that is trained."""


def get_latent_module(model: Any) -> Any:
    """Return the weights of the technique that is attached to a model."""
    return getattr(model, LATENT)


def score(model: Any, batch: Batch, head: Head) -> Scores:
    """`logprobs_N`: log-probability of every labelled token, given what the technique computes before it."""
    hidden_BTD = get_latent_module(model).hidden_states(model, batch)
    output = read_output(rollout.unwrap_base(model))
    return {"logprobs_N": logprobs_of_hidden(hidden_BTD, batch, output, head).logprobs_N}


def build_vectors(model: Any, count: int) -> nn.Parameter:
    """Vectors with mean and deviation of the model's embeddings in each dimension: (K, D)."""
    table_VD = model.get_input_embeddings().weight.detach().float()
    drawn_KD = torch.randn(count, table_VD.shape[1]).to(table_VD.device)
    return nn.Parameter(table_VD.mean(0) + table_VD.std(0) * drawn_KD)


def build_stage(
    base: StageSpec,
    arrange: Callable[[Encoded], Encoded],
    *,
    steps: bool,
    at_epoch: AtEpoch | None = None,
) -> StageSpec:
    """Stage sft with the rows of a technique; `arrange` lays out an example as the model is served."""
    return replace(
        base,
        facts=replace(base.facts, packable=False),
        encode=partial(rows.encode, steps=steps),
        width=lambda example: max(len(arrange(example)["input_ids"]), rows.text_width(example)),
        collate=partial(rows.collate, arrange=arrange),
        score=score,
        at_epoch=at_epoch,
    )
