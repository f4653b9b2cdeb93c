"""Techniques of latent reasoning: what stage sft lets a model compute before it answers. `train/latent` does it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from trainyard.spec.axes.axis import AxisValue, Facts, Variant, build_union, build_variants

ALL_TOKENS = 1 << 30
"""More than any reasoning has."""

LATENT_FILE = "latent.json"
"""File next to weights that were trained with a technique: its settings, which the embedded server alone reads."""


@dataclass(frozen=True, kw_only=True)
class LatentCost:
    """Costs of a technique besides the tokens of a row, at most. `plan` counts memory and time by it."""

    added: int = 0
    """Positions with vectors of its own, in each row."""
    columns: int = 0
    """Further positions for each token, which go through all layers with gradients."""
    sampled: int = 0
    """Those of them whose logits are all kept, because a token is drawn from them."""
    copied: int = 0
    """Keys and values that passes over a cache copy for each token: of so many tokens."""
    pairs: int = 0
    """Numbers that a layer keeps for each pair of two tokens of a row: masks or scores."""
    scored: int = 0
    """Dimensions in which a layer compares each pair of tokens besides its own attention."""


class LatentSettings(Variant):
    """A technique with its settings."""

    type: Latent

    @property
    def cost(self) -> LatentCost:
        return LatentCost()

    def count_own(self, hidden: int, layers: int, heads: int) -> int:
        """Weights that the technique adds to a model of these sizes."""
        return 0

    @property
    def facts(self) -> LatentFacts:
        return self.type.facts

    @property
    def resets_optimizer(self) -> bool:
        """Return whether the states of the optimizer begin again where the rows of an epoch change their form."""
        return False

    def stage_at(self, epoch: int) -> int:
        """Return an identifier of the form of an epoch's rows; equal where the rows do not change."""
        return 0

    def begins_again(self, epoch: int) -> bool:
        """Return whether the states of the optimizer begin again at the first step of an epoch."""
        return self.resets_optimizer and epoch > 0 and self.stage_at(epoch) != self.stage_at(epoch - 1)

    @property
    def usual_epochs(self) -> float | None:
        """Passes over the rows after which its curriculum is at its end; None where it has none."""
        return None

    @property
    def curriculum_epochs(self) -> int:
        """Passes over the rows before they have the form that is served."""
        return 0


class GranularitySettings(Variant):
    """Selection of sparse attention for each token."""

    type: Granularity

    @property
    def warmup_epochs(self) -> int:
        """Epochs in which the choosers learn alone."""
        return 0

    @property
    def cost(self) -> LatentCost:
        return LatentCost()

    def count_own(self, hidden: int, heads: int) -> int:
        """Weights of the chooser of a layer."""
        return 0

    @property
    def loss_weight(self) -> float:
        """Of the choosers' own loss."""
        return 1.0

    @property
    def loss_name(self) -> str:
        """Return the metric of that loss."""
        return "selection_loss"


class TokenChoice(GranularitySettings):
    """Each token attends to the best `top_k` tokens before it, by a lightning indexer (DeepSeek-V3.2-Exp)."""

    top_k: int = Field(2048, ge=1, le=1_048_576, description="Tokens that a token attends to.")
    index_heads: int = Field(4, ge=1, le=256, description="Heads of the indexer.")
    index_dim: int = Field(32, ge=4, le=1024, multiple_of=4, description="Dimensions of such a head.")
    warmup: int = Field(
        1, ge=0, le=10_000, description="Epochs in which attention is dense and the indexer alone learns to predict it."
    )

    @property
    def warmup_epochs(self) -> int:
        return self.warmup

    @property
    def cost(self) -> LatentCost:
        # Of each index head the product and what is above 0 of it; the scores, their softmax, the target and its terms.
        return LatentCost(pairs=2 * self.index_heads + 4, scored=self.index_heads * self.index_dim)

    def count_own(self, hidden: int, heads: int) -> int:
        return hidden * (self.index_heads * (self.index_dim + 1) + self.index_dim) + 2 * self.index_dim

    @property
    def loss_name(self) -> str:
        return "index_divergence"


class HeadChoice(GranularitySettings):
    """Each token uses some of the attention heads, by a router (MoH, arXiv 2410.11842)."""

    shared: int = Field(1, ge=0, le=1024, description="Heads that every token uses.")
    active: int = Field(3, ge=1, le=1024, description="Heads that a token uses, the shared ones included.")
    balance: float = Field(0.01, ge=0, le=10, description="Weight of the loss that spreads tokens over the heads.")

    @model_validator(mode="after")
    def some_are_routed(self) -> HeadChoice:
        if self.shared >= self.active:
            raise ValueError("active is above shared: the router chooses the heads between them")
        return self

    def count_own(self, hidden: int, heads: int) -> int:
        return hidden * heads

    @property
    def loss_weight(self) -> float:
        return self.balance

    @property
    def loss_name(self) -> str:
        return "head_balance"


@dataclass(frozen=True, kw_only=True)
class GranularityFacts(Facts):
    """A kind of selection of sparse attention."""

    settings: type[GranularitySettings]


class Granularity(AxisValue):
    """Kind of selection of sparse attention."""

    facts: GranularityFacts

    TOKEN = GranularityFacts("token", settings=TokenChoice)
    HEAD = GranularityFacts("head", settings=HeadChoice)


GRANULARITY_SETTINGS: Mapping[Granularity, type[GranularitySettings]] = build_variants(Granularity, "Granularity")

if TYPE_CHECKING:
    AnyGranularity = GranularitySettings
else:
    AnyGranularity = build_union(GRANULARITY_SETTINGS, Granularity.TOKEN)


class DsaSettings(LatentSettings):
    """Sparse attention: each token uses a part of the tokens before it, or of the heads."""

    granularity: AnyGranularity = Field(
        default_factory=lambda: GRANULARITY_SETTINGS[Granularity.TOKEN](type=Granularity.TOKEN),
        description="Unit of the selection: tokens (DeepSeek sparse attention) or heads.",
    )

    @property
    def cost(self) -> LatentCost:
        return self.granularity.cost

    def count_own(self, hidden: int, layers: int, heads: int) -> int:
        return layers * self.granularity.count_own(hidden, heads)


class QuietStarSettings(LatentSettings):
    """A sampled thought after every token, which is mixed into the prediction of the next one (arXiv 2403.09629)."""

    thought_tokens: int = Field(8, ge=1, le=256, description="Tokens of a thought, between its start and its end.")
    ahead: int = Field(4, ge=1, le=64, description="Tokens behind a thought by which it is rewarded.")
    thoughts: int = Field(2, ge=2, le=64, description="Thoughts of a position; their mean reward is the baseline.")
    temperature: float = Field(1.0, gt=0, le=100, description="Of sampling thoughts while it trains.")
    policy_temperature: float = Field(3.0, gt=0, le=100, description="Of the log-probabilities in the policy loss.")
    policy_weight: float = Field(1.0, ge=0, le=1e9, description="Weight of the policy loss (REINFORCE).")
    only_positive: bool = Field(True, description="Whether thoughts below the mean are left alone.")
    embedding_scale: float = Field(
        100.0, gt=0, le=1e6, description="How much faster the vectors of start and end learn than other weights."
    )

    @property
    def cost(self) -> LatentCost:
        # A pass each for the start, the tokens of a thought but the last, that one, the end and the tokens ahead. The
        # n-th of them reads the row and n columns of each token, and has a mask over them.
        passes = self.thought_tokens + 1 + self.ahead
        read = self.thoughts * (passes + passes * (passes + 1) // 2)
        return LatentCost(
            columns=self.thoughts * passes, sampled=self.thoughts * self.thought_tokens, copied=read, pairs=read
        )

    def count_own(self, hidden: int, layers: int, heads: int) -> int:
        return 3 * hidden * hidden + 5 * hidden


class PauseSettings(LatentSettings):
    """Vectors of its own that the model reads between the prompt and its answer (arXiv 2310.02226)."""

    count: int = Field(10, ge=1, le=1024, description="Pauses before the answer, in training and when it is served.")

    @property
    def cost(self) -> LatentCost:
        return LatentCost(added=self.count)

    def count_own(self, hidden: int, layers: int, heads: int) -> int:
        return hidden


class CurriculumSettings(LatentSettings):
    """Steps of the reasoning that are taken away while it trains."""

    reset_optimizer: bool = Field(
        True, description="Whether the optimizer's states begin again where the rows change their form."
    )

    @property
    def resets_optimizer(self) -> bool:
        return self.reset_optimizer


class CoconutSettings(CurriculumSettings):
    """Hidden states that are fed back as thoughts, and take the place of one step of the reasoning after the other
    (arXiv 2412.06769)."""

    max_stage: int = Field(3, ge=1, le=64, description="Steps that thoughts take the place of; after it, all steps go.")
    thoughts_per_step: int = Field(1, ge=1, le=16, description="Thoughts in the place of a step.")
    epochs_per_stage: int = Field(3, ge=1, le=1000, description="Epochs until the next step is taken away.")
    first_stage: int = Field(0, ge=0, le=65, description="Steps that are thoughts from the first epoch on.")
    mix: float = Field(0.0, ge=0, le=1, description="Share of rows at another stage than the epoch's, at random.")
    markers: bool = Field(True, description="Whether a vector of its own is read before the thoughts and after them.")
    feedback: bool = Field(
        True, description="False: thoughts are pauses, and nothing is fed back: the control with the same curriculum."
    )

    @property
    def most_thoughts(self) -> int:
        return self.max_stage * self.thoughts_per_step

    @property
    def cost(self) -> LatentCost:
        # The pass of a thought copies what is before it: a prompt is taken as half of its row.
        copied = math.ceil(self.most_thoughts / 2) + 1 if self.feedback else 0
        return LatentCost(added=self.most_thoughts + 2 * self.markers, copied=copied)

    def count_own(self, hidden: int, layers: int, heads: int) -> int:
        return hidden * (2 if self.feedback else 3)

    def stage_at(self, epoch: int) -> int:
        """Steps that are thoughts in an epoch; above `max_stage` no step is left."""
        return min(self.first_stage + epoch // self.epochs_per_stage, self.max_stage + 1)

    @property
    def curriculum_epochs(self) -> int:
        return self.epochs_per_stage * (self.max_stage + 1 - self.first_stage)

    @property
    def usual_epochs(self) -> float:
        return float(self.curriculum_epochs + self.epochs_per_stage)

    @model_validator(mode="after")
    def ends_at_a_stage(self) -> CoconutSettings:
        if self.first_stage > self.max_stage + 1:
            raise ValueError("first_stage is at most max_stage + 1, the stage without steps")
        return self


class HiddenCotSettings(CurriculumSettings):
    """Tokens of the reasoning are taken away from its left, until the answer follows the prompt at once (arXiv
    2405.14838)."""

    tokens_per_epoch: int = Field(8, ge=1, le=4096, description="Tokens of reasoning that an epoch takes away.")
    whole_epochs: int = Field(1, ge=0, le=1000, description="Epochs with the whole reasoning before that.")
    most_tokens: int = Field(40, ge=1, le=65_536, description="Tokens taken away from which on all of them are.")
    smoothing: float | None = Field(
        4.0, gt=0, le=100, description="Rate at which the chance of more tokens taken away falls; null: never more."
    )

    def stage_at(self, epoch: int) -> int:
        """Return tokens that an epoch takes away from every row; `ALL_TOKENS` from `most_tokens` on."""
        replaced = max(0, epoch - self.whole_epochs + 1) * self.tokens_per_epoch
        return ALL_TOKENS if replaced >= self.most_tokens else replaced

    @property
    def curriculum_epochs(self) -> int:
        return self.whole_epochs + math.ceil(self.most_tokens / self.tokens_per_epoch) - 1

    @property
    def usual_epochs(self) -> float:
        return float(self.curriculum_epochs + 3)


class CodiSettings(LatentSettings):
    """Thoughts that are taught by the same model with its reasoning in words (arXiv 2502.21074)."""

    thoughts: int = Field(6, ge=1, le=1024, description="Thoughts before the answer.")
    distance_weight: float = Field(
        1.0, ge=0, le=1000, description="Of the distance between the hidden states before the two answers."
    )
    words_weight: float = Field(1.0, gt=0, le=1000, description="Of the loss of reasoning and answer in words.")
    projection: int | None = Field(
        None, ge=1, le=65_536, description="Width of the layer that makes a thought of a state; default: the model's."
    )

    @property
    def cost(self) -> LatentCost:
        # The row is computed twice: with its reasoning, and with thoughts in its place, whose passes copy the prompt.
        return LatentCost(added=self.thoughts + 2, columns=1, copied=math.ceil(self.thoughts / 2) + 1)

    def count_own(self, hidden: int, layers: int, heads: int) -> int:
        inner = self.projection or hidden
        return 2 * hidden + 2 * hidden * inner + inner + 3 * hidden


@dataclass(frozen=True, kw_only=True)
class LatentFacts(Facts):
    """A technique."""

    settings: type[LatentSettings]
    reads_steps: bool = False
    """Whether its rows need the steps of their reasoning."""
    thinks: bool = True
    """Whether it also changes how a prompt is read when the model is served."""
    keeps_cache: bool = False
    """Whether a batch is computed in several passes, each of which reads the keys and values of those before it."""
    own_masks: bool = False
    """Whether its attention has a mask of its own, which flash-attention cannot take."""
    measures_layers: bool = False
    """Whether a part of its loss is measured inside the layers while they compute."""

    @property
    def recomputes(self) -> bool:
        """Return whether activations that are computed again in the backward pass give the same gradients."""
        return not (self.keeps_cache or self.measures_layers)


class Latent(AxisValue):
    """A technique of latent reasoning."""

    facts: LatentFacts

    QUIET_STAR = LatentFacts("quiet_star", settings=QuietStarSettings, keeps_cache=True, own_masks=True)
    DSA = LatentFacts("dsa", settings=DsaSettings, own_masks=True, measures_layers=True)
    PAUSE = LatentFacts("pause", settings=PauseSettings)
    COCONUT = LatentFacts("coconut", settings=CoconutSettings, reads_steps=True, keeps_cache=True)
    HIDDEN_COT = LatentFacts("hidden_cot", settings=HiddenCotSettings, reads_steps=True, thinks=False)
    CODI = LatentFacts("codi", settings=CodiSettings, reads_steps=True, keeps_cache=True)


LATENT_SETTINGS: Mapping[Latent, type[LatentSettings]] = build_variants(Latent, "Latent")

if TYPE_CHECKING:
    AnyLatent = LatentSettings
else:
    AnyLatent = build_union(LATENT_SETTINGS, Latent.PAUSE)
