"""Words and keys that several tools share: those of transformers' TrainingArguments, of PEFT and of torch."""

from __future__ import annotations

import posixpath
import re
from typing import Any
from urllib.parse import quote

from trainyard.spec.imports.data_sets import files_of_split, first_rows
from trainyard.spec.imports.keys import (
    ABSENT,
    Config,
    KeyAnswer,
    KeyConverter,
    Read,
    Table,
    WrongValue,
    accept,
    agrees,
    assign,
    describe,
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
    steps_of_warmup,
    switch,
    to,
)
from trainyard.spec.training import TrainingSettings

HYPER = "hyperparameters."
OPTIMIZERS: dict[Any, Any] = {
    **dict.fromkeys(("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_anyprecision", "adam"), "adamw"),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit", "adamw_ao_8bit", "adamw8bit"), "adamw_8bit"),
    **dict.fromkeys(("paged_adamw_8bit", "pagedadamw8bit"), "paged_adamw_8bit"),
    **dict.fromkeys(("lion", "lion_32bit", "lion_8bit", "lion_pytorch", "paged_lion_32bit", "paged_lion_8bit"), "lion"),
    **dict.fromkeys(("galore_adamw", "galore_adamw_8bit", "galore_adamw_layerwise"), "galore"),
    **dict.fromkeys(("ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit"), "ademamix"),
    "adafactor": "adafactor",
    "sgd": "sgd",
    "muon": "muon",
    "schedule_free_adamw": "schedule_free_adamw",
}
PAGED = "AdamW with states of 32 bit, which stay in the device's memory; paged ones are of 8 bit here."
CLOSE_OPTIMIZERS: dict[Any, tuple[Any, str]] = dict.fromkeys(
    ("paged_adamw", "paged_adamw_32bit", "pagedadamw"), ("adamw", PAGED)
)
SCHEDULES: dict[Any, Any] = {
    **{name: name for name in ("linear", "cosine", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt")},
    "cosine_with_restarts": "cosine_with_restarts",
    "warmup_stable_decay": "wsd",
    "reduce_lr_on_plateau": "reduce_on_plateau",
    "one_cycle": "one_cycle",
}
ATTENTION: dict[Any, Any] = {
    **dict.fromkeys(
        ("flash_attention_2", "flash_attention_3", "fa2", "fa3", "auto", "kernels-community/flash-attn2",
         "kernels-community/flash-attn3", "kernels-community/vllm-flash-attn3"), "auto"
    ),
    "sdpa": "sdpa",
    "disabled": "eager",
    "eager": "eager",
}  # fmt: skip
"""FlashAttention becomes `auto`, which takes the best kernel that is installed."""
CLOSE_ATTENTION: dict[Any, tuple[Any, str]] = {
    name: ("auto", f"The best kernel that is here computes the same attention; {name} is none of them.")
    for name in ("xformers", "flex_attention", "s2", "paged|flash_attention_2")
}
FIRST_WEIGHTS = re.compile(r"pissa(_niter_[1-9]\d?)?|loftq")
LOFTQ_BITS = "LoftQ corrects a base of 4 bits: method qlora."
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
EVALUATION = (
    "Kept for evaluation during training, for which a chain has nodes: put a validator before the trainer and an "
    "evaluator after it."
)
LOADING = "Rows are read and tokenised before the training, in processes of Trainyard's own number."
SHARDED = "Distributed by the launcher, whose number of processes is not in the file: --set launch.processes=N."
HUB = "Nothing is uploaded by a training; a deployer registers the adapter."
TO_ZERO = "A schedule falls to 0, and has no numbers of its own here."
WITHOUT = "Leave it out by --without, which trains with the value that is here."
TEXT_ONLY = "Trainyard trains on text; it has no images, video or audio."
NO_IMAGES = "Use a text model and text rows, or leave it out by --without."


TEMPLATES: dict[str, str] = {
    **dict.fromkeys(("llama3", "llama3-instruct"), "llama3"),
    **dict.fromkeys(("llama3.1", "llama3_1", "llama3_2"), "llama3.1"),
    **dict.fromkeys(("chatml", "qwen_25_base"), "chatml"),
    **dict.fromkeys(("qwen_25", "qwen", "qwen2_5", "qwen2.5"), "qwen2.5"),
    "qwen3": "qwen3",
    **dict.fromkeys(
        ("qwen3_nothink", "qwen3_instruct", "qwen3_vl", "qwen3_vl_nothink", "qwen3-vl-instruct"), "qwen3-instruct"
    ),
    **dict.fromkeys(("qwen2_vl", "qwen2-vl-instruct"), "qwen2.5"),
    **dict.fromkeys(("qwen3_5", "qwen3.5", "qwen3_5_nothink"), "qwen3.5"),
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3": "gemma3",
    "gemma4": "gemma4",
    **dict.fromkeys(("phi_3", "phi3", "phi_35", "phi3-instruct"), "phi3"),
    **dict.fromkeys(("cohere", "command_a"), "cohere"),
    **dict.fromkeys(("mistral", "mistral_v7_tekken"), "mistral"),
    **dict.fromkeys(("gpt_oss", "gpt", "gpt-oss"), "gpt-oss"),
    **dict.fromkeys(("deepseek3", "deepseek_v3"), "deepseek-v3"),
    "deepseek_r1": "deepseek-r1",
}
"""Name of a chat template elsewhere -> our renderer."""


def template() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        setting = "engine.template"
        if value in (None, "", "auto", "default", "tokenizer_default"):
            return assign({setting: "auto"})
        if (name := require_text(value)) in TEMPLATES:
            return assign({setting: TEMPLATES[name]})
        return reject(f"There is no renderer {name!r} here.", f"--set {setting}=auto takes the base's own template.")

    return KeyConverter("engine.template", convert)


def map_held_out(setting: str, read: Read) -> KeyConverter:
    """Return a setting of the evaluation during training: `eval.share`."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value in (None, 0, False, ""):
            return assign(because="No evaluation while it trains.")
        if "eval" not in TrainingSettings.model_fields:
            return remark(EVALUATION)
        return assign({setting: read(value)})

    return KeyConverter(setting, convert)


def share(value: Any) -> float:
    if not 0 < number(value) <= 0.5:
        raise WrongValue("a share of up to 0.5; a number of rows is not one")
    return float(value)


def sharding(read: Read = require_text) -> KeyConverter:
    """Return what switches FSDP or DeepSpeed on: with one process, which a config does not say, there is nothing to
    share.
    """

    def convert(value: Any, config: Config) -> KeyAnswer:
        if value in ABSENT:
            return assign(because="One process, as in a chain without it.")
        if not isinstance(value, list | dict):
            read(value)
        return assign(because="In launch.strategy.") if config.processes > 1 else remark(SHARDED)

    return KeyConverter("launch.strategy", convert)


def shard_detail(*here: Any) -> KeyConverter:
    """Return a detail of FSDP; `here` are the values of Trainyard's own sharding, without a value any."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        plain = value.upper() if isinstance(value, str) else value
        if config.processes > 1 and (not here or plain in here):
            return assign(because="As launch.strategy shards: block by block, gathered ahead of their use.")
        return remark("A detail of sharding, which launch.strategy decides and one process does not need.")

    return KeyConverter("launch.strategy", convert)


def fsdp_details(prefix: str) -> dict[str, tuple[KeyConverter, Any]]:
    """Return the keys of accelerate's FSDP, with and without `fsdp_` in front."""
    rows = {
        "auto_wrap_policy": (shard_detail("TRANSFORMER_BASED_WRAP"), "TRANSFORMER_BASED_WRAP"),
        "transformer_layer_cls_to_wrap": (shard_detail(), "LlamaDecoderLayer"),
        "transformer_layer_cls": (shard_detail(), "LlamaDecoderLayer"),
        "sharding_strategy": (shard_detail("FULL_SHARD", "HYBRID_SHARD"), "FULL_SHARD"),
        "reshard_after_forward": (shard_detail(True), True),
        "version": (shard_detail(2), 2),
        "offload_params": (shard_detail(False), False),
        "cpu_offload": (shard_detail(False), False),
        "use_orig_params": (shard_detail(), True),
        "sync_module_states": (shard_detail(), True),
        "cpu_ram_efficient_loading": (shard_detail(), True),
        "state_dict_type": (
            note("A checkpoint has each process's part, and can be read with another number of them."),
            "FULL",
        ),
        "activation_checkpointing": (switch(assign({f"{HYPER}gradient_checkpointing": True})), True),
        "forward_prefetch": (shard_detail(True), True),
        "backward_prefetch": (note("When weights are gathered is torch's choice: equal numbers."), "BACKWARD_PRE"),
        "limit_all_gathers": (note("When weights are gathered is torch's choice: equal numbers."), True),
        "min_num_params": (note("A block of the model is a unit, whatever its size."), 100000),
        "mixed_precision": (note("hyperparameters.precision decides."), "bf16"),
    }
    plain = {f"{prefix}.{key}": row for key, row in rows.items()}
    return plain | {f"{prefix}.fsdp_{key}": row for key, row in rows.items()}


def attention() -> KeyConverter:
    return map_word("engine.attention", ATTENTION, notes=CLOSE_ATTENTION)


def optimizer() -> KeyConverter:
    return map_word(f"{HYPER}optimizer", OPTIMIZERS, notes=CLOSE_OPTIMIZERS)


def schedule() -> KeyConverter:
    return map_word(f"{HYPER}schedule", SCHEDULES)


def precision(name: str) -> KeyConverter:
    """`bf16: true`, `fp16: true`; false leaves the choice to the other key."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value == "auto":
            return assign({f"{HYPER}precision": "auto"})
        if value == "full":
            return assign({f"{HYPER}precision": name})
        return assign({f"{HYPER}precision": name} if value is not None and flag(value) else {}, "Off.")

    return KeyConverter(f"{HYPER}precision", convert)


def dtype() -> KeyConverter:
    names = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16"}
    return map_word(f"{HYPER}precision", {**names, "float32": "fp32", "fp32": "fp32", "auto": "auto"})


def checkpointing() -> KeyConverter:
    """Gradient checkpointing; `unsloth` and `offload` are ways of it."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        setting = f"{HYPER}gradient_checkpointing"
        if value in ("unsloth", "offload", "offload_disk"):
            return assign({setting: True})
        return assign({setting: value is not None and flag(value)})

    return KeyConverter(f"{HYPER}gradient_checkpointing", convert)


def grad_norm() -> KeyConverter:
    """0 clips every gradient away or none, by tool; here there is always a bound."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        setting = f"{HYPER}max_grad_norm"
        if value is None:
            return assign(because="Left out, here as there.")
        if number(value) == 0:
            return assign({setting: 1e6}, "No clipping: a bound that no gradient reaches.")
        return assign({setting: number(value)})

    return KeyConverter(f"{HYPER}max_grad_norm", convert)


def save_every() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value is None or value == 0:
            return assign(because="Left out: checkpoints by the length of the training.")
        if 0 < number(value) < 1:
            return remark("Checkpoints are counted in steps; their default is by the length of the training.")
        return assign({f"{HYPER}save_steps": integer(value)})

    return KeyConverter(f"{HYPER}save_steps", convert)


def trackers() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        names = [] if value in (None, "none", "all") else require_texts(value)
        trackers_here = [name for name in names if name in TRACKERS]
        if len(trackers_here) < len(names):
            other = ", ".join(name for name in names if name not in TRACKERS)
            return remark(f"There is no tracker {other}; metrics are in `trainyard jobs metrics`.",
                         {"engine.trackers": trackers_here} if trackers_here else {})  # fmt: skip
        return assign({"engine.trackers": trackers_here}) if trackers_here else assign(because="No tracker.")

    return KeyConverter("engine.trackers", convert)


def tracker(name: str, *, flagged: bool = False) -> KeyConverter:
    """Return a key whose value switches one tracker on."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        on = value not in (None, "", False) and (not flagged or flag(value))
        also = [
            candidate
            for candidate in TRACKERS
            if candidate != name and candidate in config.overrides.get("engine.trackers", ())
        ]
        named = "" if flagged else f"{value!r} is not kept: the variables of {name} name project and server."
        return assign({"engine.trackers": [name, *also]}, named) if on else assign(because="No tracker.")

    return KeyConverter("engine.trackers", convert)


SUFFIXES = re.compile(r"\(([\w|]+)\)(_\w+)\Z")


def expand_pattern(pattern: str) -> list[str]:
    """Return the last parts of names that a pattern such as `layers.[\\d]+.(mlp|attn).(up|down)_proj` ends in."""
    match = SUFFIXES.search(pattern)
    return [f"{name}{match[2]}" for name in match[1].split("|")] if match else []


def target_modules() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        setting = "method.target_modules"
        if isinstance(value, str) and (names := expand_pattern(value)):
            return assign(
                {setting: names}, "The names that the pattern ends in; a text model has them once in a block."
            )
        if value in (None, "", [], "all", "all-linear", ["all-linear"], ["all"]):
            return assign({setting: "all-linear"})
        if isinstance(value, str) and any(sign in value for sign in "*[]()\\|^$"):
            return unread_pattern(value)
        names = require_texts(value)
        pattern = next((name for name in names if any(sign in name for sign in "*[]()\\|^$")), None)
        return unread_pattern(pattern) if pattern else assign({setting: names})

    return KeyConverter("method.target_modules", convert)


def unread_pattern(pattern: str) -> KeyAnswer:
    because = f"{pattern!r} is a regular expression; ours is a word or a list of the last parts of names."
    return reject(because, "--set method.target_modules=all-linear, or a list of names.")


def positive(setting: str) -> KeyConverter:
    """Return a whole number above 0; 0 and below say that there is no bound."""
    return KeyConverter(setting, lambda value, _config: assign(
        {setting: integer(value)} if value is not None and integer(value) > 0 else {}, "No bound.",
    ))  # fmt: skip


def split() -> KeyConverter:
    """Return which part of a data set is read: files by its name, and the first rows."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value is None or files_of_split(value) or first_rows(value) or value == "train":
            return assign(because="In data_source.")
        return reject("A share or a part of a split is not read.", "--set data_source.max_rows=N takes N rows.")

    return KeyConverter("data_source.max_rows", convert)


def map_seed(key: str) -> KeyConverter:
    """Return a seed of its own for the rows; `key` has the training's."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        if value is None or integer(value) == config.get(key, 42):
            return assign(because="The same as hyperparameters.seed, which decides the order of rows.")
        return remark("One seed, hyperparameters.seed, decides the order of rows as well.")

    return KeyConverter(f"{HYPER}seed", convert)


def output_folder() -> KeyConverter:
    """Return a folder below the working folder gets the checkpoints, as that of a job's `checkpoint_dir` does."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value is None:
            return assign(because="Left out, here as there.")
        folder = posixpath.normpath(require_text(value))
        if folder.startswith(("/", "..", "~", "$")) or folder == ".":
            because = "The result is in the store of TRAINYARD_HOME; a folder for checkpoints is engine.mirror."
            return remark(because)
        return assign({"engine.mirror": f"file:{quote(folder)}"}, "Checkpoints are copied to it; the result is stored.")

    return KeyConverter("engine.mirror", convert)


def map_evaluation_strategy() -> KeyConverter:
    """`steps` leaves the number to its own key."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        if value == "steps":
            return assign(because="In eval.steps.") if "eval" in TrainingSettings.model_fields else remark(EVALUATION)
        return map_held_out("eval.steps", require_text).convert(None if value == "no" else value, config)

    return KeyConverter("eval.steps", convert)


def map_tokenizer(base: str) -> KeyConverter:
    """Return a tokenizer that is named next to the base, which is in the key `base`."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        if value in (None, "", config.get(base)):
            return assign(because="The tokenizer is the one in the base model's folder.")
        return reject(
            f"The tokenizer is the one in the base's folder, and {describe(value)} may have other tokens.",
            "Name a folder that has both: --set base_model=FOLDER.",
        )

    return KeyConverter("base_model", convert)


def neftune() -> KeyConverter:
    """Noise on the embeddings; the tools add it in every stage, this one in sft."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value is None or number(value) == 0:
            return assign(because="Off, as in a chain without it.")
        return assign({"stage.neftune_alpha": number(value)}, "Noise on the embeddings is a setting of stage sft.")

    return KeyConverter("stage.neftune_alpha", convert)


def first_weights() -> KeyConverter:
    """PEFT's words for what a new adapter begins with."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        name = value.lower() if isinstance(value, str) else value
        if name in (None, True, "default"):
            return assign(because="An adapter changes nothing at first.")
        if isinstance(name, str) and FIRST_WEIGHTS.fullmatch(name):
            return assign({"method.init": name})
        because = f"An adapter cannot begin with {describe(value)} here."
        return reject(because, "Use pissa or loftq: --set method.init=pissa, or --without it.")

    return KeyConverter("method.init", convert)


def adam_number(usual: float) -> KeyConverter:
    """Return a number of AdamW, which has torch's own here."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value is None or number(value) == usual:
            return assign(because=f"AdamW's {usual:g}, as here.")
        return reject(f"AdamW has {usual:g} here, and {value} is another training.", WITHOUT)

    return KeyConverter("", convert)


def loftq_bits() -> KeyConverter:
    def convert(value: Any, _config: Config) -> KeyAnswer:
        if integer(value) == 4:
            return assign({"method.init": "loftq"})
        return reject(LOFTQ_BITS, "Write 4, or --without loftq_config")

    return KeyConverter("method.init", convert)


ARGUMENTS: Table = {
    "learning_rate": (to(f"{HYPER}learning_rate", number), 2e-4),
    "per_device_train_batch_size": (to(f"{HYPER}batch_size", integer), 2),
    "gradient_accumulation_steps": (to(f"{HYPER}gradient_accumulation", integer), 8),
    "num_train_epochs": (to(f"{HYPER}epochs", number), 3.0),
    "max_steps": (positive(f"{HYPER}max_steps"), 100),
    "lr_scheduler_type": (schedule(), "cosine"),
    **repeat(refuse(TO_ZERO, WITHOUT, unless=(None, 0, 0.0, {})), {}, "lr_scheduler_kwargs",
           "lr_scheduler_kwargs.min_lr", "lr_scheduler_kwargs.min_lr_rate"),
    "lr_scheduler_kwargs.num_cycles": (
        agrees("Half a wave, as here.", (0.5,), reject("A cosine has half a wave here.", WITHOUT)), 0.5
    ),
    "warmup_ratio": (to(f"{HYPER}warmup_ratio", number), 0.1),
    "warmup_steps": (steps_of_warmup(), 10),
    "optim": (optimizer(), "adamw_torch"),
    "weight_decay": (to(f"{HYPER}weight_decay", number), 0.01),
    "max_grad_norm": (grad_norm(), 1.0),
    "adam_beta1": (adam_number(0.9), 0.9),
    "adam_beta2": (adam_number(0.999), 0.999),
    "adam_epsilon": (adam_number(1e-8), 1e-8),
    "bf16": (precision("bf16"), True),
    "fp16": (precision("fp16"), False),
    "tf32": (
        note("Products in fp32 keep torch's own setting; bf16 and fp16 do not use it.", unless=(None, False)), True
    ),
    "gradient_checkpointing": (checkpointing(), True),
    "activation_checkpointing": (checkpointing(), True),
    "gradient_checkpointing_kwargs": (accept("Activations are recomputed without re-entrance."), None),
    "gradient_checkpointing_kwargs.use_reentrant": (
        agrees("Not re-entrant, as here.", (False,), remark("Activations are recomputed without re-entrance: equal.")),
        False,
    ),
    "seed": (to(f"{HYPER}seed", integer), 42),
    "data_seed": (map_seed("seed"), 42),
    "save_steps": (save_every(), 500),
    "save_strategy": (
        agrees("Checkpoints every so many steps.", ("steps",),
               remark("Checkpoints are written by steps, and at the end.")),
        "steps",
    ),
    "save_total_limit": (to("engine.keep_checkpoints", integer), 2),
    "save_only_model": (
        agrees("Checkpoints have all that resuming needs.", (False,),
               remark("A checkpoint always has the optimizer's state, so that a training can continue.")),
        False,
    ),
    "save_safetensors": (accept("Weights are written as safetensors."), True),
    "logging_steps": (accept("Every step is logged."), 10),
    "logging_strategy": (accept("Every step is logged."), "steps"),
    "logging_first_step": (accept("Every step is logged."), True),
    "logging_dir": (note("Logs are in the run's own folder."), "runs"),
    "report_to": (trackers(), "none"),
    "run_name": (note("A run has the chain's name and an id."), "mine"),
    "output_dir": (output_folder(), "saves/mine"),
    "overwrite_output_dir": (accept("A result is never overwritten: another config is another result."), True),
    "resume_from_checkpoint": (
        note("A training continues from its newest checkpoint by `trainyard jobs resume`.", unless=(None, False)), None
    ),
    "ddp_timeout": (note("Kept for slow preprocessing inside the training; here rows are ready before."), 1800),
    "ddp_find_unused_parameters": (
        agrees("Every weight takes part.", (False,), remark("Kept for models with unused weights; DDP here has none.")),
        False,
    ),
    "dataloader_num_workers": (agrees("Trainyard chooses how many.", ("auto",), remark(LOADING)), 4),
    "dataloader_prefetch_factor": (note("Kept for loading in worker processes; batches here are in memory."), 2),
    "dataloader_pin_memory": (
        note("Kept for loading in worker processes: batches are copied when they are used."), True
    ),
    "dataloader_drop_last": (refuse("Every row of an epoch is used.", WITHOUT), False),
    "remove_unused_columns": (accept("A row has only what its stage reads."), False),
    "group_by_length": (switch(assign({"engine.batching": "buckets"}), setting="engine.batching"), False),
    "eval_strategy": (map_evaluation_strategy(), "steps"),
    "evaluation_strategy": (map_evaluation_strategy(), "no"),
    "eval_steps": (map_held_out("eval.steps", integer), 500),
    "per_device_eval_batch_size": (note("Kept for evaluation during training; an evaluator chooses its batches."), 1),
    "do_train": (accept("A trainer trains."), True),
    "do_eval": (note(EVALUATION, unless=(None, False)), False),
    "load_best_model_at_end": (switch(assign({"eval.load_best": True}), setting="eval.load_best"), False),
    "metric_for_best_model": (
        agrees("The held-out loss decides.", ("loss", "eval_loss"),
               reject("Of checkpoints, the one with the least held-out loss is the best.", WITHOUT),
               setting="eval.metric"), "loss"
    ),
    "greater_is_better": (note("Kept for choosing between checkpoints: an evaluator knows it of its metrics."), False),
    "neftune_noise_alpha": (neftune(), 5),
    "use_liger_kernel": (switch(assign({"engine.head": "liger"}), setting="engine.head"), True),
    "torch_compile": (note("Modules run as they are, uncompiled: equal numbers.", unless=(None, False)), False),
    "push_to_hub": (note(HUB, unless=(None, False)), False),
    "hub_model_id": (note(HUB), "me/model"),
    "hub_token": (note("A token does not belong into a config; HF_TOKEN is read."), None),
    "local_rank": (note("Given to a process by its launcher."), None),
    "log_level": (agrees("Logs are at this level.", ("info", "INFO"), remark("Logs are at the level INFO.")), "info"),
    "disable_tqdm": (note("Progress is printed by the command that watches."), False),
    "include_num_input_tokens_seen": (accept("Tokens are counted in every step."), True),
    "average_tokens_across_devices": (accept("The loss is averaged over all tokens of a step."), True),
}  # fmt: skip
"""transformers.TrainingArguments, which LLaMA-Factory, TRL and Oumi share."""

LORA: Table = {
    "lora_r": (to("method.rank", integer), 16),
    "lora_alpha": (to("method.alpha", number), 32),
    "lora_dropout": (to("method.dropout", number), 0.05),
    "lora_target_modules": (target_modules(), ["q_proj", "v_proj"]),
    "use_rslora": (to("method.rslora", flag), False),
}


def model_key(*, setting: str = "base_model") -> KeyConverter:
    return to(setting, require_text)
