"""Unsloth: the YAML of its command line and studio, in groups, and the flat arguments of its script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainyard.spec.imports.conversion import ConfigTool
from trainyard.spec.imports.data_sets import DataPlace
from trainyard.spec.imports.defaults import (
    Absent,
    Computed,
    is_stage,
    require_key,
)
from trainyard.spec.imports.keys import (
    Config,
    KeyAnswer,
    KeyConverter,
    Table,
    accept,
    agrees,
    assign,
    carry_setting,
    flag,
    integer,
    map_word,
    note,
    number,
    refuse,
    reject,
    repeat,
    require_text,
    steps_of_warmup,
    switch,
    to,
    unless_off,
)
from trainyard.spec.imports.shared_keys import (
    ARGUMENTS,
    HYPER,
    LORA,
    NO_IMAGES,
    TEXT_ONLY,
    checkpointing,
    dtype,
    loftq_bits,
    map_held_out,
    optimizer,
    positive,
    save_every,
    schedule,
    target_modules,
    tracker,
    trackers,
)

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROMPTS = "Unsloth learns prompts, too, unless train_on_completions is true; a chain's sft learns answers only."
PROMPTS_DO = "Write train_on_completions: true. --set stage=sft learns answers only, --set stage=cpt whole texts."
SCRIPTED = (
    "The script writes rows into Alpaca's prompt and learns all of it; a chain renders them by the base's template."
)
FORMATS = {"auto": "auto", "chatml": "openai", "sharegpt": "sharegpt"}
CHAT = "Kept for its chat window: a training draws nothing."
SAVING = "Kept for merging and exporting; `trainyard adapters convert` and a deployer do that."


def map_count(setting: str) -> KeyConverter:
    """Epochs, where 0 leaves it to max_steps."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        return assign({setting: number(value)} if value else {}, "" if value else "max_steps decides.")

    return KeyConverter(setting, convert)


def vision_part() -> KeyConverter:
    """Layers for images, which a text model does not have."""
    return accept("A text model has no such layers.")


def layers_part(name: str) -> KeyConverter:
    return agrees("Layers of the text model.", (True,), reject(
        f"Whether {name} is adapted is said by names.", "--set 'method.target_modules=[\"q_proj\", \"v_proj\"]'"),
        setting="method.target_modules")  # fmt: skip


def map_train_on() -> KeyConverter:
    return agrees("Only answers are learned.", (True,), reject(PROMPTS, PROMPTS_DO), setting="stage")


def row_format() -> KeyConverter:
    """Return how rows are written; those of Alpaca get a prompt text of their own."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value is None or value in (*FORMATS, "raw", "conversational"):
            return assign(because="In data_source.format.")
        return reject(
            f"Unsloth writes rows of {require_text(value)} into a prompt text, without the base's chat template.",
            "--set data_source.format=alpaca renders them by the base's template: another prompt.",
        )

    return KeyConverter("data_source.format", convert)


def is_studio(config: Config) -> bool:
    return bool(config.value.keys() & {"training", "lora", "data"}) or "model" in config.value


def is_script(config: Config) -> bool:
    return not is_studio(config)


def restrict_to(form: Callable[[Config], bool], when: Computed | None) -> Computed:
    """Return a row of one form of the config."""
    return lambda config, settings: form(config) and (when is None or when(config, settings))


def words_of_checkpointing() -> KeyConverter:
    plain = checkpointing()
    return KeyConverter(plain.setting, lambda value, config: plain.convert(False if value == "none" else value, config))


STUDIO: Table = {
    "model": (to("base_model", require_text), "unsloth/Qwen3-0.6B"),
    "data.dataset": (carry_setting("data_source.path", require_text), "me/rows"),
    "data.local_dataset": (carry_setting("data_source.path"), ["rows.jsonl"]),
    "data.format_type": (row_format(), "auto"),
    "training.training_type": (map_word("method.type", {"lora": None, "full": None, "lora/qlora": None}), "lora"),
    "training.max_seq_length": (to(f"{HYPER}max_length", integer), 2048),
    "training.load_in_4bit": (carry_setting("method", flag), True),
    "training.output_dir": ARGUMENTS["output_dir"],
    "training.num_epochs": (map_count(f"{HYPER}epochs"), 1),
    "training.learning_rate": (to(f"{HYPER}learning_rate", number), 2e-4),
    "training.batch_size": (to(f"{HYPER}batch_size", integer), 2),
    "training.gradient_accumulation_steps": (to(f"{HYPER}gradient_accumulation", integer), 4),
    "training.warmup_steps": (steps_of_warmup(), 5),
    "training.warmup_ratio": (to(f"{HYPER}warmup_ratio", number), 0.03),
    "training.max_steps": (positive(f"{HYPER}max_steps"), 30),
    "training.save_steps": (save_every(), 30),
    "training.eval_steps": (map_held_out("eval.steps", integer), 0),
    "training.weight_decay": (to(f"{HYPER}weight_decay", number), 0.001),
    "training.random_seed": (to(f"{HYPER}seed", integer), 3407),
    "training.packing": (switch(assign({"engine.batching": "packed"}), assign({"engine.batching": "padded"}),
                                setting="engine.batching"), False),
    "training.train_on_completions": (map_train_on(), True),
    "training.gradient_checkpointing": (words_of_checkpointing(), "unsloth"),
    "training.optim": (optimizer(), "adamw_8bit"),
    "training.lr_scheduler_type": (schedule(), "linear"),
    **{f"lora.{key}": row for key, row in LORA.items() if key != "lora_target_modules"},
    "lora.target_modules": (target_modules(), ["q_proj", "v_proj"]),
    "lora.use_dora": (carry_setting("method", flag), False),
    "lora.use_loftq": (switch(assign({"method.init": "loftq"}), setting="method.init"), True),
    "lora.vision_all_linear": (vision_part(), False),
    "lora.finetune_vision_layers": (vision_part(), True),
    "lora.finetune_language_layers": (agrees("The text model is adapted.", (True,), reject(
        "The text model is what is adapted.", "--without lora.finetune_language_layers")), True),
    "lora.finetune_attention_modules": (layers_part("attention"), True),
    "lora.finetune_mlp_modules": (layers_part("the MLP"), True),
    "logging.enable_wandb": (tracker("wandb", flagged=True), False),
    "logging.enable_tensorboard": (tracker("tensorboard", flagged=True), False),
    "logging.wandb_project": (
        unless_off("logging.enable_wandb", note("WANDB_PROJECT names it, which wandb reads.")), "mine"
    ),
    "logging.wandb_token": (note("A token does not belong into a config; WANDB_API_KEY is read."), None),
    "logging.hf_token": (note("A token does not belong into a config; HF_TOKEN is read."), None),
    "logging.tensorboard_dir": (unless_off("logging.enable_tensorboard", note("Logs are in the run's folder.")),
                                "runs"),
    "logging.log_frequency": (accept("Every step is logged."), 10),
    **repeat(note(CHAT), 1.0, "inference.temperature", "inference.top_p", "inference.top_k", "inference.min_p",
           "inference.*"),
    **repeat(refuse(TEXT_ONLY, NO_IMAGES), None, "audio_type", "audio_input"),
}  # fmt: skip
SCRIPT: Table = {
    "model_name": (to("base_model", require_text), "unsloth/llama-3-8b"),
    "max_seq_length": STUDIO["training.max_seq_length"],
    "dtype": (dtype(), None),
    "load_in_4bit": (carry_setting("method", flag), True),
    "dataset": (carry_setting("data_source.path", require_text), "me/rows"),
    "r": (to("method.rank", integer), 16),
    "lora_alpha": LORA["lora_alpha"],
    "lora_dropout": LORA["lora_dropout"],
    "bias": (agrees("No bias is trained.", ("none",), reject("Biases are not trained.", "Write none.")), "none"),
    "use_gradient_checkpointing": (words_of_checkpointing(), "unsloth"),
    "random_state": (note("One seed, hyperparameters.seed."), 3407),
    "use_rslora": LORA["use_rslora"],
    "use_dora": (carry_setting("method", flag), False),
    "loftq_config": (note("Without bits it says nothing."), None),
    "loftq_config.loftq_bits": (loftq_bits(), 4),
    "loftq_config.loftq_iter": (agrees("Once.", (1,), reject("LoftQ corrects a base once here.", "Write 1.")), 1),
    **{key: ARGUMENTS[key] for key in (
        "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "warmup_steps",
        "max_steps", "learning_rate", "optim", "weight_decay", "lr_scheduler_type", "seed", "logging_steps",
            "output_dir",
    )},
    "packing": STUDIO["training.packing"],
    "report_to": (trackers(), "none"),
    **repeat(note(SAVING, unless=(None, False)), None, "save_model", "save_method", "save_gguf", "save_path",
           "quantization", "push_model", "push_gguf", "hub_path", "hub_token"),
    "raw_text_file": (carry_setting("data_source.path"), None),
    **repeat(note("Texts are cut into rows of max_length."), 2048, "chunk_size", "stride"),
}  # fmt: skip


def axes(config: Config) -> dict[str, object]:
    kind = str(config.get("training.training_type", "lora")).lower()
    four = config.get("training.load_in_4bit", True) if is_studio(config) else config.get("load_in_4bit", False)
    dora = config.get("lora.use_dora") or config.get("use_dora")
    method = "full" if kind == "full" else "qlora" if four else "dora" if dora else "lora"
    raw = config.get("raw_text_file") or config.get("data.format_type") == "raw"
    return {"stage.type": "cpt" if raw else "sft", "method.type": method}


def data_sets(config: Config) -> list[DataPlace]:
    kind = FORMATS.get(str(config.get("data.format_type", "auto")), "auto")
    local = config.get("data.local_dataset") or config.get("raw_text_file") or []
    files = [local] if isinstance(local, str) else [file for file in local if isinstance(file, str)]
    name = config.get("data.dataset") or config.get("dataset")
    return [DataPlace(file, kind, local=True) for file in files] or (
        [DataPlace(name, kind)] if isinstance(name, str) else []
    )


def purpose(config: Config) -> str:
    return "" if config.value.keys() & {"training", "lora", "max_seq_length", "model_name"} else "no training config"


KEYS: Table = {**STUDIO, **SCRIPT}
STUDIO_ABSENT: tuple[Absent, ...] = (
    Absent("training.num_epochs", f"{HYPER}epochs", 3.0, unless=(f"{HYPER}max_steps",)),
    Absent("training.batch_size", f"{HYPER}batch_size", 2),
    Absent("training.gradient_accumulation_steps", f"{HYPER}gradient_accumulation", 4),
    Absent("training.learning_rate", f"{HYPER}learning_rate", 2e-4),
    Absent("training.warmup_steps", f"{HYPER}warmup_steps", 5, unless=(f"{HYPER}warmup_ratio",)),
    Absent("training.weight_decay", f"{HYPER}weight_decay", 0.01),
    Absent("training.random_seed", f"{HYPER}seed", 3407),
    Absent("lora.lora_r", "method.rank", 64),
    Absent("lora.lora_alpha", "method.alpha", 16),
    require_key("training.train_on_completions", "stage", PROMPTS, PROMPTS_DO, is_stage("sft")),
)
SCRIPT_ABSENT: tuple[Absent, ...] = (
    Absent("per_device_train_batch_size", f"{HYPER}batch_size", 2),
    Absent("gradient_accumulation_steps", f"{HYPER}gradient_accumulation", 4),
    Absent("learning_rate", f"{HYPER}learning_rate", 2e-4),
    Absent("max_steps", f"{HYPER}max_steps", 400, unless=(f"{HYPER}epochs",)),
    Absent("warmup_steps", f"{HYPER}warmup_steps", 5, unless=(f"{HYPER}warmup_ratio",)),
    Absent("weight_decay", f"{HYPER}weight_decay", 0.01),
    Absent("seed", f"{HYPER}seed", 3407),
    Absent("r", "method.rank", 16),
    Absent("lora_alpha", "method.alpha", 16),
    require_key("format", "stage", SCRIPTED, PROMPTS_DO, is_stage("sft")),
)
BOTH_ABSENT: tuple[Absent, ...] = (
    Absent("max_seq_length", f"{HYPER}max_length", 2048),
    Absent("optim", f"{HYPER}optimizer", "adamw_8bit"),
    Absent("lr_scheduler_type", f"{HYPER}schedule", "linear"),
    Absent("max_grad_norm", f"{HYPER}max_grad_norm", 1.0),
    Absent("gradient_checkpointing", f"{HYPER}gradient_checkpointing", True),
    Absent("bf16", f"{HYPER}precision", "auto"),
    Absent("packing", "engine.batching", "padded"),
    Absent("lora_dropout", "method.dropout", 0.0),
    Absent("target_modules", "method.target_modules", PROJECTIONS),
)
DEFAULTS: tuple[Absent, ...] = (
    *(replace(row, when=restrict_to(is_studio, row.when)) for row in STUDIO_ABSENT),
    *(replace(row, when=restrict_to(is_script, row.when)) for row in SCRIPT_ABSENT),
    *BOTH_ABSENT,
)
TOOL = ConfigTool(
    title="Unsloth",
    marks=("training.max_seq_length", "training.training_type", "lora.lora_r", "lora.use_loftq", 
           "training.train_on_completions", "use_gradient_checkpointing", "random_state"),
    keys=KEYS,
    axes=axes,
    data_sets=data_sets,
    purpose=purpose,
    defaults=DEFAULTS,
)  # fmt: skip
