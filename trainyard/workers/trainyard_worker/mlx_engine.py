"""Train with `mlx_lm.tuner.trainer.train`, in the interpreter of the mlx environment (mlx, no heavy Trainyard module).

The loop, the layers, the optimizer and the files are mlx-lm's. What it takes as arguments is ours: the batches (the
rows of each step as every backend gets them), the loss (the mean over the labelled tokens of the whole step, so a token
counts the same in any micro-batch; mlx-lm's own also counts one padding token of each row), and the learning rates.
Clipping, which mlx-lm has no option for, is a step of the optimizer.

A checkpoint contains the trainable weights and the optimizer state. Each micro-batch has its own seed (for dropout), so
a resumed run is bit-identical on a CPU. mlx-lm's own resume restores the weights only.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import mlx_lm
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tuner.callbacks import TrainingCallback
from mlx_lm.tuner.trainer import TrainingArgs
from mlx_lm.tuner.trainer import train as mlx_train
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model

from . import names
from .failures import WorkerError
from .files import StopFlag, WorkerFiles, commit, empty_checkpoint, require_finite

Fields = dict[str, Any]
"""A JSON object, such as a part of the plan or a record."""

IGNORED = -100
PAD_TO = 32
"""Widths of batches are multiples of this, as in mlx-lm: each new width is compiled again."""
START_FOLDER, OWN_FOLDER, ADAPTER_FILE = "start", "mlx", "adapters.safetensors"
STATE_FILE, OPTIMIZER_FILE, WEIGHTS_FILE = "state.json", "optimizer.safetensors", "weights.safetensors"
SEEDS = 1 << 32
"""Micro-batches of one run have seeds next to each other; two runs with other seeds never share one."""
PRECISIONS = {"fp32": mx.float32, "bf16": mx.bfloat16, "fp16": mx.float16}
SGD_MOMENTUM, LION_BETAS = 0.9, (0.9, 0.99)


class Halted(Exception):
    """The work stopped at a step, everything saved."""


def train(folder: Path, stop: StopFlag) -> None:
    """Run the plan in `folder` to its end, or to a stop."""
    files = WorkerFiles(folder)
    if files.plan["device"] == "cpu":
        mx.set_default_device(mx.cpu)
    mx.random.seed(files.hyper["seed"])
    model, _ = load_model(Path(files.spec["base"]))
    precision = cast(model, files.hyper["precision"])
    shape = inject(model, files)
    optimizer = make_optimizer(files)
    run = MlxTraining(files, stop, model, optimizer, shape)
    first = run.restore()
    why = "asked for" if files.hyper["precision"] == precision else f"auto on {device_name()}"
    facts = {"device": device_name(), "precision": precision, "precision_why": why}
    files.begin(threads=files.spec["threads"], **facts)
    total, accumulation = files.plan["total_steps"], run.accumulation
    work = folder / "made-by-mlx"
    work.mkdir(exist_ok=True)
    arguments = TrainingArgs(
        batch_size=files.hyper["batch_size"],
        iters=(total - first) * accumulation,
        steps_per_report=accumulation,
        steps_per_save=total * accumulation + 1,  # ours are whole and verified
        max_seq_length=files.hyper["max_length"],
        adapter_file=str(work / ADAPTER_FILE),
        grad_checkpoint=files.hyper["gradient_checkpointing"],
        grad_accumulation_steps=accumulation,
    )
    try:
        mlx_train(model, optimizer, files.examples(), None, arguments, loss, run.batches, run)
    except Halted:
        return
    run.leave(work / ADAPTER_FILE, facts)
    shutil.rmtree(work)


def device_name() -> str:
    return "cpu" if mx.default_device() == mx.Device(mx.cpu) else "mps"


def cast(model: nn.Module, requested: str) -> str:
    """Return the dtype of the weights: the requested one, or bfloat16 with Metal and float32 on a CPU."""
    name = requested if requested in PRECISIONS else ("fp32" if device_name() == "cpu" else "bf16")
    model.set_dtype(PRECISIONS[name])
    return name


# Layers


def inject(model: nn.Module, files: WorkerFiles) -> Fields | None:
    """Freeze the model and put the adapter in; returns mlx-lm's `lora_parameters`. Full weights are all unfrozen."""
    model.freeze()
    if files.config["method"]["type"] == "full":
        model.unfreeze()
        return None
    start, config = files.plan_folder / START_FOLDER, adapter_config(files)
    if files.spec["adapter"] is not None:
        parameters = config["lora_parameters"]
    else:
        divisor = math.sqrt(config["r"]) if config["use_rslora"] else config["r"]
        parameters = {"rank": int(config["r"]), "scale": float(config["lora_alpha"]) / divisor}
        parameters |= {"dropout": float(config["lora_dropout"]), "keys": sorted(list_adapted_modules(model, config))}
    linear_to_lora_layers(model, -1, parameters, use_dora=files.config["method"]["type"] == "dora")
    if files.spec["adapter"] is not None:
        model.load_weights(str(start / ADAPTER_FILE), strict=False)
    return parameters


def adapter_config(files: WorkerFiles) -> Fields:
    """The shape of the adapter: PEFT's of a new one, mlx-lm's of one that is continued."""
    source = files.plan_folder / (names.ADAPTER_FOLDER if files.spec["adapter"] is None else START_FOLDER)
    config: Fields = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
    return config


def list_adapted_modules(model: nn.Module, config: Fields) -> list[str]:
    """Full names of the modules that PEFT would adapt. Raises `WorkerError` (`E-TRAINABLE`)."""
    targets, blocks = config["target_modules"], config.get("layers_to_transform")
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.QuantizedLinear)]
    if targets == "all-linear":
        names = [name for name in linear if name != "lm_head"]
    else:
        names = [name for name in linear if any(name == target or name.endswith(f".{target}") for target in targets)]
    if blocks is not None:
        names = [name for name in names if any(f".layers.{block}." in f".{name}" for block in blocks)]
    if not names:
        raise WorkerError(
            "The adapter does not fit the model as mlx-lm builds it.",
            why=f"None of its linear modules is named {targets}.",
            do="Use lora.target_modules: all-linear.",
            code="E-TRAINABLE",
            kind="InvalidInput",
        )
    return names


# The step


def loss(model: nn.Module, ids_BT: mx.array, labels_BT: mx.array, share: mx.array) -> tuple[mx.array, mx.array]:
    """Cross-entropy of the labelled tokens; with `share` the mean over micro-batches is one over the step's tokens."""
    logits_BTV = model(ids_BT[:, :-1])
    targets_BT = labels_BT[:, 1:]
    mask_BT = targets_BT != IGNORED
    entropy_BT = nn.losses.cross_entropy(logits_BTV, mx.where(mask_BT, targets_BT, 0)) * mask_BT
    return entropy_BT.astype(mx.float32).sum() * share, mask_BT.sum()


def make_optimizer(files: WorkerFiles) -> optim.Optimizer:
    """mlx's optimizer of that name with the constants of every other backend; the norm of the gradient is clipped."""
    rates = mx.array([step["rate"] for step in files.steps(0)], dtype=mx.float32)
    decay, most = files.hyper["weight_decay"], files.hyper["max_grad_norm"]

    def rate(step: mx.array) -> mx.array:
        return rates[mx.minimum(step, len(rates) - 1).astype(mx.int32)]

    kinds: dict[str, tuple[Any, Fields]] = {
        "adamw": (optim.AdamW, {"weight_decay": decay, "bias_correction": True}),
        "sgd": (optim.SGD, {"weight_decay": decay, "momentum": SGD_MOMENTUM}),
        "lion": (optim.Lion, {"weight_decay": decay, "betas": list(LION_BETAS)}),
        "adafactor": (optim.Adafactor, {"weight_decay": decay, "relative_step": False, "scale_parameter": False}),
    }
    kind, options = kinds[files.hyper["optimizer"]]

    class Clipping(kind):  # type: ignore[misc, valid-type]
        def apply_gradients(self, gradients: Fields, parameters: Fields) -> Any:
            clipped, _ = optim.clip_grad_norm(gradients, most)
            return super().apply_gradients(clipped, parameters)

    optimizer: optim.Optimizer = Clipping(learning_rate=rate, **options)
    return optimizer


@dataclass
class MlxTraining(TrainingCallback):
    """A run: gives mlx-lm its batches, hears of every step, saves and stops between two."""

    files: WorkerFiles
    stop: StopFlag
    model: nn.Module
    optimizer: optim.Optimizer
    shape: Fields | None
    losses: list[list[float]] = field(default_factory=list)
    tokens: int = 0

    @property
    def accumulation(self) -> int:
        return int(self.files.hyper["gradient_accumulation"])

    @property
    def done(self) -> int:
        return len(self.losses)

    def trainable(self) -> dict[str, mx.array]:
        """The weights that are trained, by name."""
        return dict(tree_flatten(self.model.trainable_parameters()))

    def batches(self, dataset: list[dict[str, list[int]]], **_: Any) -> Iterator[tuple[mx.array, ...]]:
        """Micro-batches from the next step on, as many for each step as mlx-lm sums up."""
        number = self.done * self.accumulation
        for step in self.files.steps(self.done):
            rows = [[dataset[number] for number in part] for part in step["rows"]]
            targets = sum(label != IGNORED for part in rows for row in part for label in row["labels"][1:])
            share = self.accumulation / max(1, targets)
            parts = [(part, share) for part in rows]
            parts += [(rows[-1], 0.0)] * (self.accumulation - len(rows))  # the last step of an epoch has fewer rows
            for part, weight in parts:
                mx.random.seed(self.files.hyper["seed"] * SEEDS + number)
                yield pad_rows(part, self.files.plan["pad_id"], weight)
                number += 1

    def on_train_loss_report(self, train_info: Fields) -> None:
        """Called by mlx-lm after each optimizer step."""
        value, rate = float(train_info["train_loss"]), float(train_info["learning_rate"])
        require_finite(self.done + 1, value)
        self.losses.append([self.done + 1, value, rate])
        self.tokens += int(train_info["trained_tokens"]) - self.tokens
        self.files.progress(self.done, value, rate, tokens=self.tokens)
        stopping = self.stop.raised and self.done < self.files.plan["total_steps"]
        if stopping or self.done % self.files.plan["save_steps"] == 0:
            self.save()
        if stopping:
            self.files.report_stopped(self.done)
            raise Halted

    def save(self) -> None:
        """Write a checkpoint of the step that is done: weights, optimizer and curve."""
        temporary = empty_checkpoint(self.files.folder, self.done)
        mx.save_safetensors(str(temporary / WEIGHTS_FILE), self.trainable())
        mx.save_safetensors(str(temporary / OPTIMIZER_FILE), dict(tree_flatten(self.optimizer.state)))
        state = {"losses": self.losses, "lora": self.shape}
        (temporary / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
        self.files.emit("checkpoint", **commit(self.files.folder, self.done, {"step": self.done, "backend": "mlx"}))

    def restore(self) -> int:
        """Resume from the checkpoint that the runner found. Returns the number of finished steps."""
        if self.files.resume is None or self.files.resume.get("path") is None:
            return 0
        path = Path(self.files.resume["path"])
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        self.model.load_weights(str(path / WEIGHTS_FILE), strict=False)
        self.optimizer.state = tree_unflatten(list(mx.load(str(path / OPTIMIZER_FILE)).items()))
        self.losses = state["losses"]
        return self.done

    def leave(self, adapter: Path, facts: Fields) -> None:
        """Hand the weights over: an adapter as mlx-lm wrote it, or a model in the layout of its base."""
        weights = self.files.output_dir()
        if self.shape is None:
            write_model(self.trainable(), Path(self.files.spec["base"]), weights)
        else:
            folder, config = weights.parent / OWN_FOLDER, adapter_config(self.files)
            folder.mkdir()
            shutil.copyfile(adapter, folder / ADAPTER_FILE)
            value = {
                "fine_tune_type": self.files.config["method"]["type"],
                "num_layers": -1,
                "lora_parameters": self.shape,
                "peft": config.get("peft", config),
            }
            (folder / "adapter_config.json").write_text(json.dumps(value, indent=2, sort_keys=True), encoding="utf-8")
        versions = {"mlx-lm": mlx_lm.__version__, "mlx": mx.__version__}
        tool = {"name": "mlx-lm", "version": mlx_lm.__version__}
        self.files.report(losses=self.losses, versions=versions, tool=tool, **facts)


def pad_rows(rows: list[dict[str, list[int]]], pad_id: int, share: float) -> tuple[mx.array, ...]:
    """(ids, labels, share of the step) of some rows, filled up on the right."""
    longest = max(len(row["input_ids"]) for row in rows)
    width = 1 + PAD_TO * math.ceil((longest - 1) / PAD_TO)
    ids_BT = np.full((len(rows), width), pad_id, np.int32)
    labels_BT = np.full((len(rows), width), IGNORED, np.int32)
    for number, row in enumerate(rows):
        ids_BT[number, : len(row["input_ids"])] = row["input_ids"]
        labels_BT[number, : len(row["labels"])] = row["labels"]
    return mx.array(ids_BT), mx.array(labels_BT), mx.array(share, dtype=mx.float32)


def write_model(trained: dict[str, mx.array], base: Path, target: Path) -> None:
    """The base's files with the trained weights in their places. Raises `WorkerError` (`E-CONVERT`).

    For most families mlx-lm keeps names and shapes as transformers has them; where it stacks or transposes weights the
    way back is not known, and no guess is written.
    """
    left = set(trained)
    for path in sorted(base.glob("*.safetensors")):
        stored = mx.load(str(path))
        for name, value in stored.items():
            if name in trained and trained[name].shape == value.shape:
                stored[name] = trained[name]
                left.discard(name)
            elif name in trained:
                raise layout_error(
                    f"{name} has the shape {trained[name].shape} in mlx-lm and {value.shape} in the base."
                )
        mx.save_safetensors(str(target / path.name), stored, metadata={"format": "pt"})
    if left:
        raise layout_error(f"The base has no {sorted(left)[0]}.")
    for path in base.glob("*.json"):
        if path.name.startswith(("config", "generation_config", "model.safetensors.index")):
            shutil.copyfile(path, target / path.name)


def layout_error(why: str) -> WorkerError:
    return WorkerError(
        "mlx-lm stores this model in another layout than transformers.",
        why=why,
        do="Train it with method lora, or with another backend.",
        code="E-CONVERT",
    )
