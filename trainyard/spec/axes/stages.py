"""Stages: which objective is trained, by which settings, on which rows. `train/losses` computes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from trainyard.spec.axes.axis import AxisValue, Facts, Variant, build_union, build_variants, omit_default
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.latent import AnyLatent, LatentSettings
from trainyard.spec.axes.rewards import (
    EnvironmentSettings,
    JudgeReward,
    ModelReward,
    PythonReward,
    Reward,
    RolloutSettings,
)


@dataclass(frozen=True, kw_only=True)
class LossFacts(Facts):
    """A loss of the dpo stage."""

    needs_reference: bool = True
    compares_rows: bool = False


class PreferenceLoss(AxisValue):
    """Loss of the dpo stage, all with the same pairs."""

    facts: LossFacts

    SIGMOID = LossFacts("sigmoid")
    HINGE = LossFacts("hinge")
    IPO = LossFacts("ipo")
    KTO_PAIR = LossFacts("kto_pair", compares_rows=True)
    ORPO = LossFacts("orpo", needs_reference=False)
    SIMPO = LossFacts("simpo", needs_reference=False)


@dataclass(frozen=True, kw_only=True)
class MetricFacts(Facts):
    """A metric of an evaluation during training."""

    best: Literal["min", "max"]


class EvalMetric(AxisValue):
    """Metric of an evaluation during training, which also decides the best checkpoint."""

    facts: MetricFacts

    LOSS = MetricFacts("loss", best="min")
    REWARD_ACCURACY = MetricFacts("reward_accuracy", best="max")
    REWARD_MARGIN = MetricFacts("reward_margin", best="max")
    REWARD = MetricFacts("reward", best="max")


DEFAULT_GROUP = 8
"""Completions of a prompt in grpo, and then the rows of a micro-batch, where neither was chosen."""
COMPLETION_METRICS = (EvalMetric.REWARD,)
"""Of stages that learn from the rewards of completions that they draw."""
PREFERENCE_METRICS = (EvalMetric.LOSS, EvalMetric.REWARD_ACCURACY, EvalMetric.REWARD_MARGIN)


class StageSettings(Variant):
    """A stage with its settings."""

    type: Stage

    @property
    def facts(self) -> StageFacts:
        return self.type.facts

    @property
    def needs_reference(self) -> bool:
        """Return whether the loss compares with the model as it was: an adapter is switched off for that, whole weights
        are
        copied."""
        return False

    @property
    def teacher_model(self) -> str | None:
        """Another model that is loaded next to the one that is trained, and frozen; None: none."""
        return None

    @property
    def teacher_server(self) -> str | None:
        """Return the endpoint at which the teacher answers; None: it is loaded, or there is none."""
        return None

    @property
    def drawn_tokens(self) -> int:
        """Return most tokens of a completion that is drawn while the stage trains; 0 where none is."""
        return 0

    @property
    def reads_scores(self) -> bool:
        """Return whether it reads the scores of a reward model that an earlier trainer has made."""
        return any(isinstance(reward, ModelReward) for reward in getattr(self, "rewards", ()))

    @property
    def judges(self) -> tuple[JudgeReward, ...]:
        """Return the rewards that a judge gives."""
        return tuple(reward for reward in getattr(self, "rewards", ()) if isinstance(reward, JudgeReward))

    @property
    def code_places(self) -> tuple[str, ...]:
        """Settings by which code that the model has written runs, such as rewards.0."""
        rewards = enumerate(getattr(self, "rewards", ()))
        fields = [f"rewards.{index}" for index, reward in rewards if isinstance(reward, PythonReward)]
        environment = getattr(self, "environment", None)
        return (*fields, "environment") if environment is not None and environment.type == "python" else (*fields,)

    @property
    def environment_function(self) -> str | None:
        """Return the operator's function that answers completions; None: a built-in one, or none."""
        return None

    @property
    def asks_shared(self) -> Literal["auto"] | bool:
        """Return whether a prompt should be computed once for all of its answers."""
        return False

    @property
    def technique(self) -> LatentSettings | None:
        """Return the latent reasoning that is trained; None: none."""
        return None


class PlainSettings(StageSettings):
    """A stage without settings of its own."""


class SftSettings(StageSettings):
    """Supervised fine-tuning: which turns are learned, and how their tokens count."""

    average: Literal["token", "row"] = omit_default(
        "token", description="Unit of the mean loss of a step: its tokens, or the means of its rows."
    )
    turns: Literal["all", "last"] = omit_default("all", description="Turns of the assistant that are learned.")
    neftune_alpha: float | None = omit_default(
        None, gt=0, le=1000, description="Noise on the embeddings in training (arXiv 2310.05914); 5 is usual."
    )
    latent: AnyLatent | None = omit_default(
        None, description="Reasoning without words before the answer; none by default."
    )

    @property
    def technique(self) -> LatentSettings | None:
        return self.latent


class RewardSettings(StageSettings):
    """Reward modelling: how scores are kept centred."""

    centering: float = Field(0.0, ge=0, le=10, description="Weight of (r_chosen + r_rejected)^2; 0.01 is usual.")


class AnswersSettings(StageSettings):
    """A stage that compares answers."""

    shared_prompt: Literal["auto"] | bool = Field(
        "auto",
        description="Whether a prompt is computed once for all of its answers in a micro-batch; auto: where that pays.",
        exclude_if=lambda value: value == "auto",
    )

    @property
    def asks_shared(self) -> Literal["auto"] | bool:
        return self.shared_prompt


class DpoSettings(AnswersSettings):
    """By which loss the chosen answers are preferred."""

    loss: PreferenceLoss = PreferenceLoss.SIGMOID
    beta: float = Field(0.1, gt=0, le=100, description="How strongly the reference counts.")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Share of wrong labels (sigmoid).")
    gamma: float = Field(
        0.5, ge=0, le=100, description="Margin between the mean log-probabilities of the two answers (simpo)."
    )

    @property
    def needs_reference(self) -> bool:
        return self.loss.facts.needs_reference


class KtoSettings(AnswersSettings):
    """KTO: how good and bad answers count."""

    beta: float = Field(0.1, gt=0, le=100, description="How strongly the reference counts.")
    desirable_weight: float = Field(1.0, gt=0, le=100, description="Of good answers.")
    undesirable_weight: float = Field(1.0, gt=0, le=100, description="Of bad answers.")

    @property
    def needs_reference(self) -> bool:
        return True


class DrawnSettings(StageSettings):
    """A stage that learns from the rewards of what it draws."""

    environment: EnvironmentSettings | None = omit_default(
        None, description="Environment that answers a completion, so that it becomes a conversation; none by default."
    )
    rollouts: RolloutSettings = omit_default(RolloutSettings(), description="Engine that samples the completions.")

    @property
    def turns(self) -> int:
        """Return most completions of one conversation."""
        return self.environment.max_turns if self.environment is not None else 1

    @property
    def environment_function(self) -> str | None:
        return self.environment.name if self.environment is not None else None


class PpoSettings(DrawnSettings):
    """PPO: sampling, rewards and step size (Schulman et al. 2017, arXiv
    1707.06347)."""

    rewards: tuple[Reward, ...] = Field((), max_length=32, description="Added, each times its weight; at least one.")
    advantage: Literal["gae", "group", "gae_group"] = Field(
        "gae_group",
        description="What a completion is compared with: a critic, the others of its prompt without one, or both.",
    )
    num_generations: int = Field(4, ge=1, le=1024, description="Completions of each prompt; a group has at least 2.")
    max_completion_length: int = Field(53, ge=1, le=1_048_576, description="Tokens of a completion.")
    temperature: float = Field(0.7, gt=0, le=100, description="Of the sampling, and of the probabilities.")
    kl_coef: float = Field(0.05, ge=0, le=1000, description="Weight of the distance from the model as it was.")
    gamma: float = Field(1.0, ge=0, le=1, description="Discount of later rewards.")
    lam: float = Field(0.95, ge=0, le=1, description="Lambda of the generalized advantage estimation.")
    clip: float = Field(0.2, gt=0, lt=1, description="Change of a token's probability above which it is clipped.")
    value_clip: float = Field(0.2, gt=0, le=1000, description="Change of a value above which it is clipped.")
    value_coef: float = Field(0.1, ge=0, le=100, description="Weight of the critic's loss.")
    critic_learning_rate: float | None = Field(None, gt=0, le=1, description="Of the critic; default: the policy's.")
    num_iterations: int = Field(4, ge=1, le=100, description="Passes over the completions before new ones are drawn.")
    minibatches: int = Field(1, ge=1, le=1024, description="Optimizer steps of a pass, each on a part of them.")
    missing_end_penalty: float = Field(0.0, ge=0, le=1000, description="Taken off where the length ended a completion.")

    @model_validator(mode="after")
    def whole_groups(self) -> PpoSettings:
        if self.advantage != "gae" and self.num_generations < 2:
            raise ValueError(f"advantage {self.advantage} compares the completions of a prompt: num_generations is 1")
        return self

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def drawn_tokens(self) -> int:
        return self.max_completion_length * self.turns

    @property
    def has_critic(self) -> bool:
        return self.advantage != "group"


class GrpoSettings(DrawnSettings, AnswersSettings):
    """GRPO: sampling and rewards (Shao et al. 2024, arXiv 2402.03300)."""

    rewards: tuple[Reward, ...] = Field((), max_length=32, description="Added, each times its weight; at least one.")
    num_generations: int = Field(
        DEFAULT_GROUP, ge=2, le=1024, description="Completions of each prompt, compared with each other."
    )
    max_completion_length: int = Field(512, ge=1, le=1_048_576, description="Tokens of a completion.")
    temperature: float = Field(1.0, gt=0, le=100, description="Of the sampling.")
    beta: float = Field(0.0, ge=0, le=100, description="Weight of the distance from the model as it was; 0: none.")
    num_iterations: int = Field(
        1, ge=1, le=100, description="Optimizer steps that learn from the same completions before new ones are drawn."
    )
    epsilon: float = Field(
        0.2, gt=0, lt=1,
        description="Change of a token's probability above which it is clipped; needs num_iterations above 1.",
    )  # fmt: skip
    loss: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = Field(
        "dapo", description="How the tokens of a step are averaged."
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        "group", description="Whose deviation divides the rewards."
    )

    @property
    def needs_reference(self) -> bool:
        return self.beta > 0

    @property
    def drawn_tokens(self) -> int:
        return self.max_completion_length * self.turns


DEFAULT_TOP_K = 20


class DistillSettings(StageSettings):
    """From whom the model learns, on whose completions, and by which divergence (Agarwal et al. 2023, arXiv
    2306.13649)."""

    teacher: str | None = Field(
        None, min_length=1, max_length=512, description="Name or folder of the model that is imitated; needed."
    )
    endpoint: str | None = Field(
        None, min_length=1, max_length=256, exclude_if=lambda value: value is None,
        description="Endpoint of trainyard.toml at which the teacher answers, in place of one that is loaded.",
    )  # fmt: skip
    top_k: int | None = Field(
        None, ge=1, le=1_000_000, exclude_if=lambda value: value is None,
        description="Likeliest tokens that a teacher behind a server is asked for; default 20, vLLM's most.",
    )  # fmt: skip
    beta: float = Field(
        0.5, ge=0, le=1,
        description="0: KL(teacher || student), 1: KL(student || teacher), between: the generalized JSD.",
    )  # fmt: skip
    temperature: float = Field(1.0, gt=0, le=100, description="Divides the logits of both before they are compared.")
    label_weight: float = Field(
        0.0, ge=0, le=100, description="Of the rows' own cross-entropy, which is added to the divergence."
    )
    lmbda: float = Field(0.5, ge=0, le=1, description="Share of rows whose completion the student itself writes.")
    seq_kd: bool = Field(False, description="Whether the teacher writes the completions of the other rows.")
    max_completion_length: int = Field(128, ge=1, le=1_048_576, description="Tokens of a completion that is drawn.")
    sampling_temperature: float = Field(1.0, gt=0, le=100, description="Of the completions that are drawn.")

    @model_validator(mode="after")
    def one_teacher(self) -> DistillSettings:
        if self.endpoint is None:
            if self.top_k is not None:
                raise ValueError("top_k is read with an endpoint only: a teacher that is loaded says all probabilities")
            return self
        if self.teacher is not None:
            raise ValueError("a teacher is loaded (teacher) or asked (endpoint), not both")
        if self.temperature != 1 or self.seq_kd:
            raise ValueError(
                "a teacher behind a server gives probabilities at temperature 1 and writes no completions: leave "
                "temperature and seq_kd out, or name a teacher that is loaded"
            )
        return self

    @property
    def teacher_model(self) -> str | None:
        return self.teacher

    @property
    def teacher_server(self) -> str | None:
        return self.endpoint

    @property
    def likeliest(self) -> int:
        """Return the number of tokens requested from a server at each position."""
        return self.top_k or DEFAULT_TOP_K

    @property
    def draws(self) -> bool:
        """Return whether completions are written while it trains."""
        return self.lmbda > 0 or self.seq_kd

    @property
    def drawn_tokens(self) -> int:
        return self.max_completion_length if self.draws else 0


@dataclass(frozen=True, kw_only=True)
class StageFacts(Facts):
    """An objective."""

    settings: type[StageSettings] = PlainSettings
    """Its settings."""
    ports: tuple[Port, ...]
    """The ports that it can learn from; if more than one is connected, the nearest."""
    learning_rates: tuple[float, float]
    """Default peak for whole weights (TRL's default) and for an adapter (up to ten times that)."""
    instead: tuple[Port, ...] = ()
    """What it learns from where none of its ports arrived."""
    head: Literal["causal", "reward"] = "causal"
    sequences: int = 1
    """Rows of a batch that an example fills: 1, or 2 for a pair."""
    sequences_with_graph: int = 1
    """Those of them that the backward pass goes through."""
    compares_logits: bool = False
    """Whether the loss needs the logits of all tokens, which `engine.head` then does not decide about."""
    packable: bool = False
    """Whether the loss is a sum over tokens or pairs, so that several of them may lie in one row."""
    compares_rows: bool = False
    """Whether the loss compares the rows of a batch, so that a batch has to keep its rows."""
    has_control: bool = False
    """Whether the rows have answers that a control can shuffle."""
    eval_metrics: tuple[EvalMetric, ...] = (EvalMetric.LOSS,)
    """What its held-out rows can be scored by while it trains; the first one is the default."""
    draws_groups: bool = False
    """Whether it learns from the rewards of completions that it draws, some to each prompt."""
    extra_operations: int = 0
    """Per parameter and token, on top of the forward and backward pass: a reference's forward pass, or drawing."""

    @property
    def smallest_batch(self) -> int:
        return 2 if self.compares_rows else 1


class Stage(AxisValue):
    """Objective of a training."""

    facts: StageFacts

    CPT = StageFacts("cpt", ports=(Port.TEXT, Port.DOCUMENTS), learning_rates=(2e-5, 1e-4), packable=True)
    SFT = StageFacts(
        "sft",
        ports=(Port.SFT,),
        instead=(Port.PREFERENCE,),
        learning_rates=(2e-5, 2e-4),
        packable=True,
        has_control=True,
        settings=SftSettings,
    )
    REWARD = StageFacts(
        "reward",
        ports=(Port.PREFERENCE,),
        learning_rates=(1e-5, 1e-4),
        head="reward",
        sequences=2,
        sequences_with_graph=2,
        settings=RewardSettings,
        eval_metrics=PREFERENCE_METRICS,
    )
    PPO = StageFacts(
        "ppo",
        ports=(Port.SFT, Port.PROMPTS),
        learning_rates=(3e-6, 1e-5),
        settings=PpoSettings,
        eval_metrics=COMPLETION_METRICS,
        draws_groups=True,
        extra_operations=4,
    )
    DPO = StageFacts(
        "dpo",
        ports=(Port.PREFERENCE,),
        learning_rates=(1e-6, 1e-5),
        sequences=2,
        sequences_with_graph=2,
        packable=True,
        has_control=True,
        settings=DpoSettings,
        eval_metrics=PREFERENCE_METRICS,
        extra_operations=2,
    )
    KTO = StageFacts(
        "kto",
        ports=(Port.LABELLED,),
        learning_rates=(1e-6, 1e-5),
        sequences=2,
        compares_rows=True,
        settings=KtoSettings,
        eval_metrics=PREFERENCE_METRICS,
    )
    GRPO = StageFacts(
        "grpo",
        ports=(Port.SFT, Port.PROMPTS),
        learning_rates=(1e-6, 1e-5),
        settings=GrpoSettings,
        eval_metrics=COMPLETION_METRICS,
        draws_groups=True,
        extra_operations=2,
    )
    DISTILL = StageFacts(
        "distill",
        ports=(Port.SFT,),
        instead=(Port.PREFERENCE,),
        learning_rates=(2e-5, 2e-4),
        compares_logits=True,
        settings=DistillSettings,
        extra_operations=2,
    )

    def settings(self, **settings: Any) -> StageSettings:
        """Return the stage with its settings: `Stage.DPO.settings(loss="simpo")`."""
        return STAGE_SETTINGS[self](type=self, **settings)


STAGE_SETTINGS: Mapping[Stage, type[StageSettings]] = build_variants(Stage, "Stage")

if TYPE_CHECKING:
    AnyStage = StageSettings
else:
    AnyStage = build_union(STAGE_SETTINGS, Stage.SFT)
