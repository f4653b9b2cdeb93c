"""A trainer and its data source as a config of Axolotl or LLaMA-Factory: our setting -> their key.

A setting that differs from its default and that the tool has no key for is a note; a stage or method that the tool does
not have is refused. What was imported and exported again trains the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from trainyard.errors import Reason, Refused
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.methods import DEFAULT_INIT, LOFTQ, FreezeSettings, MethodSettings
from trainyard.spec.axes.stages import StageSettings
from trainyard.spec.model_schema import flatten_settings
from trainyard.spec.nodes import DataSourceConfig, SourceSet
from trainyard.spec.training import EvalSettings, TrainerConfig

Keys = dict[str, Any]
Write = Callable[[Any], Keys]
HYPER = "hyperparameters."


@dataclass(frozen=True)
class Exporter:
    """Exporter to one tool."""

    title: str
    settings: Mapping[str, Write]
    """Our setting -> keys."""
    stage: Callable[[StageSettings], Keys | None]
    method: Callable[[MethodSettings, str | None], Keys | None]
    source: Callable[[SourceSet, str], Keys]
    always: Mapping[str, object]
    """Keys that keep the tool's own defaults from changing a number."""


@dataclass(frozen=True)
class ExportedConfig:
    value: Keys
    notes: tuple[str, ...]


def write_key(name: str) -> Write:
    return lambda value: {name: list(value) if isinstance(value, tuple) else value}


def write_word(name: str, names: JsonMapping) -> Write:
    """Return our word as theirs; nothing where they have none."""
    return lambda value: {name: names[str(value)]} if str(value) in names else {}


def modules(name: str, everything: Keys) -> Write:
    return lambda value: (
        everything if value == "all-linear" else {name: list(value)} if not isinstance(value, str) else {}
    )


def write_folder(name: str) -> Write:
    """Return the folder of checkpoints, where it is one of this machine."""
    return lambda value: {name: unquote(value.removeprefix("file:"))} if value.startswith("file:") else {}


def pissa_keys(init: str) -> Keys:
    """PiSSA in LLaMA-Factory's keys, with the adapter converted at the end; it has no LoftQ that can be named."""
    if init in (DEFAULT_INIT, LOFTQ):
        return {}
    iterations = int(init.rpartition("_")[2]) if init != "pissa" else -1
    return {"pissa_init": True, "pissa_iter": iterations, "pissa_convert": True}


SCHEDULES = {
    name: name for name in ("linear", "cosine", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt",
                         "cosine_with_restarts")
}  # fmt: skip
OPTIMIZERS = {
    "adamw": "adamw_torch", "sgd": "sgd", "adafactor": "adafactor", "paged_adamw_8bit": "paged_adamw_8bit",
    "lion": "lion_32bit", "ademamix": "ademamix",
}  # fmt: skip
SHARED: Mapping[str, Write] = {
    f"{HYPER}learning_rate": write_key("learning_rate"),
    f"{HYPER}gradient_accumulation": write_key("gradient_accumulation_steps"),
    f"{HYPER}warmup_ratio": write_key("warmup_ratio"),
    f"{HYPER}warmup_steps": write_key("warmup_steps"),
    f"{HYPER}weight_decay": write_key("weight_decay"),
    f"{HYPER}max_grad_norm": write_key("max_grad_norm"),
    f"{HYPER}max_steps": write_key("max_steps"),
    f"{HYPER}seed": write_key("seed"),
    f"{HYPER}save_steps": write_key("save_steps"),
    f"{HYPER}precision": lambda value: {"bf16": value == "bf16", "fp16": value == "fp16"} if value != "auto" else {},
    "engine.keep_checkpoints": write_key("save_total_limit"),
    "engine.mirror": write_folder("output_dir"),
}
AXOLOTL: Mapping[str, Write] = {
    **SHARED,
    "base_model": write_key("base_model"),
    f"{HYPER}precision": lambda value: {
        "bf16": "auto" if value == "auto" else value == "bf16", "fp16": value == "fp16"
    },
    f"{HYPER}batch_size": write_key("micro_batch_size"),
    f"{HYPER}epochs": write_key("num_epochs"),
    f"{HYPER}max_length": write_key("sequence_len"),
    f"{HYPER}schedule": write_word("lr_scheduler", SCHEDULES | {"one_cycle": "one_cycle"}),
    f"{HYPER}optimizer": write_word("optimizer", OPTIMIZERS | {"adamw_8bit": "adamw_bnb_8bit", "muon": "muon"}),
    f"{HYPER}gradient_checkpointing": write_key("gradient_checkpointing"),
    "method.rank": write_key("lora_r"),
    "method.alpha": lambda value: {"lora_alpha": int(value)} if float(value).is_integer() else {},
    "method.dropout": write_key("lora_dropout"),
    "method.target_modules": modules("lora_target_modules", {"lora_target_linear": True}),
    "method.modules_to_save": write_key("lora_modules_to_save"),
    "method.layers": write_key("peft_layers_to_transform"),
    "method.rslora": write_key("peft_use_rslora"),
    "method.ratio": write_key("loraplus_lr_ratio"),
    "stage.beta": write_key("rl_beta"),
    "stage.label_smoothing": write_key("dpo_label_smoothing"),
    "stage.gamma": write_key("simpo_gamma"),
    "stage.desirable_weight": write_key("kto_desirable_weight"),
    "stage.undesirable_weight": write_key("kto_undesirable_weight"),
    "stage.centering": write_key("center_rewards_coefficient"),
    "stage.neftune_alpha": write_key("neftune_noise_alpha"),
    "method.init": write_key("peft_init_lora_weights"),
    "method.blocks": write_key("lisa_n_layers"),
    "method.interval": write_key("lisa_step_interval"),
    "added_tokens": write_key("tokens"),
    "engine.batching": lambda value: {"sample_packing": value == "packed"},
    "engine.attention": write_word("attn_implementation", {"fa2": "flash_attention_2", "fa3": "flash_attention_3",
                                                     "sdpa": "sdpa", "eager": "eager"}),
    "engine.head": write_word("liger_fused_linear_cross_entropy", {"liger": True}),
    "engine.kernels": lambda value: (
        dict.fromkeys(("liger_rms_norm", "liger_rope", "liger_glu_activation"), True) if value == "liger" else {}
    ),
    "engine.trackers": lambda value: {"use_wandb": True} if tuple(value) == ("wandb",) else {},
    "eval.share": write_key("val_set_size"),
    "eval.patience": write_key("early_stopping_patience"),
}  # fmt: skip
LLAMAFACTORY: Mapping[str, Write] = {
    **SHARED,
    "base_model": write_key("model_name_or_path"),
    f"{HYPER}batch_size": write_key("per_device_train_batch_size"),
    f"{HYPER}epochs": write_key("num_train_epochs"),
    f"{HYPER}max_length": write_key("cutoff_len"),
    f"{HYPER}schedule": write_word("lr_scheduler_type", SCHEDULES | {"wsd": "warmup_stable_decay"}),
    f"{HYPER}optimizer": lambda value: (
        {f"use_{value}": True} if str(value) in ("galore", "muon") else
        write_word("optim", OPTIMIZERS | {"adamw_8bit": "adamw_bnb_8bit"})(value)
    ),
    f"{HYPER}gradient_checkpointing": lambda value: {"disable_gradient_checkpointing": not value},
    "method.rank": write_key("lora_rank"),
    "method.alpha": lambda value: {"lora_alpha": int(value)} if float(value).is_integer() else {},
    "method.dropout": write_key("lora_dropout"),
    "method.target_modules": lambda value: (
        {"lora_target": "all"} if value == "all-linear" else
        {} if isinstance(value, str) else {"lora_target": ",".join(value)}
    ),
    "method.modules_to_save": lambda value: {"additional_target": ",".join(value)},
    "method.rslora": write_key("use_rslora"),
    "method.ratio": write_key("loraplus_lr_ratio"),
    "method.blocks": write_key("freeze_trainable_layers"),
    "method.block_size": write_key("oft_block_size"),
    "stage.beta": write_key("pref_beta"),
    "stage.label_smoothing": write_key("dpo_label_smoothing"),
    "stage.gamma": write_key("simpo_gamma"),
    "stage.loss": write_key("pref_loss"),
    "stage.desirable_weight": write_key("kto_chosen_weight"),
    "stage.undesirable_weight": write_key("kto_rejected_weight"),
    "stage.neftune_alpha": write_key("neftune_noise_alpha"),
    "stage.turns": lambda value: {"mask_history": value == "last"},
    "method.init": pissa_keys,
    "added_tokens": lambda value: {"add_tokens": ",".join(value), "resize_vocab": True},
    "engine.batching": lambda value: {"packing": value == "packed", "neat_packing": value == "packed"},
    "engine.attention": write_word("flash_attn", {"fa2": "fa2", "fa3": "fa3", "sdpa": "sdpa", "eager": "disabled"}),
    "engine.head": write_word("enable_liger_kernel", {"liger": True}),
    "engine.kernels": write_word("enable_liger_kernel", {"liger": True}),
    "engine.trackers": lambda value: {"report_to": ",".join(value)} if value else {},
    "eval.share": write_key("val_size"),
}  # fmt: skip


def axolotl_stage(stage: StageSettings) -> Keys | None:
    if stage.type == "dpo":
        losses = {"sigmoid": "dpo", "ipo": "ipo", "orpo": "orpo", "simpo": "simpo"}
        loss = str(getattr(stage, "loss", "sigmoid"))
        alone: Keys = {"cpo_alpha": 0.0} if loss == "simpo" else {}  # by default axolotl adds CPO's loss
        return {"rl": losses[loss], **alone} if loss in losses else None
    keys_by_stage: dict[str, Keys] = {
        "sft": {},
        "cpt": {},
        "kto": {"rl": "kto"},
        "reward": {"reward_model": True, "num_labels": 1},
    }
    return keys_by_stage.get(stage.type.value)


def axolotl_method(method: MethodSettings, quantization: str | None) -> Keys | None:
    if isinstance(method, FreezeSettings) and method.interval is not None:
        return {}
    keys_by_stage: dict[str, Keys] = {
        "full": {}, "lora": {"adapter": "lora"}, "lora_plus": {"adapter": "lora"},
        "dora": {"adapter": "lora", "peft_use_dora": True},
    }  # fmt: skip
    if method.type == "qlora" and quantization in (None, "nf4"):
        return {"adapter": "qlora", "load_in_4bit": True}
    if method.type == "qlora" and quantization == "int8":
        return {"adapter": "lora", "load_in_8bit": True}
    return keys_by_stage.get(method.type.value)


def axolotl_source(source: SourceSet, stage: str) -> Keys:
    kinds = {"alpaca": "alpaca", "text": "completion", "auto": "chat_template"}
    kind = "completion" if stage == "cpt" else kinds.get(source.format.value, "chat_template")
    hub: Keys = {} if source.hub is None else {"split": source.hub.split, "revision": source.hub.revision}
    hub |= {} if source.hub is None or source.hub.config is None else {"name": source.hub.config}
    address = source.hub.name if source.hub is not None else source.path or source.url
    entry: Keys = {"path": address, **hub, "type": f"{kind}.default" if stage == "dpo" else kind}
    if (source.path or "").endswith((".jsonl", ".json")):
        entry |= {"ds_type": "json"}
    return {"datasets": [entry | ({"data_files": list(source.include)} if source.include else {})]}


def llamafactory_stage(stage: StageSettings) -> Keys | None:
    stages = {"sft": "sft", "cpt": "pt", "dpo": "dpo", "kto": "kto", "reward": "rm"}
    return {"stage": stages[stage.type.value], "do_train": True} if stage.type.value in stages else None


def llamafactory_method(method: MethodSettings, quantization: str | None) -> Keys | None:
    methods = {"full": "full", "lora": "lora", "lora_plus": "lora", "dora": "lora", "qlora": "lora", "freeze": "freeze",
             "oft": "oft"}  # fmt: skip
    keys: Keys = {"finetuning_type": methods[method.type.value]}
    bits = {None: 4, "nf4": 4, "fp4": 4, "int8": 8}
    if method.type == "qlora":
        if quantization not in bits:
            return None
        keys |= {"quantization_bit": bits[quantization]}
    return keys | ({"use_dora": True} if method.type == "dora" else {})


def llamafactory_source(source: SourceSet, _stage: str) -> Keys:
    """Return its data sets are names in `dataset_info.json`, which is next to the file."""
    whole = source.path or source.url or ""
    above, _, name = whole.rpartition("/")
    keys: Keys = {"dataset": name.partition(".")[0], "dataset_dir": above or "."}
    return keys | ({"max_samples": source.max_rows} if source.max_rows else {})


EXPORTERS: Mapping[str, Exporter] = {
    "axolotl": Exporter(
        title="Axolotl", settings=AXOLOTL, stage=axolotl_stage, method=axolotl_method, source=axolotl_source,
        always={"val_set_size": 0, "train_on_inputs": False, "logging_steps": 1, "output_dir": "./outputs"},
    ),
    "llamafactory": Exporter(
        title="LLaMA-Factory", settings=LLAMAFACTORY, stage=llamafactory_stage, method=llamafactory_method,
        source=llamafactory_source, always={"logging_steps": 1, "output_dir": "saves", "overwrite_output_dir": False},
    ),
}  # fmt: skip
QUIET = ("stage.type", "method.type", "method.profile", "quantization", "backend", "device", "reuse")
"""Settings that are said otherwise, or that no other tool needs."""


def export_trainer(trainer: TrainerConfig, source: DataSourceConfig | None, tool: str) -> ExportedConfig:
    """Return the config of a resolved trainer. Raises `Refused` (`E-EXPORT`) for a stage or method that it does not
    have.
    """
    exporter = EXPORTERS[tool]
    parts = {
        "stage": (trainer.stage, exporter.stage(trainer.stage)),
        "method": (
            trainer.method,
            exporter.method(trainer.method, trainer.quantization and trainer.quantization.value),
        ),
    }
    reasons = [
        Reason(
            "E-EXPORT", None, f"config.{axis}", f"{exporter.title} has no {axis} {value} with these settings.",
            f"Use another {axis}, or train it here.",
        )
        for axis, (value, keys) in parts.items() if keys is None
    ]  # fmt: skip
    if reasons:
        raise Refused(reasons)
    value, notes = dict(exporter.always), []
    for _, keys in parts.values():
        value |= keys or {}
    for setting, setting_value in flatten_settings(trainer.model_dump(mode="json", exclude={"extra"})).items():
        if setting_value in (None, []) or setting in QUIET or (setting == "stage.loss" and tool == "axolotl"):
            continue
        keys = exporter.settings[setting](setting_value) if setting in exporter.settings else {}
        value |= keys
        if not keys and not is_default(trainer, setting, setting_value):
            notes.append(f"{setting} {setting_value!r} has no key in {exporter.title}.")
    if "warmup_steps" in value:
        value.pop("warmup_ratio", None)
    extra = trainer.extra or {}
    if extra and tool != trainer.backend.value:
        notes += [f"extra.{name} is a key of {trainer.backend}." for name in extra]
        extra = {}
    return ExportedConfig({**value, **extra, **source_keys(source, exporter, trainer, notes)}, tuple(notes))


def source_keys(
    source: DataSourceConfig | None, exporter: Exporter, trainer: TrainerConfig, notes: list[str]
) -> Keys:  # fmt: skip
    sets = [] if source is None else list(source.sets.values()) or [source.single()]
    if not sets:
        notes.append("The rows are made by the chain: run it, and name their file as the data set.")
        return {}
    if len(sets) > 1:
        notes.append("The source has several sets; the first is written.")
    if exporter.title == "LLaMA-Factory":
        notes.append("Its data sets are named in dataset_info.json: add the file there, with its columns.")
    return exporter.source(sets[0], trainer.stage.type.value)


def is_default(trainer: TrainerConfig, setting: str, value: Any) -> bool:
    usual = flatten_settings(TrainerConfig().model_dump(mode="json"))
    stage = flatten_settings({"stage": trainer.stage.type.settings().model_dump(mode="json")})
    method = flatten_settings({"method": trainer.method.type.settings().model_dump(mode="json")})
    evaluation = flatten_settings({"eval": EvalSettings().model_dump(mode="json")})
    return bool({**usual, **stage, **method, **evaluation}.get(setting) == value)
