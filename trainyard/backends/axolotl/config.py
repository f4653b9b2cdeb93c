"""A job as axolotl's configuration: a pure function, so that every combination can be looked at without axolotl.

Every default of axolotl that changes a number is set. Axolotl lets a misspelt key pass as if it were not there;
`validate.py` therefore compares the keys with its schema before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.backends.job import TrainingJob
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.methods import LowRankSettings, Method
from trainyard.spec.axes.stages import DpoSettings, KtoSettings, Stage

OUTPUT_FOLDER, PREPARED_FOLDER, ROWS_FILE = "axolotl-output", "axolotl-prepared", "axolotl.jsonl"
TRIGGER_FILE = "axolotl_checkpoint.save"
"""A file of this name in its output folder makes axolotl save at the end of the step."""


@dataclass(frozen=True)
class AxolotlFacts:
    """The facts of a run that are not in its job."""

    folder: Path
    device: str
    total_steps: int
    save_steps: int
    tokenizer: Path
    modules: list[str] | None
    """Adapted modules by the last part of their names; None with full weights or a continued adapter."""
    first_adapter: Path | None = None
    """Folder of the weights that a new adapter begins with."""
    resume: Path | None = None
    native_bf16: bool = True
    """Whether the GPUs multiply bf16 in hardware."""


def choose_precision(requested: Precision, device: str, *, native_bf16: bool) -> tuple[Precision, str]:
    """Return the precision and its reason. Axolotl's own `bf16: auto` would take bf16 where it is only emulated."""
    if requested is not Precision.AUTO:
        return requested, "asked for"
    if device == "cpu":
        return Precision.FP32, "the default on cpu"
    if native_bf16:
        return Precision.BF16, "native on this device"
    return Precision.FP16, "this device has no native bf16; fp16 with a loss scale instead"


def build_config(job: TrainingJob, facts: AxolotlFacts) -> dict[str, object]:
    """Return the configuration of a job, in the order of axolotl's documentation."""
    hyper = job.config.hyperparameters
    precision, _ = choose_precision(hyper.precision, facts.device, native_bf16=facts.native_bf16)
    value: dict[str, object] = {
        "base_model": job.base,
        "tokenizer_config": str(facts.tokenizer),
        "tokenizer_type": "AutoTokenizer",
        "trust_remote_code": False,
        **STAGES[job.config.stage.type](job, facts),
        **adapter(job, facts),
        "dataset_prepared_path": str(facts.folder / PREPARED_FOLDER),
        "dataset_num_proc": 1,
        "val_set_size": 0.0,
        "output_dir": str(facts.folder / OUTPUT_FOLDER),
        "sequence_len": hyper.max_length,
        "sample_packing": False,
        "pad_to_sequence_len": False,
        "micro_batch_size": hyper.batch_size,
        "gradient_accumulation_steps": hyper.gradient_accumulation,
        "max_steps": facts.total_steps,
        "num_epochs": 1,  # max_steps decides
        "optimizer": job.config.backend.facts.optimizers[hyper.optimizer],
        "lr_scheduler": job.config.backend.facts.schedules[hyper.schedule],
        "learning_rate": hyper.learning_rate,
        "warmup_steps": hyper.warmup(facts.total_steps),
        "weight_decay": hyper.weight_decay,
        "max_grad_norm": hyper.max_grad_norm,
        "bf16": precision is Precision.BF16,
        "fp16": precision is Precision.FP16,
        "tf32": False,
        "gradient_checkpointing": hyper.gradient_checkpointing,
        "attn_implementation": "sdpa",
        "seed": hyper.seed,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": facts.save_steps,
        "save_total_limit": 2,
        "dynamic_checkpoint": {"enabled": True, "check_interval": 1, "trigger_file_path": TRIGGER_FILE},
    }
    if facts.resume is not None:
        value["resume_from_checkpoint"] = str(facts.resume)
    return {**value, **(job.config.extra or {})}


def adapter(job: TrainingJob, facts: AxolotlFacts) -> JsonObject:
    """Return the adapter's shape; axolotl's own kernels for it are for CUDA and off on a CPU."""
    lora = job.config.method
    if not isinstance(lora, LowRankSettings):
        return {}
    kernels = dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"), False)
    in_4bit = lora.type is Method.QLORA
    value = {
        "adapter": "qlora" if in_4bit else "lora",
        "load_in_4bit": True if in_4bit else None,
        "lora_r": lora.rank,
        "lora_alpha": int(lora.alpha or 16),
        "lora_dropout": lora.dropout,
        "lora_target_modules": facts.modules,
        "lora_modules_to_save": list(lora.modules_to_save) or None,
        "peft_layers_to_transform": list(lora.layers) if lora.layers is not None else None,
        "peft_use_dora": lora.type is Method.DORA,
        "peft_use_rslora": lora.rslora,
        "lora_model_dir": job.adapter or (str(facts.first_adapter) if facts.first_adapter else None),
    }
    options = {name: setting for name, setting in value.items() if setting is not None}
    return options | (kernels if facts.device == "cpu" else {})


def sft(job: TrainingJob, facts: AxolotlFacts) -> dict[str, object]:
    """Rows with token ids and labels: an empty `type` says that they are prepared already."""
    return {"datasets": [{"path": str(facts.folder / ROWS_FILE), "ds_type": "json", "type": None}]}


def dpo(job: TrainingJob, facts: AxolotlFacts) -> dict[str, object]:
    """Rendered prompt, chosen and rejected, taken as they are."""
    preference = job.config.stage
    assert isinstance(preference, DpoSettings), preference
    return {
        "rl": "dpo",
        "dpo_beta": preference.beta,
        "dpo_loss_type": [preference.loss.value],
        "dpo_label_smoothing": preference.label_smoothing,
        "datasets": [
            {"path": str(facts.folder / ROWS_FILE), "ds_type": "json", "split": "train", "type": "passthrough"}
        ],
    }


def kto(job: TrainingJob, facts: AxolotlFacts) -> dict[str, object]:
    """Rendered prompt and completion with a verdict; the fields are named, since they are already whole texts."""
    preference = job.config.stage
    assert isinstance(preference, KtoSettings), preference
    fields = {"field_prompt": "prompt", "field_completion": "completion", "field_label": "label"}
    return {
        "rl": "kto",
        "rl_beta": preference.beta,
        "kto_desirable_weight": preference.desirable_weight,
        "kto_undesirable_weight": preference.undesirable_weight,
        "remove_unused_columns": False,
        "datasets": [{"path": str(facts.folder / ROWS_FILE), "ds_type": "json", "split": "train", "type": fields}],
    }


def reward(job: TrainingJob, facts: AxolotlFacts) -> dict[str, object]:
    """A Bradley-Terry model over single questions; the turns are rendered there by the tokenizer's own template."""
    return {
        "reward_model": True,
        "num_labels": 1,
        "model_type": "AutoModelForSequenceClassification",
        "chat_template": "tokenizer_default",
        "remove_unused_columns": False,
        "datasets": [{"path": str(facts.folder / ROWS_FILE), "ds_type": "json", "type": "bradley_terry.chat_template"}],
    }


STAGES = {Stage.SFT: sft, Stage.DPO: dpo, Stage.KTO: kto, Stage.REWARD: reward}


def convert_row(stage: Stage, row: JsonMapping) -> JsonObject | None:
    """Return a row of the plan as the stage's `type` reads it; None where axolotl has no form for it.

    Its reward format is one question with an optional system turn.
    """
    if stage is Stage.SFT:
        return {**row, "attention_mask": [1] * len(row["input_ids"])}
    if stage is Stage.DPO:
        return {name: row[name] for name in ("prompt", "chosen", "rejected")}
    if stage is Stage.KTO:
        return {name: row[name] for name in ("prompt", "completion", "label")}
    roles = [message["role"] for message in row["messages"]]
    if roles not in (["user"], ["system", "user"]):
        return None
    texts = dict(zip(roles, (message["content"] for message in row["messages"]), strict=True))
    return {
        "system": texts.get("system", ""),
        "input": texts["user"],
        "chosen": row["chosen_turn"],
        "rejected": row["rejected_turn"],
    }
