"""Defaults of a tool: a value that is written into the chain, or a refusal.

A chain has defaults of its own, so silence there is not silence here: an `alpha` that is left out is twice the rank for
one tool and 16 for another. Each tool has a table of `Absent` rows. A row's value is a constant or is computed from the
config and from the settings that are known so far, as the tool computes it.

What Axolotl does where its config leaves a key out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainyard.json_types import JsonObject
from trainyard.spec.imports.keys import Config, KeyAnswer, reject
from trainyard.spec.imports.shared_keys import HYPER

Settings = Mapping[str, Any]
Computed = Callable[[Config, Settings], Any]
TARGETS_OF_FAMILY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "stablelm", "opt", "gptj"),
        ("q_proj", "v_proj"),
    ),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "gpt2": ("c_attn",),
    "gpt_bigcode": ("c_attn",),
    **dict.fromkeys(("gpt_neox", "bloom", "falcon"), ("query_key_value",)),
}
"""`model_type` of a base -> the modules that PEFT adapts where a config names none."""
FAMILY_BY_NAME: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (r"tinyllama|smollm2|llama-?2-|llama-?3(\.[123])?-(?!.*vision)", "llama"),
        (r"mixtral", "mixtral"),
        (r"mistral-7b|mistral-nemo", "mistral"),
        (r"qwen2(\.5)?-(math-|coder-)?[\d.]+b(?!.*a\d)", "qwen2"),
        (r"qwen3-(0\.6|1\.7|4|8|14|32)b", "qwen3"),
        (r"gemma-3-(270m|1b)", "gemma3_text"),
        (r"gemma-2-", "gemma2"),
        (r"gemma-(2b|7b)", "gemma"),
        (r"\bphi-(1|1_5|2)$", "phi"),
        (r"\bgpt2(-|$)", "gpt2"),
        (r"pythia|gpt-neox", "gpt_neox"),
        (r"bloom", "bloom"),
        (r"falcon-(7b|40b)", "falcon"),
        (r"\bopt-[\d.]+[mb]", "opt"),
    )
)
"""Part of a base's name -> its `model_type`, for bases whose config.json is not here."""


@dataclass(frozen=True)
class Absent:
    """Default of a tool for a missing key."""

    key: str
    setting: str
    value: Any
    """A constant, a function of the config and of the settings so far, or the refusal."""
    because: str = ""
    unless: tuple[str, ...] = ()
    """Our settings next to which the key says nothing."""
    when: Computed | None = None
    """Whether the key matters in a config; it always does where this is None."""

    def answer(self, config: Config, settings: Settings) -> Any:
        """Return the default, or a refusal as a `KeyAnswer`; None where the key says nothing in this config."""
        if self.when is not None and not self.when(config, settings):
            return None
        return self.value(config, settings) if callable(self.value) else self.value


def require_key(key: str, setting: str, because: str, do: str, when: Computed | None = None) -> Absent:
    """Return a key without which the tool trains what a chain cannot, or does not train at all."""
    return Absent(key, setting, reject(because, do), when=when)


def replace_values(rows: Iterable[Absent], **values: object) -> tuple[Absent, ...]:
    """Return rows with other values for some keys."""
    return tuple(replace(row, value=values[row.key]) if row.key in values else row for row in rows)


def add_group(rows: Iterable[Absent], group: str) -> tuple[Absent, ...]:
    """Return the rows of a tool that has its keys in a group: `training.learning_rate`."""
    return tuple(replace(row, key=f"{group}.{row.key}") for row in rows)


def is_absent(row: Absent, config: Config, settings: Settings) -> bool:
    """Return whether nothing says what a row is about: neither the config, nor `--set`, nor a key that replaces it."""
    if row.setting in settings or any(key in settings for key in row.unless):
        return False
    if any(key == row.setting or key.startswith(f"{row.setting}.") for key in config.overrides):
        return False
    return not isinstance(row.value, KeyAnswer) or config.get(row.key) is None


def read_absent(
    rows: Iterable[Absent], config: Config, settings: Settings
) -> tuple[dict[str, object], list[tuple[Absent, KeyAnswer | object]]]:
    """Return the settings that a tool's own defaults give, and the rows that were used with their answers."""
    defaults: JsonObject = {}
    used: list[tuple[Absent, object]] = []
    for row in rows:
        all_settings = {**defaults, **settings}
        if not is_absent(row, config, all_settings) or (answer := row.answer(config, all_settings)) is None:
            continue
        used.append((row, answer))
        if not isinstance(answer, KeyAnswer):
            defaults[row.setting] = answer
    return defaults, used


# Values that are computed


def is_stage(*stages: str) -> Computed:
    return lambda _config, settings: settings.get("stage.type") in stages


def has_loss(name: str) -> Computed:
    return lambda _config, settings: settings.get("stage.loss") == name


def has_adapter(_config: Config, settings: Settings) -> bool:
    return settings.get("method.type") in ("lora", "qlora", "dora", "lora_plus")


def choose_by_stage(values: Mapping[str, object]) -> Computed:
    """Return the value of the stage; None where the stage has none."""
    return lambda _config, settings: values.get(str(settings.get("stage.type")))


def double_rank(_config: Config, settings: Settings) -> object:
    return 2 * settings["method.rank"]


def targets_of_family(config: Config, settings: Settings) -> object:
    """Return the modules that PEFT chooses by the base's family; a refusal for a base whose family is not known
    here.
    """
    base = str(settings.get("base_model", ""))
    family = config.family or next((word for mark, word in FAMILY_BY_NAME if mark.search(base.lower())), None)
    if modules := TARGETS_OF_FAMILY.get(family or ""):
        return list(modules)
    return reject(
        f"PEFT chooses the modules by the family of the base, and that of {base or 'no base'} is not known here.",
        'Name them: --set \'method.target_modules=["q_proj", "v_proj"]\', or all-linear.',
    )


ARGUMENT_DEFAULTS: tuple[Absent, ...] = (
    Absent("num_train_epochs", f"{HYPER}epochs", 3.0, unless=(f"{HYPER}max_steps",)),
    Absent("per_device_train_batch_size", f"{HYPER}batch_size", 8),
    Absent("gradient_accumulation_steps", f"{HYPER}gradient_accumulation", 1),
    Absent("learning_rate", f"{HYPER}learning_rate", 5e-5),
    Absent("lr_scheduler_type", f"{HYPER}schedule", "linear"),
    Absent("warmup_steps", f"{HYPER}warmup_ratio", 0.0, unless=(f"{HYPER}warmup_steps",)),
    Absent("optim", f"{HYPER}optimizer", "adamw"),
    Absent("weight_decay", f"{HYPER}weight_decay", 0.0),
    Absent("max_grad_norm", f"{HYPER}max_grad_norm", 1.0),
    Absent("seed", f"{HYPER}seed", 42),
    Absent("gradient_checkpointing", f"{HYPER}gradient_checkpointing", False),
    Absent("bf16", f"{HYPER}precision", "auto", "The base computes in the format that it has, as `auto` does."),
)
"""transformers.TrainingArguments."""
LORA_DEFAULTS: tuple[Absent, ...] = (
    Absent("lora_r", "method.rank", 8),
    Absent("lora_alpha", "method.alpha", 8),
    Absent("lora_dropout", "method.dropout", 0.0),
    Absent("lora_target_modules", "method.target_modules", targets_of_family, when=has_adapter),
)
"""peft.LoraConfig."""
PREFERENCE_DEFAULTS: tuple[Absent, ...] = (
    Absent("beta", "stage.beta", choose_by_stage({"dpo": 0.1, "kto": 0.1, "grpo": 0.0})),
    Absent("label_smoothing", "stage.label_smoothing", 0.0, when=is_stage("dpo")),
    Absent("desirable_weight", "stage.desirable_weight", 1.0),
    Absent("undesirable_weight", "stage.undesirable_weight", 1.0),
    Absent("center_rewards_coefficient", "stage.centering", 0.0),
)
"""TRL's stages on pairs and marks."""
ROLLOUT_DEFAULTS: tuple[Absent, ...] = (
    Absent("num_generations", "stage.num_generations", 8, when=is_stage("grpo")),
    Absent("max_completion_length", "stage.max_completion_length", 512, when=is_stage("grpo")),
    Absent("temperature", "stage.temperature", 1.0, when=is_stage("grpo")),
    Absent("num_iterations", "stage.num_iterations", 1, when=is_stage("grpo")),
    Absent("epsilon", "stage.epsilon", 0.2, when=is_stage("grpo")),
    Absent("scale_rewards", "stage.scale_rewards", "group", when=is_stage("grpo")),
)
"""TRL's GRPO."""


WARMUP = "Axolotl's own, which the file leaves out; there it is at most 100 steps."


def steps_of_three_percent(_config: Config, settings: Mapping[str, object]) -> int | None:
    """Axolotl's warm-up of a training whose number of steps is known: 3 %, at most 100."""
    steps = settings.get(f"{HYPER}max_steps")
    return min(int(0.03 * steps), 100) if isinstance(steps, int) else None


def precision_of_flags(config: Config, _settings: Mapping[str, object]) -> str:
    """`bf16` is auto where it is left out, and fp32 where both are false."""
    return "auto" if config.get("bf16", config.get("bfloat16")) is None else "fp32"


def names_no_module(config: Config, settings: Mapping[str, object]) -> bool:
    return has_adapter(config, settings) and not config.get("lora_target_parameters")


DEFAULTS: tuple[Absent, ...] = (
    Absent("num_epochs", f"{HYPER}epochs", 1.0, unless=(f"{HYPER}max_steps",)),
    Absent("micro_batch_size", f"{HYPER}batch_size", 1),
    Absent("gradient_accumulation_steps", f"{HYPER}gradient_accumulation", 1),
    require_key(
        "learning_rate",
        f"{HYPER}learning_rate",
        "Axolotl has no default of it.",
        "Write it, or --set hyperparameters.learning_rate=2e-4.",
    ),
    Absent("sequence_len", f"{HYPER}max_length", 512),
    Absent("lr_scheduler", f"{HYPER}schedule", "cosine"),
    Absent("warmup_steps", f"{HYPER}warmup_steps", steps_of_three_percent, unless=(f"{HYPER}warmup_ratio",)),
    Absent("warmup_ratio", f"{HYPER}warmup_ratio", 0.03, WARMUP, unless=(f"{HYPER}warmup_steps",)),
    Absent("optimizer", f"{HYPER}optimizer", "adamw"),
    Absent("weight_decay", f"{HYPER}weight_decay", 0.0),
    Absent("max_grad_norm", f"{HYPER}max_grad_norm", 1.0),
    Absent("seed", f"{HYPER}seed", 42),
    Absent("gradient_checkpointing", f"{HYPER}gradient_checkpointing", False),
    Absent("bf16", f"{HYPER}precision", precision_of_flags),
    Absent("sample_packing", "engine.batching", "padded"),
    require_key(
        "lora_r", "method.rank", "Axolotl has no default of it.", "Write it, or --set method.rank=16.", has_adapter
    ),
    require_key(
        "lora_alpha",
        "method.alpha",
        "Axolotl has no default of it.",
        "Write it, or --set method.alpha=32.",
        has_adapter,
    ),
    Absent("lora_dropout", "method.dropout", 0.0),
    require_key(
        "lora_target_linear",
        "method.target_modules",
        "Axolotl adapts no module then.",
        "Write lora_target_linear: true, or --set method.target_modules=all-linear.",
        names_no_module,
    ),
    Absent("rl_beta", "stage.beta", choose_by_stage({"dpo": 0.1, "kto": 0.1, "grpo": 0.0})),
    Absent("simpo_gamma", "stage.gamma", 0.5, when=has_loss("simpo")),
    require_key(
        "cpo_alpha",
        "stage",
        "Axolotl adds CPO's loss of the chosen answer to SimPO, with weight 1.",
        "Write cpo_alpha: 0.0 for SimPO alone.",
        has_loss("simpo"),
    ),
    Absent("dpo_label_smoothing", "stage.label_smoothing", 0.0, when=has_loss("sigmoid")),
    Absent("kto_desirable_weight", "stage.desirable_weight", 1.0),
    Absent("kto_undesirable_weight", "stage.undesirable_weight", 1.0),
    Absent("center_rewards_coefficient", "stage.centering", 0.0),
    Absent("trl.num_generations", "stage.num_generations", 8, when=is_stage("grpo")),
    require_key(
        "trl.max_completion_length",
        "stage.max_completion_length",
        "Axolotl draws without a bound then.",
        "Write it, or --set stage.max_completion_length=512.",
        is_stage("grpo"),
    ),
    Absent("trl.temperature", "stage.temperature", 1.0, when=is_stage("grpo")),
    Absent("trl.num_iterations", "stage.num_iterations", 1, when=is_stage("grpo")),
    Absent("trl.epsilon", "stage.epsilon", 0.2, when=is_stage("grpo")),
    Absent("trl.scale_rewards", "stage.scale_rewards", "group", when=is_stage("grpo")),
    Absent("trl.loss_type", "stage.loss", choose_by_stage({"grpo": "dapo"})),
)
