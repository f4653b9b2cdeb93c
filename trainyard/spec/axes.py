"""The axes of a training run, as names. What each name does lives in one table of the room that carries it out."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """Which objective is trained."""

    CPT = "cpt"
    SFT = "sft"
    REWARD = "reward"
    PPO = "ppo"
    DPO = "dpo"
    KTO = "kto"
    GRPO = "grpo"


class Method(StrEnum):
    """Which weights move."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"
    DORA = "dora"
    LORA_PLUS = "lora_plus"
    OFT = "oft"
    FREEZE = "freeze"


ADAPTER_METHODS = frozenset({Method.LORA, Method.QLORA, Method.DORA, Method.LORA_PLUS, Method.OFT})
"""Methods that leave an adapter beside an unchanged base; the others write a whole model."""


class BackendName(StrEnum):
    """Who executes a training job."""

    NATIVE = "native"
    TRL = "trl"
    UNSLOTH = "unsloth"
    AXOLOTL = "axolotl"
    DEEPSPEED = "deepspeed"
    MLX = "mlx"
    LLAMACPP = "llamacpp"
    SCRIPT = "script"


class JobState(StrEnum):
    """Where a training job stands; a detail in words stands beside it."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow; a failed job can be started again from its checkpoint."""
        return self in (JobState.COMPLETED, JobState.CANCELED)


class Strategy(StrEnum):
    """How several processes share a training; `single` is one process."""

    SINGLE = "single"
    DDP = "ddp"
    FSDP = "fsdp"
    FSDP_HYBRID = "fsdp_hybrid"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


class PreferenceLoss(StrEnum):
    """Loss of the dpo stage, all with the same pairs."""

    SIGMOID = "sigmoid"
    HINGE = "hinge"
    IPO = "ipo"
    KTO_PAIR = "kto_pair"
    ORPO = "orpo"
    SIMPO = "simpo"


class Optimizer(StrEnum):
    ADAMW = "adamw"
    SGD = "sgd"
    ADAMW_8BIT = "adamw_8bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    ADAFACTOR = "adafactor"
    LION = "lion"
    MUON = "muon"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    GALORE = "galore"
    ADEMAMIX = "ademamix"


class Schedule(StrEnum):
    LINEAR = "linear"
    COSINE = "cosine"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    REDUCE_ON_PLATEAU = "reduce_on_plateau"
    WSD = "wsd"
    INVERSE_SQRT = "inverse_sqrt"
    ONE_CYCLE = "one_cycle"


class Quantization(StrEnum):
    NF4 = "nf4"
    FP4 = "fp4"
    INT8 = "int8"
    HQQ_INT4 = "hqq_int4"
    TORCHAO_INT8 = "torchao_int8"
    GPTQ = "gptq"
    AWQ = "awq"
    FP8 = "fp8"
    GGUF = "gguf"


class Precision(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Device(StrEnum):
    """Where a job computes; `auto` takes CUDA, then Apple's MPS, then the CPU, and records which."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


class DataFormat(StrEnum):
    """Shape of the rows of a data set; `auto` detects and reports it."""

    AUTO = "auto"
    ALPACA = "alpaca"
    SHAREGPT = "sharegpt"
    OPENAI = "openai"
    PROMPT_COMPLETION = "prompt_completion"
    PREFERENCE = "preference"
    LABELLED = "labelled"
    TOOL_CALLS = "tool_calls"
    TEXT = "text"
    DOCUMENTS = "documents"


class GeneratorKind(StrEnum):
    """Who writes the generated rows."""

    EXTRACTIVE = "extractive"
    LOCAL = "local"
    OPENAI = "openai"
    VLLM = "vllm"


class GenerationTemplate(StrEnum):
    QA = "qa"
    INSTRUCTION = "instruction"
    CODE = "code"
    PREFERENCE = "preference"


class TargetType(StrEnum):
    """Where a deployer makes an adapter answer."""

    REGISTRY = "registry"
    EMBEDDED = "embedded"
    VLLM = "vllm"
    LLAMA_SERVER = "llama_server"
    OLLAMA = "ollama"
    MLX = "mlx"


class Port(StrEnum):
    """What travels between nodes, always as a reference, never as data."""

    DOCUMENTS = "documents"
    SFT = "sft"
    PREFERENCE = "preference"
    LABELLED = "labelled"
    TEXT = "text"
    ADAPTER = "adapter"
    MODEL = "model"
    REPORT = "report"


DATA_PORTS = frozenset({Port.DOCUMENTS, Port.SFT, Port.PREFERENCE, Port.LABELLED, Port.TEXT})
