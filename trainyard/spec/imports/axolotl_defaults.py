"""Defaults of Axolotl."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.spec.imports.defaults import Absent, choose_by_stage, has_adapter, has_loss, is_stage, require_key
from trainyard.spec.imports.keys import Config
from trainyard.spec.imports.shared_keys import HYPER

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
