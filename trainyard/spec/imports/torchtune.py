"""torchtune: a recipe's YAML, whose parts name Python objects (`_component_`) with their arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.imports.conversion import ConfigTool
from trainyard.spec.imports.data_sets import DataPlace, files_of_split, first_rows
from trainyard.spec.imports.defaults import (
    Absent,
    choose_by_stage,
    has_adapter,
    has_loss,
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
    map_column,
    map_word,
    note,
    number,
    refuse,
    reject,
    remark,
    repeat,
    require_text,
    steps_of_warmup,
    switch,
    to,
    unless_off,
)
from trainyard.spec.imports.shared_keys import (
    ARGUMENTS,
    CLOSE_OPTIMIZERS,
    EVALUATION,
    HYPER,
    LOADING,
    NO_IMAGES,
    OPTIMIZERS,
    TEXT_ONLY,
    WITHOUT,
    dtype,
    grad_norm,
    shard_detail,
    split,
)

DATA_SETS: Mapping[str, tuple[str, str]] = {
    "alpaca_dataset": ("tatsu-lab/alpaca", "alpaca"),
    "alpaca_cleaned_dataset": ("yahma/alpaca-cleaned", "alpaca"),
    "stack_exchange_paired_dataset": ("lvwerra/stack-exchange-paired", "preference"),
    "hh_rlhf_helpful_dataset": ("RLHFlow/HH-RLHF-Helpful-standard", "preference"),
    "grammar_dataset": ("liweili/c4_200m", "auto"),
    "samsum_dataset": ("Samsung/samsum", "auto"),
    "slimorca_dataset": ("Open-Orca/SlimOrca-Dedup", "sharegpt"),
    "wikitext_dataset": ("EleutherAI/wikitext_document_level", "text"),
    "cnn_dailymail_articles_dataset": ("ccdv/cnn_dailymail", "text"),
    "instruct_dataset": ("", "auto"),
    "chat_dataset": ("", "sharegpt"),
    "preference_dataset": ("", "preference"),
    "text_completion_dataset": ("", "text"),
}
"""Builder of a data set -> its name in the Hub, and the format of its rows."""
SCHEDULES: dict[Any, Any] = {
    "get_cosine_schedule_with_warmup": "cosine", "get_linear_schedule_with_warmup": "linear",
    "get_constant_schedule_with_warmup": "constant_with_warmup",
}  # fmt: skip
LOSSES: dict[object, object] = {
    "LinearCrossEntropyLoss": "chunked", "CEWithChunkedOutputLoss": "chunked", "CrossEntropyLoss": "full",
}  # fmt: skip
PREFERENCES = {"DPOLoss": "sigmoid", "RSOLoss": "hinge", "IPOLoss": "ipo", "SimPOLoss": "simpo"}
FILES = "The files of a base are found in its folder."
PROFILE = "Kept for profiles: a run has times, tokens per second and memory of each step."
TEACHER = "Distillation from a teacher is not a stage here."
PPO = "No backend trains PPO today."
PROJECTIONS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
MLP = ("gate_proj", "up_proj", "down_proj")


PROMPTED = {
    **dict.fromkeys(("alpaca_dataset", "alpaca_cleaned_dataset"), "alpaca"),
    **dict.fromkeys(("grammar_dataset", "samsum_dataset", "stack_exchange_paired_dataset"), "auto"),
}
"""Builders that write rows into a prompt text of torchtune's own -> the format that reads the rows without it."""
PROMPTS = "torchtune learns prompts, too, in this data set; a chain's sft learns answers only."
PROMPTS_DO = "Write train_on_input: false. --set stage=sft learns answers only."
LEARNED_PROMPTS = ("alpaca_dataset", "alpaca_cleaned_dataset")
"""Builders whose `train_on_input` is true where it is left out."""
OPTIMIZER_NUMBERS: Mapping[str, tuple[float, float]] = {
    "adamw": (1e-3, 1e-2),
    "adamw8bit": (1e-3, 1e-2),
    "pagedadamw": (1e-3, 1e-2),
    "pagedadamw8bit": (1e-3, 1e-2),
    "adam": (1e-3, 0.0),
    "sgd": (1e-3, 0.0),
}
"""Class of an optimizer -> its own rate and weight decay, in torch and bitsandbytes."""


def learns_prompts(config: Config, settings: Mapping[str, object]) -> bool:
    name = str(config.get("dataset._component_", "")).rpartition(".")[2]
    return settings["stage.type"] == "sft" and name in LEARNED_PROMPTS


def number_of_optimizer(config: Config, index: int, key: str) -> object:
    name = str(config.get("optimizer._component_", "")).rpartition(".")[2].lower()
    if name in OPTIMIZER_NUMBERS:
        return OPTIMIZER_NUMBERS[name][index]
    return reject(f"What {name or 'the optimizer'} takes then is not known here.", f"Write optimizer.{key}.")


def rate_of_optimizer(config: Config, _settings: Mapping[str, object]) -> object:
    return number_of_optimizer(config, 0, "lr")


def decay_of_optimizer(config: Config, _settings: Mapping[str, object]) -> object:
    return number_of_optimizer(config, 1, "weight_decay")


def last_part(value: Any) -> str:
    return require_text(value).rpartition(".")[2]


def optimizer() -> KeyConverter:
    plain = map_word(f"{HYPER}optimizer", OPTIMIZERS, notes=CLOSE_OPTIMIZERS)
    return KeyConverter(
        plain.setting, lambda value, config: plain.convert(None if value is None else last_part(value), config)
    )


def map_last_part(setting: str, names: JsonMapping) -> KeyConverter:
    plain = map_word(setting, {name.lower(): ours_word for name, ours_word in names.items()})
    return KeyConverter(
        setting, lambda value, config: plain.convert(None if value is None else last_part(value), config)
    )


def loss() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        name = last_part(value)
        if name in PREFERENCES:
            return assign(because="In stage.")
        if name in LOSSES:
            return assign({"engine.head": LOSSES[name]})
        return reject(f"There is no loss {name} here.", "--set stage=grpo, or another stage of Trainyard.")

    return KeyConverter("stage", convert)


def gamma() -> KeyConverter:
    """Return the margin of SimPO; RSO's has the part of beta."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        setting = "stage.beta" if str(config.get("loss._component_", "")).endswith("RSOLoss") else "stage.gamma"
        return to(setting, number).convert(value, config)

    return KeyConverter("stage.gamma", convert)


def data_set() -> KeyConverter:
    def convert(value: Any, config: Config) -> KeyAnswer:
        name = last_part(value)
        if "multimodal" in require_text(value):
            return reject(TEXT_ONLY, NO_IMAGES)
        if name in PROMPTED and "data_source.format" not in config.overrides:
            return reject(
                f"{name} writes rows into a prompt text of its own, and a chain renders them by the base's template.",
                f"--set data_source.format={PROMPTED[name]} reads the rows without it: another prompt.",
            )
        if name in DATA_SETS or config.get("dataset.source"):
            return assign(because="In data_source.")
        return reject(f"Which rows {name} reads is not in the file.", "--set data_source.path=FILE")

    return KeyConverter("data_source.path", convert)


def model() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        name = require_text(value)
        if "vision" in name or "clip" in name:
            return reject(TEXT_ONLY, NO_IMAGES)
        return assign(because="The base is the checkpointer's folder; its name says the method.")

    return KeyConverter("method", convert)


def map_folder() -> KeyConverter:
    """`/tmp/Qwen3-8B`, into which `tune download` put the base."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        folder = resolve(require_text(value), config)
        return assign({"base_model": folder.rstrip("/") or folder})

    return KeyConverter("base_model", convert)


def resolve(value: str, config: Config) -> str:
    """Return a text with the keys that it refers to, as `${output_dir}`, filled in."""
    return re.sub(r"\$\{([\w.]+)\}", lambda match: str(config.get(match[1], match[0])), value)


def modules() -> KeyConverter:
    """Return the projections of the attention; `apply_lora_to_mlp` adds those of the MLP."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        if not isinstance(value, list) or not all(name in PROJECTIONS for name in value):
            return reject(
                "Projections are q_proj, k_proj, v_proj and output_proj.", "--set method.target_modules=all-linear"
            )
        mlp = MLP if config.get("model.apply_lora_to_mlp") else ()
        return assign({"method.target_modules": [*(PROJECTIONS[name] for name in value), *mlp]})

    return KeyConverter("method.target_modules", convert)


def steps_per_epoch() -> KeyConverter:
    def convert(value: Any, config: Config) -> KeyAnswer:
        if value is None:
            return assign(because="Left out, here as there.")
        return assign({f"{HYPER}max_steps": integer(value) * integer(config.get("epochs", 1))})

    return KeyConverter(f"{HYPER}max_steps", convert)


def logger() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        name = last_part(value)
        trackers = {"WandBLogger": "wandb", "TensorBoardLogger": "tensorboard"}
        if name in trackers:
            return assign({"engine.trackers": [trackers[name]]})
        if name in ("DiskLogger", "StdoutLogger"):
            return assign(because="Metrics are in a file of the run.")
        return remark(f"There is no tracker {name}; metrics are in `trainyard jobs metrics`.")

    return KeyConverter("engine.trackers", convert)


def axes(config: Config) -> dict[str, object]:
    name, kind = str(config.get("model._component_", "")).rpartition(".")[2], str(config.get("loss._component_", ""))
    loss = PREFERENCES.get(kind.rpartition(".")[2])
    source = str(config.get("dataset._component_", "")).rpartition(".")[2]
    stage = "dpo" if loss else "cpt" if DATA_SETS.get(source, ("", ""))[1] == "text" else "sft"
    adapter = "lora" in name or config.get("model.lora_rank") is not None
    four = name.startswith("qlora") or bool(config.get("model.quantize_base"))
    method = ("qlora" if four else "dora" if config.get("model.use_dora") else "lora") if adapter else "full"
    settings: JsonObject = {"stage.type": stage, "method.type": method}
    settings |= {"stage.loss": loss} if loss else {}
    if config.overrides.get("stage.type") == "grpo":
        settings["backend"] = "trl"
    if config.processes > 1:
        full = stage == "sft" and method == "full"
        settings |= {"launch.strategy": "fsdp", "backend": "trl"} if full else {"launch.strategy": "fsdp_hybrid"}
    return settings


def data_sets(config: Config) -> list[DataPlace]:
    name = str(config.get("dataset._component_", "")).rpartition(".")[2]
    default_source, kind = DATA_SETS.get(name, ("", "auto"))
    source, files = config.get("dataset.source") or default_source, config.get("dataset.data_files")
    if source in ("json", "csv", "parquet", "text") and isinstance(files, str):
        return [DataPlace(files, kind, local=True).with_columns(read_columns(config, name))]
    part, subset = config.get("dataset.split"), config.get("dataset.subset") or config.get("dataset.name")
    data_set = DataPlace(str(source), kind, files_of_split(part), first_rows(part), subset=subset)
    return [data_set.with_columns(read_columns(config, name))] if isinstance(source, str) and source else []


def read_columns(config: Config, builder: str) -> dict[str, str]:
    """Field here -> column, of a set that names its columns; empty where they have usual names."""
    if column := config.get("dataset.column"):
        return {} if column == "text" else {"text": str(column)}
    if column := config.get("dataset.conversation_column"):
        return {} if column in ("messages", "conversations") else {"messages": str(column)}
    named = {key: str(column) for key, column in (config.get("dataset.column_map") or {}).items() if column}
    if not named:
        return {}
    if "chosen" in named or "rejected" in named:
        return {name: named.get(name, name) for name in ("chosen", "rejected")}
    if builder in LEARNED_PROMPTS or "instruction" in named:
        usual = {"prompt": "instruction", "input": "input", "completion": "output"}
        return {field: named.get(column, column) for field, column in usual.items()}
    return {"prompt": named.get("input", "input"), "completion": named.get("output", "output")}


def purpose(config: Config) -> str:
    value = config.value
    if "optimizer" in value or "loss" in value:
        return ""
    kinds = {
        "tasks": "an evaluation config",
        "prompt": "a config of generation",
        "quantizer": "a config of quantization",
    }
    return next((kind for key, kind in kinds.items() if key in value), "no training config")


CHECKPOINTER: Table = {
    "_component_": (accept("A base is read in Hugging Face's layout."), "torchtune.training.FullModelHFCheckpointer"),
    "checkpoint_dir": (map_folder(), "/tmp/Qwen3-0.6B"),
    "checkpoint_files": (accept(FILES), ["model.safetensors"]),
    "checkpoint_files.filename_format": (accept(FILES), "model-{}-of-{}.safetensors"),
    "checkpoint_files.max_filename": (accept(FILES), "00002"),
    "output_dir": (note("The result is in the store of TRAINYARD_HOME."), "${output_dir}"),
    "model_type": (accept("The architecture is in config.json of the base."), "QWEN3"),
    "recipe_checkpoint": (note("`trainyard jobs resume` takes the newest checkpoint.", unless=(None,)), None),
    "adapter_checkpoint": (note("`trainyard jobs resume` takes the newest checkpoint.", unless=(None,)), None),
    "keep_last_n_checkpoints": (to("engine.keep_checkpoints", integer), 2),
    "safe_serialization": (accept("Weights are written as safetensors."), True),
}  # fmt: skip
KEYS: Table = {
    **{f"checkpointer.{key}": row for key, row in CHECKPOINTER.items()},
    "output_dir": ARGUMENTS["output_dir"],
    "name": (note("A chain has the file's name."), "mine"),
    "base_model_path": (note("In checkpointer.checkpoint_dir, which refers to it."), "/tmp/model"),
    "resume_from_checkpoint": ARGUMENTS["resume_from_checkpoint"],
    "seed": (to(f"{HYPER}seed", integer), 42),
    "shuffle": (agrees("Rows are shuffled in each epoch.", (True,), reject("Rows are shuffled.", WITHOUT)), True),
    "batch_size": (to(f"{HYPER}batch_size", integer), 2),
    "gradient_accumulation_steps": (to(f"{HYPER}gradient_accumulation", integer), 8),
    "epochs": (to(f"{HYPER}epochs", number), 1),
    "max_steps_per_epoch": (steps_per_epoch(), None),
    "optimizer._component_": (optimizer(), "torch.optim.AdamW"),
    "optimizer.lr": (to(f"{HYPER}learning_rate", number), 2e-5),
    "optimizer.weight_decay": (to(f"{HYPER}weight_decay", number), 0.01),
    "optimizer.fused": (accept("AdamW is torch's fused one."), True),
    "optimizer.betas": (
        agrees("AdamW's own.", ([0.9, 0.999],), reject("AdamW has 0.9 and 0.999 here.", WITHOUT)), None
    ),
    "optimizer_in_bwd": (
        agrees("Steps are after the backward pass.", (False,), remark(
            "Steps are after the backward pass, with clipping and accumulation: more memory, equal numbers.")), False
    ),
    "lr_scheduler._component_": (map_last_part(f"{HYPER}schedule", SCHEDULES),
                                 "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"),
    "lr_scheduler.num_warmup_steps": (steps_of_warmup(), 100),
    "loss._component_": (loss(), "torchtune.modules.loss.LinearCrossEntropyLoss"),
    "loss.beta": (to("stage.beta", number), 0.1),
    "loss.label_smoothing": (to("stage.label_smoothing", number), 0),
    "loss.gamma": (gamma(), 0.5),
    "loss.epsilon": (to("stage.epsilon", number), 0.2),
    "loss.kl_coeff": (to("stage.beta", number), 0.01),
    **repeat(refuse(PPO, "Use stage grpo or dpo."), 0.1, "loss.value_coeff", "loss.value_clip_range"),
    "clip_grad_norm": (grad_norm(), None),
    "compile": (note("Modules run as they are, uncompiled: equal numbers.", unless=(None, False)), False),
    "device": (map_word("device", {"cuda": "auto", "cpu": "cpu", "mps": "mps"}), "cuda"),
    "dtype": (dtype(), "bf16"),
    "enable_activation_checkpointing": (switch(
        assign({f"{HYPER}gradient_checkpointing": True}), assign({f"{HYPER}gradient_checkpointing": False})), True),
    "enable_activation_offloading": (
        note("Activations stay on the device; gradient checkpointing saves most of them.", unless=(None, False)), False
    ),
    **repeat(note("Which activations are recomputed is by block."), None, "ac_mode", "ac_option"),
    "low_cpu_ram": (note("A base is mapped into memory, not copied.", unless=(None, False)), False),
    "model._component_": (model(), "torchtune.models.qwen3.lora_qwen3_0_6b_instruct"),
    "model.lora_rank": (to("method.rank", integer), 8),
    "model.lora_alpha": (to("method.alpha", number), 16),
    "model.lora_dropout": (to("method.dropout", number), 0.0),
    "model.lora_attn_modules": (modules(), ["q_proj", "v_proj", "output_proj"]),
    "model.apply_lora_to_mlp": (carry_setting("method.target_modules", flag), True),
    "model.apply_lora_to_output": (
        agrees("The output layer is as it was.", (False,), reject("The output layer gets no adapter.",
            "Write false; --set 'method.modules_to_save=[\"lm_head\"]' trains it."), setting="method.modules_to_save"),
        False
    ),
    "model.use_dora": (carry_setting("method", flag), False),
    "model.quantize_base": (carry_setting("method", flag), True),
    "save_adapter_weights_only": (accept("The result of an adapter's training is the adapter."), False),
    **repeat(refuse(TEXT_ONLY, NO_IMAGES), None, "model.decoder_trainable", "model.encoder_trainable",
           "model.fusion_trainable", "model.image_size", "tokenizer.image_size", "tokenizer.max_num_tiles",
               "collate_fn"),
    **repeat(note("The shape of the base is in its config.json."), 32, "model.vocab_size", "model.num_layers",
           "model.num_heads", "model.num_kv_heads", "model.embed_dim", "model.max_seq_len", "model.intermediate_dim",
           "model.attn_dropout", "model.norm_eps"),
    **repeat(accept("The tokenizer is the one in the base's folder."), "/tmp/tokenizer.model", "tokenizer._component_",
           "tokenizer.path", "tokenizer.merges_file", "tokenizer.merges_path", "tokenizer.vocab_path"),
    "tokenizer.max_seq_len": (to(f"{HYPER}max_length", integer), 2048),
    "tokenizer.prompt_template": (
        refuse("The chat template is the base's own, or engine.template.",
               "--set engine.template=auto takes the base's, another prompt.", setting="engine.template"), None
    ),
    "dataset._component_": (data_set(), "torchtune.datasets.alpaca_dataset"),
    "dataset.packed": (switch(assign({"engine.batching": "packed"}), assign({"engine.batching": "padded"}),
                              setting="engine.batching"), False),
    "dataset.split": (split(), "train"),
    "dataset.source": (carry_setting("data_source.path", require_text), "me/rows"),
    "dataset.data_files": (carry_setting("data_source.path"), "rows.jsonl"),
    **repeat(carry_setting("data_source.hub", require_text), None, "dataset.subset", "dataset.name"),
    "dataset.partition": (refuse("A part of a split is not read.", "--set data_source.max_rows=N takes N rows.",
                                 setting="data_source.max_rows"), "1-9/10"),
    "dataset.train_on_input": (
        agrees("Only answers are learned.", (False,), reject(PROMPTS, PROMPTS_DO), setting="stage"), False
    ),
    "dataset.column": (map_column("text", "text"), "body"),
    "dataset.conversation_column": (map_column("messages", "messages", "conversations"), "dialog"),
    "dataset.column_map.instruction": (map_column("prompt", "instruction"), "task"),
    "dataset.column_map.input": (map_column("prompt or input"), "question"),
    "dataset.column_map.output": (map_column("completion", "output"), "reply"),
    "dataset.column_map.chosen": (map_column("chosen", "chosen"), "better"),
    "dataset.column_map.rejected": (map_column("rejected", "rejected"), "worse"),
    "dataset.conversation_style": (accept("Seen in the rows."), "sharegpt"),
    "dataset.add_eos": (agrees("It is learned.", (True,), reject("The end of a text is learned.", WITHOUT)), True),
    "datasets[].*": (refuse(TEXT_ONLY, NO_IMAGES), None),
    "dataset_val._component_": (note(EVALUATION), "torchtune.datasets.alpaca_dataset"),
    "dataset_val.*": (note(EVALUATION), "train[95%:]"),
    "run_val_every_n_steps": (note(EVALUATION, unless=(None,)), None),
    "batch_size_val": (note("Kept for evaluation during training; an evaluator chooses its batches."), 2),
    "dataloader.*": (note(LOADING), 4),
    "metric_logger._component_": (logger(), "torchtune.training.metric_logging.DiskLogger"),
    "metric_logger.log_dir": (accept("Logs are in the run's own folder."), "${output_dir}/logs"),
    "metric_logger.project": (note("The project is in WANDB_PROJECT, which wandb itself reads."), "mine"),
    "log_every_n_steps": (accept("Every step is logged."), 1),
    "log_peak_memory_stats": (accept("Memory is in every step's metrics."), True),
    "log_level": ARGUMENTS["log_level"],
    "profiler._component_": (unless_off("profiler.enabled", note(PROFILE)), "torchtune.training.setup_torch_profiler"),
    "profiler.enabled": (note(PROFILE, unless=(None, False)), False),
    "profiler.*": (unless_off("profiler.enabled", note(PROFILE)), True),
    "save_every_n_epochs": (note("Checkpoints are counted in steps."), 1),
    **repeat(shard_detail(), None, "custom_sharded_layers", "data_parallel_shard_dim", "data_parallel_replicate_dim",
           "memory_efficient_fsdp_wrap"),
    "fsdp_cpu_offload": (shard_detail(False), False),
    "fsdp.cpu_offload": (shard_detail(False), False),
    **repeat(refuse("Tensors are not split over processes.", "Leave it out by --without.", unless=(None, 1)), 1,
           "tensor_parallel_dim", "tensor_parallel_plan._component_"),
    "quantizer.*": (refuse("Training that is aware of a quantization is not here.", "--without quantizer"), 256),
    **repeat(refuse(TEACHER, "Use stage sft: leave it out by --without."), 0.5, "teacher_model.*",
           "teacher_checkpointer.*", "kd_loss.*", "kd_ratio"),
    **repeat(refuse(PPO, "Use stage grpo or dpo."), 1, "policy_model.*", "reward_and_value_model.*",
           "ref_policy_checkpointer.*", "value_checkpointer.*", "reward_checkpointer.*", "ppo_batch_size",
           "min_response_length", "penalise_no_eos", "reward_penalty", "whiten_rewards", "gamma", "lmbda", "kl_coeff"),
    "ref_checkpointer.*": (note("The reference is the base as it was, without the adapter."), "/tmp/model"),
    "reward_functions[].*": (
        refuse("Rewards are rules here, and these are Python functions.",
               "Say them as rules: --set 'stage.rewards=[{\"type\": \"exact_match\"}]'", setting="stage.rewards"), "x"
    ),
    "grpo_samples": (to("stage.num_generations", integer), 16),
    "max_generated_tokens": (to("stage.max_completion_length", integer), 512),
    "temperature": (to("stage.temperature", number), 1.0),
    "top_k": (refuse("Completions are drawn from all tokens, by temperature.", WITHOUT, unless=(None,)), None),
    "ppo_epochs": (to("stage.num_iterations", integer), 1),
    "num_steps": (to(f"{HYPER}max_steps", integer), 200),
    "stop_token_ids": (note("The renderer knows which tokens end an answer."), [2]),
    "forward_batch_size": (note("Completions are drawn for one step at a time."), 16),
    "enable_kv_cache": (accept("Completions are drawn with a cache."), True),
}  # fmt: skip
DEFAULTS: tuple[Absent, ...] = (
    *(
        require_key(key, f"{HYPER}{name}", "torchtune has no default of it.", f"Write it, or --set {HYPER}{name}=1.")
        for key, name in (
            ("epochs", "epochs"),
            ("batch_size", "batch_size"),
            ("gradient_accumulation_steps", "gradient_accumulation"),
        )
    ),
    Absent("optimizer.lr", f"{HYPER}learning_rate", rate_of_optimizer),
    Absent("optimizer.weight_decay", f"{HYPER}weight_decay", decay_of_optimizer),
    Absent("lr_scheduler", f"{HYPER}schedule", "constant"),
    Absent("lr_scheduler.num_warmup_steps", f"{HYPER}warmup_ratio", 0.0, unless=(f"{HYPER}warmup_steps",)),
    Absent("clip_grad_norm", f"{HYPER}max_grad_norm", 1e6, "No clipping: a bound that no gradient reaches."),
    Absent("seed", f"{HYPER}seed", 42, "torchtune draws one; a chain has a fixed seed."),
    Absent("enable_activation_checkpointing", f"{HYPER}gradient_checkpointing", False),
    require_key(
        "dtype",
        f"{HYPER}precision",
        "torchtune has no default of it.",
        "Write bf16, or --set hyperparameters.precision=auto.",
    ),
    require_key(
        "tokenizer.max_seq_len",
        f"{HYPER}max_length",
        "torchtune cuts no row then, and a chain has a bound.",
        "Say the longest row: --set hyperparameters.max_length=4096.",
    ),
    Absent("dataset.packed", "engine.batching", "padded"),
    Absent("model.lora_rank", "method.rank", 8),
    Absent("model.lora_alpha", "method.alpha", 16.0),
    Absent("model.lora_dropout", "method.dropout", 0.0),
    require_key(
        "model.lora_attn_modules",
        "method.target_modules",
        "torchtune has no default of it.",
        "Write it, or --set method.target_modules=all-linear.",
        has_adapter,
    ),
    Absent("loss.beta", "stage.beta", choose_by_stage({"dpo": 0.1})),
    Absent("loss.label_smoothing", "stage.label_smoothing", 0.0, when=has_loss("sigmoid")),
    require_key("dataset.train_on_input", "stage", PROMPTS, PROMPTS_DO, learns_prompts),
)
TOOL = ConfigTool(
    title="torchtune",
    marks=("checkpointer._component_", "model._component_", "tokenizer._component_", "optimizer._component_",
           "dataset._component_", "policy_model._component_"),
    keys=KEYS,
    axes=axes,
    data_sets=data_sets,
    purpose=purpose,
    defaults=DEFAULTS,
)  # fmt: skip
