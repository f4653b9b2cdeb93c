"""TRL's command line: the arguments of its scripts as a flat YAML. The stage is its command (`trl dpo`)."""

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
)
from trainyard.spec.imports.shared_keys import (
    ARGUMENTS,
    EVALUATION,
    HYPER,
    LOADING,
    LORA,
    attention,
    dtype,
    map_held_out,
    share,
    split,
)

LOSSES: dict[object, object] = {
    "sigmoid": "sigmoid", "hinge": "hinge", "ipo": "ipo", "nll": None, "kto": None,
    "grpo": "grpo", "dr_grpo": "dr_grpo", "dapo": "dapo", "bnpo": "bnpo",
}  # fmt: skip
MARKS = {
    "grpo": ("reward_funcs", "num_generations", "max_completion_length", "num_iterations", "scale_rewards"),
    "kto": ("desirable_weight", "undesirable_weight"),
    "reward": ("center_rewards_coefficient",),
    "dpo": ("beta", "label_smoothing", "precompute_ref_log_probs", "loss_weights"),
}
"""Stage -> keys that only its command has."""
ROLLOUTS = "Rollouts are drawn in the training itself: no server of vLLM is needed."
NOT_IN_GRPO = "GRPO here has the plain clip and the plain ratio of tokens."
SAMPLING = "Completions are drawn from all tokens, by temperature."
PROMPTS = (
    "TRL learns every token of a conversation, prompts too, unless assistant_only_loss is true; of rows with a prompt "
    "and a completion it learns the completion. A chain's sft learns answers only."
)
ANSWERS_ONLY = ("completion_only_loss", "assistant_only_loss")
"""Keys by which only answers are learned: the rows have some, and they are conversations or pairs."""
TEXTS = (
    "A column of texts is stage cpt, which lays texts end to end in blocks of max_length; TRL trains on each text "
    "separately unless packing_strategy is wrapped."
)
PROMPTS_DO = (
    "Write completion_only_loss: true for rows with a prompt and a completion. --set stage=sft learns answers only, "
    "--set stage=cpt whole texts."
)


def loss() -> KeyConverter:
    """Return a loss, or a list of one; a sum of losses has no setting."""
    plain = map_word("stage.loss", LOSSES)

    def convert(value: Any, config: Config) -> KeyAnswer:
        if isinstance(value, list) and len(value) != 1:
            return reject("There is one loss.", "Name one: --set stage.loss=sigmoid.")
        return plain.convert(value[0] if isinstance(value, list) else value, config)

    return KeyConverter(plain.setting, convert)


def text_field() -> KeyConverter:
    """Return the column of plain texts, which TRL reads of rows that are neither conversations nor prompts nor
    pairs.
    """

    def convert(value: Any, config: Config) -> KeyAnswer:
        if value is None or require_text(value) == "text":
            return assign(because="The field of texts.")
        if any(config.get(key) is True for key in ANSWERS_ONLY):
            return reject(
                "Rows of plain texts have no answers, and only answers are to be learned.",
                "Leave one of the two out by --without.",
            )
        return remark(TEXTS, {"data_source.columns": {"text": require_text(value)}})

    return KeyConverter("data_source.columns", convert)


MODEL: Table = {
    "model_name_or_path": (to("base_model", require_text), "Qwen/Qwen3-0.6B"),
    "model_revision": (agrees("The newest.", ("main",), reject(
        "A base is named, its revision is not.", "Download it and name its folder: --set base_model=FOLDER.")), "main"),
    "trust_remote_code": (note("Code of a model repository never runs; models that transformers knows need none.",
                               unless=(None, False)), False),
    "dtype": (dtype(), "bfloat16"),
    "torch_dtype": (dtype(), "bfloat16"),
    "attn_implementation": (attention(), "sdpa"),
    **LORA,
    "use_peft": (carry_setting("method", flag), True),
    "use_dora": (carry_setting("method", flag), False),
    "load_in_4bit": (carry_setting("method", flag), True),
    "load_in_8bit": (carry_setting("method", flag), False),
    "bnb_4bit_quant_type": (to("quantization", require_text), "nf4"),
    "use_bnb_nested_quant": (note("Scales are quantised as well."), True),
    "bnb_4bit_quant_storage": (note("A detail of FSDP with 4 bits."), None),
    "lora_task_type": (accept("The stage decides."), "CAUSAL_LM"),
    "lora_modules_to_save": (to("method.modules_to_save", require_texts), ["embed_tokens"]),
    "lora_target_parameters": (
        refuse("Adapters are put on modules, not on single tensors.", "--without lora_target_parameters"), None
    ),
}  # fmt: skip
TRAINING: Table = {
    "model_init_kwargs": (note("How a base is loaded follows from precision, quantization and attention."), None),
    "max_length": (to(f"{HYPER}max_length", integer), 1024),
    "max_seq_length": (to(f"{HYPER}max_length", integer), 1024),
    "max_prompt_length": (note("One bound, max_length, for prompt and answer."), 512),
    "truncation_mode": (agrees("The end is cut.", ("keep_start",), reject(
        "Rows are cut at their end.", "Shorten the rows, or --without truncation_mode.")), "keep_start"),
    "packing": (switch(assign({"engine.batching": "packed"}), assign({"engine.batching": "padded"}),
                       setting="engine.batching"), True),
    "packing_strategy": (agrees("Rows stay whole.", ("bfd",), reject(
        "Packed rows stay whole here.", "Write bfd, or --without packing_strategy.")), "bfd"),
    "padding_free": (switch(assign({"engine.batching": "packed"}), setting="engine.batching"), False),
    "pad_to_multiple_of": (note("Padding is masked, so its length changes no number."), 8),
    "eval_packing": (note(EVALUATION), False),
    "dataset_text_field": (text_field(), "body"),
    "dataset_num_proc": (note(LOADING), 4),
    "dataset_kwargs": (note(LOADING), None),
    "shuffle_dataset": (accept("Rows are shuffled in each epoch."), True),
    "completion_only_loss": (agrees("Only completions are learned.", (True,), reject(PROMPTS, PROMPTS_DO),
                                    setting="stage"), True),
    "assistant_only_loss": (
        agrees("Only answers are learned.", (True,), reject(PROMPTS, PROMPTS_DO), setting="stage"), True
    ),
    "activation_offloading": (note("Activations stay on the device; gradient checkpointing saves most of them.",
                                   unless=(None, False)), False),
    "chat_template_path": (to("engine.template", require_text), "chat.jinja"),
    **repeat(note("Special tokens are those of the base's tokenizer."), None, "eos_token", "pad_token"),
    "router_aux_loss_coef": (refuse("No loss for the router is added.", "--without router_aux_loss_coef",
                                    unless=(None, 0, 0.0)), 0.001),
    "disable_dropout": (agrees("No dropout in the base.", (True,), remark("A base has no dropout; "
                                                                         "method.dropout is the adapter's.")), True),
    "beta": (to("stage.beta", number), 0.1),
    "label_smoothing": (to("stage.label_smoothing", number), 0.0),
    "loss_type": (loss(), "sigmoid"),
    "loss_weights": (refuse("There is one loss.", "Leave it out: --without loss_weights."), None),
    "precompute_ref_log_probs": (note("The reference's values are computed in every step: equal."), False),
    "precompute_ref_batch_size": (note("The reference's values are computed in every step: equal."), None),
    **repeat(refuse("The reference stays as it was.", "Leave it out by --without."), False, "sync_ref_model",
           "ref_model_mixup_alpha", "ref_model_sync_steps"),
    "desirable_weight": (to("stage.desirable_weight", number), 1.0),
    "undesirable_weight": (to("stage.undesirable_weight", number), 1.0),
    "center_rewards_coefficient": (to("stage.centering", number), 0.01),
    "num_generations": (to("stage.num_generations", integer), 8),
    "max_completion_length": (to("stage.max_completion_length", integer), 256),
    "temperature": (to("stage.temperature", number), 1.0),
    "num_iterations": (to("stage.num_iterations", integer), 1),
    "epsilon": (to("stage.epsilon", number), 0.2),
    "scale_rewards": (map_word("stage.scale_rewards", {True: "group", False: "none", "group": "group", "batch": "batch",
                                                   "none": "none"}), "group"),
    "reward_funcs": (
        refuse("Rewards are rules here, and these are Python functions.",
               "Say them as rules: --set 'stage.rewards=[{\"type\": \"exact_match\"}]'", setting="stage.rewards"),
        ["accuracy_reward"],
    ),
    "reward_weights": (carry_setting("stage.rewards"), None),
    **repeat(note(ROLLOUTS, unless=(None, False)), False, "use_vllm", "vllm_mode", "vllm_server_host",
           "vllm_server_port",
           "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_max_model_length",
           "vllm_enable_sleep_mode", "vllm_server_timeout", "vllm_server_base_url"),
    **repeat(refuse(SAMPLING, "Leave it out by --without.", unless=(None, 0, 0.0, 1.0, 1, -1, {})), None, "top_p",
           "top_k", "min_p", "repetition_penalty", "generation_kwargs"),
    **repeat(refuse(NOT_IN_GRPO, "Leave it out by --without."), None, "delta", "epsilon_high",
        "importance_sampling_level",
           "top_entropy_quantile", "mask_truncated_completions"),
    **repeat(note("Completions of a step are in the run's events."), False, "log_completions",
        "num_completions_to_print"),
    "generation_batch_size": (note("Completions are drawn for one step at a time."), None),
    "steps_per_generation": (note("Completions are drawn for one step at a time."), None),
}  # fmt: skip
SCRIPT: Table = {
    "dataset_name": (carry_setting("data_source.path", require_text), "me/rows"),
    "dataset_config": (carry_setting("data_source.hub", require_text), None),
    "dataset_train_split": (split(), "train"),
    "dataset_test_split": (note(EVALUATION), "test"),
    "dataset_streaming": (note("A data set is read once, into the store."), False),
    "streaming": (note("A data set is read once, into the store."), False),
    "test_split_size": (map_held_out("eval.share", share), 0.05),
    "ignore_bias_buffers": (note("A detail of DDP, which no model here needs."), False),
    "datasets[].path": (carry_setting("data_source.path", require_text), "me/rows"),
    "datasets[].name": (carry_setting("data_source.hub", require_text), None),
    "datasets[].data_dir": (carry_setting("data_source.include"), None),
    "datasets[].data_files": (carry_setting("data_source.include"), "a.jsonl"),
    "datasets[].split": (split(), "train"),
    "datasets[].columns": (accept("A row has only what its stage reads."), ["messages"]),
    "datasets[].fraction": (refuse("A set is read whole.", "--set data_source.max_rows=N"), None),
    "env": (note("Variables belong into the shell that starts Trainyard."), {}),
    "env.*": (note("Variables belong into the shell that starts Trainyard."), 0),
    "accelerate_config": (note("--set launch.processes=N and launch.strategy start more processes."), "multi_gpu"),
    "num_processes": (to("launch.processes", integer), 1),
}  # fmt: skip


def text_column(config: Config) -> str:
    """Return the column of texts under a name of its own; empty for the usual one."""
    column = config.get("dataset_text_field")
    return column.strip() if isinstance(column, str) and column.strip() != "text" else ""


def read_stage(config: Config) -> str:
    if text_column(config) and not any(config.get(key) is True for key in ANSWERS_ONLY):
        return "cpt"
    return next((stage for stage, keys in MARKS.items() if any(key in config.value for key in keys)), "sft")


def learns_prompts(config: Config, settings: Mapping[str, object]) -> bool:
    """Return whether TRL would learn prompts, which depends on rows that are not read here."""
    only = any(config.get(key) is True for key in ANSWERS_ONLY)
    return settings["stage.type"] == "sft" and not only


def peft_method(config: Config, *, adapter: bool) -> str:
    if not adapter:
        return "full"
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "qlora"
    return "dora" if config.get("use_dora") else "lora"


def axes(config: Config) -> dict[str, object]:
    adapter = bool(config.get("use_peft"))
    settings: JsonObject = {"stage.type": read_stage(config), "method.type": peft_method(config, adapter=adapter)}
    if settings["method.type"] == "qlora" and config.get("load_in_8bit"):
        settings["quantization"] = "int8"
    stage = config.overrides.get("stage.type", settings["stage.type"])
    return settings | ({"backend": "trl"} if stage == "grpo" else {})


def data_sets(config: Config) -> list[DataPlace]:
    sets = [
        DataPlace(
            entry["path"],
            files=list_files(entry) or files_of_split(entry.get("split")),
            max_rows=first_rows(entry.get("split")),
            subset=entry.get("name"),
        )
        for entry in config.listed("datasets")
        if isinstance(entry.get("path"), str)
    ]
    name = config.get("dataset_name")
    split, subset = config.get("dataset_train_split"), config.get("dataset_config")
    data_set = DataPlace(str(name), files=files_of_split(split), max_rows=first_rows(split), subset=subset)
    sets = sets or ([data_set] if isinstance(name, str) else [])
    column = text_column(config)
    return [replace(item, format="text").with_columns({"text": column}) for item in sets] if column else sets


def list_files(entry: JsonMapping) -> tuple[str, ...]:
    files = entry.get("data_files") or ()
    return (files,) if isinstance(files, str) else tuple(file for file in files if isinstance(file, str))


def purpose(config: Config) -> str:
    return "a config of accelerate" if "compute_environment" in config.value else ""


KEYS: Table = {**ARGUMENTS, **MODEL, **TRAINING, **SCRIPT}
DEFAULTS: tuple[Absent, ...] = (
    *replace_values(
        ARGUMENT_DEFAULTS,
        learning_rate=choose_by_stage(
            {"sft": 2e-5, "dpo": 1e-6, "kto": 1e-6, "grpo": 1e-6, "reward": 1e-4, "cpt": 2e-5}
        ),
        gradient_checkpointing=True,
    ),
    Absent("max_length", f"{HYPER}max_length", 1024),
    Absent("packing", "engine.batching", "padded"),
    *replace_values(LORA_DEFAULTS, lora_r=16, lora_alpha=32, lora_dropout=0.05),
    *PREFERENCE_DEFAULTS,
    *ROLLOUT_DEFAULTS,
    Absent("loss_type", "stage.loss", choose_by_stage({"dpo": "sigmoid", "grpo": "dapo"})),
    require_key("assistant_only_loss", "stage", PROMPTS, PROMPTS_DO, when=learns_prompts),
)
TOOL = ConfigTool(
    title="TRL",
    marks=("dataset_name", "dataset_train_split", "use_peft", "lora_task_type", "dataset_text_field",
        "model_name_or_path",
           "completion_only_loss", "reward_funcs"),
    keys=KEYS,
    axes=axes,
    data_sets=data_sets,
    purpose=purpose,
    defaults=DEFAULTS,
)  # fmt: skip
