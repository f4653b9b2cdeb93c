"""What a backend does not support: every limit of every backend, in a chain and for a job alike."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from tests.unit.spec.chains import get_row_name, node, reasons, source
from tests.unit.spec.test_refusals import run_names
from trainyard.spec.axes.backends import SERVICE_TARGETS, BackendName
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.axes.latent import LATENT_SETTINGS, Latent
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.rewards import EnvironmentSettings
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.compat.backends import BACKEND_ROW, backend_reasons, find_refused_settings, limits
from trainyard.spec.model_schema import ABSENT, read_setting
from trainyard.spec.training import EvalSettings, RopeScaling, ServiceSettings, TrainerConfig

VALUES: dict[str, tuple[Any, ...]] = {
    "stage": tuple(Stage),
    "method": tuple(Method),
    "device": tuple(Device),
    "quantization": (None, *Quantization),
    "adapter": ("continue", "stack", "merge"),
    "stage.loss": tuple(PreferenceLoss),
    "stage.centering": (0.0, 0.01),
    "stage.environment": (None, EnvironmentSettings(type="calculator")),
    "stage.rollouts.engine": ("native", "vllm"),
    "method.modules_to_save": ((), ("lm_head",)),
    "stage.temperature": (1.0, 0.7),
    "method.alpha": (16.0, 32.0),
    "method.dropout": (0.0, 0.1),
    "method.target_modules": (*SERVICE_TARGETS, ("q_proj",)),
    "method.layers": (None, (0,)),
    "method.rslora": (False, True),
    "service": (None, ServiceSettings(endpoint="lab")),
    "launch.on_oom": ("halve", "fail"),
    "launch.strategy": tuple(Strategy),
    "launch.launcher": ("auto", "torchrun", "accelerate", "deepspeed"),
    "launch.processes": (1, 2),
    "hyperparameters.optimizer": tuple(Optimizer),
    "hyperparameters.schedule": tuple(Schedule),
    "hyperparameters.precision": tuple(Precision),
    "hyperparameters.max_steps": (None, 3),
    "hyperparameters.gradient_accumulation": (1, 2),
    "hyperparameters.batch_size": (4, 8),
    "hyperparameters.warmup_ratio": (0.03, 0.0),
    "hyperparameters.warmup_steps": (None, 5),
    "hyperparameters.max_grad_norm": (1.0, 2.0),
    "hyperparameters.gradient_checkpointing": (False, True),
    "hyperparameters.seed": (42, 7),
    "hyperparameters.save_steps": (None, 9),
    "eval": (None, EvalSettings(), EvalSettings(set="heldout")),
    "extra": (None, "keys of a tool"),
    "stage.average": ("token", "row"),
    "stage.turns": ("all", "last"),
    "stage.neftune_alpha": (None, 5.0),
    "stage.latent": (None, LATENT_SETTINGS[Latent.PAUSE](type=Latent.PAUSE)),
    "method.init": ("default", "pissa"),
    "method.interval": (None, 5),
    "method.profile": ("platform", "peft"),
    "method.rank": (1, 2, 4, 8, 16, 32, 64),
    "hyperparameters.learning_rate": (None, 1e-3),
    "stage.label_smoothing": (0.0, 0.1),
    "hyperparameters.weight_decay": (0.0, 0.1),
    "hyperparameters.max_length": (512, 256),
    "engine.mirror": (None, "file:checkpoints"),
    "engine.template": ("auto", "chatml"),
    "engine.too_long": ("cut", "drop"),
    "engine.trackers": ((), ("tensorboard",)),
    "rope": (None, RopeScaling(type="yarn", factor=2.0)),
    "added_tokens": ((), ("<plan>",)),
}
"""Setting -> values of which some backend supports some."""


def with_setting(config: TrainerConfig, setting: str, value: Any) -> TrainerConfig:
    group, _, name = setting.rpartition(".")
    if not group:
        return config.model_copy(update={name: value.settings() if isinstance(value, Method | Stage) else value})
    changed = reduce(getattr, group.split("."), config).model_copy(update={name: value})
    return with_setting(config, group, changed)


STAGES_OF = [(backend, stage) for backend in BackendName for stage in backend.facts.stages]


@pytest.mark.parametrize(("backend", "stage"), STAGES_OF)
def test_each_value_is_supported_or_refused_by_its_setting(backend: BackendName, stage: Stage) -> None:
    usual = TrainerConfig(backend=backend, stage=stage, method=backend.facts.methods[0])
    assert find_refused_settings(usual) == {}
    for setting, allowed, _ in limits(usual):
        if read_setting(usual, setting) is ABSENT:
            continue
        assert set(allowed) - {None} <= set(VALUES[setting]), setting  # None: the default, whatever it is
        for value in VALUES[setting]:
            refused = find_refused_settings(with_setting(usual, setting, value))
            assert (setting in refused) is (value not in allowed), (setting, value)


@pytest.mark.parametrize(
    ("config", "field", "because", "instead"),
    [
        ({"backend": "trl", "stage": "ppo"}, "stage", "stage ppo: the library removed it.",
         "sft, dpo, kto, reward, grpo, or backend native."),
        ({"backend": "axolotl", "stage": "grpo", "method": "full"}, "stage",
         "axolotl backend does not support stage grpo.", "sft, dpo, kto, reward, or backend native, trl."),
        ({"backend": "trl", "method": "oft"}, "method", "trl backend does not support method oft.",
         "lora, qlora, dora, full, or backend native."),
        ({"backend": "trl", "method": "qlora", "quantization": "gptq"}, "quantization",
         "trl backend does not support quantization gptq.", "none, nf4, fp4, int8, or backend native."),
        ({"backend": "unsloth", "hyperparameters": {"precision": "fp16"}}, "hyperparameters.precision",
         "does not support precision fp16: it takes bf16 instead where the device has it.",
         "auto, fp32, bf16, or backend native, trl, axolotl, deepspeed, mlx."),
        ({"backend": "deepspeed", "device": "rocm"}, "device", "deepspeed backend does not support device rocm.",
         "auto, cpu, cuda, or backend native, trl."),
        ({"backend": "llamacpp", "method": "lora"}, "method",
         "method lora: llama-finetune trains every weight and makes no adapters.",
         "full, or backend native, trl, unsloth, axolotl, deepspeed, mlx."),
        ({"backend": "llamacpp", "method": "full", "hyperparameters": {"epochs": 1.5}}, "hyperparameters.epochs",
         "does not support epochs 1.5.", "a whole number, or backend native, trl, axolotl, deepspeed, mlx."),
        ({"backend": "axolotl", "method": {"type": "lora", "alpha": 2.5}}, "method.alpha",
         "does not support alpha 2.5.",
         "a whole number, or backend native, trl, unsloth, deepspeed, mlx."),
        ({"backend": "unsloth", "method": "qlora", "device": "cpu"}, "device",
         "does not support device cpu: method qlora has kernels for CUDA only.",
         "auto, cuda, or backend native, trl."),
        ({"backend": "trl", "adapter": "merge"}, "adapter", "does not support adapter merge.",
         "continue, or backend native."),
        ({"backend": "trl", "stage": "kto", "method": {"type": "lora", "target_modules": ("q_proj", "lm_head")}},
         "method.target_modules",
         "multiplies by the output layer itself, so an adapter on it would not learn.",
         "modules without lm_head, or backend native, axolotl."),
        ({"backend": "trl", "method": "full", "hyperparameters": {"optimizer": "lion"},
          "launch": {"strategy": "fsdp", "processes": 2}}, "hyperparameters.optimizer",
         "optimizer lion: with fsdp each process has a part of the weights.", "adamw, sgd."),
        ({"hyperparameters": {"optimizer": "muon"}, "launch": {"strategy": "fsdp_hybrid", "processes": 4}},
         "hyperparameters.optimizer", "optimizer muon: with fsdp_hybrid each process has a part of the weights.",
         "adamw, sgd, lion, schedule_free_adamw, ademamix."),
        ({"launch": {"strategy": "zero3", "processes": 2}}, "launch.strategy",
         "strategy zero3: no replica has whole gradients, which the verbs of a step need.",
         "single, ddp, zero1, zero2, fsdp_hybrid, or backend deepspeed."),
        ({"backend": "trl", "launch": {"strategy": "ddp", "processes": 2, "launcher": "deepspeed"}}, "launch.launcher",
         "does not support launcher deepspeed.", "auto, torchrun, accelerate, or backend deepspeed."),
        ({"backend": "script", "hyperparameters": {"precision": "bf16"}}, "hyperparameters.precision",
         "does not support precision bf16.",
         "auto, fp32, or backend native, trl, unsloth, axolotl, deepspeed, mlx, or a script of your own in "
         "launch.script."),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_supported_and_by_whom(
    config: dict[str, Any], field: str, because: str, instead: str
) -> None:
    (reason,) = backend_reasons(TrainerConfig.model_validate(config), "trainer")
    assert (get_row_name(reason), reason.node, reason.field) == ("backend-setting", "trainer", f"config.{field}")
    assert reason.because.endswith(because)
    assert reason.instead == f"Use {instead}"


def test_a_chain_is_refused_in_the_words_of_a_job() -> None:
    config = {"backend": "llamacpp", "method": "lora", "hyperparameters": {"epochs": 1.5, "max_steps": 3}}
    refusals = [
        reason for reason in reasons(source(), node("trainer", **config)) if get_row_name(reason) == BACKEND_ROW.name
    ]
    assert refusals == backend_reasons(TrainerConfig.model_validate(config), "trainer")
    assert [reason.field.rpartition(".")[2] for reason in refusals] == ["method", "max_steps", "epochs"]
    assert reasons(source(), node("trainer", backend="llamacpp", method="full", quantization="gguf")) == []


@pytest.mark.parametrize("backend", ["unsloth", "axolotl"])
def test_kernels_for_cuda_are_looked_for_at_run(backend: str) -> None:
    nodes = source(), node("trainer", backend=backend, method="qlora")
    assert reasons(*nodes) == []
    assert "backend-setting-here" in run_names(*nodes)


def test_a_script_of_your_own_supports_what_it_wants() -> None:
    config = {"backend": "script", "stage": "ppo", "method": "qlora", "launch": {"script": "mine"}}
    assert backend_reasons(TrainerConfig.model_validate(config)) == []
