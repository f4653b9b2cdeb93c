"""Rows on the settings of the native engine and of its parts: who reads a setting, which device it needs, and how its
processes are launched."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import EVERY_DEVICE, Device, join_devices
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.stages import DistillSettings, GrpoSettings, PpoSettings, PreferenceLoss, Stage, StageSettings
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.compat.context import Match, NodeView, Row, When, join_words
from trainyard.spec.model_schema import read_setting
from trainyard.spec.training import (
    EngineSettings,
    TrainerConfig,
)

GPUS = (Device.CUDA, Device.ROCM)
KERNEL_DEVICES: dict[str, dict[object, tuple[Device, ...]]] = {
    "attention": {"fa3": (Device.CUDA,), "fa2": GPUS},
    "head": {"liger": GPUS},
    "kernels": {"liger": GPUS},
    "compile": {True: GPUS},
    "fp8": {"torchao": GPUS},
}
"""Setting of the engine -> value -> devices that its kernels are written for. FlashAttention 3 is for Hopper; the ROCm
builds of flash-attention 2 and Liger (since 0.4.0) are in their READMEs, torchao's float8 in pytorch/ao#4131. On a CPU
a compiled step was not worth its compilation (docs/dev/log.md)."""
PORTABLE = {"kernels": "torch", "compile": "false"}
"""Setting -> the value that every device has, where that is not `auto`."""

BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
"""Cloud Storage's rule for the name of a bucket."""


def has_no_store(config: TrainerConfig) -> bool:
    """Return whether no kind of store is at the address of the mirror."""
    parts = urlsplit(config.engine.mirror or "file:///unset")
    folder = parts.scheme == "file" and parts.netloc in ("", "localhost") and bool(parts.path.strip("/"))
    bucket = parts.scheme == "gs" and BUCKET.fullmatch(parts.netloc) is not None
    return not (folder or bucket) or bool(parts.query or parts.fragment)


# Readers of a setting


@dataclass(frozen=True)
class Reader:
    """A setting and its reader, in words and as a predicate on a trainer."""

    setting: str
    by: str
    reads: Callable[[TrainerConfig], bool]


def clips(config: TrainerConfig) -> bool:
    """With one step for each drawing the policy is the one that drew: no probability has changed, none is clipped."""
    return isinstance(config.stage, GrpoSettings) and config.stage.num_iterations > 1


def has_critic(config: TrainerConfig) -> bool:
    return isinstance(config.stage, PpoSettings) and config.stage.has_critic


def reuses(config: TrainerConfig) -> bool:
    """Return whether several steps of PPO learn from the same completions."""
    return isinstance(config.stage, PpoSettings) and config.stage.num_iterations * config.stage.minibatches > 1


def needs_padded(config: TrainerConfig) -> bool:
    """Return whether batches are cut by rows: their loss compares them, or they grow by sampled tokens."""
    return config.stage.facts.compares_rows or config.stage.drawn_tokens > 0


def labels_count(stage: StageSettings) -> bool:
    """Return whether some rows of a distillation are not written by the student."""
    return not isinstance(stage, DistillSettings) or stage.lmbda < 1


def draws(stage: StageSettings) -> bool:
    return not isinstance(stage, DistillSettings) or stage.draws


ENGINE_READERS = (
    Reader(
        "engine.token_budget", "batching in buckets or packs",
        lambda config: config.engine.batching != "padded" and not needs_padded(config),
    ),
    Reader(
        "engine.head", "a stage that predicts tokens by their labels",
        lambda config: config.stage.type is not Stage.REWARD and not config.stage.facts.compares_logits,
    ),
    Reader("engine.too_long", "a stage other than cpt", lambda config: config.stage.type is not Stage.CPT),
)  # fmt: skip
STAGE_READERS = (
    Reader(
        "max_bad_fraction", "a trainer that renders rows with a chat template",
        lambda config: config.stage.type is not Stage.CPT,
    ),
    Reader(
        "method.head", "method freeze without interval", lambda config: getattr(config.method, "interval", None) is None
    ),
    Reader(
        "stage.gamma", "loss simpo, and stage ppo with a critic",
        lambda config: getattr(config.stage, "loss", None) is PreferenceLoss.SIMPO or has_critic(config),
    ),
    *(
        Reader(f"stage.{name}", "stage ppo with advantage gae or gae_group", has_critic)
        for name in ("lam", "value_clip", "value_coef", "critic_learning_rate")
    ),
    Reader("stage.clip", "a stage ppo with more than one step for each drawing", reuses),
    Reader("stage.epsilon", "a training with stage.num_iterations above 1", clips),
    Reader(
        "stage.shared_prompt", "backend native in stages dpo and kto, and backend trl in stage grpo",
        lambda config: config.backend.facts.is_stage("shared_prompts", config.stage.type),
    ),
    Reader("stage.label_weight", "a stage distill with lmbda below 1", lambda config: labels_count(config.stage)),
    Reader("stage.max_completion_length", "a stage distill with lmbda or seq_kd", lambda config: draws(config.stage)),
    Reader("stage.sampling_temperature", "a stage distill with lmbda or seq_kd", lambda config: draws(config.stage)),
    Reader("stage.seq_kd", "a stage distill with lmbda below 1", lambda config: labels_count(config.stage)),
)  # fmt: skip


def unused_settings(config: TrainerConfig, _: NodeView) -> Match:
    """Return each setting that is not at its default and that nothing in this trainer reads.

    Where a whole group is not read, the group's own row says so instead.
    """
    readers = (*STAGE_READERS, *(ENGINE_READERS if config.backend is BackendName.NATIVE else ()))
    defaults = config.model_copy(
        update={
            "engine": EngineSettings(),
            "stage": config.stage.type.settings(),
            "method": config.method.type.settings(),
            "max_bad_fraction": None,
        }
    )
    return [
        {"setting": reader.setting, "by": reader.by}
        for reader in readers
        if not reader.reads(config) and read_setting(config, reader.setting) != read_setting(defaults, reader.setting)
    ]


# What fits a stage and a device


def on_native(condition: Callable[[TrainerConfig], Match]) -> When:
    """Other backends take no setting of the engine, which is a row of its own."""
    return lambda config, _: config.backend is BackendName.NATIVE and condition(config)


def unfit_packs(config: TrainerConfig) -> Match:
    allowed = "padded" if needs_padded(config) else "buckets"
    return config.engine.batching == "packed" and not config.stage.facts.packable and {"allowed": allowed}


def packs_pairs(config: TrainerConfig) -> bool:
    return config.engine.batching == "packed" and config.stage.facts.sequences > 1


def shares_prompts(config: TrainerConfig) -> bool:
    """Return whether prompts are to be shared by name; `auto` finds out what is possible."""
    return config.stage.asks_shared is True


def unfit_kernels(config: TrainerConfig, device: Device) -> Match:
    """Return each setting of the engine that asks for a kernel which is not written for a device."""
    kernels = {name: getattr(config.engine, name) for name in KERNEL_DEVICES}
    return [
        {
            "name": name,
            "value": str(value).lower(),
            "written": " and ".join(devices),
            "instead": PORTABLE.get(name, "auto"),
        }
        for name, value in kernels.items()
        if device not in (devices := KERNEL_DEVICES[name].get(value, EVERY_DEVICE))
    ]


def outside_devices(read: Callable[[TrainerConfig], Optimizer | Quantization | None]) -> When:
    """Return the requested value, where it does not run on the requested device."""

    def when(config: TrainerConfig, _: NodeView) -> Match:
        value = read(config)
        devices = value.facts.devices if value else EVERY_DEVICE
        return config.device not in (Device.AUTO, *devices) and {"value": value, "here": join_devices(devices)}

    return when


def find_trained_format(config: TrainerConfig) -> Quantization | None:
    """Return the format of the base that qlora trains through; None where no adapter can be trained through it."""
    return config.base_format if config.base_format and config.base_format.facts.trains else None


ENGINE_ROWS = (
    Row(
        "engine-unused", "R-SETTING-UNUSED", "trainer", "config.engine",
        lambda config, _: config.backend is not BackendName.NATIVE and config.engine != EngineSettings(),
        "The settings under `engine` are those of the native engine; the {config.backend} backend would ignore them.",
        "Remove `engine`, or use backend native.",
    ),
    Row(
        "setting-unused", "R-SETTING-UNUSED", "trainer", "config.{setting}", unused_settings,
        "Only {by} reads {setting}; here it would be ignored.", "Remove {setting}, or use {by}.",
    ),
    Row(
        "batching", "R-BATCH", "trainer", "config.engine.batching", on_native(unfit_packs),
        "The loss of stage {config.stage} needs each row separately, so rows cannot be packed into one.",
        "Use `batching: auto` or `{allowed}`.",
    ),
    Row(
        "batching-buckets", "R-BATCH", "trainer", "config.engine.batching",
        on_native(lambda config: config.engine.batching == "buckets" and needs_padded(config)),
        "Stage {config.stage} compares the rows of a batch or draws completions, so batches cannot be cut by length.",
        "Use `batching: auto` or `padded`.",
    ),
    Row(
        "batching-alone", "R-LAUNCH", "trainer", "config.launch.strategy",
        on_native(lambda config: packs_pairs(config) and config.launch.strategy is not Strategy.SINGLE),
        "The pairs of stage {config.stage} that lie in one row cannot be shared among processes.",
        "Use `batching: auto`, or strategy single.",
    ),
    Row(
        "shared-prompt-alone", "R-LAUNCH", "trainer", "config.launch.strategy",
        on_native(lambda config: shares_prompts(config) and config.launch.strategy is not Strategy.SINGLE),
        "The answers that lie in one row behind their prompt cannot be shared among processes.",
        "Use `shared_prompt: auto`, or strategy single.",
    ),
    Row(
        "shared-prompt-kernel", "R-BATCH", "trainer", "config.engine.attention",
        on_native(lambda config: shares_prompts(config) and config.engine.attention in KERNEL_DEVICES["attention"]),
        "Answers that share a prompt are kept apart by a mask, which {config.engine.attention} does not take.",
        "Use `attention: auto` or `sdpa`, or `shared_prompt: auto`.",
    ),
    Row(
        "engine-cuda", "R-DEVICE", "trainer", "config.engine.{name}",
        on_native(lambda config: config.device is not Device.AUTO and unfit_kernels(config, config.device)),
        "The kernels of `{name}: {value}` are written for {written}, and the device is {config.device}.",
        "Use `{name}: {instead}`, which takes what the device has.",
    ),
    Row(
        "fp8-msamp", "R-QUANTIZATION", "trainer", "config.engine.fp8",
        on_native(lambda config: config.engine.fp8 == "ms-amp"),
        "MS-AMP is no longer maintained: it needs a torch and an NCCL of years ago.",
        "Use `fp8: auto` or `torchao`.",
    ),
    Row(
        "fp8-qlora", "R-QUANTIZATION", "trainer", "config.engine.fp8",
        on_native(lambda config: config.engine.fp8 in ("auto", "torchao") and config.method.type is Method.QLORA),
        "The base of qlora is in 4 or 8 bits already and cannot be multiplied in fp8.",
        "Remove `fp8`, or use method lora.",
    ),
    Row(
        "compile-quantised", "R-QUANTIZATION", "trainer", "config.engine.compile",
        on_native(lambda config: config.engine.compile and config.base_format is not None),
        "The layers of a base in {config.base_format} are kernels of their package, which torch.compile does not fuse.",
        "Remove `compile`, or use method lora.",
    ),
    Row(
        "compile-alone", "R-LAUNCH", "trainer", "config.engine.compile",
        on_native(lambda config: config.engine.compile and config.launch.strategy is not Strategy.SINGLE),
        "Compiled blocks have been tried in one process only, and strategy {config.launch.strategy} hooks into them.",
        "Remove `compile`, or use strategy single.",
    ),
    Row(
        "mirror-store", "R-MIRROR", "trainer", "config.engine.mirror", on_native(has_no_store),
        "No store for checkpoints is at {config.engine.mirror!r}.",
        "Write file:///folder or gs://bucket/prefix, or remove mirror.",
    ),
    Row(
        "optimizer-device", "R-DEVICE", "trainer", "config.hyperparameters.optimizer",
        outside_devices(lambda config: config.hyperparameters.optimizer),
        "The optimizer {value} is made by bitsandbytes, which does not run on {config.device}.",
        "Use device {here}, or optimizer adamw.",
    ),
    Row(
        "quant-device", "R-DEVICE", "trainer", "config.quantization",
        outside_devices(find_trained_format),
        "A base in {value} cannot be computed with on {config.device}.",
        "Use device {here}, or method lora.",
    ),
)  # fmt: skip
"""Rows on the native engine's settings, besides stage, method and device."""


# How the processes of a training are launched: how many, by which launcher, and how they share the weights


def shares_nothing(config: TrainerConfig, _: NodeView) -> Match:
    """Match more than one process with the strategy of one."""
    shared = config.backend.facts.strategies[1:]
    is_unlaunched = config.launch.strategy is Strategy.SINGLE and config.launch.processes > 1
    return is_unlaunched and bool(shared) and {"strategies": join_words(shared)}


def shares_alone(config: TrainerConfig, _: NodeView) -> bool:
    """Match one process with a distributed strategy; DeepSpeed runs its own with one."""
    is_unlaunched = config.launch.strategy is not Strategy.SINGLE and config.launch.processes == 1
    return is_unlaunched and config.backend is not BackendName.DEEPSPEED


def unfit_shard(config: TrainerConfig, _: NodeView) -> Match:
    """Return a size of a replica that the processes cannot be divided into."""
    launch = config.launch
    size, most = launch.parts, launch.processes // 2 if launch.diloco is None else launch.island_size
    fitting = [part for part in range(2, most + 1) if launch.island_size % part == 0]
    if launch.strategy is not Strategy.FSDP_HYBRID or size in fitting or launch.island_size == 1:
        return False
    return {
        "size": size,
        "do": f"shard_size {join_words(fitting)}" if fitting else "an even number of processes, 4 or more",
    }


LAUNCH_ROWS = (
    Row(
        "launch-processes", "R-LAUNCH", "trainer", "config.launch.processes", shares_nothing,
        "Strategy single is one process, and {config.launch.processes} are requested.",
        "Use strategy {strategies}.",
    ),
    Row(
        "launch-processes-one", "R-LAUNCH", "trainer", "config.launch.processes", shares_alone,
        "Strategy {config.launch.strategy} shares a training between processes, and this one has a single process.",
        "Use processes: 2 or more, or remove strategy.",
    ),
    Row(
        "launch-shard", "R-LAUNCH", "trainer", "config.launch.shard_size", unfit_shard,
        "{config.launch.processes} processes are not two or more replicas of {size} processes each.",
        "Use {do}.",
    ),
    Row(
        "launch-shard-unused", "R-SETTING-UNUSED", "trainer", "config.launch.shard_size",
        lambda config, _: config.launch.shard_size is not None
        and config.launch.strategy is not Strategy.FSDP_HYBRID,
        "Strategy {config.launch.strategy} has no replicas that share weights, so shard_size would be ignored.",
        "Remove shard_size, or use strategy fsdp_hybrid.",
    ),
    Row(
        "launch-launcher", "R-LAUNCH", "trainer", "config.launch.launcher",
        lambda config, _: config.launch.launcher != "auto" and config.launch.strategy is Strategy.SINGLE,
        "One process is started without a launcher.", "Remove launcher.",
    ),
    Row(
        "launch-device", "R-DEVICE", "trainer", "config.device",
        lambda config, _: config.device is Device.MPS and config.launch.strategy is not Strategy.SINGLE,
        "A machine with Apple's GPU has one, and no library through which processes could share it.",
        "Remove launch, or use device cuda or cpu.",
    ),
    Row(
        "shard-quantised", "R-LAUNCH", "trainer", "config.launch.strategy",
        lambda config, _: config.launch.strategy.facts.sharded and config.method.facts.quantised,
        "The base of qlora is packed in a few bits, and {config.launch.strategy} cuts weights by their rows.",
        "Use strategy ddp, zero1 or zero2, or method lora.",
    ),
)  # fmt: skip
"""What processes can share, and by what they can be started."""
