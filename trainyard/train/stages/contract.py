"""What a stage is: its facts, six functions, and a seventh where it learns from completions that are drawn.

A stage says how rows become tokens, how tokens become a batch, what is read off the model (`score`, for the policy and
for the reference alike) and what is minimised (`loss`, a pure function). It knows nothing of methods, optimizers or
backends.

Shapes: B rows, T positions, N labelled positions; P pairs (rows 0..P-1 of a batch are chosen, P..2P-1 rejected).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from transformers import PreTrainedTokenizerBase

from trainyard.spec.axes.stages import StageFacts
from trainyard.spec.training import TrainerConfig
from trainyard.train.head import Head
from trainyard.train.layout.segments import RowLayout
from trainyard.train.session.sampling import Generated, Sampling
from trainyard.train.tokens import Encoded, TokenLedger

Batch = dict[str, torch.Tensor]
"""`input_ids`, `attention_mask`, `labels` (B, T) and what else the stage's loss needs."""
Scores = dict[str, torch.Tensor]
"""What a model says of a batch, by name; differentiable for the policy, detached for the reference."""
Metrics = dict[str, torch.Tensor]
"""Sums over the batch's units, detached; the session divides them like the loss."""
AtEpoch = Callable[[Encoded, int, int], Encoded]
"""(example, its number, epoch) -> the example as it is learned in that epoch; a pure function."""


class CompletionWriter(Protocol):
    """Who writes completions while a stage trains: a session."""

    @property
    def context(self) -> int | None:
        """Tokens that the model can see at once; None where its config does not say."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None) -> list[Generated]:
        """Continue prompts with the model that is trained."""

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        """Continue prompts with the frozen model."""


def mean_over_units(sums: Mapping[str, float], units: int) -> dict[str, float]:
    return {name: value / units for name, value in sums.items()}


@dataclass(frozen=True)
class StageSpec:
    """One objective."""

    facts: StageFacts
    encode: Callable[[Iterable[Any], PreTrainedTokenizerBase, TrainerConfig], tuple[Sequence[Encoded], TokenLedger]]
    width: Callable[[Encoded], int]
    """Positions that an example takes in a batch (of its longer sequence)."""
    collate: Callable[[Sequence[Encoded], int], Batch]
    """(examples, padding id) -> batch on the CPU."""
    units: Callable[[Batch], int]
    """What the mean is taken over: labelled tokens, pairs or rows."""
    score: Callable[[Any, Batch, Head], Scores]
    loss: Callable[[Batch, Scores, Scores | None, TrainerConfig], tuple[torch.Tensor, Metrics]]
    """(batch, policy, reference, config) -> (sum over the units, metrics)."""
    encode_held_out: Callable[[Iterable[Any], PreTrainedTokenizerBase, TrainerConfig], Sequence[Encoded]] | None = None
    """Encodes rows that are only scored, where `encode` asks more of a set that is trained on."""
    summarize: Callable[[Mapping[str, float], int], dict[str, float]] = mean_over_units
    """(sums of loss and metrics over all held-out rows, units) -> what an evaluation reports."""
    draw: Callable[[CompletionWriter, Batch, TrainerConfig, int, str], Batch] | None = None
    """(session, batch, config, padding id, place in the run) -> the batch with the completions that it learns from.

    What is drawn follows from the weights, the seed and the place alone, so that a resumed run draws the same."""
    at_epoch: AtEpoch | None = None
    """Another form of each example from epoch to epoch. What is only scored is not changed."""
    choose: Callable[[TrainerConfig], StageSpec] | None = None
    """Another form of the stage by its settings, where they change more than a number."""
    layout: RowLayout | None = None
    """How answers lie in a row with others: behind the prompt that they share, or packed."""
    reference_per_example: bool = False
    """Whether the reference's scores belong to one example each, so that they can be computed once."""

    @property
    def head(self) -> Literal["causal", "reward"]:
        return self.facts.head

    @property
    def sequences(self) -> int:
        return self.facts.sequences

    def chosen(self, config: TrainerConfig) -> StageSpec:
        """The same stage as the settings of a training choose it."""
        return self if self.choose is None else self.choose(config)

    def needs_reference(self, config: TrainerConfig) -> bool:
        """Whether a frozen model scores each batch too: the model as it was, or a teacher."""
        stage = config.stage
        return stage.needs_reference or stage.teacher_model is not None or stage.teacher_server is not None
