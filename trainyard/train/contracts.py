"""Types that the rooms of training share: batches, scores, stages, samples, and the records of a run.

A stage defines how rows become tokens, how tokens become a batch, the scores of the model (`score`, for the policy
and for the reference alike) and the objective (`loss`, a pure function). It depends on no method, optimizer or
backend. This module imports no torch, so that token counts do not need it either.

Shapes: B rows, T positions, N labelled positions; P pairs (rows 0..P-1 of a batch are chosen, P..2P-1 rejected).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import StageFacts
from trainyard.spec.training import TrainerConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from trainyard.train.rows.segments import RowLayout
    from trainyard.train.rows.tokens import TokenLedger

IGNORED = -100
"""Label of a position that takes no part in the loss (the convention of torch and transformers)."""
SEQUENCES, MASK_GROUPS = "sequence_ids", "prompt_groups"
"""Tensors of a batch whose rows have several sequences each: `train/rows/segments`."""
REPORTED = "reported/"
"""Prefix of the metrics that a step reports of its completions."""
ONE_PROCESS = {"strategy": "single", "processes": 1}
"""Layout of a state that one process keeps whole."""

Encoded = dict[str, list[int]]
"""One example as token ids, labels and what else its stage needs."""
Batch: TypeAlias = "dict[str, torch.Tensor]"
"""`input_ids`, `attention_mask`, `labels` (B, T) and what else the stage's loss needs."""
Scores: TypeAlias = "dict[str, torch.Tensor]"
"""Outputs of a model for a batch, by name; differentiable for the policy, detached for the reference."""
Metrics: TypeAlias = "dict[str, torch.Tensor]"
"""Sums over the batch's units, detached; the session divides them like the loss."""
AtEpoch = Callable[[Encoded, int, int], Encoded]
"""(example, its number, epoch) -> the example as it is learned in that epoch; a pure function."""


class Head(StrEnum):
    """Computation of the output layer. `chunked` recomputes each chunk in the backward pass and saves its memory."""

    FULL = "full"
    CHUNKED = "chunked"
    LIGER = "liger"
    """Liger's cross-entropy kernel (CUDA), which writes the gradient over the logits."""


class StopReason(StrEnum):
    """Reason why a continuation ended."""

    END = "end"
    """An end token, which is part of the continuation."""
    LENGTH = "length"


@dataclass(frozen=True)
class Sampling:
    """Sampling settings. Temperature 0 is greedy."""

    max_new_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: tuple[int, ...] | None = None
    """Default: the model's own end tokens."""
    top_k: int | None = None
    """Likeliest tokens that are sampled from; default: all."""
    stop_texts: tuple[str, ...] = ()
    """Texts that end a continuation; the token that completes one is its last."""

    def __post_init__(self) -> None:
        fine = self.max_new_tokens >= 1 and self.temperature >= 0 and 0 < self.top_p <= 1
        if not fine or (self.top_k is not None and self.top_k < 1):
            raise InvalidInput(
                f"These sampling settings have no meaning: {self}.",
                do="Use max_new_tokens >= 1, temperature >= 0, 0 < top_p <= 1 and top_k >= 1.",
                code="E-SAMPLING",
            )


@dataclass(frozen=True)
class Generated:
    """A continuation."""

    ids: list[int]
    text: str
    logprobs: list[float]
    """Of each token, under the distribution that it was sampled from; 0 for greedy."""
    logprobs_at_one: list[float]
    """Of each token, at temperature 1 without top-p."""
    stop_reason: StopReason


class CompletionWriter(Protocol):
    """Writer of completions while a stage trains: a session."""

    @property
    def context(self) -> int | None:
        """Return tokens that the model can see at once; None where its config does not say."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None) -> list[Generated]:
        """Continue prompts with the model that is trained."""

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        """Continue prompts with the frozen model."""


def mean_over_units(sums: Mapping[str, float], units: int) -> dict[str, float]:
    return {name: value / units for name, value in sums.items()}


@dataclass(frozen=True)
class StageSpec:
    """An objective."""

    facts: StageFacts
    encode: Callable[[Iterable[Any], PreTrainedTokenizerBase, TrainerConfig], tuple[Sequence[Encoded], TokenLedger]]
    width: Callable[[Encoded], int]
    """Positions that an example takes in a batch (of its longer sequence)."""
    collate: Callable[[Sequence[Encoded], int], Batch]
    """(examples, padding id) -> batch on the CPU."""
    units: Callable[[Batch], int]
    """Unit of the mean: labelled tokens, pairs or rows."""
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
    """Another form of each example from epoch to epoch. Rows that are only scored are not changed."""
    choose: Callable[[TrainerConfig], StageSpec] | None = None
    """Another form of the stage by its settings, where they change more than a number."""
    layout: RowLayout | None = None
    """How answers lie in a row with others: behind the prompt that they share, or packed."""
    dropout: bool = True
    """Whether dropout draws while it trains."""
    reference_per_example: bool = False
    """Whether the reference's scores belong to one example each, so that they can be computed once."""

    @property
    def head(self) -> Literal["causal", "reward"]:
        return self.facts.head

    @property
    def sequences(self) -> int:
        return self.facts.sequences

    def chosen(self, config: TrainerConfig) -> StageSpec:
        """Return the same stage as the settings of a training choose it."""
        return self if self.choose is None else self.choose(config)

    def needs_reference(self, config: TrainerConfig) -> bool:
        """Return whether a frozen model scores each batch too: the model as it was, or a teacher."""
        stage = config.stage
        return stage.needs_reference or stage.teacher_model is not None or stage.teacher_server is not None


@dataclass(frozen=True)
class Cursor:
    """The position of a run: its next micro-batch."""

    epoch: int = 0
    step: int = 0
    micro: int = 0


@dataclass(frozen=True)
class StepRecord:
    """Record of one optimizer step."""

    step: int
    loss: float
    learning_rate: float
    grad_norm: float
    skipped: bool
    units: int
    """Labelled tokens, pairs or rows that the loss is a mean over."""
    tokens: int
    positions: int
    """Places in the batches, padding included."""
    seconds: float
    metrics: dict[str, float]
