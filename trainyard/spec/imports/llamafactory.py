"""LLaMA-Factory: one flat YAML, whose data sets are names in its own list of files. Its second form (v1) has groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.imports.conversion import ConfigTool
from trainyard.spec.imports.data_sets import DataPlace, files_of_split
from trainyard.spec.imports.defaults import (
    ARGUMENT_DEFAULTS,
    Absent,
    Computed,
    choose_by_stage,
    double_rank,
    has_loss,
)
from trainyard.spec.imports.keys import (
    ABSENT,
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
    remark,
    repeat,
    require_text,
    require_texts,
    switch,
    to,
    unless_off,
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
    fsdp_details,
    map_held_out,
    shard_detail,
    sharding,
    share,
    target_modules,
    template,
)

STAGES = {"pt": "cpt", "sft": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "ppo"}
METHODS = {"lora": "lora", "full": "full", "freeze": "freeze", "oft": "oft"}
LOSSES = {
    "sigmoid": "sigmoid",
    "hinge": "hinge",
    "ipo": "ipo",
    "kto_pair": "kto_pair",
    "orpo": "orpo",
    "simpo": "simpo",
}
STRATEGIES = {"z0": "ddp", "z1": "zero1", "z2": "zero2", "z3": "zero3"}
KTRANSFORMERS = "Experts on the CPU by KTransformers are not here."
MEGATRON = "There is no backend Megatron."
ONE_PROCESS = "Use launch.strategy and launch.processes; leave it out by --without."
OTHER_OPTIMIZER = "Use --set hyperparameters.optimizer=galore, muon or adafactor, and leave it out by --without."
GENERATES = "Kept for answers after the training; an evaluator has `samples`."
EXPORTS = "Kept for merging and exporting; `trainyard adapters convert` and a deployer do that."


def pissa() -> KeyConverter:
    """PiSSA by a few iterations of a randomised decomposition, or exact for `pissa_iter: -1`."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        if value is None or not flag(value):
            return assign(because="An adapter changes nothing at first.")
        iterations = integer(config.get("pissa_iter", 16))
        return assign({"method.init": "pissa" if iterations < 1 else f"pissa_niter_{iterations}"})

    return KeyConverter("method.init", convert)


def optimizer_switch(name: str) -> KeyConverter:
    setting = f"{HYPER}optimizer"
    return switch(assign({setting: name}), setting=setting)


def fast_attention() -> KeyConverter:
    return map_word("engine.attention", {"auto": "auto", "fa2": "auto", "fa3": "auto", "flash_attention_2": "auto",
                                     "sdpa": "sdpa", "disabled": "eager"})  # fmt: skip


def map_template() -> KeyConverter:
    """`default` is a text of LLaMA-Factory's own; a name that is left out is the base's template."""
    plain = template()

    def convert(value: Any, config: Config) -> KeyAnswer:
        if value in OWN_TEMPLATES:
            return reject(
                f"The template {value} is a text of LLaMA-Factory's own.",
                "--set engine.template=auto takes the base's own template, another prompt.",
            )
        return plain.convert(value, config)

    return KeyConverter(plain.setting, convert)


OWN_TEMPLATES = ("default", "empty", "alpaca", "vicuna", "fewshot")
INFO_FILE = "dataset_info.json"
FORMATTING = {"alpaca": "alpaca", "sharegpt": "sharegpt", "openai": "openai"}
COLUMNS: Mapping[str, frozenset[str]] = {
    "prompt": frozenset({"instruction", "prompt", "question", "text"}),
    "query": frozenset({"input"}),
    "response": frozenset({"output", "response", "completion", "answer"}),
    "history": frozenset({"history"}),
    "messages": frozenset({"messages", "conversations"}),
    "system": frozenset({"system"}),
    "tools": frozenset({"tools"}),
    "chosen": frozenset({"chosen"}),
    "rejected": frozenset({"rejected"}),
    "kto_tag": frozenset({"kto_tag", "label"}),
}
"""What a column is for -> the names of it that a data source here recognises."""
FIELDS = {"prompt": "prompt", "query": "input", "response": "completion", "history": "history", "messages": "messages",
          "system": "system", "tools": "tools", "chosen": "chosen", "rejected": "rejected",
          "kto_tag": "label"}  # fmt: skip
"""What a column is for -> the field of `columns` here."""
TAGS = {"role_tag": ("from", "role"), "content_tag": ("value", "content"), "user_tag": ("human", "user"),
        "assistant_tag": ("gpt", "assistant"), "observation_tag": ("observation", "tool"),
        "function_tag": ("function_call",), "system_tag": ("system",)}  # fmt: skip
UNLISTED: Mapping[str, frozenset[str]] = {
    "alpaca": frozenset({"input", "system", "history", "tools"}),
    **dict.fromkeys(("sharegpt", "openai"), frozenset({"system", "tools"})),
}
"""Formatting -> keys of a row that are read here by their names, and there only where a column says so."""
ROW_KEYS = "row_keys"
"""In an entry of the list: the keys of the first row of its file, which the reader of the list adds."""
DRAWN = (
    "LLaMA-Factory draws num_samples rows by chance, and some twice where there are fewer; a chain takes the first "
    "rows of the file."
)
ELSEWHERE = ("script_url", "ms_hub_url", "om_hub_url", "cloud_file_name")


def data_names(config: Config) -> list[DataPlace]:
    """`identity, alpaca_en_demo`: as `dataset_info.json` lists them, else files of these names in `dataset_dir`."""
    listed_names, folder = config.get("dataset") or config.get("train_dataset"), str(config.get("dataset_dir", "data"))
    names = require_texts(listed_names) if isinstance(listed_names, str | list) else []
    rows = config.get("max_samples")
    most = rows if isinstance(rows, int) else None
    listed = config.data_sets or {}
    below = "" if folder.startswith("REMOTE") else folder
    return [
        read_listed_place(entry, below, most).with_columns(read_columns(entry, config))
        if isinstance(entry := listed.get(name), Mapping)
        else build_place(name, below, most)
        for name in names
    ]  # fmt: skip


def read_listed_place(entry: JsonMapping, folder: str, most: int | None) -> DataPlace:
    """Return the data set of an entry of `dataset_info.json`."""
    samples = entry.get("num_samples")
    rows = min((count for count in (samples, most) if isinstance(count, int)), default=None)
    kind = "auto" if entry.get("ranking") else FORMATTING.get(str(entry.get("formatting", "alpaca")), "auto")
    if name := entry.get("hf_hub_url"):
        files = files_of_split(entry.get("split"))
        return DataPlace(str(name), kind, files, rows, subset=entry.get("subset") and str(entry["subset"]))
    name = str(entry.get("file_name") or "")
    return DataPlace(f"{folder}/{name}" if folder else name, kind, max_rows=rows, local=True)


def build_place(name: str, folder: str, most: int | None) -> DataPlace:
    if "/" in name or "." in name:
        return DataPlace(name, max_rows=most, local=True)
    return DataPlace(folder or "data", files=(f"{name}.*", f"{name}/*"), max_rows=most, local=True)


def unreadable(name: str, entry: JsonMapping, config: Config) -> str:
    """Return why an entry of `dataset_info.json` is not a set that a data source here reads; empty if it is."""
    elsewhere = next((key for key in ELSEWHERE if entry.get(key)), "")
    if elsewhere or not (entry.get("hf_hub_url") or entry.get("file_name")):
        return f"{name} is at a {elsewhere or 'place that is not named'}, which is not read."
    columns = entry.get("columns") or {}
    if strange := [key for key, column in columns.items() if column is not None and key not in FIELDS]:
        return f"{name} has a column for {', '.join(strange)}, which a data source here does not read."
    if "text" in read_columns(entry, config) and len([column for column in columns.values() if column]) > 1:
        return f"{name} joins columns of a row into one text, and a text here is in one column."
    for key, tag in (entry.get("tags") or {}).items():
        if tag not in TAGS.get(key, ()):
            return f"{name} has the {key} {tag!r}, and turns here are read by {' or '.join(TAGS.get(key, ())) or key}."
    return ""


def read_columns(entry: Mapping[str, object], config: Config) -> dict[str, str]:
    """Field here -> column of an entry's rows; empty where what is read here by usual names is what it lists."""
    columns = read_listed_columns(entry)
    usual = all(column in COLUMNS[key] for key, column in columns.items())
    if usual and not find_unlisted_keys(entry):
        return {}
    if config.get("stage") == "pt":
        return {"text": columns["prompt"]} if "prompt" in columns else {}
    return {FIELDS[key]: column for key, column in columns.items()}


def read_listed_columns(entry: JsonMapping) -> dict[str, str]:
    """Return what a column is for -> the column, of those that LLaMA-Factory reads."""
    alpaca = entry.get("formatting", "alpaca") == "alpaca"
    usual = (
        {"prompt": "instruction", "query": "input", "response": "output"} if alpaca else {"messages": "conversations"}
    )
    columns = (entry.get("columns") or usual).items()
    return {key: str(column) for key, column in columns if column is not None and key in FIELDS}


def find_unlisted_keys(entry: JsonMapping) -> list[str]:
    """Return the keys of an entry's rows that would be read here and are not there."""
    listed = set(read_listed_columns(entry).values())
    columns = UNLISTED.get(str(entry.get("formatting", "alpaca")), frozenset())
    return sorted(columns & set(entry.get(ROW_KEYS, ())) - listed)


def data_sets() -> KeyConverter:
    def convert(value: Any, config: Config) -> KeyAnswer:
        if value is None:
            return assign(because="No data set.")
        names, listed = require_texts(value), config.data_sets
        if not names:
            return reject("It names no data set.", "Name one, or a file: --set data_source.path=FILE.")
        if listed is not None:
            entries = {name: listed[name] for name in names if isinstance(listed.get(name), Mapping)}
            problems = [problem for name, entry in entries.items() if (problem := unreadable(name, entry, config))]
            problems += [f"{name} is not in {INFO_FILE}." for name in names if name not in entries and "." not in name]
            if problems:
                do = "Rename keys by `sql` with AS, or by a `converter`, and name that: --set data_source.path=FILE."
                return reject(problems[0], do)
            if any(entry.get("num_samples") for entry in entries.values()):
                return remark(DRAWN)
            return assign(because=f"As {INFO_FILE} lists it.")
        files = ", ".join(
            f"{data_set.name}/{data_set.files[0]}" if data_set.files else data_set.name
            for data_set in data_names(config)
        )
        return assign(because=f"Files by these names, {files}: there is no {INFO_FILE} next to them.")

    return KeyConverter("data_source.path", convert)


def axes(config: Config) -> dict[str, object]:
    stage = STAGES.get(str(config.get("stage", "sft")), str(config.get("stage")))
    method = read_method(config)
    settings: JsonObject = {"stage.type": stage, "method.type": method}
    bits = config.get("quantization_bit") or config.get("quant_config.quantization_bit")
    if method == "qlora" and bits == 8:
        settings["quantization"] = "int8"
    if stage == "ppo":
        settings["backend"] = "trl"
    if config.processes > 1:
        settings |= read_strategy(config)
    return settings


def read_method(config: Config) -> str:
    word_of = str(config.get("finetuning_type") or config.get("peft_config.name") or
                  ("lora" if "finetuning_type" in config.value or "stage" in config.value else "full"))  # fmt: skip
    method = METHODS.get(word_of, word_of)
    if method != "lora":
        return method
    if config.get("quantization_bit") or config.get("quant_config.quantization_bit"):
        return "qlora"
    if config.get("loraplus_lr_ratio"):
        return "lora_plus"
    return "dora" if config.get("use_dora") else "lora"


def read_strategy(config: Config) -> dict[str, object]:
    name = str(config.get("deepspeed") or config.get("dist_config.config_file") or "")
    level = next((strategy for part, strategy in STRATEGIES.items() if f"_{part}" in name), "")
    if level == "zero3":
        return {"launch.strategy": level, "backend": "deepspeed"}
    if not level and (config.get("fsdp") or config.get("dist_config")):
        full = config.get("finetuning_type") == "full"
        return {"launch.strategy": "fsdp", "backend": "trl"} if full else {"launch.strategy": "fsdp_hybrid"}
    return {"launch.strategy": level or "ddp"}


def purpose(config: Config) -> str:
    if config.get("export_dir") or config.get("peft_config.export_dir"):
        return "a config for merging and exporting"
    if config.get("infer_backend") and not config.get("stage"):
        return "an inference config"
    if config.get("do_predict") and not config.get("do_train"):
        return "a config for predictions"
    if "compute_environment" in config.value:
        return "a config of accelerate"
    return ""


def is_v1(config: Config) -> bool:
    """Return whether a config is of the second form, which has groups."""
    return not {"stage", "finetuning_type", "model_name_or_path"} & config.value.keys()


def is_v0(config: Config) -> bool:
    return not is_v1(config)


def restrict_to(form: Callable[[Config], bool], when: Computed | None) -> Computed:
    """Return a row of one form of the config."""
    return lambda config, settings: form(config) and (when is None or when(config, settings))


def batching_of_stage(_config: Config, settings: Mapping[str, object]) -> str:
    """Packing is the default of pre-training."""
    return "packed" if settings["stage.type"] == "cpt" else "padded"


def precision_of_flags(_config: Config, settings: Mapping[str, object]) -> str:
    """Without a flag the base keeps its own format, and weights that are trained whole are made fp32."""
    return "fp32" if settings["method.type"] in ("full", "freeze") else "auto"


def optimizer_config() -> KeyConverter:
    return map_word(f"{HYPER}optimizer", {"muon": "muon", "adamw": "adamw", "badam": None})


ARGS = {key: row for key, row in ARGUMENTS.items() if key != "optim"}
V0: Table = {
    "model_name_or_path": (to("base_model", require_text), "Qwen/Qwen3-0.6B"),
    "model_revision": (
        agrees("The newest of the base.", ("main",), reject(
            "A base is named, its revision is not.", "Download it: --set base_model=FOLDER.")), "main"
    ),
    "optim": ARGUMENTS["optim"],
    "trust_remote_code": (note("Code of a model repository never runs; models that transformers knows need none.",
                               unless=(None, False)), True),
    "cache_dir": (note("The Hub's cache is where HF_HOME says."), None),
    "stage": (map_word("stage.type", dict.fromkeys(STAGES)), "sft"),
    "finetuning_type": (map_word("method.type", dict.fromkeys(METHODS)), "lora"),
    "lora_rank": (to("method.rank", integer), 8),
    "lora_alpha": (to("method.alpha", number), 16),
    "lora_dropout": (to("method.dropout", number), 0.0),
    "lora_target": (target_modules(), "all"),
    "additional_target": (to("method.modules_to_save", require_texts), "embed_tokens"),
    "use_rslora": LORA["use_rslora"],
    "use_dora": (carry_setting("method", flag), False),
    "loraplus_lr_ratio": (to("method.ratio", number), 16.0),
    "loraplus_lr_embedding": (note("Embeddings are not adapted: no adapter on them has a rate."), 1e-6),
    "create_new_adapter": (agrees("A new adapter.", (True, False), assign()), False),
    "pissa_init": (pissa(), True),
    "pissa_iter": (carry_setting("method.init", integer), 16),
    "pissa_convert": (
        agrees("The saved adapter is a plain one of twice the rank.", (True,),
               remark("The saved adapter is always a plain one, of twice the rank, that fits the base.")), True
    ),
    "oft_block_size": (to("method.block_size", integer), 32),
    "oft_target": (target_modules(), "all"),
    "oft_rank": (note("The size of a block decides: method.block_size.", unless=(None, 0)), 0),
    "module_dropout": (to("method.dropout", number), 0.0),
    "freeze_trainable_layers": (to("method.blocks", integer), 2),
    "freeze_trainable_modules": (agrees("Whole blocks.", ("all",), reject(
        "Blocks are trained whole.", "Use `all`, or method lora with target_modules.")), "all"),
    "freeze_extra_modules": (refuse("Besides blocks, only the head is trainable.", "--set method.head=true",
                                    setting="method.head"), None),
    "use_llama_pro": (
        refuse("LLaMA Pro adds blocks, which method freeze does not.", "Leave it out: --without."), False
    ),
    "pref_beta": (to("stage.beta", number), 0.1),
    "pref_loss": (map_word("stage.loss", LOSSES), "sigmoid"),
    "pref_ftx": (refuse("No SFT loss is added to DPO.", "Leave it out, or use orpo.", unless=(None, 0)), 0.0),
    "simpo_gamma": (to("stage.gamma", number), 0.5),
    "dpo_label_smoothing": (to("stage.label_smoothing", number), 0.0),
    "kto_chosen_weight": (to("stage.desirable_weight", number), 1.0),
    "kto_rejected_weight": (to("stage.undesirable_weight", number), 1.0),
    **repeat(refuse("No backend trains PPO today.", "Use stage grpo or dpo."), None, "ppo_buffer_size", "ppo_epochs",
           "ppo_score_norm", "ppo_target", "ppo_whiten_rewards", "reward_model", "reward_model_type"),
    "ref_model": (refuse("The reference is the base itself.", "Leave it out: --without ref_model."), None),
    "adapter_name_or_path": (refuse("A chain continues an adapter of a trainer before it.",
                                    "Leave it out, or put that training before this one."), None),
    "dataset": (data_sets(), "identity,alpaca_en_demo"),
    "dataset_dir": (carry_setting("data_source.path", require_text), "data"),
    "eval_dataset": (note(EVALUATION), "identity"),
    "val_size": (map_held_out("eval.share", share), 0.1),
    "max_samples": (carry_setting("data_source.max_rows", integer), 1000),
    "template": (map_template(), "llama3"),
    "cutoff_len": (to(f"{HYPER}max_length", integer), 2048),
    "packing": (switch(assign({"engine.batching": "packed"}), assign({"engine.batching": "padded"}),
                       setting="engine.batching"), False),
    "neat_packing": (switch(assign({"engine.batching": "packed"}), setting="engine.batching"), False),
    "train_on_prompt": (agrees("Only answers are learned.", (False,), reject(
        "Prompts are not learned.", "Use stage cpt for whole texts.")), False),
    "mask_history": (switch(assign({"stage.turns": "last"}), setting="stage.turns"), True),
    "enable_thinking": (note("Reasoning is learned where the rows and the template have it."), True),
    "tool_format": (refuse("Tools are written by the base's own template.", WITHOUT), None),
    "default_system": (refuse("A system message is part of the rows.", "Add it to them; --without it."), None),
    "disable_shuffling": (agrees("Rows are shuffled.", (False,), reject(
        "Rows are shuffled by the seed.", "--without disable_shuffling")), False),
    "tokenized_path": (note("Tokens are made by the training, and rows are in the store."), "saves/tokens"),
    "preprocessing_num_workers": (note(LOADING), 16),
    "preprocessing_batch_size": (note(LOADING), 1000),
    "overwrite_cache": (accept("Rows are read again when their file has changed."), True),
    "streaming": (note("A data set is read once, into the store."), False),
    "mix_strategy": (agrees("One after the other, then shuffled.", ("concat",), reject(
        "Sets are joined, not interleaved.", "--without mix_strategy")), "concat"),
    "plot_loss": (accept("Every step's loss is kept; `trainyard jobs metrics` shows it."), True),
    "include_effective_tokens_per_second": (accept("Tokens per second are in every step's metrics."), True),
    "flash_attn": (fast_attention(), "fa2"),
    "attn_implementation": (attention(), "sdpa"),
    "enable_liger_kernel": (switch(assign({"engine.head": "liger"}), setting="engine.head"), False),
    "use_unsloth": (switch(assign({"backend": "unsloth"}), setting="backend"), False),
    "use_unsloth_gc": (switch(assign({f"{HYPER}gradient_checkpointing": True})), False),
    "disable_gradient_checkpointing": (switch(assign({f"{HYPER}gradient_checkpointing": False}),
                                              assign({f"{HYPER}gradient_checkpointing": True})), False),
    "use_reentrant_gc": (agrees("Not re-entrant.", (False,), remark("Recomputed without re-entrance: equal.")), False),
    "pure_bf16": (switch(assign({f"{HYPER}precision": "bf16"})), True),
    "upcast_layernorm": (note("Norms are computed in fp32 by the model itself."), False),
    "compute_dtype": (note("precision decides."), None),
    "quantization_bit": (agrees("A base of 4 bits (nf4) or 8 (int8).", (4, 8), reject(
        "There are bases of 4 and 8 bits.", "Write 4 or 8.")), 4),
    "quantization_method": (agrees("bitsandbytes.", ("bnb", "bitsandbytes"), reject(
        "A base is quantised by bitsandbytes here.", "--set quantization=hqq_int4", ), setting="quantization"), "bnb"),
    "quantization_type": (to("quantization", require_text), "nf4"),
    "double_quantization": (
        agrees("Scales are quantised as well.", (True,), remark("Scales are quantised as well.")), True
    ),
    "quantization_device_map": (note("The base is loaded on the training's device."), None),
    "rope_scaling": (
        refuse("The factor is cutoff_len over the base's own length, which is not in the file.",
               "Say it: --set 'rope={\"type\": \"yarn\", \"factor\": 4}'", setting="rope"), None
    ),
    "resize_vocab": (
        switch(assign(because="Embeddings grow by what added_tokens needs.")), True
    ),
    "add_tokens": (to("added_tokens", require_texts), "<|plan|>,<|act|>"),
    "shift_attn": (refuse("Shifted attention is not here.", "--without shift_attn"), False),
    "mixture_of_depths": (refuse("Mixture of depths is not here.", "--without mixture_of_depths"), None),
    "use_galore": (refuse("GaLore has rank 128 and its paper's numbers here, another rank and scale there.",
                          "--set hyperparameters.optimizer=galore takes those here.",
                          setting=f"{HYPER}optimizer"), False),
    "use_muon": (optimizer_switch("muon"), False),
    **repeat(unless_off("use_galore", note("GaLore has its paper's numbers here.")), None, "galore_target",
           "galore_rank", "galore_update_interval", "galore_scale", "galore_proj_type", "galore_layerwise"),
    **repeat(refuse("APOLLO is not an optimizer here.", OTHER_OPTIMIZER), False, "use_apollo", "apollo_target",
           "apollo_rank", "apollo_update_interval", "apollo_scale", "apollo_scale_type", "apollo_layerwise"),
    **repeat(refuse("BAdam is not an optimizer here.", OTHER_OPTIMIZER), False, "use_badam", "badam_mode",
           "badam_switch_mode", "badam_switch_interval", "badam_update_ratio", "badam_verbose"),
    "use_adam_mini": (refuse("Adam-mini is not an optimizer here.", OTHER_OPTIMIZER), False),
    **repeat(refuse("This loss is not here.", "Use stage sft: leave it out by --without."), False, "use_dft_loss",
           "use_asft_loss", "asft_alpha", "use_eaft_loss", "eaft_alpha"),
    "fp8": (switch(assign({"engine.fp8": "torchao"}), setting="engine.fp8"), False),
    "fp8_backend": (agrees("torchao.", ("auto", "torchao"), remark("torchao computes it here.")), "torchao"),
    "fp8_enable_fsdp_float8_all_gather": (note("A detail of FSDP with fp8: weights are gathered in bf16."), False),
    "deepspeed": (sharding(), "ds_z3_config.json"),
    "fsdp": (sharding(), "full_shard"),
    "fsdp_transformer_layer_cls_to_wrap": (shard_detail(), "LlamaDecoderLayer"),
    **fsdp_details("fsdp_config"),
    **repeat(note("Kept for Ray: Prefect starts trainings here."), 4, "ray_num_workers", "ray_run_name"),
    **repeat(refuse(KTRANSFORMERS, "Leave it out: --without."), False, "use_kt", "kt_config.*", "kt_cpu_activation",
           "kt_weight_path", "kt_non_expert_weight_path"),
    **repeat(refuse(MEGATRON, ONE_PROCESS, unless=(*ABSENT, 1)), 1, "tensor_model_parallel_size",
           "pipeline_model_parallel_size", "expert_model_parallel_size", "context_parallel_size", "sequence_parallel"),
    **repeat(note("A kernel or an overlap of Megatron, with equal numbers."), True, "bias_activation_fusion",
           "apply_rope_fusion", "use_distributed_optimizer", "overlap_param_gather", "overlap_grad_reduce",
           "moe_grouped_gemm", "moe_token_dispatcher_type", "recompute_granularity", "use_packed_sequences",
           "export_hf_on_finish"),
    "mixed_precision": (agrees("bf16.", ("bf16_mixed",), reject("Precision is bf16, fp16 or fp32.",
                                                                  "--set hyperparameters.precision=bf16")),
                                                                      "bf16_mixed"),
    **repeat(refuse(TEXT_ONLY, NO_IMAGES), None, "image_max_pixels", "image_min_pixels", "video_max_pixels",
           "video_min_pixels", "video_fps", "video_maxlen", "freeze_vision_tower", "freeze_multi_modal_projector",
           "media_dir"),
    "freeze_language_model": (agrees("The text model is trained.", (False,), reject("It is what is trained.",
                                                                                     "Leave it out.")), False),
    "use_v1_kernels": (note("Kernels of LLaMA-Factory compute the same."), False),
    **repeat(note(GENERATES), None, "do_predict", "predict_with_generate", "temperature", "top_p", "top_k",
        "max_new_tokens"),
    **repeat(note(EXPORTS), None, "export_dir", "export_size", "infer_backend", "infer_dtype"),
    "do_train": ARGUMENTS["do_train"],
}  # fmt: skip
V1: Table = {
    "model": (to("base_model", require_text), "Qwen/Qwen3-0.6B"),
    "model_class": (agrees("A text model.", ("llm",), reject(TEXT_ONLY, NO_IMAGES)), "llm"),
    "train_dataset": (carry_setting("data_source.path", require_text), "data/rows.yaml"),
    "micro_batch_size": (to(f"{HYPER}batch_size", integer), 1),
    "global_batch_size": (note("micro_batch_size and accumulation are written; processes multiply them."), 8),
    "peft_config.name": (map_word("method.type", dict.fromkeys(METHODS)), "lora"),
    "peft_config.r": (to("method.rank", integer), 16),
    "peft_config.lora_alpha": (to("method.alpha", number), 32),
    "peft_config.lora_dropout": (to("method.dropout", number), 0.05),
    "peft_config.target_modules": (target_modules(), "all"),
    "peft_config.freeze_trainable_layers": (to("method.blocks", integer), 2),
    "peft_config.freeze_trainable_modules": V0["freeze_trainable_modules"],
    "peft_config.freeze_extra_modules": V0["freeze_extra_modules"],
    "quant_config": (accept("The base is not quantised."), None),
    "quant_config.name": (agrees("bitsandbytes.", ("bnb", "auto"), reject(
        "A base is quantised by bitsandbytes here.", "Write bnb.")), "bnb"),
    "quant_config.quantization_bit": V0["quantization_bit"],
    "init_config.name": (note("A base is loaded by Trainyard's own way."), "init_on_meta"),
    "kernel_config.name": (agrees("Kernels that compute the same.", ("auto",), remark(
        "Kernels compute the same; Trainyard's choice is engine.head and engine.attention.")), "auto"),
    **repeat(note("Kernels compute the same; Trainyard chooses its own."), None, "kernel_config.include_kernels",
           "kernel_config.chunk_size"),
    "dist_config.name": (sharding(), "fsdp2"),
    "dist_config.config_file": (sharding(), "ds_z3_config.json"),
    "dist_config.dcp_path": (note("A base is read from its safetensors.", unless=(None,)), None),
    **repeat(refuse("Experts are not split over processes.", ONE_PROCESS, unless=(None, 1)), 1, "dist_config.ep_size",
           "dist_config.ep_dispatcher"),
    **repeat(refuse("Sequences are not split over processes.", ONE_PROCESS, unless=(None, 1)), 1, "cp_size", "cp_mode"),
    "optim_config.name": (optimizer_config(), "muon"),
    "optim_config.wd": (to(f"{HYPER}weight_decay", number), 0.1),
    **repeat(refuse("The optimizer has its paper's numbers here.", WITHOUT, unless=(None,)), None,
           "optim_config.momentum", "optim_config.nesterov",
           "optim_config.ns_steps", "optim_config.adamw_betas", "optim_config.adamw_eps"),
    "batching_strategy": (map_word("engine.batching", {
        "normal": "padded", "padding_free": "packed", "dynamic_padding_free": "packed", "dynamic_batching": "buckets",
    }), "normal"),
    "sample_backend": (note(GENERATES), "hf"),
}  # fmt: skip
KEYS: Table = {**ARGS, **V0, **V1}
V0_ABSENT: tuple[Absent, ...] = (
    *(row for row in ARGUMENT_DEFAULTS if row.key not in ("gradient_checkpointing", "bf16")),
    Absent("bf16", f"{HYPER}precision", precision_of_flags),
    Absent("disable_gradient_checkpointing", f"{HYPER}gradient_checkpointing", True),
    Absent("cutoff_len", f"{HYPER}max_length", 2048),
    Absent("packing", "engine.batching", batching_of_stage),
    Absent("lora_rank", "method.rank", 8),
    Absent("lora_alpha", "method.alpha", double_rank, "LLaMA-Factory's own, twice the rank."),
    Absent("lora_dropout", "method.dropout", 0.0),
    Absent("lora_target", "method.target_modules", "all-linear"),
    Absent("freeze_trainable_layers", "method.blocks", 2),
    Absent("oft_block_size", "method.block_size", 32),
    Absent("pref_beta", "stage.beta", choose_by_stage({"dpo": 0.1, "kto": 0.1})),
    Absent("pref_loss", "stage.loss", choose_by_stage({"dpo": "sigmoid"})),
    Absent("simpo_gamma", "stage.gamma", 0.5, when=has_loss("simpo")),
    Absent("dpo_label_smoothing", "stage.label_smoothing", 0.0, when=has_loss("sigmoid")),
    Absent("kto_chosen_weight", "stage.desirable_weight", 1.0),
    Absent("kto_rejected_weight", "stage.undesirable_weight", 1.0),
)
V1_ABSENT: tuple[Absent, ...] = (
    Absent("num_train_epochs", f"{HYPER}epochs", 3.0, unless=(f"{HYPER}max_steps",)),
    Absent("micro_batch_size", f"{HYPER}batch_size", 1),
    Absent("gradient_accumulation_steps", f"{HYPER}gradient_accumulation", 1),
    Absent("learning_rate", f"{HYPER}learning_rate", 1e-4),
    Absent("lr_scheduler_config", f"{HYPER}schedule", "constant"),
    Absent("warmup_steps", f"{HYPER}warmup_ratio", 0.0, unless=(f"{HYPER}warmup_steps",)),
    Absent("optim_config.name", f"{HYPER}optimizer", "adamw"),
    Absent("optim_config.wd", f"{HYPER}weight_decay", 0.01, "torch.optim.AdamW's own, which the file leaves out."),
    Absent("max_grad_norm", f"{HYPER}max_grad_norm", 1.0),
    Absent("seed", f"{HYPER}seed", 42),
    Absent("enable_activation_checkpointing", f"{HYPER}gradient_checkpointing", True),
    Absent("bf16", f"{HYPER}precision", "auto"),
    Absent("cutoff_len", f"{HYPER}max_length", 2048),
    Absent("batching_strategy", "engine.batching", "padded"),
    Absent("peft_config.r", "method.rank", 8),
    Absent("peft_config.lora_alpha", "method.alpha", 16),
    Absent("peft_config.lora_dropout", "method.dropout", 0.05),
    Absent("peft_config.target_modules", "method.target_modules", "all-linear"),
    Absent("peft_config.freeze_trainable_layers", "method.blocks", 2),
)
DEFAULTS: tuple[Absent, ...] = (
    *(replace(row, when=restrict_to(is_v0, row.when)) for row in V0_ABSENT),
    *(replace(row, when=restrict_to(is_v1, row.when)) for row in V1_ABSENT),
)
TOOL = ConfigTool(
    title="LLaMA-Factory",
    marks=("finetuning_type", "cutoff_len", "lora_target", "template", "train_dataset", "dist_config", "peft_config",
           "export_dir", "infer_backend", "model_name_or_path"),
    keys=KEYS,
    axes=axes,
    data_sets=data_names,
    purpose=purpose,
    defaults=DEFAULTS,
)  # fmt: skip
