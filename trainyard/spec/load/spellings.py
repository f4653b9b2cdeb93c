"""Names of our settings and values in other tools, to suggest the right name: Hugging Face, Axolotl, LLaMA-Factory.

Only suggestions: what is read in other words is in `spec/migrate.py`. A name is looked up in lower case.

The names that a user may have meant by a word: one measure of likeness for names, files and folders.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trainyard.spec.axes.axis import Variant
from trainyard.spec.training import TrainerConfig, TrainingSettings

SPELLINGS: dict[str, str] = {
    "base_model": "model model_name model_id model_path model_name_or_path pretrained_model_name_or_path",
    "method: qlora": "load_in_4bit use_qlora",
    "method: dora": "use_dora peft_use_dora",
    "max_rows": "max_samples max_train_samples num_samples",
    "hyperparameters.epochs": "num_train_epochs num_epochs n_epochs",
    "hyperparameters.max_steps": "max_train_steps num_train_steps num_training_steps num_steps iters",
    "hyperparameters.batch_size": "per_device_train_batch_size per_device_batch_size micro_batch_size train_batch_size",
    "hyperparameters.gradient_accumulation": "gradient_accumulation_steps accumulate_grad_batches "
    "grad_accumulation_steps grad_accum",
    "hyperparameters.learning_rate": "lr peak_lr max_lr",
    "hyperparameters.schedule": "lr_scheduler_type lr_schedule scheduler scheduler_type",
    "hyperparameters.warmup_ratio: 0.03": "warmup",
    "hyperparameters.warmup_steps": "num_warmup_steps",
    "hyperparameters.optimizer": "optim optimiser",
    "hyperparameters.max_grad_norm": "gradient_clipping gradient_clip_val clip_grad_norm grad_clip",
    "hyperparameters.max_length": "max_seq_length max_seq_len max_sequence_length sequence_len cutoff_len "
    "model_max_length",
    "hyperparameters.precision": "mixed_precision torch_dtype dtype",
    "hyperparameters.precision: bf16": "bf16",
    "hyperparameters.precision: fp16": "fp16",
    "hyperparameters.gradient_checkpointing": "use_gradient_checkpointing activation_checkpointing",
    "hyperparameters.seed": "random_seed random_state data_seed",
    "hyperparameters.save_steps": "save_interval save_every checkpoint_steps",
    "method.rank": "r lora_r lora_rank",
    "method.alpha": "lora_alpha",
    "method.dropout": "lora_dropout",
    "method.target_modules": "lora_target_modules lora_target",
    "method.modules_to_save": "lora_modules_to_save additional_target",
    "method.layers": "layers_to_transform",
    "method.rslora": "use_rslora peft_use_rslora",
    "method.ratio": "loraplus_lr_ratio",
    "stage.loss": "loss_type pref_loss",
    "stage.beta": "dpo_beta pref_beta rl_beta",
    "stage.gamma": "simpo_gamma gamma_beta_ratio",
    "stage.num_generations": "group_size",
    "stage.epsilon": "clip_range cliprange",
    "stage.rewards": "reward_funcs",
    "quantization": "quantization_bit bnb_4bit_quant_type",
    "engine.attention": "attn_implementation flash_attn flash_attention",
    "engine.batching: packed": "packing sample_packing",
    "engine.keep_checkpoints": "save_total_limit",
    "engine.trackers": "report_to",
    "engine.template": "chat_template",
    "launch.processes": "num_processes nproc_per_node num_gpus n_gpus",
    "launch.strategy": "distributed_type deepspeed fsdp",
}
"""Our setting below a trainer's config, perhaps with its value -> the names that it has elsewhere, in one text."""
ELSEWHERE = {"tenant_id": "Write `tenant` at the top of the chain or job."}
"""Names of settings that are not near where they were written."""
VALUES = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adam": "adamw",
    "adamw_bnb_8bit": "adamw_8bit", "paged_adamw": "paged_adamw_8bit", "paged_adamw_32bit": "paged_adamw_8bit",
    "lion_32bit": "lion", "lion_8bit": "lion", "paged_lion_8bit": "lion", "galore_adamw": "galore",
    "ademamix_8bit": "ademamix", "warmup_stable_decay": "wsd", "reduce_lr_on_plateau": "reduce_on_plateau",
    "onecycle": "one_cycle", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "no": "fp32",
    "4bit": "nf4", "8bit": "int8", "chatml": "openai", "chat_template": "openai", "messages": "openai",
    "gpu": "cuda", "flash_attention_2": "fa2", "flash_attention_3": "fa3",
}  # fmt: skip
"""A value elsewhere -> ours."""
OURS = {name: setting for setting, names in SPELLINGS.items() for name in names.split()}


def right_name(key: str, value: Any, parent: type[BaseModel]) -> str | None:
    """Return what to write instead of a key that the model `parent` does not have; None where no other name is known.

    A setting of a trainer that was written in the wrong group is known as well.
    """
    name = key.lower()
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    if issubclass(parent, Variant) and (readers := values_with(OURS.get(name, key).rpartition(".")[2], parent)):
        return readers
    paths = [OURS[name]] if name in OURS else sorted(find_paths(key))
    visible = [here for path in paths if (here := rewrite_path(parent, path)) is not None]
    if not visible:
        if not paths or not issubclass(parent, TrainingSettings):
            return None
        return f"Write a chain: `{paths[0]}` is a setting of its trainers, and a job has none."
    if value is False and ": " in visible[0]:
        return f"Remove it; `{visible[0]}` is what switches it on."
    return f"Write {' or '.join(f'`{path}`' for path in visible)}."


def rewrite_path(parent: type[BaseModel], path: str) -> str | None:
    """Return a trainer's setting as it is written in `parent`; None where it cannot be written there or next to it."""
    setting, colon, value = path.partition(": ")
    last = setting.rpartition(".")[2]
    if last in parent.model_fields:
        return f"{last}{colon}{value}"
    group = setting.partition(".")[0]
    if issubclass(parent, TrainingSettings):
        return path if group in parent.model_fields else None
    return path if group in TrainerConfig.model_fields and any(parent in models for models in GROUPS.values()) else None


def find_paths(key: str) -> Iterator[str]:
    """Yield where a trainer has a setting of this name."""
    if key in TrainerConfig.model_fields:
        yield key
    yield from (
        f"{group}.{key}" for group, models in GROUPS.items() if any(key in model.model_fields for model in models)
    )


def values_with(setting: str, parent: type[Variant]) -> str | None:
    """Return the other values of an axis that have a setting which the variant `parent` does not have, as a
    sentence.
    """
    for axis, models in GROUPS.items():
        readers = [
            tag for model in models if parent in models and setting in model.model_fields for tag in list_tags(model)
        ]
        if readers and setting not in parent.model_fields:
            return f"`{setting}` is a setting of {axis} {', '.join(readers)}."
    return None


def groups() -> Iterator[tuple[str, tuple[type[BaseModel], ...]]]:
    """Return the groups of settings of a trainer, each with the models that it may be."""
    for name, info in TrainerConfig.model_fields.items():
        parts = (info.annotation, *typing.get_args(info.annotation))
        if models := tuple(part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)):
            yield name, models


def list_tags(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the words in `type` that pick this variant of a setting."""
    return typing.get_args(model.model_fields["type"].annotation) if "type" in model.model_fields else ()


GROUPS = dict(groups())


MOST, CUTOFF = 3, 0.6
WORSE = 0.15
"""By how much a name may be less like the word than the one that is most like it."""
MOST_ENTRIES = 1_000
"""Entries of a folder that are compared."""


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with a word, then those that are like it, as a whole or in a part between slashes."""
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(name.lower(), name)
        for part in name.lower().split("/"):
            folded.setdefault(part, name)
    lower = word.lower()
    beginning = [name for key, name in folded.items() if key.startswith(lower)]
    keys = get_close_matches(lower, folded, n=MOST, cutoff=CUTOFF)
    least = SequenceMatcher(None, keys[0], lower).ratio() - WORSE if keys else 0.0
    like = [folded[key] for key in keys if SequenceMatcher(None, key, lower).ratio() >= least]
    return list(dict.fromkeys([*beginning, *like]))[:MOST]


def nearest_paths(text: str, starts: Iterable[Path]) -> list[str]:
    """Return the paths like one that is not there: entries of its folder, as seen from the first start that has it."""
    path = Path(text)
    for start in starts:
        folder = start / path.parent
        if folder.is_dir():
            entries = (entry.name for _, entry in zip(range(MOST_ENTRIES), folder.iterdir(), strict=False))
            return [str(path.parent / name) for name in nearest(path.name, entries) if not name.startswith(".")]
    return []


def did_you_mean(names: Iterable[str], otherwise: str) -> str:
    """Return what to do: take one of these names, if there are any, or else another sentence."""
    words = " or ".join(map(repr, names))
    return f"Did you mean {words}? {otherwise}".rstrip() if words else otherwise
