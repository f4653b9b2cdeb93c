"""What a trainer node or a training job asks for: stage, method, backend and their settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError, SchemaError, SchemaValidator, core_schema

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.migrate import device_word, named_gpu, trainer_words


class Strict(BaseModel):
    """A misspelt key is an error here, never a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


FUSED = "moves the weights inside the backward pass: gradients could be neither accumulated, clipped nor saved"
NO_STEP_OF_THEIR_OWN = {
    "lomo": FUSED,
    "adalomo": FUSED,
    "sophia": "needs a second backward pass for its Hessian, which no step of a training has",
}
"""Optimizers that people ask for and no backend can take: name -> why."""


class Hyperparameters(Strict):
    """How the optimisation runs. A field that is None takes the vetted value of its stage and method."""

    epochs: float | None = Field(None, gt=0, le=10_000, description="Passes over the rows; default 3.")
    max_steps: int | None = Field(None, ge=1, le=10_000_000, description="Optimizer steps; wins over epochs.")
    batch_size: int = Field(4, ge=1, le=4096, description="Rows per micro-batch and device.")
    gradient_accumulation: int = Field(1, ge=1, le=4096, description="Micro-batches per optimizer step.")
    learning_rate: float | None = Field(None, gt=0, le=1, description="Peak; default by stage and method.")
    schedule: Schedule = Schedule.LINEAR
    warmup_ratio: float = Field(0.03, ge=0, le=1, description="Share of the steps in which the rate rises.")
    optimizer: Optimizer = Optimizer.ADAMW
    weight_decay: float = Field(0.0, ge=0, le=1, description="On matrices; vectors have none.")
    max_grad_norm: float = Field(1.0, gt=0, le=1e6, description="Norm above which gradients are clipped.")
    max_length: int = Field(
        512, ge=8, le=1_048_576, description="Tokens per row; longer rows are counted as truncated."
    )
    precision: Precision = Precision.AUTO
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, more time.")
    seed: int = Field(42, ge=0, le=2**31 - 1, description="Of first weights, order of rows and dropout.")
    save_steps: int | None = Field(
        None, ge=1, le=10_000_000, description="Steps between checkpoints; default by length."
    )

    @field_validator("optimizer", mode="before")
    @classmethod
    def with_a_step(cls, given: Any) -> Any:
        """Say why an optimizer that is known elsewhere cannot be one here, instead of only listing the others."""
        name = str(given).lower()
        why = FUSED if name.endswith("_layerwise") else NO_STEP_OF_THEIR_OWN.get(name)
        if why is not None:
            args = {"name": name, "why": why, "instead": "Use adafactor or adamw_8bit, which save memory too."}
            raise PydanticCustomError("no_step", "The optimizer {name} {why}", args)
        return given


class LoraSettings(Strict):
    """Shape of an adapter. `profile` fills what is left None.

    `platform`: rank 32, alpha 64, dropout 0, all linear layers. `classic`: rank 8, alpha 16, dropout 0.05, q and v
    projections. `nightly`: rank 16, alpha 32, dropout 0, the seven projections.
    """

    profile: Literal["platform", "classic", "nightly"] = Field("platform", description="Fills what is empty.")
    rank: int | None = Field(None, ge=1, le=256, description="Width of the two matrices.")
    alpha: float | None = Field(None, gt=0, le=4096, description="Scale; default: twice the rank.")
    dropout: float | None = Field(None, ge=0, lt=1, description="Of the inputs of the adapter.")
    target_modules: Literal["all-linear", "attention-only"] | tuple[str, ...] | None = Field(
        None, description="Layers that get an adapter: a word, or names of modules."
    )
    modules_to_save: tuple[str, ...] = Field((), description="Modules that are trained whole.")
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(None, description="Only these block indices.")
    rslora: bool = Field(False, description="Scale by alpha / sqrt(rank), arXiv 2312.03732.")
    lora_plus_ratio: float = Field(16.0, ge=1, le=1024, description="Learning rate of B over that of A (lora_plus).")


class PreferenceSettings(Strict):
    """Settings of the dpo and kto stages."""

    loss: PreferenceLoss = PreferenceLoss.SIGMOID
    beta: float = Field(0.1, gt=0, le=100, description="How strongly the reference counts.")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Share of wrong labels (sigmoid).")
    simpo_gamma: float = Field(
        0.5, ge=0, le=100, description="Margin between the mean log-probabilities of the two answers (simpo)."
    )
    desirable_weight: float = Field(1.0, gt=0, le=100, description="Of good answers (kto).")
    undesirable_weight: float = Field(1.0, gt=0, le=100, description="Of bad answers (kto).")


class RewardSource(Strict):
    """What a completion of stage grpo is worth; several are added, each times its weight."""

    weight: float = Field(1.0, ge=-100, le=100, description="Below 0 for what is unwanted; 0 only reports it.")


class ExactMatchReward(RewardSource):
    """1 where the completion is the row's answer, spaces around both aside."""

    type: Literal["exact_match"] = "exact_match"
    ignore_case: bool = Field(False, description="Whether capital letters do not matter.")


class ContainsReward(RewardSource):
    """1 where the completion contains a text: the row's answer, or the one that is named."""

    type: Literal["contains"] = "contains"
    text: str | None = Field(None, min_length=1, max_length=4096, description="Default: the answer of the row.")
    ignore_case: bool = Field(False, description="Whether capital letters do not matter.")


class RegexReward(RewardSource):
    """1 where a pattern is found, or where it is the whole completion. Its time is linear in the completion's length:
    there are no look-arounds and no back-references."""

    type: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, max_length=512, description="In the syntax of the Rust crate regex.")
    full: bool = Field(False, description="Whether the whole completion has to match.")

    @field_validator("pattern")
    @classmethod
    def that_compiles(cls, pattern: str) -> str:
        try:
            compiled(pattern)
        except SchemaError as error:
            why = str(error).strip().splitlines()[-1].strip().removeprefix("error: ").removeprefix("SchemaError: ")
            args = {"pattern": pattern, "why": why.rstrip(".")}
            raise PydanticCustomError("no_pattern", "The pattern {pattern} cannot be used: {why}", args) from None
        return pattern


class LengthReward(RewardSource):
    """1 at the target or up to the most, and less in proportion to how far the tokens are from it; never below 0."""

    type: Literal["length"] = "length"
    target_tokens: int | None = Field(None, ge=1, le=1_048_576, description="The best length.")
    max_tokens: int | None = Field(None, ge=1, le=1_048_576, description="The greatest length that is worth 1.")

    @model_validator(mode="after")
    def one_bound(self) -> LengthReward:
        if (self.target_tokens is None) == (self.max_tokens is None):
            raise PydanticCustomError("one_bound", "A length reward takes either target_tokens or max_tokens")
        return self


Reward = Annotated[ExactMatchReward | ContainsReward | RegexReward | LengthReward, Field(discriminator="type")]


def compiled(pattern: str, *, full: bool = False) -> SchemaValidator:
    """A pattern as an automaton of bounded size (Rust's regex, which pydantic brings): `isinstance_python(text)`.

    Raises `SchemaError` for what it does not know or what would be larger than 10 MB.
    """
    whole = rf"\A(?:{pattern})\z" if full else pattern
    return SchemaValidator(core_schema.str_schema(pattern=whole, regex_engine="rust-regex"))


class RolloutSettings(Strict):
    """Stage grpo: how completions are drawn, and what they are worth (Shao et al. 2024, arXiv 2402.03300)."""

    rewards: tuple[Reward, ...] = Field(min_length=1, max_length=32, description="Added, each times its weight.")
    num_generations: int = Field(8, ge=2, le=1024, description="Completions of each prompt, compared with each other.")
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


class EngineSettings(Strict):
    """How the native engine carries a training out; other backends take none of it."""

    batching: Literal["auto", "padded", "buckets", "packed"] = Field(
        "auto", description="auto: packed with per-document attention on CUDA, token-budget length buckets on a CPU."
    )
    token_budget: int | None = Field(
        None, ge=8, le=16_777_216, description="Most positions of a micro-batch; default batch_size x max_length / 2."
    )
    autotune: bool = Field(
        False, description="Fit what memory is free by the knobs that leave length, rank and rows of a step alone."
    )
    attention: Literal["auto", "fa3", "fa2", "sdpa", "eager"] = Field(
        "auto", description="The kernel; auto: the best here."
    )
    head: Literal["auto", "full", "chunked", "liger"] = Field(
        "auto", description="How the output layer and the cross-entropy are computed."
    )
    fp8: Literal["off", "auto", "torchao", "ms-amp"] = Field("off", description="Matrix products in float8.")
    freeze_blocks: int = Field(2, ge=1, le=1024, description="Last blocks that move (freeze).")
    freeze_head: bool = Field(False, description="Whether the output layer moves, too (freeze).")
    oft_block_size: int = Field(32, ge=2, le=4096, description="Inputs that rotate together (oft).")
    reward_centering: float = Field(0.0, ge=0, le=10, description="Weight of (r_chosen + r_rejected)^2 (reward).")
    too_long: Literal["cut", "drop", "refuse"] = Field("cut", description="What happens to rows above max_length.")
    keep_checkpoints: int = Field(2, ge=1, le=1000, description="How many of the newest stay.")
    mirror: str | None = Field(
        None,
        max_length=2048,
        description="Folder that checkpoints are copied to: file:///backup, or file:name below the working folder.",
    )
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = Field(
        (), description="Where steps are logged."
    )
    template: str = Field("auto", max_length=2048, description="auto, a renderer's name, or a .jinja file.")


class LaunchSettings(Strict):
    """How the processes of a training are started, and what happens when one does not fit."""

    strategy: Strategy = Strategy.SINGLE
    processes: int = Field(1, ge=1, le=1024, description="Processes that train together, one for each device.")
    shard_size: int | None = Field(
        None, ge=2, le=1024, description="Processes that share one copy of the weights (fsdp_hybrid); default: half."
    )
    launcher: Literal["auto", "torchrun", "accelerate", "deepspeed"] = Field("auto", description="auto: torchrun.")
    on_oom: Literal["halve", "fail"] = Field(
        "halve", description="halve: once more with half the micro-batch and twice the accumulation; else only advice."
    )
    script: str | None = Field(
        None, min_length=1, max_length=256, description="Template of the script backend, by its name."
    )


class TrainingSettings(Strict):
    """What a trainer node and the body of a job have in common."""

    stage: Stage = Stage.SFT
    method: Method = Method.LORA
    backend: BackendName = BackendName.NATIVE
    base_model: str | None = Field(None, min_length=1, max_length=512, description="Name or folder; default: setting.")
    hyperparameters: Hyperparameters = Field(default_factory=Hyperparameters)
    lora: LoraSettings = Field(default_factory=LoraSettings)
    preference: PreferenceSettings = Field(default_factory=PreferenceSettings)
    rollouts: RolloutSettings | None = Field(None, description="Completions and their rewards (grpo).")
    quantization: Quantization | None = None
    engine: EngineSettings = Field(default_factory=EngineSettings)
    launch: LaunchSettings = Field(default_factory=LaunchSettings)
    device: Device = Device.AUTO
    budget_s: int | None = Field(None, ge=1, le=2_592_000, description="Wall time after which the run is checkpointed.")

    @model_validator(mode="before")
    @classmethod
    def in_our_words(cls, given: Any) -> Any:
        return trainer_words(given)

    @field_validator("device", mode="before")
    @classmethod
    def read_device(cls, given: Any) -> Any:
        """Refuse the number of a GPU above 0: which one is taken shows when one is free."""
        word = device_word(given)
        number = named_gpu(word) if isinstance(word, str) else None
        if number is not None:
            args = {
                "word": word,
                "instead": f"Use device cuda; a worker started with CUDA_VISIBLE_DEVICES={number} uses only that GPU.",
            }
            raise PydanticCustomError(
                "device_number", "The device {word} names a GPU, and a training takes the first one that is free", args
            )
        return word


class TrainerConfig(TrainingSettings):
    """One training execution: a node of a chain, or the body of a job."""

    adapter: Literal["continue", "stack", "merge"] = Field(
        "continue", description="What a trainer does with the adapter of an earlier trainer."
    )
    control: Literal["shuffled_answers"] | None = Field(
        None, description="Train on permuted answers: an adapter that can learn the format but no facts."
    )
    reuse: bool = Field(True, description="Take the finished result of an identical run from the store.")


LORA_PROFILES: dict[str, dict[str, object]] = {
    "platform": {"rank": 32, "alpha": 64.0, "dropout": 0.0, "target_modules": "all-linear"},
    "classic": {"rank": 8, "alpha": 16.0, "dropout": 0.05, "target_modules": ("q_proj", "v_proj")},
    "nightly": {
        "rank": 16,
        "alpha": 32.0,
        "dropout": 0.0,
        "target_modules": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    },
}


def default_learning_rate(stage: Stage, method: Method) -> float:
    return stage.facts.learning_rates[method.facts.adapter]


def needs_reference(config: TrainerConfig) -> bool:
    """Whether the loss compares with the model as it was; an adapter is switched off for that, full weights are not."""
    if config.stage is Stage.DPO:
        return config.preference.loss.facts.needs_reference
    drawn = config.rollouts if config.stage.facts.rollouts else None
    return config.stage is Stage.KTO or (drawn is not None and drawn.beta > 0)


def resolve_lora(lora: LoraSettings) -> LoraSettings:
    """The same settings with every None filled from the profile."""
    filled = {key: value for key, value in LORA_PROFILES[lora.profile].items() if getattr(lora, key) is None}
    if "alpha" in filled and lora.rank is not None:
        filled["alpha"] = 2.0 * lora.rank
    return lora.model_copy(update=filled)


def resolve_trainer(config: TrainerConfig, default_base_model: str) -> TrainerConfig:
    """The trainer's config with every None that has a vetted value filled, as it is stored next to the result."""
    hyper = config.hyperparameters
    updates: dict[str, object] = {}
    if hyper.learning_rate is None:
        updates["learning_rate"] = default_learning_rate(config.stage, config.method)
    if hyper.epochs is None and hyper.max_steps is None:
        updates["epochs"] = 3.0
    return config.model_copy(
        update={
            "base_model": config.base_model or default_base_model,
            "hyperparameters": hyper.model_copy(update=updates),
            "lora": resolve_lora(config.lora),
        }
    )
