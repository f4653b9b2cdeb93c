"""LoRA and QLoRA SFT by unsloth's FastLanguageModel and TRL's SFTTrainer (unsloth's own interpreter).

Rows come tokenised and labelled, in the order of the plan, with the learning rates of the plan. Checkpoints are those
of transformers, committed whole; a resumed run reads the same rows and has the same state of the random generator.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# unsloth has to come before the libraries that it changes.
import unsloth  # isort: skip
import orjson
import torch
import transformers
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import PrinterCallback, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

from . import names
from .files import StopFlag, WorkerFiles, commit, empty_checkpoint, require_finite

OPTIMIZERS = {
    "adamw": "adamw_torch",
    "sgd": "sgd",
    "adamw_8bit": "adamw_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
}
"""Ours -> the name that transformers gives it."""
TRAINER_FOLDER = ".trainer"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class PlannedOrder(Sampler[int]):
    """The rows of an epoch in the order of the plan."""

    def __init__(self, order: list[int], rows: int) -> None:
        super().__init__()
        self.order, self.rows, self.epoch = order, rows, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        part = self.order[self.epoch * self.rows : (self.epoch + 1) * self.rows]
        # The plan ends with the last step, perhaps inside an epoch; the loader is as long as an epoch all the same.
        return iter(part + self.order[: self.rows - len(part)])


class PlannedTrainer(SFTTrainer):
    """TRL's trainer with the plan's order of rows and learning rates."""

    order: PlannedOrder
    factors: list[float]

    def _get_train_sampler(self, train_dataset: Any = None) -> PlannedOrder:
        return self.order

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        factors, target = self.factors, optimizer or self.optimizer
        assert target is not None
        self.lr_scheduler = LambdaLR(target, lambda step: factors[min(step, len(factors) - 1)])
        return self.lr_scheduler


class UnslothCallback(TrainerCallback):
    """Between two steps: report, look for a stop request, say when to save, and commit what was saved."""

    def __init__(self, files: WorkerFiles, stop: StopFlag) -> None:
        self.files, self.stop = files, stop

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            loss = float(logs["loss"])
            require_finite(state.global_step, loss)
            self.files.progress(
                state.global_step, loss, float(logs.get("learning_rate", 0.0)), grad_norm=logs.get("grad_norm")
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        last = state.global_step >= self.files.plan["total_steps"]
        if self.stop.raised and not last:
            control.should_save = control.should_training_stop = True
        elif state.global_step % self.files.plan["save_steps"] == 0 and not last:
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Commit what transformers has just written as a checkpoint of Trainyard."""
        temporary = empty_checkpoint(self.files.folder, state.global_step)
        written = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        written.rename(temporary / written.name)
        self.files.emit("checkpoint", **commit(self.files.folder, state.global_step, {}))


def train(folder: Path, stop: StopFlag) -> None:
    """Train to the end, or to the step after a stop request."""
    files = WorkerFiles(folder)
    torch.set_num_threads(int(files.spec["threads"]))
    transformers.logging.set_verbosity(logging.WARNING)
    set_seed(int(files.hyper["seed"]))
    facts = files.precision(torch.cuda.is_bf16_supported)
    precision = facts["precision"]
    model, tokenizer = load_model(files, precision)
    trainer = build(files, model, tokenizer, stop, precision)
    files.begin(device=files.plan["device"], threads=torch.get_num_threads(), **facts)
    if not stop.raised:
        # transformers resumes from the folder inside a committed checkpoint
        folders = Path(files.resume["path"]).glob("checkpoint-*") if files.resume["path"] else iter(())
        trainer.train(resume_from_checkpoint=next(map(str, folders), None))
    if trainer.state.global_step < files.plan["total_steps"]:
        files.report_stopped(trainer.state.global_step)
        return
    write_result(files, trainer, facts)


def load_model(files: WorkerFiles, precision: str) -> tuple[Any, Any]:
    """Base and adapter by unsloth's own calls, and the tokenizer of the plan."""
    hyper = files.hyper
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        model_name=files.spec["adapter"] or files.spec["base"],
        max_seq_length=int(hyper["max_length"]),
        dtype=DTYPES[precision],
        load_in_4bit=files.config["method"]["type"] == "qlora",
        local_files_only=Path(files.spec["base"]).is_dir(),
        trust_remote_code=False,
    )
    if files.spec["adapter"] is None:
        shape = orjson.loads((files.plan_folder / names.ADAPTER_FOLDER / "adapter_config.json").read_bytes())
        model = unsloth.FastLanguageModel.get_peft_model(
            model,
            r=shape["r"],
            lora_alpha=shape["lora_alpha"],
            lora_dropout=shape["lora_dropout"],
            target_modules=orjson.loads((files.plan_folder / names.MODULES_FILE).read_bytes()),
            layers_to_transform=shape["layers_to_transform"],
            bias="none",
            use_gradient_checkpointing="unsloth" if hyper["gradient_checkpointing"] else False,
            random_state=int(hyper["seed"]),
            use_rslora=shape["use_rslora"],
        )
    return model, tokenizer


def build(files: WorkerFiles, model: Any, tokenizer: Any, stop: StopFlag, precision: str) -> PlannedTrainer:
    examples = files.examples()
    lines = list(files.steps(0))
    trainer = PlannedTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(examples),
        args=arguments(files, precision),
        callbacks=[UnslothCallback(files, stop)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.order = PlannedOrder([row for line in lines for micro in line["rows"] for row in micro], len(examples))
    trainer.factors = [line["rate"] / float(files.hyper["learning_rate"]) for line in lines]
    return trainer


def arguments(files: WorkerFiles, precision: str) -> Any:
    """Every default that changes numbers is set, so that none is inherited."""
    hyper, cpu = files.hyper, files.plan["device"] == "cpu"
    return SFTConfig(
        output_dir=str(files.folder / "checkpoints" / TRAINER_FOLDER),
        per_device_train_batch_size=int(hyper["batch_size"]),
        gradient_accumulation_steps=int(hyper["gradient_accumulation"]),
        max_steps=files.plan["total_steps"],
        learning_rate=float(hyper["learning_rate"]),
        lr_scheduler_type="constant",  # the plan's rates are put in its place
        optim=OPTIMIZERS[hyper["optimizer"]],
        weight_decay=float(hyper["weight_decay"]),
        max_grad_norm=float(hyper["max_grad_norm"]),
        max_length=int(hyper["max_length"]),
        seed=int(hyper["seed"]),
        data_seed=int(hyper["seed"]),
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=cpu,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",  # the watch says when
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=not cpu,
        remove_unused_columns=False,
    )


def write_result(files: WorkerFiles, trainer: Any, facts: dict[str, Any]) -> None:
    target = files.output_dir()
    trainer.model.save_pretrained(str(target), safe_serialization=True)
    tools = ["unsloth", "unsloth_zoo", "torch", "transformers", "trl", "peft"]
    if files.config["method"]["type"] == "qlora" or "8bit" in files.hyper["optimizer"]:
        tools.append("bitsandbytes")
    files.report(
        losses=[
            [entry["step"], entry["loss"], entry["learning_rate"]]
            for entry in trainer.state.log_history
            if "loss" in entry
        ],
        tool={"name": "unsloth", "version": unsloth.__version__},
        versions={name: importlib.metadata.version(name) for name in tools},
        **facts,
    )
