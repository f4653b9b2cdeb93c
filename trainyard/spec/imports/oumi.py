"""Oumi: a YAML in groups (model, data, training, peft, fsdp, deepspeed)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.imports.conversion import ConfigTool
from trainyard.spec.imports.data_sets import DataPlace, files_of_split, first_rows
from trainyard.spec.imports.defaults import (
    ARGUMENT_DEFAULTS,
    LORA_DEFAULTS,
    PREFERENCE_DEFAULTS,
    ROLLOUT_DEFAULTS,
    Absent,
    add_group,
    choose_by_stage,
    replace_values,
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
    prefix_rows,
    refuse,
    reject,
    remark,
    repeat,
    require_text,
    require_texts,
    steps_of_warmup,
    switch,
    to,
)
from trainyard.spec.imports.shared_keys import (
    ARGUMENTS,
    EVALUATION,
    HYPER,
    LOADING,
    LORA,
    NO_IMAGES,
    TEXT_ONLY,
    WITHOUT,
    attention,
    checkpointing,
    dtype,
    first_weights,
    fsdp_details,
    map_seed,
    map_tokenizer,
    optimizer,
    shard_detail,
    sharding,
    split,
    target_modules,
    template,
    tracker,
)

STAGES = {"trl_sft": "sft", "trl_dpo": "dpo", "trl_kto": "kto", "trl_grpo": "grpo", "verl_grpo": "grpo", "hf": "sft",
          "oumi": "sft"}  # fmt: skip
TEXT_SETS = ("fineweb", "wikitext", "c4", "wikipedia", "redpajama", "dolma", "pile", "starcoder", "text")
VERL = "verl's own numbers; rollouts and steps are those of stage grpo."
TEACHER = "Distillation from a teacher is not a stage here."
DATA_KEYS = ("train", "validation", "test")
IMAGES = ("vision_language_with_padding", "vision_language_sft")
COLLATORS = (None, "text_with_padding", "text_completions_only_with_padding", "dpo_with_padding", "dpo")


RENAMED = {
    "training.optim": "training.optimizer",
    "training.gradient_checkpointing": "training.enable_gradient_checkpointing",
    "training.bf16": "training.mixed_precision_dtype",
}
PROMPTS = "Oumi learns every token of a conversation then, prompts too; a chain's sft learns answers only."
PROMPTS_DO = (
    "Write collator_name: text_completions_only_with_padding. --set stage=sft learns answers only, --set stage=cpt "
    "whole texts."
)
PROMPTED_SETS = ("yahma/alpaca-cleaned", "tatsu-lab/alpaca")
"""Data sets whose rows Oumi writes into a prompt of its own."""


def is_trl(config: Config, _settings: Mapping[str, object]) -> bool:
    return str(config.get("training.trainer_type", "hf")).lower() in ("trl_sft", "trl_dpo", "trl_kto")


def is_sgd(_config: Config, settings: Mapping[str, object]) -> bool:
    return settings.get(f"{HYPER}optimizer") == "sgd"


def is_four_bits(config: Config, settings: Mapping[str, object]) -> bool:
    return bool(settings["method.type"] == "qlora" and config.get("peft.q_lora_bits", 4) == 4)


def learns_prompts(config: Config, settings: Mapping[str, object]) -> bool:
    return bool(settings["stage.type"] == "sft" and config.get("data.train.train_target") is None)


def data_set_name() -> KeyConverter:
    """Return a name of the Hub; a few have a prompt text of Oumi's own."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        if require_text(value) in PROMPTED_SETS:
            return reject(
                f"Oumi writes rows of {value} into Alpaca's prompt, with a system message.",
                "--set data_source.format=alpaca renders them by the base's template alone: another prompt.",
            )
        return assign(because="In data_source.path.")

    return KeyConverter("data_source.format", convert)


def trainer_kind() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        name = require_text(value).lower()
        if name in STAGES:
            return assign(because="In stage.")
        because = TEACHER if name in ("trl_gold", "trl_gkd") else f"There is no trainer {value!r} here."
        return reject(because, "--set stage=sft, or another stage of Trainyard.")

    return KeyConverter("stage", convert)


def collator() -> KeyConverter:
    def convert(value: Any, config: Config) -> KeyAnswer:
        if value is None:
            return assign(because="Left out, here as there.")
        if value in IMAGES or "vision" in require_text(value):
            return reject(TEXT_ONLY, NO_IMAGES)
        stage = read_stage(config)
        if value == "text_with_padding" and stage == "sft" and config.get("data.train.train_target") is None:
            return reject(PROMPTS, PROMPTS_DO)
        if value in COLLATORS:
            return assign(because="Rows are padded, and only answers are learned." if stage == "sft" else "Padded.")
        return reject("How rows become a batch is the stage's.", "Leave it out by --without.")

    return KeyConverter("stage", convert)


def list_split_keys(group: str, here: Table) -> Table:
    """Return the keys of a split; those of other splits are for evaluation."""
    if group == "train":
        return {f"data.train.{key}": row for key, row in here.items()}
    return {f"data.{group}.*": (note(EVALUATION), "me/rows"), f"data.{group}.datasets[].*": (note(EVALUATION), "x")}


def read_stage(config: Config) -> str:
    stage = STAGES.get(str(config.get("training.trainer_type", "hf")).lower(), "sft")
    return "cpt" if stage == "sft" and is_pretraining(config) else stage


def axes(config: Config) -> dict[str, object]:
    stage = read_stage(config)
    adapter, four = bool(config.get("training.use_peft")), bool(config.get("peft.q_lora"))
    settings: JsonObject = {
        "stage.type": stage,
        "method.type": ("qlora" if four else "lora") if adapter else "full",
    }
    if four and adapter and config.get("peft.q_lora_bits") == 8:
        settings["quantization"] = "int8"
    stage = config.overrides.get("stage.type", stage)
    if stage == "grpo":
        settings["backend"] = "trl"
    return settings | (read_strategy(config, settings) if config.processes > 1 else {})


def is_pretraining(config: Config) -> bool:
    """Return whether every data set has plain texts, by the names of those that are usual."""
    names = [str(entry.get("dataset_name", "")).lower() for entry in config.listed("data.train.datasets")]
    packs = config.get("data.train.pack")
    return bool(names) and bool(packs) and all(any(word in name for word in TEXT_SETS) for name in names)


def read_strategy(config: Config, settings: JsonMapping) -> JsonObject:
    if config.get("fsdp.enable_fsdp"):
        full = settings["stage.type"] == "sft" and settings["method.type"] == "full"
        return {"launch.strategy": "fsdp", "backend": "trl"} if full else {"launch.strategy": "fsdp_hybrid"}
    if config.get("deepspeed.enable_deepspeed"):
        level = str(config.get("deepspeed.zero_stage", "ZERO_2")).lower().replace("_", "")
        return {"launch.strategy": level} | ({"backend": "deepspeed"} if level == "zero3" else {})
    return {"launch.strategy": "ddp"}


def data_sets(config: Config) -> list[DataPlace]:
    return [data_set for entry in config.listed("data.train.datasets") if (data_set := read_place(entry))]


def read_place(entry: JsonMapping) -> DataPlace | None:
    local, inner = entry.get("dataset_path"), entry.get("dataset_kwargs")
    columns = read_columns(inner if isinstance(inner, Mapping) else {})
    if isinstance(local, str):
        return DataPlace(local, max_rows=entry.get("sample_count"), local=True).with_columns(columns)
    name = (inner or {}).get("hf_dataset_path") if isinstance(inner, Mapping) else None
    name = name or entry.get("dataset_name")
    part = entry.get("split")
    rows = next((count for count in (entry.get("sample_count"), first_rows(part)) if isinstance(count, int)), None)
    if not isinstance(name, str):
        return None
    data_set = DataPlace(name, files=files_of_split(part), max_rows=rows, subset=entry.get("subset"))
    return data_set.with_columns(columns)


def read_columns(inner: Mapping[str, object]) -> dict[str, str]:
    """Field here -> column, of a set that names its columns; empty where they have usual names."""
    named = {
        key: str(inner[f"{key}_column"]) for key in ("messages", "prompt", "response") if inner.get(f"{key}_column")
    }
    if "messages" in named:
        usual = named["messages"] in ("messages", "conversations")
        return {} if usual else {"messages": named["messages"]}
    prompt, response = named.get("prompt", "prompt"), named.get("response", "response")
    usual = prompt == "prompt" and response in ("response", "completion")
    return {} if usual else {"prompt": prompt, "completion": response}


def purpose(config: Config) -> str:
    if "training" in config.value:
        return ""
    kinds = {"engine": "an inference config", "tasks": "an evaluation config", "judge_params": "a judge's config",
             "strategy": "a config of synthesis", "resources": "a cloud job",
                 "tuning": "a config of tuning"}  # fmt: skip
    return next((kind for key, kind in kinds.items() if key in config.value), "no training config")


ENTRY: Table = {
    "dataset_name": (data_set_name(), "me/rows"),
    "dataset_path": (carry_setting("data_source.path", require_text), "rows.jsonl"),
    "subset": (carry_setting("data_source.hub", require_text), None),
    "split": (split(), "train"),
    "shuffle": (accept("Rows are shuffled in each epoch."), True),
    "seed": (map_seed("training.seed"), 42),
    "sample_count": (carry_setting("data_source.max_rows", integer), 100),
    "mixture_proportion": (
        refuse("Sets are joined whole, in no proportion.",
            "Prepare a file of the mixture: --set data_source.path=FILE.",
               setting="data_source.path"), None
    ),
    "trust_remote_code": (note("Code of a data set never runs: only its files are read.", unless=(None, False)), False),
    "transform_num_workers": ARGUMENTS["dataloader_num_workers"],
    "dataset_kwargs.hf_dataset_path": (carry_setting("data_source.path", require_text), "me/rows"),
    "dataset_kwargs.seq_length": (note("hyperparameters.max_length is the length of a row."), 1024),
    "dataset_kwargs.limit": (to("data_source.max_rows", integer), 512),
    **repeat(accept("Rows are conversations."), True, "dataset_kwargs.return_conversations",
           "dataset_kwargs.return_conversation", "dataset_kwargs.return_conversations_format",
           "dataset_kwargs.return_tensors"),
    "dataset_kwargs.messages_column": (map_column("messages", "messages", "conversations"), "dialog"),
    "dataset_kwargs.prompt_column": (map_column("prompt", "prompt"), "question"),
    "dataset_kwargs.response_column": (map_column("completion", "completion", "response"), "reply"),
    **repeat(refuse(TEXT_ONLY, NO_IMAGES), None, "dataset_kwargs.processor_name", "dataset_kwargs.image_column",
           "dataset_kwargs.question_column", "dataset_kwargs.answer_column", "dataset_kwargs.processor_kwargs.*"),
}  # fmt: skip
TRAIN: Table = {
    **{f"datasets[].{key}": row for key, row in ENTRY.items()},
    "collator_name": (collator(), "text_with_padding"),
    **repeat(note("Which tokens are learned is known from the chat template."), "x", "collator_kwargs.*",
           "collator_kwargs.instruction_template", "collator_kwargs.response_template",
           "collator_kwargs.train_on_completions_only"),
    **repeat(refuse(TEXT_ONLY, NO_IMAGES), None, "collator_kwargs.process_individually",
        "collator_kwargs.processor_name"),
    "train_target": (
        map_word("stage.turns", {"all_assistant_turns": None, "final_assistant_turn": "last"}), "FINAL_ASSISTANT_TURN"
    ),
    "pack": (switch(assign({"engine.batching": "packed"}), assign({"engine.batching": "padded"}),
                    setting="engine.batching"), True),
    "stream": (note("A data set is read once, into the store.", unless=(None, False)), False),
    "use_torchdata": (note(LOADING), True),
    "use_async_dataset": (note(LOADING), True),
    "target_col": (
        agrees("Known from the row's fields.", ("text", "chosen"), reject(
            "It is known from the row's fields.", "Rename the field `text`.")), "text"
    ),
    "seed": (map_seed("training.seed"), 42),
    "mixture_strategy": (refuse("Sets are joined, not interleaved.", "--without data.train.mixture_strategy"), None),
}  # fmt: skip
OWN: Table = {
    "model.model_name": (to("base_model", require_text), "Qwen/Qwen3-0.6B"),
    "model.tokenizer_name": (map_tokenizer("model.model_name"), None),
    "model.model_revision": (refuse("A base is named, its revision is not.", "Download it and name its folder."), None),
    "model.model_max_length": (to(f"{HYPER}max_length", integer), 2048),
    "model.torch_dtype_str": (dtype(), "bfloat16"),
    "model.attn_implementation": (attention(), "sdpa"),
    "model.trust_remote_code": (note("Code of a model repository never runs; models that transformers knows need none.",
                                     unless=(None, False)), True),
    "model.load_pretrained_weights": (agrees("A base's weights.", (True,), reject(
        "A training begins with the base's weights.", "Save a base with random weights and name it.")), True),
    "model.chat_template": (template(), "llama3-instruct"),
    "model.enable_liger_kernel": (switch(assign({"engine.head": "liger"}), setting="engine.head"), True),
    "model.compile": (note("Modules run as they are, uncompiled: equal numbers.", unless=(None, False)), False),
    "model.tokenizer_pad_token": (note("Padding is masked, so any token does."), "<pad>"),
    "model.tokenizer_kwargs.*": (note("The tokenizer is used as its folder says."), "<pad>"),
    "model.freeze_layers": (refuse(TEXT_ONLY, NO_IMAGES, setting="method"), None),
    "model.shard_for_eval": (note(EVALUATION), True),
    **repeat(map_word("rope.type", {"yarn": "yarn", "linear": "linear"}), "yarn",
           "model.model_kwargs.rope_scaling.rope_type", "model.model_kwargs.rope_scaling.type"),
    "model.model_kwargs.rope_scaling.factor": (to("rope.factor", number), 4.0),
    "model.model_kwargs.rope_scaling.original_max_position_embeddings": (to("rope.original_length", integer), 32_768),
    "model.model_kwargs.rope_scaling.*": (
        refuse("The other numbers of YaRN are those of its paper.", "Leave it out by --without.", setting="rope"), None
    ),
    "model.model_kwargs.quantization_config.*": (note("How the base is stored is in its config.json."), "mxfp4"),
    "model.model_kwargs.max_position_embeddings": (
        note("Positions are those of the base; max_length is below them."), 8192
    ),
    "model.model_kwargs.disable_dropout": (agrees("No dropout in the base.", (True,), remark("The base's own.")), True),
    "model.model_kwargs.*": (refuse("A base is loaded as it is.", "--without model.model_kwargs"), None),
    **{f"peft.{key}": row for key, row in LORA.items() if key != "use_rslora"},
    "peft.lora_target_modules": (target_modules(), ["q_proj", "v_proj"]),
    "peft.lora_modules_to_save": (to("method.modules_to_save", require_texts), ["embed_tokens"]),
    "peft.lora_exclude_modules": (refuse("Adapters are on the layers that are named.", WITHOUT), None),
    "peft.lora_target_parameters": (refuse("Adapters are put on modules, not on single tensors.",
                                           "--without peft.lora_target_parameters"), None),
    "peft.lora_init_weights": (first_weights(), "pissa"),
    "peft.lora_bias": (
        agrees("No bias is trained.", ("none",), reject("Biases are not trained.", "Write none.")), "none"
    ),
    "peft.lora_task_type": (accept("The stage decides."), "CAUSAL_LM"),
    "peft.q_lora": (carry_setting("method", flag), True),
    "peft.q_lora_bits": (
        agrees("4 bits (nf4) or 8 (int8).", (4, 8), reject("There are 4 and 8 bits.", "Write 4.")), 4
    ),
    "peft.bnb_4bit_quant_type": (to("quantization", require_text), "nf4"),
    "peft.bnb_4bit_compute_dtype": (dtype(), "bfloat16"),
    "peft.bnb_4bit_quant_storage": (note("A detail of FSDP with 4 bits."), None),
    "peft.use_bnb_nested_quant": (note("Scales are quantised as well."), True),
    "peft.llm_int8_skip_modules": (note("The output layer stays as it is."), None),
    "peft.peft_save_mode": (agrees("An adapter is written.", ("ADAPTER_ONLY", "adapter_only"), remark(
        "The adapter is the result; a deployer or `adapters convert` makes what is served of it.")), "ADAPTER_ONLY"),
    "fsdp.enable_fsdp": (sharding(flag), True),
    **fsdp_details("fsdp"),
    "fsdp.*": (shard_detail("FULL"), None),
    "deepspeed.enable_deepspeed": (sharding(flag), True),
    "deepspeed.zero_stage": (shard_detail("ZERO_1", "ZERO_2", "ZERO_3"), "ZERO_2"),
    "deepspeed.precision": (note("hyperparameters.precision decides."), "BF16"),
    "deepspeed.*": (note("A detail of DeepSpeed, of which the backend has its own."), None),
}  # fmt: skip
TRAINING: Table = {
    **{key: row for key, row in ARGUMENTS.items() if key not in ("optim", "warmup_steps", "gradient_checkpointing")},
    "trainer_type": (trainer_kind(), "TRL_SFT"),
    "use_peft": (carry_setting("method", flag), True),
    "optimizer": (optimizer(), "adamw_torch"),
    "sgd_momentum": (agrees("SGD's, as here.", (0.9, 0, 0.0), reject("SGD has momentum 0.9 here.", WITHOUT)), 0.9),
    "warmup_steps": (steps_of_warmup(), 100),
    "enable_gradient_checkpointing": (checkpointing(), True),
    "mixed_precision_dtype": (map_word(f"{HYPER}precision", {"none": None, "bf16": "bf16", "fp16": "fp16"}), "bf16"),
    "save_epoch": (agrees("Checkpoints by steps.", (False,), remark("Checkpoints are counted in steps.")), False),
    "save_final_model": (accept("The result of a training is always kept."), True),
    "enable_wandb": (tracker("wandb", flagged=True), True),
    "enable_mlflow": (tracker("mlflow", flagged=True), False),
    "enable_tensorboard": (tracker("tensorboard", flagged=True), False),
    "compile": (note("Modules run as they are, uncompiled: equal numbers.", unless=(None, False)), False),
    "include_performance_metrics": (accept("Tokens per second and memory are in every step's metrics."), True),
    "include_alternative_mfu_metrics": (accept("Tokens per second and memory are in every step's metrics."), True),
    "log_model_summary": (note("How many weights are trainable is in training.json.", unless=(None, False)), True),
    "log_examples": (note("`trainyard plan` and the quarantine show rows."), False),
    "empty_device_cache_steps": (
        note("Kept for fragmented memory: a run out of memory starts again with half the batch."), 50
    ),
    "dataloader_main_process_only": (note(LOADING, unless=(None, False)), True),
    "dataloader_persistent_workers": (note(LOADING), True),
    "try_resume_from_last_checkpoint": (accept("`trainyard jobs resume` takes the newest valid one."), True),
    "use_deterministic": (note("A training is deterministic on one device; training.json has its flags."), True),
    "nccl_default_timeout_minutes": (note("Kept for slow preprocessing: rows are ready before the training."), 10),
    "metrics_function": (note(EVALUATION), None),
    "reward_functions": (
        refuse("Rewards are rules here, and these are Python functions.",
               "Say them as rules: --set 'stage.rewards=[{\"type\": \"exact_match\"}]'", setting="stage.rewards"), ["x"]
    ),
    "grpo.num_generations": (to("stage.num_generations", integer), 8),
    "grpo.max_completion_length": (to("stage.max_completion_length", integer), 256),
    "grpo.temperature": (to("stage.temperature", number), 1.0),
    "grpo.epsilon": (to("stage.epsilon", number), 0.2),
    "grpo.repetition_penalty": (refuse("Completions are drawn from all tokens.", WITHOUT, unless=(None, 1, 1.0)), 1.0),
    "grpo.*": (note("Rollouts are drawn in the training itself: no server of vLLM is needed."), True),
    "gold.*": (refuse(TEACHER, "Use stage sft: --set stage=sft.", setting="stage"), None),
    "gkd.*": (refuse(TEACHER, "Use stage sft: --set stage=sft.", setting="stage"), None),
    "verl_config_overrides.*": (note(VERL), 8),
    "trainer_kwargs.beta": (to("stage.beta", number), 0.1),
    "trainer_kwargs.max_length": (to(f"{HYPER}max_length", integer), 2048),
    "trainer_kwargs.max_seq_length": (agrees("model.model_max_length.", ("${model.model_max_length}",), remark(
        "model.model_max_length decides.")), "${model.model_max_length}"),
    "trainer_kwargs.max_prompt_length": (note("One bound, max_length, for prompt and answer."), 512),
    "trainer_kwargs.packing": (switch(assign({"engine.batching": "packed"}), setting="engine.batching"), True),
    "trainer_kwargs.dataset_text_field": (
        agrees("The field of texts.", ("text",), remark("Texts are in `text`.")), "text"
    ),
    "trainer_kwargs.vllm_mode": (note("Rollouts are drawn in the training itself."), "colocate"),
    "trainer_kwargs.*": (refuse("An argument of TRL's that is not known here.", "Leave it out by --without."), None),
    "profiler.*": (note("Kept for profiles: a run has times, tokens per second and memory of each step."), None),
    "telemetry.*": (note("Kept for profiles: a run has times, tokens per second and memory of each step."), None),
}  # fmt: skip
KEYS: Table = {
    **OWN,
    **{key: row for group in DATA_KEYS for key, row in list_split_keys(group, TRAIN).items()},
    **prefix_rows(TRAINING, "training"),
}
DEFAULTS: tuple[Absent, ...] = (
    *(replace(row, key=RENAMED.get(row.key, row.key)) for row in add_group(ARGUMENT_DEFAULTS, "training")),
    Absent("model.model_max_length", f"{HYPER}max_length", 1024, "TRL's own, which the file leaves out.", when=is_trl),
    require_key(
        "model.model_max_length",
        f"{HYPER}max_length",
        "Oumi cuts rows where the base's tokenizer does.",
        "Write it, or --set hyperparameters.max_length=2048.",
    ),
    Absent("data.train.pack", "engine.batching", "padded"),
    *add_group(LORA_DEFAULTS, "peft"),
    Absent("peft.bnb_4bit_quant_type", "quantization", "fp4", when=is_four_bits),
    *add_group(PREFERENCE_DEFAULTS, "training.trainer_kwargs"),
    *add_group(replace_values(ROLLOUT_DEFAULTS, temperature=0.9), "training.grpo"),
    Absent("training.trainer_kwargs.loss_type", "stage.loss", choose_by_stage({"dpo": "sigmoid", "grpo": "dapo"})),
    require_key(
        "training.sgd_momentum",
        f"{HYPER}optimizer",
        "SGD has momentum 0.9 here, and 0 there.",
        "Write sgd_momentum: 0.9, or another optimizer.",
        is_sgd,
    ),
    require_key("data.train.collator_name", "stage", PROMPTS, PROMPTS_DO, learns_prompts),
)
TOOL = ConfigTool(
    title="Oumi",
    marks=("model.model_name", "training.trainer_type", "data.train", "peft.q_lora", "fsdp.enable_fsdp",
           "training.enable_gradient_checkpointing", "judge_params", "engine"),
    keys=KEYS,
    axes=axes,
    data_sets=data_sets,
    purpose=purpose,
    defaults=DEFAULTS,
)  # fmt: skip
