"""Rows on trainers: what each backend carries out, settings that exclude each other, adapters and controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.axes.methods import ADAPTER_METHODS, Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.compat.place import Hits, NodeView, Row, When, listed, value_at
from trainyard.spec.training import LoraSettings, PreferenceSettings, TrainerConfig, resolve_lora


@dataclass(frozen=True)
class Reach:
    stages: tuple[Stage, ...]
    methods: tuple[Method, ...]
    devices: tuple[Device, ...]


BACKENDS: dict[BackendName, Reach] = {
    BackendName.NATIVE: Reach(
        (Stage.CPT, Stage.SFT, Stage.REWARD, Stage.DPO, Stage.KTO),
        tuple(Method),
        (Device.CPU, Device.CUDA, Device.MPS),
    ),
    BackendName.TRL: Reach(
        (Stage.SFT, Stage.DPO, Stage.KTO, Stage.REWARD, Stage.GRPO),
        (Method.LORA, Method.DORA, Method.FULL),
        (Device.CPU, Device.CUDA, Device.MPS),
    ),
    BackendName.UNSLOTH: Reach((Stage.SFT,), (Method.LORA, Method.QLORA), (Device.CPU, Device.CUDA)),
    BackendName.AXOLOTL: Reach(
        (Stage.SFT, Stage.DPO, Stage.KTO, Stage.REWARD),
        (Method.LORA, Method.QLORA, Method.DORA, Method.FULL),
        (Device.CPU, Device.CUDA),
    ),
    BackendName.DEEPSPEED: Reach((Stage.SFT,), (Method.FULL, Method.LORA), (Device.CPU, Device.CUDA)),
    BackendName.MLX: Reach((Stage.SFT, Stage.CPT), (Method.LORA, Method.DORA, Method.FULL), (Device.CPU, Device.MPS)),
    BackendName.LLAMACPP: Reach((Stage.SFT, Stage.CPT), (Method.FULL,), (Device.CPU,)),
    BackendName.SCRIPT: Reach(tuple(Stage), tuple(Method), (Device.CPU, Device.CUDA, Device.MPS)),
}
WHY: dict[tuple[BackendName, str], str] = {
    (BackendName.LLAMACPP, "method"): ": llama-finetune moves every weight and makes no adapters",
}
"""What is worth telling beside the fact itself."""
TRL_LOSSES = (PreferenceLoss.SIGMOID, PreferenceLoss.HINGE, PreferenceLoss.IPO)
TRL_OPTIMIZERS = (
    Optimizer.ADAMW, Optimizer.SGD, Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT, Optimizer.ADAFACTOR,
    Optimizer.LION, Optimizer.ADEMAMIX,
)  # fmt: skip
TRL_SCHEDULES = (
    Schedule.LINEAR, Schedule.COSINE, Schedule.CONSTANT, Schedule.CONSTANT_WITH_WARMUP, Schedule.COSINE_WITH_RESTARTS,
    Schedule.POLYNOMIAL, Schedule.INVERSE_SQRT, Schedule.WSD,
)  # fmt: skip
OUTPUT_LAYER = "lm_head"
HEADLESS_STAGES = (Stage.DPO, Stage.KTO, Stage.GRPO)
"""Stages whose trainers of TRL do not call the output layer."""
CONSTANT_SCHEDULES = (Schedule.CONSTANT, Schedule.CONSTANT_WITH_WARMUP)
CONTROL_STAGES = (Stage.SFT, Stage.DPO)
SUMMED_METHODS = ADAPTER_METHODS - {Method.DORA, Method.OFT}
"""Methods whose adapters are plain sums of low-rank matrices, so that two can be written as one."""
WHOLE_METHODS = (Method.FULL, Method.FREEZE)
"""Methods that move the model's own weights."""


def outside_reach(name: BackendName) -> When:
    """Each of stage, method and device that a backend does not carry out."""
    reach = BACKENDS[name]

    def when(config: TrainerConfig, _: NodeView) -> Hits:
        if config.backend is not name:
            return False
        axes = [
            ("stage", config.stage, reach.stages),
            ("method", config.method, reach.methods),
            ("device", config.device, (Device.AUTO, *reach.devices)),
        ]
        return [
            {"axis": axis, "value": value, "allowed": listed(allowed), "why": WHY.get((name, axis), "")}
            for axis, value, allowed in axes
            if value not in allowed and value is not Stage.GRPO  # which has a row of its own
        ]

    return when


def four_bits(config: TrainerConfig) -> bool:
    """Whether a trainer that has 4-bit kernels for CUDA only would need them."""
    return config.method is Method.QLORA and config.backend in (BackendName.UNSLOTH, BackendName.AXOLOTL)


def is_export(config: TrainerConfig) -> bool:
    """Whether the format is that of the result and not of the base: llama.cpp writes a quantised copy beside it."""
    return config.backend is BackendName.LLAMACPP and config.quantization is Quantization.GGUF


def on_trl(condition: Callable[[TrainerConfig], bool]) -> When:
    return lambda config, _: config.backend is BackendName.TRL and condition(config)


def named_targets(config: TrainerConfig) -> tuple[str, ...]:
    """Modules that get an adapter, where they are named one by one."""
    targets = config.lora.target_modules
    return targets if isinstance(targets, tuple) else ()


def earlier(at: NodeView) -> TrainerConfig | None:
    """The trainer whose adapter this trainer takes over."""
    trainers = [node.config for node in at.sources(Port.ADAPTER)]
    return trainers[0] if trainers and isinstance(trainers[0], TrainerConfig) else None


def other_shape(config: TrainerConfig, at: NodeView) -> Hits:
    """A continued adapter keeps its shape; each setting that says otherwise."""
    before = earlier(at)
    if before is None or config.adapter != "continue" or config.method is not before.method:
        return False
    pairs = [(setting, value_at(config, setting), value_at(before, setting)) for setting in shape_of(config)]
    return [
        {"setting": setting, "name": name, "old": old, "left_out": "`lora`" if group == "lora" else "it"}
        for setting, new, old in pairs
        if new != old
        for group, _, name in [setting.partition(".")]
    ]


def shape_of(config: TrainerConfig) -> Iterator[str]:
    """The settings that make the shape of an adapter."""
    names = ("rank", "alpha", "dropout", "target_modules", "modules_to_save", "layers", "rslora")
    yield from (f"lora.{name}" for name in names)
    if config.method is Method.OFT:
        yield "engine.oft_block_size"


def no_common_form(config: TrainerConfig, at: NodeView) -> Hits:
    """Why an adapter and the earlier one, stacked or merged, could not be written as one adapter."""
    before = earlier(at)
    if config.adapter == "continue" or before is None or config.method in WHOLE_METHODS:
        return False
    other = [method for method in (before.method, config.method) if method not in SUMMED_METHODS]
    if other:
        return {"why": f"an adapter of method {other[0]} is no sum of low-rank matrices"}
    common = [module for module in config.lora.modules_to_save if module in before.lora.modules_to_save]
    return bool(common) and {"why": f"both hold the whole module {common[0]!r}, and one of them would be lost"}


def onto_no_whole_base(config: TrainerConfig, at: NodeView) -> Hits:
    before = earlier(at)
    format = before.quantization if before is not None else None
    return config.adapter == "merge" and format is not None and not format.facts.mergeable and {"format": format}


def other_base(config: TrainerConfig, at: NodeView) -> Hits:
    before = at.trainer()
    return before is not None and config.base_model != before.base_model and {"old": before.base_model}


def control_in_line(config: TrainerConfig, at: NodeView) -> Hits:
    """A control that would start from the adapter of the very trainer that it is to be compared with."""
    before = at.trainer()
    if config.control is None or before is None or before.stage is not config.stage:
        return False
    return {"trainer": at.sources(Port.ADAPTER, Port.MODEL)[0].id}


TRAINER_ROWS = (
    Row(
        "R-TRL-PPO", "trainer", "config.stage", on_trl(lambda config: config.stage is Stage.PPO),
        "The trl backend has no ppo: the library removed it.",
        "Use backend native, where ppo belongs; until it is there, stage dpo with preference pairs.",
    ),
    Row(
        "R-TRL-STAGE", "trainer", "config.stage",
        on_trl(lambda config: config.stage not in (*BACKENDS[BackendName.TRL].stages, Stage.PPO)),
        "The trl backend carries out sft, dpo, kto, reward and grpo here, not {config.stage}.",
        "Use stage sft, dpo, kto, reward or grpo, or backend native.",
    ),
    Row(
        "R-TRL-METHOD", "trainer", "config.method",
        on_trl(lambda config: config.method not in BACKENDS[BackendName.TRL].methods),
        "The trl backend trains lora, dora and full here, not {config.method}.",
        "Use method lora, or backend native.",
    ),
    Row(
        "R-TRL-LOSS", "trainer", "config.preference.loss",
        on_trl(lambda config: config.stage is Stage.DPO and config.preference.loss not in TRL_LOSSES),
        "The dpo trainer of trl has no loss {config.preference.loss}.",
        f"Use {listed(TRL_LOSSES)}, or backend native.",
    ),
    Row(
        "R-TRL-HEAD", "trainer", "config.lora.target_modules",
        on_trl(lambda config: config.stage in HEADLESS_STAGES and OUTPUT_LAYER in named_targets(config)),
        "The {config.stage} trainer of trl multiplies by the output layer itself, so an adapter on it would not learn.",
        "Leave lm_head out of lora.target_modules, or use backend native.",
    ),
    Row(
        "R-TRL-OPTIMIZER", "trainer", "config.hyperparameters.optimizer",
        on_trl(lambda config: config.hyperparameters.optimizer not in TRL_OPTIMIZERS),
        "The trl backend has no optimizer {config.hyperparameters.optimizer}.",
        f"Use {listed(TRL_OPTIMIZERS)}, or backend native.",
    ),
    Row(
        "R-TRL-SCHEDULE", "trainer", "config.hyperparameters.schedule",
        on_trl(lambda config: config.hyperparameters.schedule not in TRL_SCHEDULES),
        "The trl backend has no schedule {config.hyperparameters.schedule}.",
        f"Use {listed(TRL_SCHEDULES)}, or backend native.",
    ),
    Row(
        "R-TRL-ADAPTER", "trainer", "config.adapter",
        lambda config, at: config.backend is BackendName.TRL and config.adapter != "continue" and bool(earlier(at)),
        "The trl backend continues the adapter of an earlier trainer; it does not {config.adapter} adapters.",
        "Use `adapter: continue`, or backend native.", chained=True,
    ),
    Row(
        "R-QLORA-CUDA", "trainer", "config.method",
        lambda config, _: four_bits(config) and config.device is Device.CPU,
        "The {config.backend} backend trains through a 4-bit base on CUDA only.", "Use method lora, or backend native.",
    ),
    Row(
        "R-QLORA-CUDA", "trainer", "config.method",
        lambda config, at: four_bits(config) and config.device is Device.AUTO
        and at.facts.devices is not None and Device.CUDA not in at.facts.devices,
        "The {config.backend} backend trains through a 4-bit base on CUDA only, and this machine has none.",
        "Use method lora, or backend native.", scope="run",
    ),
    *(
        Row(
            f"R-{name.value.upper()}", "trainer", "config.{axis}", outside_reach(name),
            f"The {name.value} backend has no {{axis}} {{value}}{{why}}.",
            # What the native engine lacks, no other backend has either.
            "Use {axis} {allowed}." if name is BackendName.NATIVE else "Use {axis} {allowed}, or another backend.",
        )
        for name in BACKENDS if name not in (BackendName.TRL, BackendName.SCRIPT)
    ),
    Row(
        "R-FP16-CPU", "trainer", "config.hyperparameters.precision",
        lambda config, _: config.hyperparameters.precision is Precision.FP16 and config.device is Device.CPU,
        "Half precision is not applied on a CPU: the run would be fp32 under another name.",
        "Use precision auto, bf16 or fp32.",
    ),
    Row(
        "R-QUANT-METHOD", "trainer", "config.quantization",
        lambda config, _: config.quantization is not None and config.method is not Method.QLORA
        and not is_export(config),
        "Method {config.method} trains on an unquantised base; {config.quantization} would be ignored.",
        "Use method qlora, or remove quantization.",
    ),
    Row(
        "R-QUANT-EXPORT", "trainer", "config.quantization",
        lambda config, _: config.method is Method.QLORA and config.quantization is not None
        and not config.quantization.facts.trains,
        "No adapter can be trained through a base in {config.quantization}.",
        "Use nf4, fp4 or int8.",
    ),
    Row(
        "R-KTO-BATCH", "trainer", "config.hyperparameters.batch_size",
        lambda config, _: config.stage is Stage.KTO and config.hyperparameters.batch_size == 1,
        "KTO estimates its reference point from other rows of the batch, and a batch of 1 has none.",
        "Use a batch_size of at least 2.",
    ),
    Row(
        "R-LORA-LAYERS", "trainer", "config.lora.layers",
        lambda config, _: config.lora.layers is not None and config.lora.target_modules == "all-linear",
        "PEFT cannot pick layers when all linear modules are targeted by one word.",
        "Name the modules in lora.target_modules, or use attention-only.",
    ),
    Row(
        "R-LORA-UNUSED", "trainer", "config.lora",
        lambda config, _: config.method in WHOLE_METHODS and config.lora != resolve_lora(LoraSettings()),
        "Method {config.method} moves the model's own weights; the settings under `lora` would be ignored.",
        "Remove `lora`, or use method lora.",
    ),
    Row(
        "R-PREFERENCE-UNUSED", "trainer", "config.preference",
        lambda config, _: config.stage not in (Stage.DPO, Stage.KTO) and config.preference != PreferenceSettings(),
        "Stage {config.stage} has no preference loss; the settings under `preference` would be ignored.",
        "Remove `preference`, or use stage dpo.",
    ),
    Row(
        "R-SMOOTHING-LOSS", "trainer", "config.preference.label_smoothing",
        lambda config, _: config.preference.label_smoothing > 0
        and config.preference.loss is not PreferenceLoss.SIGMOID,
        "Label smoothing is defined for the sigmoid loss, not for {config.preference.loss}.",
        "Use `loss: sigmoid`, or remove label_smoothing.",
    ),
    Row(
        "R-SCHEDULE-FREE", "trainer", "config.hyperparameters.schedule",
        lambda config, _: config.hyperparameters.optimizer is Optimizer.SCHEDULE_FREE_ADAMW
        and config.hyperparameters.schedule not in CONSTANT_SCHEDULES,
        "The optimizer schedule_free_adamw replaces the schedule; {config.hyperparameters.schedule} would fight it.",
        f"Use {' or '.join(CONSTANT_SCHEDULES)}.",
    ),
    Row(
        "R-GALORE-METHOD", "trainer", "config.hyperparameters.optimizer",
        lambda config, _: config.hyperparameters.optimizer is Optimizer.GALORE
        and config.method not in WHOLE_METHODS,
        "GaLore projects the gradients of whole weights; method {config.method} has none.",
        "Use method full or freeze, or optimizer adamw.",
    ),
    Row(
        "R-ADAPTER-METHOD", "trainer", "config.method",
        lambda config, at: (before := earlier(at)) is not None and config.adapter == "continue"
        and config.method is not before.method and {"old": before.method},
        "Method {config.method} cannot continue an adapter of method {old}.",
        "Use method {old}.", chained=True,
    ),
    Row(
        "R-ADAPTER-SHAPE", "trainer", "config.{setting}", other_shape,
        "The earlier adapter has {name} {old}, and a continued adapter keeps its shape.",
        "Write `{name}: {old}`, or leave {left_out} out.", chained=True,
    ),
    Row(
        "R-ADAPTER-COMPOSE", "trainer", "config.adapter", no_common_form,
        "With `adapter: {config.adapter}` both adapters are written as one, and {why}.",
        "Use `adapter: continue`, or two adapters of method lora that share no whole module.", chained=True,
    ),
    Row(
        "R-ADAPTER-STACK", "trainer", "config.adapter",
        lambda config, at: config.adapter == "stack" and config.method in WHOLE_METHODS and bool(earlier(at)),
        "Method {config.method} moves the model's own weights, and nothing can be stacked on them.",
        "Use `adapter: merge`, which writes the earlier adapter into them first.", chained=True,
    ),
    Row(
        "R-ADAPTER-MERGE", "trainer", "config.adapter", onto_no_whole_base,
        "The base of the earlier adapter is stored in {format}, and an adapter is merged in full precision only.",
        "Use `adapter: continue`, or train both on the base in full precision.", chained=True,
    ),
    Row(
        "R-ADAPTER-NONE", "trainer", "config.adapter",
        lambda config, at: config.adapter != "continue" and earlier(at) is None,
        "`adapter: {config.adapter}` speaks of an earlier adapter, and none reaches this trainer.",
        "Remove `adapter`, or put a trainer with an adapter method before it.", chained=True,
    ),
    Row(
        "R-BASE-MISMATCH", "trainer", "config.base_model", other_base,
        "The trainer before it has the base {old!r}, this one {config.base_model!r}.",
        "Leave base_model out here, or write the same in both.", chained=True,
    ),
    Row(
        "R-REWARD-CONTINUE", "trainer", "needs",
        lambda config, at: (before := at.trainer()) is not None and before.stage is Stage.REWARD
        and config.stage is not Stage.PPO,
        "The trainer before it makes a reward model, which gives scores and no text.",
        "Let this trainer need the trainer of the stage that it continues.", chained=True,
    ),
    Row(
        "R-CONTROL-STAGE", "trainer", "config.control",
        lambda config, _: config.control is not None and config.stage not in CONTROL_STAGES,
        "Stage {config.stage} has no answers to shuffle.", "Use the control with stage sft or dpo.",
    ),
    Row(
        "R-CONTROL-LINE", "trainer", "needs", control_in_line,
        "The control would start from the adapter of {trainer!r}, with which it is to be compared.",
        "Give it the same `needs` as {trainer!r}.", chained=True,
    ),
    Row(
        "R-CONTROL-UNUSED", "trainer", "config.control",
        lambda config, at: config.control is not None and at.node.id not in at.view.used_controls,
        "No evaluator takes this control, so it would be trained for nothing.",
        "Remove `control` or the node, or name the node in the `needs` of an evaluator.", chained=True,
    ),
)  # fmt: skip
