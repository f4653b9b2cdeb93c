"""Axolotl: one flat YAML, whose data sets are a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.imports.conversion import ConfigTool
from trainyard.spec.imports.data_sets import DataPlace, files_of_split, first_rows
from trainyard.spec.imports.defaults import DEFAULTS
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
    map_column,
    map_word,
    note,
    number,
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
    HUB,
    HYPER,
    LOADING,
    LORA,
    NO_IMAGES,
    TEXT_ONLY,
    TO_ZERO,
    WITHOUT,
    attention,
    dtype,
    first_weights,
    fsdp_details,
    loftq_bits,
    map_held_out,
    map_tokenizer,
    optimizer,
    precision,
    schedule,
    shard_detail,
    sharding,
    share,
    split,
    template,
    tracker,
)

LOSSES = {"dpo": "sigmoid", "ipo": "ipo", "orpo": "orpo", "simpo": "simpo"}
FORMATS = {
    "completion": "text", "pretrain": "text", "sharegpt": "sharegpt", "chat_template": "auto", "passthrough": "auto",
}  # fmt: skip
"""First word of a data set's `type` -> our format."""
KINDS = {"LigerPlugin": "liger", "CutCrossEntropyPlugin": "chunked"}
"""Plugin -> how the output layer is computed."""
EBFT = "Energy-based fine-tuning (rl: ebft) is not a stage here."
PLUGIN = "Plugins of axolotl run inside axolotl."
TOKEN = "Special tokens are those of the base model's tokenizer; the renderer's tokens end an answer."
KERNEL = "A kernel of axolotl that computes the same; Trainyard chooses its own."
EXPERTS = "How experts are computed is transformers' own choice here."
PARALLEL = "Parallelism is launch.strategy and launch.processes; tensors, sequences and experts are not split here."
ONE_PROCESS = "Train with --set launch.strategy=ddp --set launch.processes=N, or leave it out by --without."
QUANTISED = "A base is quantised by bitsandbytes, with double quantisation."
OTHER_LOSS = "Use another loss, or leave it out by --without."


PROMPTED = (
    "Axolotl writes these rows into a prompt text of its own, without the base's chat template, and a chain does not."
)
PROMPTED_DO = "--set data_source.format=alpaca reads the rows, and renders them by the base's template: another prompt."
OWN_PROMPT_DO = (
    "--set data_source.format=auto reads these columns, and renders them by the base's template: another prompt."
)
OWN_FIELDS = {
    "field_instruction": "prompt", "field_prompt": "prompt", "field_input": "input", "field_output": "completion",
    "field_completion": "completion", "field_chosen": "chosen", "field_rejected": "rejected", "field_label": "label",
    "field_system": "system",
}  # fmt: skip
"""Key of a prompt text of one's own -> the field here whose column it names."""


def plugins() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        names = [plugin.rpartition(".")[2] for plugin in require_texts(value)] if value else []
        heads = [KINDS[name] for name in names if name in KINDS]
        if strange := [name for name in names if name not in (*KINDS, "SwanLabPlugin", "KernelsPlugin")]:
            return reject(f"{PLUGIN} {', '.join(strange)} is none of Trainyard's.", "Leave it out: --without plugins.")
        return assign({"engine.head": heads[0]} if heads else {}, "" if heads else "No plugin is needed.")

    return KeyConverter("engine.head", convert)


def evals_per_epoch() -> KeyConverter:
    def convert(value: Any, config: Config) -> KeyAnswer:
        if value in (None, 0, 1):
            return map_held_out("eval.steps", lambda _: "epoch").convert(value, config)
        return remark("An evaluation comes every so many steps; the default is 20 a run.")

    return KeyConverter("eval.steps", convert)


def map_mixed_type() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value is None:
            return assign(because="The fields of a row are found by their names.")
        first = require_text(value).split(".")[0].split(":")[0]
        if first in ("llama3", "chatml"):
            return assign({"engine.template": first}, "In data_source.format, with the template of that name.")
        if first in FORMATS or first == "bradley_terry":
            return assign(because="In data_source.format.")
        return reject(PROMPTED, PROMPTED_DO)

    return KeyConverter("data_source.format", convert)


def field_of_rows(*names: object) -> KeyConverter:
    return agrees(
        "A name of a field that is known.", names,
        reject("Rows are read by the fields' usual names.",
                "Rename the field by `sql` with AS, or by a `converter`, and name that: --set data_source.path=FILE."),
        setting="data_source.path",
    )  # fmt: skip


def axes(config: Config) -> JsonObject:
    settings = {"stage.type": read_stage(config), "method.type": read_method(config)}
    if config.get("load_in_8bit") and settings["method.type"] == "qlora":
        settings["quantization"] = "int8"
    if (rl := config.get("rl")) in LOSSES:
        settings["stage.loss"] = LOSSES[rl]
    if settings["stage.type"] == "grpo":
        settings["backend"] = "trl"
    if config.processes != 1 and (strategy := read_strategy(config, settings["stage.type"], settings["method.type"])):
        settings |= strategy
    return settings


def read_stage(config: Config) -> str:
    if rl := config.get("rl"):
        return "dpo" if rl in LOSSES else "grpo" if rl in ("grpo", "gdpo") else str(rl)
    if config.get("reward_model"):
        return "reward"
    formats = [read_format(data_set) for data_set in config.listed("datasets")]
    texts_only = bool(formats) and all(row_format == "text" for row_format in formats)
    return "cpt" if config.get("pretraining_dataset") or texts_only else "sft"


def read_method(config: Config) -> str:
    adapter = config.get("adapter")
    if not adapter:
        return "freeze" if config.get("lisa_step_interval") else "full"
    if adapter == "qlora" or config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "qlora"
    if config.get("loraplus_lr_ratio"):
        return "lora_plus"
    return "dora" if config.get("peft_use_dora") else "lora"


def read_strategy(config: Config, stage: str, method: str) -> JsonObject:
    """Return the strategy that FSDP or DeepSpeed in the file means, with a backend that has it."""
    if config.get("fsdp") or config.get("fsdp_config"):
        full = stage == "sft" and method == "full"
        return {"launch.strategy": "fsdp", "backend": "trl"} if full else {"launch.strategy": "fsdp_hybrid"}
    if name := str(config.get("deepspeed", "")):
        level = next((level for level in ("zero1", "zero2", "zero3") if level in name), "zero2")
        return {"launch.strategy": level} | ({"backend": "deepspeed"} if level == "zero3" else {})
    return {"launch.strategy": "ddp"}


def read_format(entry: Mapping[str, object]) -> str:
    kind = entry.get("type")
    return FORMATS.get(kind.split(".")[0].split(":")[0], "auto") if isinstance(kind, str) else "auto"


def data_sets(config: Config) -> list[DataPlace]:
    entries = config.listed("datasets") or config.listed("pretraining_dataset")
    single = config.get("pretraining_dataset")
    paired = config.get("rl") in LOSSES or bool(config.get("reward_model"))
    sets = [
        read_place(entry).with_columns(read_columns(entry, paired=paired))
        for entry in entries
        if isinstance(entry.get("path"), str)
    ]
    return sets or ([DataPlace(single, "text")] if isinstance(single, str) else [])


def read_place(entry: JsonMapping) -> DataPlace:
    files = entry.get("data_files") or ()
    files = (files,) if isinstance(files, str) else tuple(file for file in files if isinstance(file, str))
    if entry["path"] in ("json", "csv", "parquet", "text", "arrow") and files:
        return DataPlace(files[0], read_format(entry), local=True)
    part = entry.get("split")
    return DataPlace(entry["path"], read_format(entry), files or files_of_split(part), first_rows(part),
                     subset=entry.get("name"))  # fmt: skip


def read_columns(entry: Mapping[str, object], *, paired: bool) -> dict[str, str]:
    """Field here -> column, of everything that Axolotl reads of a row; empty where all have their usual names."""

    def named(key: str, usual: str) -> str:
        message = entry.get(key)
        return message if isinstance(message, str) and message else usual

    if isinstance(kind := entry.get("type"), Mapping):
        return read_own_columns(kind)
    if read_format(entry) == "text" or entry.get("text_column"):
        column = named("field", named("text_column", "text"))
        return {} if column == "text" else {"text": column}
    answers = {name: named(f"field_{name}", name) for name in ("chosen", "rejected")} if paired else {}
    added = {name: named(f"field_{name}", name) for name in ("system", "tools")}
    messages = named("field_messages", "messages")
    usual = messages in ("messages", "conversations") and all(
        name == column for name, column in {**answers, **added}.items()
    )
    return {} if usual else {"messages": messages, **answers, **added}


def read_own_columns(kind: JsonMapping) -> dict[str, str]:
    """Return the columns of a prompt text of the config's own, with Axolotl's names for those that it leaves out."""
    columns = {field: kind[key] for key, field in OWN_FIELDS.items() if isinstance(kind.get(key), str)}
    if "chosen" in columns or "rejected" in columns:
        usual = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected", "system": "system"}
    elif "label" in columns:
        usual = {"prompt": "prompt", "completion": "completion", "label": "label", "system": "system"}
    else:
        usual = {"prompt": "instruction", "input": "input", "completion": "output", "system": "system"}
    return usual | columns


def purpose(config: Config) -> str:
    if not isinstance(config.value.get("base_model"), str) and "provider" in config.value:
        return "a cloud config"
    return ""


def entry_keys(group: str) -> Table:
    """Return the keys of a data set in a list."""
    return {
        f"{group}[].path": (carry_setting("data_source.path", require_text), "me/rows"),
        f"{group}[].type": (map_mixed_type(), "chat_template"),
        f"{group}[].type.*": (refuse(PROMPTED, OWN_PROMPT_DO, setting="data_source.format"), None),
        f"{group}[].ds_type": (accept("The kind of a file is seen in it."), "json"),
        f"{group}[].data_files": (carry_setting("data_source.include"), ["a.jsonl"]),
        f"{group}[].name": (carry_setting("data_source.hub", require_text), "en"),
        f"{group}[].split": (split(), "train"),
        f"{group}[].field": (map_column("text", "text"), "content"),
        f"{group}[].text_column": (map_column("text", "text"), "content"),
        f"{group}[].field_messages": (map_column("messages", "messages", "conversations"), "dialog"),
        f"{group}[].field_system": (map_column("system", "system"), "system"),
        f"{group}[].field_tools": (map_column("tools", "tools"), "tools"),
        f"{group}[].message_property_mappings.role": (field_of_rows("role", "from"), "from"),
        f"{group}[].message_property_mappings.content": (field_of_rows("content", "value"), "value"),
        f"{group}[].message_field_role": (field_of_rows("role", "from"), "from"),
        f"{group}[].message_field_content": (field_of_rows("content", "value"), "value"),
        f"{group}[].field_chosen": (map_column("chosen", "chosen"), "better"),
        f"{group}[].field_rejected": (map_column("rejected", "rejected"), "worse"),
        f"{group}[].field_thinking": (field_of_rows("reasoning_content", "thinking"), "thinking"),
        f"{group}[].template_thinking_key": (note("A template reads `reasoning_content`, or what it has."), "thinking"),
        f"{group}[].split_thinking": (note("Reasoning is in a field of its own, or part of the answer."), True),
        f"{group}[].roles.system": (field_of_rows(["system"]), ["system"]),
        f"{group}[].roles.user": (field_of_rows(["user"], ["human", "user"]), ["user"]),
        f"{group}[].roles.assistant": (field_of_rows(["assistant"], ["gpt", "assistant"]), ["assistant"]),
        f"{group}[].roles_to_train": (field_of_rows(["assistant"]), ["assistant"]),
        f"{group}[].train_on_eos": (agrees("The end of a turn is learned.", ("turn", "all"),
                                           reject("The end of each answer is learned.", "Write turn.")), "turn"),
        f"{group}[].drop_system_message": (refuse("System messages are kept.", "Remove them from the rows."), False),
        f"{group}[].chat_template": (template(), "qwen3"),
        f"{group}[].shards": (refuse("A set is read whole.", "--set data_source.max_rows=N"), None),
        f"{group}[].step_separator": (refuse("There is no process reward model here.", "Use stage reward."), None),
        f"{group}[].max_completion_length": (
            refuse("There is no process reward model here.", "Use stage reward."), None
        ),
        f"{group}[].train_on_last_step_only": (refuse("There is no process reward model here.", "Use reward."), False),
    }  # fmt: skip


def exclusive_keys(*names: str) -> Table:
    return {key: ARGUMENTS[key] for key in names}


KEYS: Table = {
    "base_model": (to("base_model", require_text), "Qwen/Qwen3-0.6B"),
    "base_model_config": (note("The config in the base model's folder is read."), None),
    "revision_of_model": (
        refuse("A base is named, its revision is not.", "Download that revision and name its folder."), None
    ),
    "model_type": (accept("The class is the one that config.json of the base names."), "AutoModelForCausalLM"),
    "tokenizer_type": (accept("The class is the one that tokenizer_config.json of the base names."), "AutoTokenizer"),
    "tokenizer_config": (map_tokenizer("base_model"), "me/model"),
    "trust_remote_code": (
        agrees("Code of a repository never runs.", (False,),
               remark("Code of a model repository never runs; models that transformers knows need none.")), False
    ),
    **exclusive_keys(
        "learning_rate", "gradient_accumulation_steps", "warmup_ratio", "weight_decay", "max_grad_norm", "adam_beta1",
        "adam_beta2", "adam_epsilon", "fp16", "gradient_checkpointing", "gradient_checkpointing_kwargs",
        "gradient_checkpointing_kwargs.use_reentrant", "seed", "save_steps", "save_strategy", "save_total_limit",
        "save_only_model", "save_safetensors", "logging_steps", "resume_from_checkpoint", "ddp_find_unused_parameters",
        "ddp_timeout", "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory",
        "remove_unused_columns", "group_by_length", "eval_strategy", "evaluation_strategy", "eval_steps",
        "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "neftune_noise_alpha", "torch_compile",
        "hub_model_id", "local_rank", "output_dir", "max_steps", "tf32",
    ),
    "adam_eps": ARGUMENTS["adam_epsilon"],
    "micro_batch_size": (to(f"{HYPER}batch_size", integer), 2),
    "num_epochs": (to(f"{HYPER}epochs", number), 1),
    "batch_size": (note("The product of micro_batch_size and gradient_accumulation_steps, which are written."), 8),
    "optimizer": (optimizer(), "adamw_bnb_8bit"),
    "lr_scheduler": (schedule(), "cosine"),
    "warmup_steps": (steps_of_warmup(), 10),
    **repeat(refuse(TO_ZERO, WITHOUT, unless=(None, 0, 0.0)), 0.1, "cosine_min_lr_ratio", "cosine_constant_lr_ratio",
           "eta_min"),
    "lr_quadratic_warmup": (refuse("The warmup is linear.", WITHOUT), True),
    "sequence_len": (to(f"{HYPER}max_length", integer), 2048),
    "sample_packing": (switch(assign({"engine.batching": "packed"}), assign({"engine.batching": "padded"}),
                              setting="engine.batching"), True),
    "pad_to_sequence_len": (
        agrees("A batch is padded to its longest row.", (False,),
               remark("Kept for kernels of fixed shapes: padding is masked, so a shorter one computes the same.")),
        False
    ),
    **repeat(note("A detail of packing, which needs no estimate here."), None, "sample_packing_eff_est",
           "sample_packing_seq_len_multiplier", "total_num_tokens", "max_packed_sequence_len",
           "sample_packing_bin_size", "sample_packing_group_size", "sample_packing_sequentially",
           "pretrain_multipack_attn", "streaming_multipack_buffer_size", "multipack_real_batches"),
    "bf16": (precision("bf16"), "auto"),
    "bfloat16": (precision("bf16"), True),
    "float16": (precision("fp16"), True),
    "torch_dtype": (dtype(), "bfloat16"),
    "fp8": (switch(assign({"engine.fp8": "torchao"}), setting="engine.fp8"), False),
    "fp8_enable_fsdp_float8_all_gather": (note("A detail of FSDP with fp8: weights are gathered in bf16."), True),
    "attn_implementation": (attention(), "sdpa"),
    "flash_attention": (switch(assign({"engine.attention": "auto"}), setting="engine.attention"), True),
    "sdp_attention": (switch(assign({"engine.attention": "sdpa"}), setting="engine.attention"), False),
    "xformers_attention": (
        note("The best kernel that is here computes the same attention.", unless=(None, False)), None
    ),
    "flex_attention": (note("The best kernel here computes the same attention.", unless=(None, False)), None),
    "eager_attention": (switch(assign({"engine.attention": "eager"}), setting="engine.attention"), False),
    **repeat(note(KERNEL, unless=(None, False)), None, "flash_attn_cross_entropy", "flash_attn_rms_norm",
           "flash_attn_fuse_mlp", "flash_attn_fuse_qkv", "flash_optimum", "lora_mlp_kernel", "lora_qkv_kernel",
           "lora_o_kernel", "fused_attn_kernel", "gemma4_hybrid_attn_impl", "use_kernels", "tiled_mlp",
           "unsloth_cross_entropy_loss", "unsloth_lora_mlp", "use_dsv4_kernels", "use_glm_dsa_kernels",
           "flex_attn_compile_kwargs.dynamic", "flex_attn_compile_kwargs.mode", "torch_compile_mode",
           "chunked_cross_entropy", "liger_rms_norm_gated"),
    **repeat(accept("Liger's kernel computes what the model's own does."), True, "liger_rms_norm", "liger_rope",
           "liger_layer_norm", "liger_glu_activation", "liger_swiglu", "liger_use_token_scaling"),
    "liger_fused_linear_cross_entropy": (switch(assign({"engine.head": "liger"}), setting="engine.head"), True),
    "liger_cross_entropy": (switch(assign({"engine.head": "liger"}), setting="engine.head"), False),
    "cut_cross_entropy": (switch(assign({"engine.head": "chunked"}), setting="engine.head"), True),
    "plugins": (plugins(), ["axolotl.integrations.liger.LigerPlugin"]),
    **repeat(note(EXPERTS, unless=(None, False)), None, "use_scattermoe", "use_sonicmoe", "experts_implementation",
           "quantize_moe_experts", "llama4_linearized_experts", "dsv4_fp4_grouped_mode"),
    "model_config.output_router_logits": (refuse("No loss for the router is added.", WITHOUT), True),
    "adapter": (map_word("method.type", dict.fromkeys(("lora", "qlora", None, ""), None)), "qlora"),
    "load_in_4bit": (carry_setting("method", flag), True),
    "load_in_8bit": (carry_setting("method", flag), False),
    "full_finetune": (agrees("Without an adapter every weight is trainable.", (True, False), assign()), True),
    **LORA,
    "peft_use_rslora": LORA["use_rslora"],
    "peft_use_dora": (carry_setting("method", flag), False),
    "loraplus_lr_ratio": (to("method.ratio", number), 16),
    "lora_target_linear": (
        switch(assign({"method.target_modules": "all-linear"}), setting="method.target_modules"), True
    ),
    "lora_modules_to_save": (to("method.modules_to_save", require_texts, absent=(None, [])), ["embed_tokens"]),
    "peft_layers_to_transform": (to("method.layers", list), [0, 1]),
    "lora_target_parameters": (
        refuse("Adapters are put on modules, not on single tensors.",
            "--without lora_target_parameters leaves experts out."),
        None,
    ),
    "lora_fan_in_fan_out": (accept("Known of each kind of layer."), False),
    "lora_model_dir": (
        refuse("A chain continues an adapter of a trainer before it.",
               "Leave it out, or put a trainer before this one that has `reuse`."), None
    ),
    "peft.loftq_config.loftq_bits": (loftq_bits(), 4),
    "peft_init_lora_weights": (first_weights(), "pissa_niter_16"),
    "unfrozen_parameters": (
        refuse("Trainable weights are whole last blocks: method freeze.",
               "--set 'method={\"type\": \"freeze\", \"blocks\": 2}'.", setting="method"), None
    ),
    **repeat(note(QUANTISED), True, "bnb_config_kwargs.bnb_4bit_use_double_quant", "bnb_config_kwargs.*"),
    "gptq": (refuse("A base that is quantised by GPTQ is quantization gptq.", "--set quantization=gptq",
                    setting="quantization"), False),
    **repeat(note("A detail of a GPTQ base, which is in its own config."), None, "gptq_groupsize", "gptq_model_v1",
           "gptq_disable_exllama"),
    "model_quantization_config": (
        note("How the base is stored is in its config.json, which transformers reads."), "Mxfp4Config"
    ),
    "model_quantization_config_kwargs.dequantize": (
        accept("A base is dequantised where its weights are trained."), True
    ),
    "nvfp4_merge_aware": (refuse("Weights are not trained for NVFP4.", "--without nvfp4_merge_aware"), None),
    "qat.*": (refuse("Training that is aware of a quantization is not here.", "Leave it out: --without qat."), "int4"),
    "use_onebitllms": (refuse("There is no 1-bit training here.", "Use another base."), None),
    **entry_keys("datasets"),
    **entry_keys("pretraining_dataset"),
    "test_datasets[].*": (note(EVALUATION), "me/rows"),
    "pretraining_dataset": (carry_setting("data_source.path"), "me/rows"),
    "dataset_prepared_path": (accept("Rows are prepared once and kept, in the store, by their digest."), "last_run"),
    "dataset_processes": (note(LOADING), 4),
    "dataset_num_proc": (note(LOADING), 4),
    "skip_prepare_dataset": (note("Kept for data sets of images: rows of text are prepared once."), True),
    "shuffle_merged_datasets": (accept("Rows are shuffled in each epoch."), True),
    "dataset_exact_deduplication": (
        refuse("A trainer takes rows as they are.", "Put a validator before it, which drops copies; --without it."),
            False
    ),
    "streaming": (note("A data set is read once, into the store."), True),
    "push_dataset_to_hub": (note(HUB), None),
    "hf_use_auth_token": (accept("HF_TOKEN is read where it is needed."), True),
    "min_sample_len": (note("A row counts from its first token with a target."), 200),
    "curriculum_sampling": (refuse("Rows are shuffled.", "--without curriculum_sampling"), None),
    "train_on_inputs": (
        agrees("Only answers are learned.", (False,),
               reject("Only answers are learned, prompts are not.",
                       "Write false, or --set stage=cpt for whole texts."), setting="stage"), False
    ),
    "chat_template": (template(), "llama3"),
    "chat_template_jinja": (refuse("A template is a file.", "Save it: --set engine.template=FILE.jinja",
                                   setting="engine.template"), None),
    "eot_tokens": (
        note("The renderer knows which tokens end an answer; `trainyard renderers verify` shows them."), ["</s>"]
    ),
    **repeat(note(TOKEN), "</s>", "special_tokens", "special_tokens.*", "tokens.*"),
    "tokens": (to("added_tokens", require_texts, absent=(None, [])), ["<|plan|>"]),
    "resize_token_embeddings_to_32x": (note("Embeddings have the size of the base."), True),
    **repeat(accept("The fast tokenizer of the base's folder."), True, "tokenizer_use_fast", "tokenizer_legacy"),
    "tokenizer_use_mistral_common": (note("The tokenizer of transformers is used, with the base's template."), True),
    "val_set_size": (map_held_out("eval.share", share), 0.05),
    "evals_per_epoch": (evals_per_epoch(), 1),
    "early_stopping_patience": (map_held_out("eval.patience", integer), 3),
    **repeat(note(EVALUATION, unless=(None, 0, False)), 4, "eval_sample_packing", "eval_batch_size",
           "eval_table_size", "eval_max_new_tokens", "eval_causal_lm_metrics", "do_causal_lm_eval", "do_bench_eval"),
    "saves_per_epoch": (note("Checkpoints are counted in steps; their default is by the length of the training."), 1),
    "auto_resume_from_checkpoints": (accept("`trainyard jobs resume` takes the newest valid one."), True),
    "wandb_project": (tracker("wandb"), "mine"),
    "use_wandb": (tracker("wandb", flagged=True), False),
    **repeat(note("Which project, run and entity is in the tracker's own variables: WANDB_PROJECT, WANDB_NAME."),
           "mine", "wandb_name", "wandb_entity", "wandb_watch", "wandb_log_model", "wandb_run_id", "wandb_mode"),
    "use_tensorboard": (tracker("tensorboard", flagged=True), True),
    "mlflow_tracking_uri": (tracker("mlflow"), None),
    "trackio_project_name": (tracker("trackio"), None),
    **repeat(note("trackio's own variables name run and space."), None, "trackio_run_name", "trackio_space_id"),
    **repeat(note("There is no tracker SwanLab; metrics are in `trainyard jobs metrics`."), "mine", "use_swanlab",
           "swanlab_project", "swanlab_experiment_name", "swanlab_description", "swanlab_mode", "swanlab_workspace",
           "swanlab_log_completions", "swanlab_completion_log_interval", "swanlab_completion_max_buffer",
           "swanlab_log_model"),
    **repeat(note("Metrics are in the events of a run; there is no OpenTelemetry endpoint."), 8000, "use_otel_metrics",
           "otel_metrics_host", "otel_metrics_port"),
    **repeat(note("A training stops at a loss that is not finite; there is no other bound."), 5.0,
           "loss_watchdog_threshold", "loss_watchdog_patience"),
    "fsdp": (sharding(), ["full_shard"]),
    "fsdp_config": (sharding(), None),
    "fsdp_version": (shard_detail(2), 2),
    **fsdp_details("fsdp_config"),
    "fsdp_config.*": (shard_detail("FULL"), True),
    "deepspeed": (sharding(), "deepspeed_configs/zero2.json"),
    "ddp": (sharding(), False),
    **repeat(shard_detail(1), 1,
        "dp_shard_size", "dp_replicate_size"),
    **repeat(refuse(PARALLEL, ONE_PROCESS, unless=(*ABSENT, 1)), 1, "context_parallel_size", "context_parapllel_size",
           "tensor_parallel_size", "expert_parallel_size", "sequence_parallel_degree"),
    **repeat(note("A detail of expert parallelism."), 1, "expert_parallel_num_nvl_bytes",
        "expert_parallel_token_capacity"),
    "accelerator_config.gradient_accumulation_kwargs.sync_each_batch": (
        note("When gradients are reduced is the strategy's choice; the sum is the same."), True),
    **repeat(note("Kept for Ray: Prefect starts trainings here."), 4, "use_ray", "ray_num_workers"),
    "rl": (map_word("stage.type", {**dict.fromkeys((*LOSSES, "kto", "grpo"), None)}), "dpo"),
    "cpo_alpha": (refuse("CPO's loss of the chosen answer is not added to SimPO.", "Write 0.0.",
                         unless=(None, 0, 0.0), setting="stage"), 0.0),
    "rl_beta": (to("stage.beta", number), 0.1),
    "dpo_beta": (to("stage.beta", number), 0.1),
    "orpo_alpha": (to("stage.beta", number), 0.1),
    "simpo_gamma": (to("stage.gamma", number), 0.5),
    "dpo_label_smoothing": (to("stage.label_smoothing", number), 0.0),
    "kto_desirable_weight": (to("stage.desirable_weight", number), 1.0),
    "kto_undesirable_weight": (to("stage.undesirable_weight", number), 1.0),
    "reward_model": (carry_setting("stage", flag), True),
    "center_rewards_coefficient": (to("stage.centering", number), 0.01),
    "process_reward_model": (refuse("There is no process reward model here.", "Use stage reward, or TRL's own."), None),
    "num_labels": (agrees("A reward model has one score.", (1,), reject("A model with classes is not a stage here.",
                                                                         "Use stage reward.")), 1),
    "trl.num_generations": (to("stage.num_generations", integer), 4),
    "trl.max_completion_length": (to("stage.max_completion_length", integer), 256),
    "trl.temperature": (to("stage.temperature", number), 1.0),
    "trl.beta": (to("stage.beta", number, absent=(None, 0)), 0.001),
    "trl.epsilon": (to("stage.epsilon", number), 0.2),
    "trl.num_iterations": (to("stage.num_iterations", integer), 1),
    "trl.loss_type": (map_word("stage.loss", {name: name for name in ("grpo", "dr_grpo", "dapo", "bnpo")}), "grpo"),
    "trl.scale_rewards": (
        switch(assign({"stage.scale_rewards": "group"}), assign({"stage.scale_rewards": "none"})), True
    ),
    "trl.reward_funcs": (
        refuse("Rewards are rules here, and these are Python functions.",
               "Say them as rules: --set 'stage.rewards=[{\"type\": \"exact_match\"}]'", setting="stage.rewards"), None
    ),
    "trl.reward_weights": (carry_setting("stage.rewards"), [1.0]),
    "trl.top_p": (refuse("Completions are drawn from all tokens.", WITHOUT, unless=(None, 1, 1.0)), 0.95),
    **repeat(note("Rollouts are drawn in the training itself: no server of vLLM is needed."), 8000, "trl.use_vllm",
           "trl.vllm_server_host", "trl.vllm_server_port", "trl.vllm_server_timeout", "trl.vllm_mode",
           "trl.async_prefetch", "vllm.*"),
    **repeat(note("Stop tokens and switches are those of the base's template."), None,
           "trl.generation_kwargs.stop_token_ids", "trl.chat_template_kwargs.enable_thinking"),
    "trl.multi_objective_aggregation": (agrees("Rewards are added, each times its weight.", ("sum_then_normalize",),
                                               reject("Rewards are added before they are normalised.", WITHOUT)),
                                        "sum_then_normalize"),
    **repeat(note("Completions of a step are in the run's events."), True, "trl.log_completions",
        "trl.num_completions_to_print"),
    **repeat(refuse(TEXT_ONLY, NO_IMAGES), None, "processor_type", "image_size", "image_resize_algorithm",
           "freeze_mm_modules"),
    "ebft.*": (refuse(EBFT, "Use a stage of Trainyard: --set stage=sft.", setting="stage"), 1.0),
    **repeat(refuse("Discrete diffusion is not a stage here.", "Use stage sft."), 1, "diffusion.*"),
    **repeat(refuse("Environments of NeMo Gym are none here.", "Rewards are rules: stage.rewards.",
                  setting="stage.rewards"), None, "nemo_gym_*",
           "nemo_gym_enabled", "nemo_gym_dir", "nemo_gym_auto_clone", "nemo_gym_auto_start",
           "nemo_gym_config_paths", "nemo_gym_head_port", "nemo_gym_server_timeout", "nemo_gym_verify_timeout",
           "nemo_gym_multi_turn", "nemo_gym_max_turns", "nemo_gym_datasets[].*"),
    "hatchery.*": (
        refuse("Training in the cloud of hatchery is not here.", "Use a backend: --without hatchery."), None
    ),
    "llmcompressor.*": (refuse("Weights are not pruned.", "Leave it out: --without llmcompressor."), None),
    **repeat(refuse("EAFT is not a loss here.", OTHER_LOSS), None, "use_eaft", "eaft_alpha", "eaft_k"),
    "lisa_n_layers": (to("method.blocks", integer), 4),
    "lisa_step_interval": (to("method.interval", integer), 20),
    "lisa_layers_attribute": (note("The blocks of a model are found by their number."), "model.layers"),
    **repeat(refuse("ReLoRA is not a method here.", "Use method lora: leave it out by --without.", setting="method"),
           None, "relora", "relora_steps", "relora_prune_ratio", "relora_cpu_offload", "jagged_restart_steps",
           "jagged_restart_warmup_steps", "jagged_restart_anneal_steps"),
    "reinit_weights": (refuse("A training begins with the base's weights.", "Name a base of random weights."), None),
    "activation_offloading": (note("Activations stay on the device; gradient checkpointing saves most of them.",
                                   unless=(None, False)), True),
    **repeat(note("The base is loaded on the device that the training has."), "auto", "device_map", "device_map.*",
           "low_cpu_mem_usage", "experimental_skip_move_to_device", "base_model_ignore_patterns", "torchdistx_path"),
    "cls_model_config": (note("The config class is the base's own."), "Gemma3TextConfig"),
    **repeat(note("A switch of axolotl's own, for its logs and checks.", unless=(None, False)), None, "strict",
        "debug", "test_value",
           "use_telemetry"),
}  # fmt: skip

TOOL = ConfigTool(
    title="Axolotl",
    marks=("base_model", "sequence_len", "micro_batch_size", "num_epochs", "adapter", "sample_packing",
        "datasets[].type",
           "val_set_size", "lora_target_linear", "dataset_prepared_path"),
    keys=KEYS,
    axes=axes,
    data_sets=data_sets,
    purpose=purpose,
    defaults=DEFAULTS,
)  # fmt: skip
