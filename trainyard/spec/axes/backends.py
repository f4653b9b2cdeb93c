"""Backends: who executes a training job, and what each supports. `spec/compat/backends` refuses the rest.

A tool's own word for a value is next to it where the tool has another one: `adamw_torch` for adamw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from trainyard.spec.axes.axis import AxisValue, Facts
from trainyard.spec.axes.devices import EVERY_DEVICE, Device, Precision
from trainyard.spec.axes.methods import TRAINED_METHODS, Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.providers import PROVIDERS, ProviderFacts
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.axes.strategies import Strategy

Value = TypeVar("Value", bound=StrEnum)


def map_to_names(*values: Value) -> dict[Value, str]:
    """Value -> its own name, for tools that call it the same."""
    return {value: value.value for value in values}


BY_STEP = map_to_names(*(schedule for schedule in Schedule if schedule.facts.by_step))
IN_TRANSFORMERS = {
    **{Optimizer.ADAMW: "adamw_torch", Optimizer.SGD: "sgd", Optimizer.ADAMW_8BIT: "adamw_8bit"},
    **map_to_names(Optimizer.PAGED_ADAMW_8BIT, Optimizer.ADAFACTOR),
    **{Optimizer.LION: "lion_32bit", Optimizer.ADEMAMIX: "ademamix"},
}
PAIRWISE = (PreferenceLoss.SIGMOID, PreferenceLoss.HINGE, PreferenceLoss.IPO)
CPU_AND_CUDA = (Device.CPU, Device.CUDA)
ALONE = (Strategy.SINGLE,)
SERVICE_ALPHA = 32.0
"""Scale of an adapter at a step service, whatever its rank."""
SERVICE_TARGETS = ("all-linear", "attention-only", ("gate_proj", "up_proj", "down_proj"))
"""Layers that a step service can give an adapter: those of `train_attn`, of `train_mlp`, or both."""
OF_OUR_ENGINE = (
    "stage.average", "stage.neftune_alpha", "stage.latent", "method.init", "method.interval", "rope", "added_tokens"
)  # fmt: skip
"""Settings of a training that only few tools have."""


@dataclass(frozen=True, kw_only=True)
class BackendFacts(Facts):
    """Features of one backend; a setting that is not named is supported with every value."""

    stages: tuple[Stage, ...]
    methods: tuple[Method, ...]
    devices: tuple[Device, ...] = EVERY_DEVICE
    optimizers: Mapping[Optimizer, str] = field(default_factory=lambda: map_to_names(*Optimizer))
    """Value -> the tool's word for it."""
    schedules: Mapping[Schedule, str] = field(default_factory=lambda: map_to_names(*Schedule))
    strategies: tuple[Strategy, ...] = ALONE
    settings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Setting, as it is written below `config` -> the values that are supported."""
    sharded: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """The same with a strategy that cuts the weights into parts."""
    default_only: tuple[str, ...] = ()
    """Settings that the tool has no option for, so that only their default is supported."""
    whole_numbers: tuple[str, ...] = ()
    """Settings that the tool takes as whole numbers only."""
    cuda_methods: tuple[Method, ...] = ()
    """Methods whose kernels are for CUDA."""
    by_stage: Mapping[str, tuple[Stage, ...]] = field(default_factory=dict)
    """`headless`: stages that multiply by the output layer themselves, so that an adapter on it would not learn;
    `shared_prompts`: stages whose answers to one prompt can lie in one row behind it."""
    exports: tuple[Quantization, ...] = ()
    """Formats of the result, next to which a copy in full precision is written."""
    features: tuple[str, ...] = ()
    """`islands`: trains islands by DiLoCo; `scripts`: runs the training script that `launch.script` names, which then
    supports what it wants."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Setting or value -> why it is not supported, where that helps."""

    @property
    def trains_islands(self) -> bool:
        return "islands" in self.features

    @property
    def runs_scripts(self) -> bool:
        return "scripts" in self.features

    @property
    def remote(self) -> bool:
        """Return whether a service computes: no device of this machine is taken."""
        return not self.devices

    @property
    def provider(self) -> ProviderFacts | None:
        """Return the facts of a cloud provider that trains on uploaded rows; None for every other backend."""
        return PROVIDERS.get(self.word)

    @property
    def defaults(self) -> dict[str, object]:
        """Setting of an adapter that is left out -> its value where the tool has one alone, whatever the profile."""
        settings = ((name.partition("."), values) for name, values in self.settings.items())
        return {name: values[0] for (group, _, name), values in settings if group == "method" and len(values) == 1}

    def is_stage(self, mark: str, stage: Stage) -> bool:
        """Return whether a stage is one of `by_stage`."""
        return stage in self.by_stage.get(mark, ())


def step_service(
    name: str, why: str, *, fixed_alpha: bool = True, dropout: bool = False, layers: bool = True
) -> BackendFacts:
    """Return a service that is trained at step by step (`backends/remote_steps`): what its wire has a place for.

    Without `fixed_alpha` the scale is the trainer's; `dropout` and `layers` say whether the wire has these settings.
    """
    adapter: dict[str, tuple[Any, ...]] = {"method.target_modules": SERVICE_TARGETS if layers else SERVICE_TARGETS[:1]}
    adapter |= {"method.alpha": (SERVICE_ALPHA,)} if fixed_alpha else {}
    adapter |= {} if dropout else {"method.dropout": (0.0,)}
    return BackendFacts(
        name,
        stages=(Stage.CPT, Stage.SFT, Stage.DPO, Stage.KTO, Stage.GRPO),
        methods=(Method.LORA,),
        optimizers=map_to_names(Optimizer.ADAMW),
        devices=(),
        settings={
            "quantization": (None,),
            "hyperparameters.precision": (Precision.AUTO,),
            **adapter,
            "stage.temperature": (1.0,),
            "stage.environment": (None,),
            "stage.rollouts.engine": ("native",),
        },
        default_only=(
            "hyperparameters.gradient_checkpointing", "launch.on_oom", "method.modules_to_save", "method.layers",
            "method.rslora", "stage.neftune_alpha", "stage.latent", "method.init", "rope", "added_tokens",
        ),
        whole_numbers=() if fixed_alpha else ("method.alpha",),
        why={
            **dict.fromkeys(("method", "hyperparameters.optimizer"), why),
            **({"method.alpha": "the service scales every adapter by 32"} if fixed_alpha else {}),
            "method.target_modules": "the service has an option for no others",
            "method.dropout": "the service has no option for it",
            "stage.temperature": "the service scores tokens at temperature 1",
        },
    )  # fmt: skip


VERTEX_RANKS = (None, 1, 2, 4, 8, 16, 32)
"""Sizes of an adapter that Vertex AI has; None is its own choice."""
PROVIDER_DECIDES = (
    "max_steps", "gradient_accumulation", "warmup_ratio", "warmup_steps", "weight_decay", "max_grad_norm", "max_length",
    "gradient_checkpointing", "seed", "save_steps",
)  # fmt: skip
"""Hyperparameters that a cloud provider chooses where its wire has no place for them."""
ADAPTER_SETTINGS = ("rank", "alpha", "dropout", "target_modules")


def cloud_provider(
    name: str,
    *,
    stages: tuple[Stage, ...] = (Stage.SFT, Stage.DPO),
    methods: tuple[Method, ...] = (Method.LORA,),
    sends: tuple[str, ...] = (),
    schedules: tuple[Schedule, ...] = (Schedule.LINEAR,),
    adapter: tuple[str, ...] = ("rank",),
    settings: Mapping[str, tuple[Any, ...]] | None = None,
    whole_numbers: tuple[str, ...] = ("hyperparameters.epochs",),
) -> BackendFacts:
    """Return a provider that trains on uploaded rows (`backends/cloud`): what its wire has a place for.

    `sends` are hyperparameters besides epochs, batch_size and learning_rate; `adapter` are settings of the method.
    """
    why = "the provider chooses it"
    unread = tuple(f"hyperparameters.{setting}" for setting in PROVIDER_DECIDES if setting not in sends)
    unread += tuple(f"method.{setting}" for setting in ADAPTER_SETTINGS if setting not in adapter)
    return BackendFacts(
        name,
        stages=stages,
        methods=methods,
        optimizers=map_to_names(Optimizer.ADAMW),
        schedules=map_to_names(*schedules),
        devices=(),
        settings={
            "quantization": (None,),
            "hyperparameters.precision": (Precision.AUTO,),
            "stage.loss": (PreferenceLoss.SIGMOID,),
            "stage.label_smoothing": (0.0,),
            **(settings or {}),
        },
        default_only=(
            *unread, "launch.on_oom", "method.profile", "method.modules_to_save", "method.layers",
            "method.rslora", "engine.mirror", "engine.trackers", "engine.template", "engine.too_long", "stage.turns",
            *OF_OUR_ENGINE,
        ),
        whole_numbers=whole_numbers,
        why=dict.fromkeys((*unread, "hyperparameters.optimizer", "hyperparameters.schedule"), why),
    )  # fmt: skip


class BackendName(AxisValue):
    """Backend that executes a training job."""

    facts: BackendFacts

    NATIVE = BackendFacts(
        "native",
        stages=(
            *(Stage.CPT, Stage.SFT, Stage.REWARD, Stage.DPO, Stage.KTO, Stage.DISTILL),
            *(Stage.PPO, Stage.GRPO),
        ),
        by_stage={"shared_prompts": (Stage.DPO, Stage.KTO)},
        methods=TRAINED_METHODS,
        features=("islands",),
        strategies=(Strategy.SINGLE, Strategy.DDP, Strategy.ZERO1, Strategy.ZERO2, Strategy.FSDP_HYBRID),
        settings={"adapter": ("continue", "stack", "merge"), "launch.launcher": ("auto", "torchrun", "accelerate")},
        sharded={
            "hyperparameters.optimizer": tuple(
                optimizer for optimizer in Optimizer if not optimizer.facts.whole_tensors
            )
        },
        why=dict.fromkeys(("fsdp", "zero3"), "no replica has whole gradients, which the verbs of a step need"),
    )
    TRL = BackendFacts(
        "trl",
        stages=(Stage.SFT, Stage.DPO, Stage.KTO, Stage.REWARD, Stage.GRPO),
        methods=(Method.LORA, Method.QLORA, Method.DORA, Method.FULL),
        optimizers=IN_TRANSFORMERS,
        schedules={
            **map_to_names(Schedule.LINEAR, Schedule.COSINE, Schedule.CONSTANT, Schedule.CONSTANT_WITH_WARMUP),
            **map_to_names(Schedule.COSINE_WITH_RESTARTS, Schedule.POLYNOMIAL, Schedule.INVERSE_SQRT),
            Schedule.WSD: "warmup_stable_decay",
        },
        strategies=(Strategy.SINGLE, Strategy.DDP, Strategy.FSDP, Strategy.FSDP_HYBRID),
        settings={
            "quantization": (None, Quantization.NF4, Quantization.FP4, Quantization.INT8),
            "stage.loss": PAIRWISE,
            "stage.centering": (0.0,),
            "stage.environment": (None,),
            "stage.rollouts.engine": ("native",),
            "launch.launcher": ("auto", "torchrun", "accelerate"),
        },
        sharded={
            "stage": (Stage.SFT,),
            "method": (Method.FULL,),
            "rope": (None,),
            "added_tokens": ((),),
            "hyperparameters.optimizer": (Optimizer.ADAMW, Optimizer.SGD),
        },
        default_only=("eval", "stage.average", "stage.latent"),
        by_stage={"headless": (Stage.DPO, Stage.KTO, Stage.GRPO), "shared_prompts": (Stage.GRPO,)},
        why={"ppo": "the library removed it"},
    )
    UNSLOTH = BackendFacts(
        "unsloth",
        stages=(Stage.SFT,),
        methods=(Method.LORA, Method.QLORA),
        devices=CPU_AND_CUDA,
        optimizers=map_to_names(
            Optimizer.ADAMW, Optimizer.SGD, Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT, Optimizer.ADAFACTOR
        ),
        schedules=BY_STEP,
        settings={
            "quantization": (None, Quantization.NF4),
            "hyperparameters.precision": (Precision.AUTO, Precision.FP32, Precision.BF16),
            "method.modules_to_save": ((),),
        },
        default_only=("eval", *OF_OUR_ENGINE),
        cuda_methods=(Method.QLORA,),
        why={"fp16": "it takes bf16 instead where the device has it"},
    )
    AXOLOTL = BackendFacts(
        "axolotl",
        stages=(Stage.SFT, Stage.DPO, Stage.KTO, Stage.REWARD),
        methods=(Method.LORA, Method.QLORA, Method.DORA, Method.FULL),
        devices=CPU_AND_CUDA,
        optimizers={**IN_TRANSFORMERS, Optimizer.ADAMW_8BIT: "adamw_bnb_8bit"},
        schedules={
            **map_to_names(Schedule.LINEAR, Schedule.COSINE, Schedule.COSINE_WITH_RESTARTS, Schedule.CONSTANT),
            **map_to_names(Schedule.CONSTANT_WITH_WARMUP, Schedule.POLYNOMIAL, Schedule.INVERSE_SQRT),
        },
        settings={
            "quantization": (None, Quantization.NF4),
            "stage.loss": PAIRWISE,
            "stage.centering": (0.0,),
        },
        default_only=("eval", *OF_OUR_ENGINE),
        whole_numbers=("method.alpha",),
        cuda_methods=(Method.QLORA,),
    )
    DEEPSPEED = BackendFacts(
        "deepspeed",
        stages=(Stage.SFT,),
        methods=(Method.FULL, Method.LORA),
        devices=CPU_AND_CUDA,
        optimizers=map_to_names(Optimizer.ADAMW),
        schedules=BY_STEP,
        strategies=(Strategy.SINGLE, Strategy.DDP, Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3),
        settings={
            "quantization": (None,),
            "launch.launcher": ("auto", "torchrun", "deepspeed"),
        },
        default_only=("eval", *OF_OUR_ENGINE),
    )
    MLX = BackendFacts(
        "mlx",
        stages=(Stage.SFT, Stage.CPT),
        methods=(Method.LORA, Method.DORA, Method.FULL),
        devices=(Device.CPU, Device.MPS),
        optimizers=map_to_names(Optimizer.ADAMW, Optimizer.SGD, Optimizer.LION, Optimizer.ADAFACTOR),
        schedules=BY_STEP,
        settings={"quantization": (None,), "method.modules_to_save": ((),)},
        default_only=("eval", *OF_OUR_ENGINE),
    )
    LLAMACPP = BackendFacts(
        "llamacpp",
        stages=(Stage.SFT, Stage.CPT),
        methods=(Method.FULL,),
        devices=(Device.CPU,),
        optimizers=map_to_names(Optimizer.ADAMW, Optimizer.SGD),
        schedules=map_to_names(Schedule.LINEAR, Schedule.COSINE, Schedule.CONSTANT),
        settings={
            "quantization": (None, Quantization.GGUF),
            "hyperparameters.precision": (Precision.AUTO, Precision.FP32),
            "hyperparameters.max_steps": (None,),
            "hyperparameters.gradient_accumulation": (1,),
        },
        default_only=(
            "eval", "stage.turns", *OF_OUR_ENGINE,
            *(
                f"hyperparameters.{name}"
                for name in (
                    "batch_size", "warmup_ratio", "warmup_steps", "max_grad_norm", "gradient_checkpointing", "seed",
                    "save_steps",
                )
            ),
        ),
        whole_numbers=("hyperparameters.epochs",),
        exports=(Quantization.GGUF,),
        why={"method": "llama-finetune trains every weight and makes no adapters"},
    )  # fmt: skip
    SCRIPT = BackendFacts(
        "script",
        stages=(Stage.CPT, Stage.SFT, Stage.DPO, Stage.REWARD),
        methods=tuple(method for method in TRAINED_METHODS if not method.facts.quantised),
        optimizers=map_to_names(Optimizer.ADAMW, Optimizer.SGD, Optimizer.ADAFACTOR),
        schedules=map_to_names(Schedule.LINEAR, Schedule.COSINE, Schedule.CONSTANT, Schedule.CONSTANT_WITH_WARMUP),
        settings={"hyperparameters.precision": (Precision.AUTO, Precision.FP32), "stage.loss": PAIRWISE},
        default_only=("eval", "stage.turns", *OF_OUR_ENGINE),
        features=("scripts",),
    )
    TINKER = step_service("tinker", "a session of the Tinker service is a LoRA adapter that AdamW moves")
    REMOTE = step_service("remote", "the Tinker wire of another Trainyard trains LoRA adapters by AdamW")
    TOGETHER_STEPS = step_service(
        "together_steps", "a session of Together is a LoRA adapter, which we move by its AdamW",
        fixed_alpha=False, dropout=True, layers=False,
    )  # fmt: skip
    FIREWORKS_STEPS = step_service(
        "fireworks_steps", "a serverless session of Fireworks is a LoRA adapter that AdamW moves", fixed_alpha=False
    )
    TOGETHER = cloud_provider(
        "together",
        methods=(Method.LORA, Method.FULL),
        sends=("warmup_ratio", "weight_decay", "max_grad_norm", "seed"),
        schedules=(Schedule.LINEAR, Schedule.COSINE),
        adapter=ADAPTER_SETTINGS,
        whole_numbers=("hyperparameters.epochs", "method.alpha"),
    )
    FIREWORKS = cloud_provider("fireworks", sends=("gradient_accumulation", "warmup_steps"))
    OPENAI = cloud_provider("openai", sends=("seed",), adapter=(), settings={"hyperparameters.learning_rate": (None,)})
    BEDROCK = cloud_provider("bedrock", stages=(Stage.SFT,), sends=("warmup_steps",), adapter=())
    VERTEX = cloud_provider(
        "vertex",
        settings={
            "method.rank": VERTEX_RANKS, "hyperparameters.learning_rate": (None,), "hyperparameters.batch_size": (4,),
        },
    )  # fmt: skip
    HF_JOBS = cloud_provider(
        "hf_jobs",
        sends=("max_steps", "gradient_accumulation", "warmup_ratio", "warmup_steps", "weight_decay", "max_grad_norm",
               "max_length", "gradient_checkpointing", "seed", "save_steps"),
        schedules=(Schedule.LINEAR, Schedule.COSINE, Schedule.CONSTANT, Schedule.CONSTANT_WITH_WARMUP),
        adapter=ADAPTER_SETTINGS,
        whole_numbers=(),
    )  # fmt: skip


CLOUD_PROVIDERS = tuple(name for name in BackendName if name.facts.provider is not None)
"""Backends that upload the rows to a provider, which trains."""
STEP_SERVICES = tuple(name for name in BackendName if name.facts.remote and name not in CLOUD_PROVIDERS)
"""Backends whose forward and backward passes a service computes."""


@dataclass(frozen=True)
class ServiceVariables:
    """Environment variables by which the SDK of a step service finds its address and its key."""

    url: str
    key: str


SERVICE_VARIABLES = {
    BackendName.TINKER: ServiceVariables("TINKER_BASE_URL", "TINKER_API_KEY"),
    BackendName.TOGETHER_STEPS: ServiceVariables("TOGETHER_BASE_URL", "TOGETHER_API_KEY"),
    BackendName.FIREWORKS_STEPS: ServiceVariables("FIREWORKS_BASE_URL", "FIREWORKS_API_KEY"),
}
"""Of the services that are paid for; `inherited.py` passes them on."""
STOP_AT_STEPS = (BackendName.NATIVE,)
"""Backends whose trainings can be asked to save and stop after a step, as the trials of a sweep do at rungs."""


class ServerName(StrEnum):
    """Programs that serve models, train nothing, and have an environment of their own."""

    VLLM = "vllm"


Installable = BackendName | ServerName
"""What `trainyard backends install` takes."""


# Keys of a tool's own configuration (`extra`)

WRITTEN = "Trainyard writes it from the settings of the trainer"
OUTSIDE = "it names data, results, accounts or code, which are not settings of a training"
OWN_KEYS: Mapping[BackendName, Mapping[str, str]] = {
    BackendName.AXOLOTL: {
        **dict.fromkeys(
            (
                *("base_model", "tokenizer_config", "tokenizer_type", "model_type", "reward_model", "num_labels"),
                *("chat_template", "rl", "rl_beta", "dpo_beta", "dpo_loss_type", "dpo_label_smoothing"),
                *("kto_desirable_weight", "kto_undesirable_weight", "adapter", "load_in_4bit", "load_in_8bit"),
                *("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear"),
                *("lora_modules_to_save", "lora_model_dir", "peft_layers_to_transform", "peft_use_dora"),
                *("peft_use_rslora", "val_set_size", "sequence_len", "sample_packing", "pad_to_sequence_len"),
                *("micro_batch_size", "gradient_accumulation_steps", "max_steps", "num_epochs", "optimizer"),
                *("lr_scheduler", "learning_rate", "warmup_ratio", "warmup_steps", "weight_decay", "max_grad_norm"),
                *("bf16", "fp16", "tf32", "gradient_checkpointing", "seed", "logging_steps", "save_strategy"),
                *("save_steps", "save_total_limit", "dynamic_checkpoint", "remove_unused_columns"),
            ),
            WRITTEN,
        ),
        **dict.fromkeys(
            (
                *("datasets", "test_datasets", "pretraining_dataset", "dataset_prepared_path", "push_dataset_to_hub"),
                *("dataset_num_proc", "output_dir", "resume_from_checkpoint", "auto_resume_from_checkpoints"),
                *("trust_remote_code", "hub_model_id", "hub_strategy", "hf_use_auth_token", "deepspeed", "fsdp"),
                *("fsdp_config", "use_wandb", "wandb_project", "wandb_entity", "use_mlflow", "mlflow_tracking_uri"),
                *("use_comet", "use_tensorboard", "use_otel_metrics"),
            ),
            OUTSIDE,
        ),
    }
}
"""Backend that takes keys of its tool's own configuration as `extra` -> keys that a chain may not give, and why."""
EXTRA_CODE: Mapping[BackendName, tuple[str, str]] = {BackendName.AXOLOTL: ("plugins", "axolotl.integrations.")}
"""Key that lists modules to import -> how the names of those begin that are part of the tool."""
