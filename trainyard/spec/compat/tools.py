"""Settings that a foreign trainer has no way to carry out, beside stage, method and device: one table, read twice.

A chain is refused with its row before anything runs; a job that comes another way is refused by the backend itself,
which reads the same table. The second half is about training scripts: what the built-in one lacks, templates that
nothing would run, and who allows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.compat.place import Hits, NodeView, Row, When, listed, value_at
from trainyard.spec.training import Hyperparameters, TrainerConfig

Allowed = Mapping[str, tuple[Any, ...]]
"""Setting as it is written below `config` -> the values that the tool takes."""

SETTINGS: dict[BackendName, Allowed] = {
    BackendName.MLX: {
        "quantization": (None,),
        "hyperparameters.optimizer": (Optimizer.ADAMW, Optimizer.SGD, Optimizer.LION, Optimizer.ADAFACTOR),
        "hyperparameters.schedule": tuple(one for one in Schedule if one is not Schedule.REDUCE_ON_PLATEAU),
        "lora.modules_to_save": ((),),
        "launch.strategy": (Strategy.SINGLE,),
    },
    BackendName.UNSLOTH: {
        "quantization": (None, Quantization.NF4),
        "hyperparameters.optimizer": (
            Optimizer.ADAMW,
            Optimizer.SGD,
            Optimizer.ADAMW_8BIT,
            Optimizer.PAGED_ADAMW_8BIT,
            Optimizer.ADAFACTOR,
        ),
        "hyperparameters.schedule": tuple(one for one in Schedule if one is not Schedule.REDUCE_ON_PLATEAU),
        "hyperparameters.precision": (Precision.AUTO, Precision.FP32, Precision.BF16),
        "lora.modules_to_save": ((),),
    },
    BackendName.AXOLOTL: {
        "quantization": (None, Quantization.NF4),
        "hyperparameters.optimizer": (
            Optimizer.ADAMW,
            Optimizer.SGD,
            Optimizer.ADAMW_8BIT,
            Optimizer.PAGED_ADAMW_8BIT,
            Optimizer.ADAFACTOR,
            Optimizer.LION,
            Optimizer.ADEMAMIX,
        ),
        "hyperparameters.schedule": (
            Schedule.LINEAR,
            Schedule.COSINE,
            Schedule.COSINE_WITH_RESTARTS,
            Schedule.CONSTANT,
            Schedule.CONSTANT_WITH_WARMUP,
            Schedule.POLYNOMIAL,
            Schedule.INVERSE_SQRT,
        ),
        "hyperparameters.precision": (Precision.AUTO, Precision.FP32, Precision.BF16),
    },
    BackendName.DEEPSPEED: {
        "quantization": (None,),
        "hyperparameters.optimizer": (Optimizer.ADAMW,),
        "hyperparameters.schedule": tuple(one for one in Schedule if one is not Schedule.REDUCE_ON_PLATEAU),
        "hyperparameters.precision": (Precision.AUTO, Precision.FP32, Precision.BF16),
    },
    BackendName.LLAMACPP: {
        "quantization": (None, Quantization.GGUF),
        "hyperparameters.optimizer": (Optimizer.ADAMW, Optimizer.SGD),
        "hyperparameters.schedule": (Schedule.LINEAR, Schedule.COSINE, Schedule.CONSTANT),
        "hyperparameters.precision": (Precision.AUTO, Precision.FP32),
        "hyperparameters.max_steps": (None,),
        "hyperparameters.gradient_accumulation": (1,),
        "launch.strategy": (Strategy.SINGLE,),
    },
}

UNREAD: dict[BackendName, tuple[str, ...]] = {
    BackendName.LLAMACPP: (
        "batch_size", "warmup_ratio", "max_grad_norm", "gradient_checkpointing", "seed", "save_steps",
    ),
}  # fmt: skip
"""Hyperparameters that a tool has no option for, so that only their default is accepted."""


def said(value: object) -> str:
    return "none" if value in (None, ()) else str(value)


def not_carried_out(config: TrainerConfig) -> list[dict[str, object]]:
    """{setting, value, do} of each setting that the job's backend does not take."""
    found = [
        (setting, value_at(config, setting), allowed)
        for setting, allowed in SETTINGS.get(config.backend, {}).items()
        if value_at(config, setting) not in allowed
    ]
    epochs = config.hyperparameters.epochs
    if config.backend is BackendName.LLAMACPP and epochs is not None and not float(epochs).is_integer():
        found.append(("hyperparameters.epochs", epochs, ("a whole number",)))
    refused: list[dict[str, object]] = [
        {
            "setting": setting,
            "name": setting.rpartition(".")[2],
            "value": said(value),
            "do": f"Use {listed(map(said, ok))}, or",
        }
        for setting, value, ok in found
    ]
    return [*refused, *without_option(config)]


def without_option(config: TrainerConfig) -> list[dict[str, object]]:
    """The same of each hyperparameter that was changed and that the backend's tool has no option for."""
    usual = Hyperparameters()
    return [
        {
            "setting": f"hyperparameters.{name}",
            "name": "option",
            "value": f"for {name}",
            "do": f"Leave {name} out, or use",
        }
        for name in UNREAD.get(config.backend, ())
        if getattr(config.hyperparameters, name) != getattr(usual, name)
    ]


def on(name: BackendName) -> When:
    def when(config: TrainerConfig, _: NodeView) -> Hits:
        return not_carried_out(config) if config.backend is name else False

    return when


TOOL_ROWS = tuple(
    Row(
        f"R-{name.value.upper()}-SETTING", "trainer", "config.{setting}", on(name),
        f"{tool} has no {{name}} {{value}}.", "{do} another backend.",
    )
    for name, tool in (
        (BackendName.MLX, "mlx-lm"), (BackendName.LLAMACPP, "llama-finetune"), (BackendName.UNSLOTH, "unsloth"),
        (BackendName.AXOLOTL, "axolotl"), (BackendName.DEEPSPEED, "The deepspeed backend"),
    )
)  # fmt: skip

BUILT_IN: dict[str, tuple[Any, ...]] = {
    "stage": (Stage.CPT, Stage.SFT, Stage.DPO, Stage.REWARD),
    "method": tuple(method for method in Method if method is not Method.QLORA),
    "hyperparameters.optimizer": (Optimizer.ADAMW, Optimizer.SGD, Optimizer.ADAFACTOR),
    "hyperparameters.schedule": (
        Schedule.LINEAR, Schedule.COSINE, Schedule.CONSTANT, Schedule.CONSTANT_WITH_WARMUP,
    ),
    "hyperparameters.precision": (Precision.AUTO, Precision.FP32),
    "preference.loss": (PreferenceLoss.SIGMOID, PreferenceLoss.HINGE, PreferenceLoss.IPO),
}  # fmt: skip
"""Setting below `config` -> what the script that comes with the script backend carries out."""


def beyond_the_built_in(config: TrainerConfig) -> list[dict[str, object]]:
    """{setting, value, allowed} of each setting that the built-in script does not carry out."""
    return [
        {"setting": setting, "value": value_at(config, setting), "allowed": listed(allowed)}
        for setting, allowed in BUILT_IN.items()
        if value_at(config, setting) not in allowed
    ]


def lacks(config: TrainerConfig, _: NodeView) -> Hits:
    own = config.launch.script is not None
    return False if own or config.backend is not BackendName.SCRIPT else beyond_the_built_in(config)


def switched_off(config: TrainerConfig, at: NodeView) -> Hits:
    facts = at.facts.backends
    why = None if facts is None else facts.get(BackendName.SCRIPT, "This version does not have it.")
    return config.backend is BackendName.SCRIPT and why is not None and {"why": why}


SCRIPT_ROWS = (
    Row(
        "R-SCRIPT-BUILTIN", "trainer", "config.{setting}", lacks,
        "The built-in training script does not carry out {value}.",
        "Use {allowed}, or name a script of your own in launch.script.",
    ),
    Row(
        "R-SCRIPT-UNUSED", "trainer", "config.launch.script",
        lambda config, _: config.launch.script is not None and config.backend is not BackendName.SCRIPT,
        "The {config.backend} backend runs no script; the template {config.launch.script!r} would be ignored.",
        "Remove launch.script, or use backend script.",
    ),
    Row(
        "R-SCRIPT-OFF", "trainer", "config.backend", switched_off,
        "Training scripts do not run here: {why}",
        "Use another backend, or run the script of `trainyard eject` by hand.", scope="run",
    ),
)  # fmt: skip
"""What a chain may ask of a script: a chain is data, a script is code."""
