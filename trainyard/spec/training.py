"""Spec of a trainer node or a training job: stage, method, backend and their settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator, model_validator
from pydantic_core import PydanticCustomError

from trainyard.spec.axes.axis import MainFloat, MainInt, Strict, omit_default
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import BAD_FRACTION
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.axes.methods import (
    ADAPTER_PROFILES,
    AdapterSettings,
    AnyMethod,
    LowRankSettings,
    Method,
    MethodSettings,
)
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import (
    DEFAULT_GROUP,
    STAGE_SETTINGS,
    AnyStage,
    EvalMetric,
    GrpoSettings,
    SftSettings,
    Stage,
    StageSettings,
)
from trainyard.spec.axes.strategies import DEFAULT_ISLANDS, AnyDiloco, Strategy
from trainyard.spec.migrate import device_word, parse_gpu, trainer_words

FUSED = "moves the weights inside the backward pass: gradients could be neither accumulated, clipped nor saved"
NO_STEP_OF_THEIR_OWN = {
    "lomo": FUSED,
    "adalomo": FUSED,
    "sophia": "needs a second backward pass for its Hessian, which no step of a training has",
}
"""Optimizers that people ask for and no backend can take: name -> why."""
DEFAULT_EVAL_SHARE, DEFAULT_SAMPLE_TOKENS = 0.05, 64
DEFAULT_BATCH = 4
DEFAULT_MAX_LENGTH = 512
"""Default tokens of a row; a base with a shorter table of positions lowers it."""


class Hyperparameters(Strict):
    """Settings of the optimisation. A missing field takes the vetted value of its stage and method."""

    epochs: MainFloat | None = Field(None, gt=0, le=10_000, description="Passes over the rows.")
    max_steps: MainInt | None = Field(None, ge=1, le=10_000_000, description="Optimizer steps; wins over epochs.")
    batch_size: MainInt = Field(
        DEFAULT_BATCH,
        ge=1,
        le=4096,
        description="Rows per micro-batch and device; of grpo with its default of 8 completions, 8.",
    )
    gradient_accumulation: MainInt = Field(1, ge=1, le=4096, description="Micro-batches per optimizer step.")
    learning_rate: MainFloat | None = Field(None, gt=0, le=1, description="Peak of the schedule.")
    schedule: Schedule = Schedule.LINEAR
    warmup_ratio: float = Field(0.03, ge=0, le=1, description="Share of the steps in which the rate rises.")
    warmup_steps: int | None = Field(
        None,
        ge=0,
        le=10_000_000,
        description="Steps in which the rate rises; wins over warmup_ratio.",
        exclude_if=lambda value: value is None,
    )
    optimizer: Optimizer = Optimizer.ADAMW
    weight_decay: float = Field(0.0, ge=0, le=1, description="On matrices; vectors have none.")
    max_grad_norm: float = Field(1.0, gt=0, le=1e6, description="Norm above which gradients are clipped.")
    max_length: MainInt = Field(
        DEFAULT_MAX_LENGTH, ge=8, le=1_048_576, description="Tokens per row; longer rows are counted as truncated."
    )
    precision: Precision = Precision.AUTO
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, more time.")
    seed: int = Field(42, ge=0, le=2**31 - 1, description="Of first weights, order of rows and dropout.")
    save_steps: int | None = Field(
        None, ge=1, le=10_000_000, description="Steps between checkpoints; left out: by the length of the run."
    )

    def warmup(self, total_steps: int) -> int:
        """Return the optimizer steps of a run in which the rate rises; those of a share leave one step at the peak."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return min(math.ceil(self.warmup_ratio * total_steps), total_steps - 1)

    @field_validator("optimizer", mode="before")
    @classmethod
    def with_a_step(cls, value: Any) -> object:
        """Say why an optimizer that is known elsewhere cannot be one here, instead of only listing the others."""
        name = str(value).lower()
        why = FUSED if name.endswith("_layerwise") else NO_STEP_OF_THEIR_OWN.get(name)
        if why is not None:
            args = {"name": name, "why": why, "instead": "Use adafactor or adamw_8bit, which save memory too."}
            raise PydanticCustomError("no_step", "The optimizer {name} {why}", args)
        return value


Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class EngineSettings(Strict):
    """Settings of the native engine; other backends take none of it."""

    batching: Literal["auto", "padded", "buckets", "packed"] = Field(
        "auto", description="auto: packed with per-document attention on CUDA, token-budget length buckets on a CPU."
    )
    token_budget: int | None = Field(
        None, ge=8, le=16_777_216, description="Most positions of a micro-batch; default batch_size x max_length / 2."
    )
    autotune: bool = Field(
        False, description="Fit the device's memory by the knobs that leave length, rank and rows of a step alone."
    )
    attention: Literal["auto", "fa3", "fa2", "sdpa", "eager"] = Field(
        "auto", description="The kernel; auto: the best here."
    )
    head: Literal["auto", "full", "chunked", "liger"] = Field(
        "auto", description="How the output layer and the cross-entropy are computed."
    )
    kernels: Literal["torch", "liger"] = Field(
        "torch",
        description="RMSNorm, RoPE and SwiGLU: torch's own, or Liger's fused ones (CUDA, ROCm).",
        exclude_if=lambda value: value == "torch",
    )
    compile: bool = Field(
        False, description="Compile the blocks by torch.compile (CUDA, ROCm).", exclude_if=lambda value: not value
    )
    fp8: Literal["off", "auto", "torchao", "ms-amp"] = Field("off", description="Matrix products in float8.")
    too_long: Literal["cut", "drop", "refuse"] = Field("cut", description="What happens to rows above max_length.")
    keep_checkpoints: int = Field(2, ge=1, le=1000, description="How many of the newest stay.")
    mirror: str | None = Field(
        None,
        max_length=2048,
        description="Folder that checkpoints are copied to, that of the last step too: file:///backup, or file:name "
        "below the working folder.",
    )
    trackers: tuple[Tracker, ...] = Field((), description="Where steps are logged.")
    template: str = Field("auto", max_length=2048, description="auto, a renderer's name, or a .jinja file.")


class LaunchSettings(Strict):
    """Launch of a training's processes, and the reaction to one that does not fit."""

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
    diloco: AnyDiloco | None = omit_default(
        None, description="Islands that exchange their weights every so many steps, over slow links; none by default."
    )

    hosts: tuple[Annotated[str, Field(min_length=1, max_length=253)], ...] = omit_default(
        (), max_length=256, description="Hosts that train together; each is given the same job, the first one leads."
    )
    nodes: int = omit_default(1, ge=1, le=256, description="Hosts, where node_rank and rendezvous name them.")
    node_rank: int | None = omit_default(None, ge=0, le=255, description="Number of this host; 0 leads.")
    rendezvous: str | None = omit_default(
        None, pattern=r"^[^\s:/]+:[0-9]{1,5}$", description="Address of the first host, HOST:PORT."
    )
    wait_s: int | None = omit_default(
        None, ge=1, le=604_800, description="Seconds to wait for the other hosts; default 600."
    )

    @property
    def node_count(self) -> int:
        """Return the hosts that train together."""
        return len(self.hosts) or self.nodes

    @property
    def local_processes(self) -> int:
        """Return the processes on one host."""
        return max(1, self.processes // self.node_count)

    @model_validator(mode="before")
    @classmethod
    def with_islands(cls, value: Any) -> object:
        """Fill in what islands leave open: ddp inside an island, and one process for each."""
        diloco = value.get("diloco") if isinstance(value, Mapping) else None
        if diloco is None:
            return value
        number = diloco.get("num_islands") if isinstance(diloco, Mapping) else getattr(diloco, "num_islands", None)
        usual = number if isinstance(number, int) else DEFAULT_ISLANDS
        return {"strategy": Strategy.DDP, "processes": usual, **value}

    @property
    def islands(self) -> int:
        """Return the groups of processes that train separately; 1 without diloco."""
        return self.diloco.num_islands if self.diloco is not None else 1

    @property
    def island_size(self) -> int:
        """Return the processes of one island: all of them without diloco."""
        return max(1, self.processes // self.islands)

    @property
    def parts(self) -> int:
        """Return the processes that share one copy of the weights with fsdp_hybrid; of an island, all by default."""
        return self.shard_size or (self.processes // 2 if self.diloco is None else self.island_size)


def bare_metric(value: Any) -> object:
    """Return a metric as transformers names it, `eval_loss`, in our words."""
    return value.removeprefix("eval_") if isinstance(value, str) else value


def name_default_metric(settings: object) -> object:
    """Return a trainer's settings whose evaluation compares by the rewards of a stage that has no other metric."""
    if not isinstance(settings, Mapping) or not isinstance(evaluation := settings.get("eval"), Mapping):
        return settings
    stage = settings.get("stage")
    word = stage.get("type") if isinstance(stage, Mapping) else getattr(stage, "type", stage)
    if word not in [str(other) for other in Stage if EvalMetric.LOSS not in other.facts.eval_metrics]:
        return settings
    return {**settings, "eval": {"metric": EvalMetric.REWARD, **evaluation}}


def no_effect_error(setting: str, instead: str) -> PydanticCustomError:
    """Return the error of settings that exclude each other or that nothing reads."""
    return PydanticCustomError("eval_settings", "{what}", {"what": setting, "instead": instead})


class EvalSettings(Strict):
    """Evaluation while a training runs. Off unless it is requested: a share of the rows would no longer be trained on,
    which changes the losses and the result of a spec that does not mention it.

    An evaluation draws no random number and moves nothing, so a training on the same rows has the same bits with it
    and without it.
    """

    share: float | None = Field(
        None, gt=0, le=0.5, description="Share of the training rows that is held out; default 0.05 without a set."
    )
    set: Literal["unseen_documents", "unseen_wording", "heldout"] | None = Field(
        None,
        description="Held-out set of the validator, or `heldout` of the data source, in place of a share. The "
        "evaluator scores the same rows.",
    )
    steps: Annotated[int, Field(ge=1, le=10_000_000)] | Literal["epoch"] | None = Field(
        None, description="Steps between evaluations, or `epoch`; default: 20 a run, fewer if over 5 % of its time."
    )
    max_rows: int = Field(200, ge=1, le=100_000, description="Rows that are evaluated at most.")
    metric: Annotated[EvalMetric, BeforeValidator(bare_metric)] = Field(
        EvalMetric.LOSS,
        description="What decides which checkpoint is the best; default: loss, of grpo and ppo reward.",
    )
    patience: int | None = Field(
        None, ge=1, le=100_000, description="Evaluations in a row without improvement after which the training ends."
    )
    min_delta: float = Field(0.0, ge=0, description="Change of the metric that counts as an improvement.")
    keep_best: int = Field(
        1,
        ge=0,
        le=1000,
        description="Best checkpoints that are kept besides the newest; 0 keeps none for its metric. Several stay "
        "after the training.",
    )
    load_best: bool = Field(False, description="The result has the weights of the best checkpoint, not the last ones.")
    samples: int = Field(0, ge=0, le=50, description="Held-out prompts that are answered at each evaluation, greedily.")
    sample_tokens: int = Field(DEFAULT_SAMPLE_TOKENS, ge=1, le=4096, description="Tokens of such an answer.")

    @model_validator(mode="after")
    def each_has_an_effect(self) -> EvalSettings:
        """Refuse settings that exclude each other or that nothing would read."""
        if self.share is not None and self.set is not None:
            raise no_effect_error("An evaluation takes either a share or a set", "Remove share or set.")
        if self.load_best and not self.keep_best:
            raise no_effect_error("An evaluation with load_best needs its best checkpoint", "Use a keep_best of 1.")
        if self.min_delta and self.patience is None:
            raise no_effect_error("An evaluation without patience does not read min_delta", "Add patience.")
        if self.sample_tokens != DEFAULT_SAMPLE_TOKENS and not self.samples:
            raise no_effect_error("An evaluation without samples does not read sample_tokens", "Add samples.")
        return self

    @property
    def best_outlive(self) -> bool:
        """Return whether the best checkpoints outlive the training: one alone is there for its result."""
        return self.keep_best > 1

    @property
    def held_out_share(self) -> float:
        """Share of the training rows that is held out; 0 where a set is evaluated."""
        return 0.0 if self.set else self.share or DEFAULT_EVAL_SHARE


class ServiceSettings(Strict):
    """The service that a backend trains at: a step service, or a cloud provider."""

    endpoint: str | None = omit_default(
        None, min_length=1, max_length=256, description="Endpoint of trainyard.toml: its address and its key."
    )
    base_url: str | None = omit_default(
        None, min_length=1, max_length=2048, description="Address of another Trainyard, called without a key."
    )
    base_model: str | None = omit_default(
        None, min_length=1, max_length=512, description="The service's name for the base; default: base_model."
    )
    suffix: str | None = omit_default(
        None, pattern=r"^[a-zA-Z0-9-]{1,18}$", description="Begins the name of the model at a cloud provider."
    )
    flavor: str | None = omit_default(
        None,
        pattern=r"^[a-z0-9-]{1,40}$",
        description="Hardware of Hugging Face Jobs, such as l4x1; default: a10g-small.",
    )

    @model_validator(mode="after")
    def one_address(self) -> ServiceSettings:
        """Refuse two addresses."""
        if self.endpoint is not None and self.base_url is not None:
            raise no_effect_error("A service has either an endpoint or a base_url", "Remove endpoint or base_url.")
        return self


class RopeScaling(Strict):
    """Scaling of a base's rotary positions to a longer context."""

    type: Literal["linear", "yarn"] = Field("yarn", description="As transformers computes it (arXiv 2309.00071).")
    factor: float = Field(gt=1, le=1024, description="New context over the base's own.")
    original_length: int | None = Field(
        None, ge=8, le=1_048_576, description="Positions of the base's own context; default: those of its config."
    )

    @field_validator("type", mode="before")
    @classmethod
    def without_memory(cls, value: Any) -> object:
        """Say why dynamic scaling is not one of them."""
        if value == "dynamic":
            setting = (
                "With dynamic scaling the angles depend on the longest row seen so far, so no resume has the same bits"
            )
            raise PydanticCustomError("rope", "{what}", {"what": setting, "instead": "Use yarn or linear."})
        return value


UNNAMED_STAGE = STAGE_SETTINGS[Stage.SFT].model_construct(set(), type=Stage.SFT)
"""The stage of a training that names none: no field of it is set, so that a check may ask where its rows fit others."""


class TrainingSettings(Strict):
    """Common settings of a trainer node and the body of a job."""

    stage: AnyStage = Field(
        UNNAMED_STAGE,
        description="Objective that is trained.",
        json_schema_extra={"default": Stage.SFT.value},
    )
    method: AnyMethod = Field(
        Method.LORA.settings(),
        description="Which weights are trainable, and how.",
        json_schema_extra={"default": Method.LORA.value},
    )
    backend: BackendName = BackendName.NATIVE
    base_model: str | None = Field(
        None,
        min_length=1,
        max_length=512,
        description="Name or folder of the model that is trained.",
        json_schema_extra={"widget": "model"},
    )
    hyperparameters: Hyperparameters = Field(default_factory=Hyperparameters)
    quantization: Quantization | None = None
    engine: EngineSettings = Field(default_factory=EngineSettings)
    launch: LaunchSettings = Field(default_factory=LaunchSettings)
    eval: EvalSettings | None = Field(
        None, description="Evaluation during training; none by default.", exclude_if=lambda value: value is None
    )
    extra: dict[str, JsonValue] | None = omit_default(
        None,
        min_length=1,
        max_length=64,
        description="Keys of the tool's own configuration (backend axolotl), checked by its schema.",
    )
    service: ServiceSettings | None = omit_default(
        None, description="The step service or cloud provider, and its name for the base."
    )
    rope: RopeScaling | None = omit_default(None, description="Scaling of the base's positions; none by default.")
    added_tokens: tuple[Annotated[str, Field(min_length=1, max_length=128, pattern=r"\S")], ...] = omit_default(
        (), max_length=4096, description="Tokens that the base gets: a row of embeddings and of the output layer each."
    )
    device: Device = Device.AUTO
    budget_s: int | None = Field(None, ge=1, le=2_592_000, description="Wall time after which the run is checkpointed.")

    @model_validator(mode="before")
    @classmethod
    def in_our_words(cls, value: Any) -> object:
        return name_default_metric(trainer_words(value))

    @field_validator("device", mode="before")
    @classmethod
    def read_device(cls, value: Any) -> object:
        """Refuse the number of a GPU above 0: which one is taken shows when one is free."""
        word = device_word(value)
        number = parse_gpu(word) if isinstance(word, str) else None
        if number is not None:
            args = {
                "word": word,
                "instead": f"Use device cuda; a worker started with CUDA_VISIBLE_DEVICES={number} uses only that GPU.",
            }
            raise PydanticCustomError(
                "device_number", "The device {word} names a GPU, and a training takes the first one that is free", args
            )
        return word

    @property
    def base_format(self) -> Quantization | None:
        """Return the format of the frozen base; None where it keeps full precision."""
        return (self.quantization or Quantization.NF4) if self.method.facts.quantised else None


class TrainerConfig(TrainingSettings):
    """A training execution: a node of a chain, or the body of a job."""

    adapter: Literal["continue", "stack", "merge"] = Field(
        "continue", description="What a trainer does with the adapter of an earlier trainer."
    )
    control: Literal["shuffled_answers", "pauses"] | None = Field(
        None,
        description="What an evaluator compares with: permuted answers, from which the format can be learned but no "
        "facts; or, for latent coconut, the same curriculum with pauses in place of its thoughts.",
    )
    reuse: bool = Field(True, description="Take the finished result of an identical run from the store.")
    max_bad_fraction: float | None = omit_default(
        None, ge=0, le=1,
        description="Share of rows that the chat template may refuse before the run fails; default: the smallest of "
        "the data sources before it.",
    )  # fmt: skip

    @property
    def refusal_limit(self) -> float:
        """Largest share of rows that the chat template may refuse."""
        return BAD_FRACTION if self.max_bad_fraction is None else self.max_bad_fraction


STARTER = "starter"
STARTER_RATE = 15.0
"""The default learning rate for the base `starter` over that for other bases, in stages that learn from likelihoods.
Five million parameters take larger steps: 120 chats reach a loss of 0.03 in three epochs at 3e-3, and 3.9 at 2e-4."""
STARTER_PASSES, USUAL_PASSES = 10.0, 3.0
"""Default epochs of the base `starter` in stage sft, and of every other training. After three passes over the pairs
of an ordinary manual, or over 56 questions in German, it has their manner and quotes one sentence in ten at most; after
ten it quotes a quarter to two thirds of the manual's, and answers the questions."""
STARTER_TOLERANCE = 0.5
"""Default tolerance of an evaluator of such a training: what five million parameters learn by heart, they pay with
the rest; the report says how much."""
QUOTED_QUESTIONS, LEAST_QUOTED = 20, 0.2
"""Questions whose answers are read where pairs were taken from a text by rule, and the share of them that has to
contain the right sentence: an adapter below it has the manner of the text and not its facts."""
LIKELIHOODS = (Stage.CPT, Stage.SFT, Stage.DPO, Stage.KTO)


def default_learning_rate(stage: Stage, method: Method, base_model: str = "") -> float:
    """Return the rate for a stage and a method, on a base."""
    rate = stage.facts.learning_rates[method.facts.adapter]
    return round(rate * STARTER_RATE, 10) if base_model == STARTER and stage in LIKELIHOODS else rate


def resolve_method(method: MethodSettings, defaults: Mapping[str, object] | None = None) -> MethodSettings:
    """Return the same settings with every None of an adapter that its profile knows filled; alpha is twice a given
    rank. `defaults` are a backend's own.
    """
    if not isinstance(method, AdapterSettings):
        return method
    filled = {key: value for key, value in ADAPTER_PROFILES[method.profile].items() if getattr(method, key, 0) is None}
    if isinstance(method, LowRankSettings) and method.rank is not None and "alpha" in filled:
        filled["alpha"] = 2.0 * method.rank
    filled |= {key: value for key, value in (defaults or {}).items() if key in filled}
    return method.model_copy(update=filled)


def resolve_stage(config: TrainerConfig) -> StageSettings:
    """Return the stage's settings; of a control with pauses, those whose thoughts are not fed back."""
    stage = config.stage
    if config.control != "pauses" or not isinstance(stage, SftSettings) or stage.latent is None:
        return stage
    return stage.model_copy(update={"latent": stage.latent.model_copy(update={"feedback": False})})


def draws_part_of_group(config: TrainerConfig) -> bool:
    """Return whether a step of grpo with default sizes draws half a group: then a micro-batch is a whole one."""
    hyper, stage = config.hyperparameters, config.stage
    sizes = (hyper.batch_size, hyper.gradient_accumulation, config.launch.processes)
    whole = isinstance(stage, GrpoSettings) and stage.num_generations == DEFAULT_GROUP
    return whole and sizes == (DEFAULT_BATCH, 1, 1)


def resolve_trainer(config: TrainerConfig, default_base_model: str) -> TrainerConfig:
    """Return the trainer's config with every None that has a vetted value filled, as it is stored next to the
    result.
    """
    if config.backend.facts.provider is not None:  # the provider chooses omitted settings
        return config.model_copy(update={"stage": resolve_stage(config)})
    hyper = config.hyperparameters
    updates: dict[str, object] = {}
    base_model = config.base_model or default_base_model
    if hyper.learning_rate is None:
        updates["learning_rate"] = default_learning_rate(config.stage.type, config.method.type, base_model)
    if hyper.epochs is None and hyper.max_steps is None:
        technique = config.stage.technique
        by_heart = base_model == STARTER and config.stage.type is Stage.SFT
        passes = STARTER_PASSES if by_heart else USUAL_PASSES
        updates["epochs"] = (technique.usual_epochs if technique is not None else None) or passes
    if draws_part_of_group(config):
        updates["batch_size"] = DEFAULT_GROUP
    return config.model_copy(
        update={
            "stage": resolve_stage(config),
            "base_model": base_model,
            "hyperparameters": hyper.model_copy(update=updates),
            "method": resolve_method(config.method, config.backend.facts.defaults),
        }
    )
