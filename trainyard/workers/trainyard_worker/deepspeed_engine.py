"""SFT by `deepspeed.initialize`, in each of the processes that train together (DeepSpeed's own interpreter).

One optimizer step is the same rows whatever the number of processes: the plan names them by micro-batch, process r
takes the micro-batches r, r + P, r + 2P …, and the loss is the mean over the labelled tokens of the whole step. So the
loss curve of 1, 2 and 4 processes at the same global batch is one curve, but for rounding. Dropout draws from a seed
that is a function of step and process, so that a resumed run needs no state of the random generator.

Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

import importlib.metadata
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deepspeed
import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, set_seed

from . import deepspeed_hosts as hosts
from . import deepspeed_shards as shards
from . import names
from .files import StopFlag, WorkerFiles, require_finite

IGNORED = -100
ZERO_STAGES = {"single": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
NEVER = 1 << 30
FIRST_SCALE_POWER = 10
"""fp16's first loss scale is 1,024, as in the native engine: DeepSpeed's 65,536 overflows small models at first."""


@dataclass
class DeepspeedTraining:
    """Assembled process of a run."""

    files: WorkerFiles
    engine: Any
    rank: int
    world: int
    device: torch.device
    layout: hosts.Layout
    examples: list[dict[str, list[int]]]
    facts: dict[str, Any]
    step: int = 0
    losses: list[list[float]] = field(default_factory=list)
    """[step, loss, learning rate] of every step."""
    tokens: int = 0

    @property
    def first(self) -> bool:
        """Whether this process writes the files of its host."""
        return self.layout.writes

    @property
    def accumulation(self) -> int:
        return int(self.files.hyper["gradient_accumulation"])


def train(folder: Path, stop: StopFlag) -> None:
    """Train to the end, or to the step at which all processes agreed to stop."""
    files = WorkerFiles(folder)
    deepspeed.init_distributed()
    layout = hosts.find_layout(files.config["launch"])
    torch.set_num_threads(max(1, int(files.spec["threads"]) // layout.local))
    run = assemble(files, layout)
    checkpoint = hosts.agree_on_checkpoint(files, layout)
    if checkpoint is not None:
        adapter = files.plan["lora"] is not None
        run.step, run.losses, run.tokens = shards.load_checkpoint(run.engine, checkpoint, adapter=adapter)
    if run.first:
        files.begin(device=files.plan["device"], threads=torch.get_num_threads(), **run.facts)
    if loop(run, stop):
        write_result(run)
    elif run.first:
        files.report_stopped(run.step)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def assemble(files: WorkerFiles, layout: hosts.Layout) -> DeepspeedTraining:
    """Model, engine and rows, with what is known of how the weights are shared."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    device = torch.device("cpu")
    if files.plan["device"] == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    facts: dict[str, Any] = files.precision(torch.cuda.is_bf16_supported)
    stage = ZERO_STAGES[files.config["launch"]["strategy"]]
    set_seed(int(files.hyper["seed"]))  # every process begins with the same weights
    model = with_adapter(files, load_base(files))
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=groups(model, files),
        config=engine_config(files, stage, world, facts["precision"]),
    )
    facts |= {"processes": world, "zero_stage": stage, "sharding": shards.measure(engine, sizes, stage, world)}
    return DeepspeedTraining(files, engine, rank, world, device, layout, files.examples(), facts)


def load_base(files: WorkerFiles) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        files.spec["base"],
        trust_remote_code=False,
        use_safetensors=True,
        dtype=torch.float32,
        attn_implementation=files.plan["attention"],
    )
    model.config.use_cache = False
    if files.hyper["gradient_checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model.train()


def with_adapter(files: WorkerFiles, model: Any) -> Any:
    """The model that is trained: with a new adapter, with the earlier one, or as it is (full)."""
    if files.plan["lora"] is None:
        return model
    if files.spec["adapter"] is not None:
        return PeftModel.from_pretrained(model, files.spec["adapter"], is_trainable=True)
    config = LoraConfig.from_pretrained(str(files.plan_folder / names.ADAPTER_FOLDER))
    config.inference_mode = False
    return get_peft_model(model, config)


def groups(model: Any, files: WorkerFiles) -> list[dict[str, Any]]:
    """Weight decay on matrices, none on biases and norms."""
    decay = float(files.hyper["weight_decay"])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if decay == 0.0:
        return [{"params": trained, "weight_decay": 0.0}]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    vectors = [parameter for parameter in trained if parameter.ndim <= 1]
    parts = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return [part for part in parts if part["params"]]


def engine_config(files: WorkerFiles, stage: int, world: int, precision: str) -> dict[str, Any]:
    """DeepSpeed's configuration. `torch_adam`: its own Adam would be compiled at the first start."""
    hyper = files.hyper
    micro, accumulation = int(hyper["batch_size"]), int(hyper["gradient_accumulation"])
    rate = float(hyper["learning_rate"])
    return {
        "train_batch_size": micro * accumulation * world,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": float(hyper["max_grad_norm"]),
        "optimizer": {"type": "AdamW", "params": {"lr": rate, "betas": [0.9, 0.999], "eps": 1e-8, "torch_adam": True}},
        "bf16": {"enabled": precision == "bf16"},
        # The loss scale begins where the native engine's does.
        "fp16": {"enabled": precision == "fp16", "initial_scale_power": FIRST_SCALE_POWER},
        # Below the threshold stage 3 would keep whole parameters in every process: nothing of a small model is shared.
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "overlap_comm": False},
        # Each of several hosts has a folder of its own.
        "checkpoint": {"use_node_local_storage": hosts.count_hosts(files.config["launch"]) > 1},
        "steps_per_print": NEVER,
    }


def loop(run: DeepspeedTraining, stop: StopFlag) -> bool:
    """The remaining steps; False when all processes agreed to stop before the last one."""
    total, save_steps = run.files.plan["total_steps"], run.files.plan["save_steps"]
    if should_stop(stop, run.device):
        return False
    for line in run.files.steps(run.step):
        take_step(run, line)
        halt = should_stop(stop, run.device) and run.step < total
        if run.step < total and (halt or run.step % save_steps == 0):
            save(run)
        if halt:
            return False
    return True


def should_stop(stop: StopFlag, device: torch.device) -> bool:
    """Whether any process was asked to stop: all of them learn it between the same two steps."""
    flag = torch.tensor([int(stop.raised)], device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())


def take_step(run: DeepspeedTraining, line: dict[str, Any]) -> None:
    """Forward and backward over this process's micro-batches of one step, then move the weights."""
    micros: list[list[int]] = line["rows"]
    torch.manual_seed(int(run.files.hyper["seed"]) * 1_000_003 + run.step * run.world + run.rank)
    # The first position of a row has no predecessor that could predict it.
    labelled = sum(label != IGNORED for rows in micros for row in rows for label in run.examples[row]["labels"][1:])
    for group in run.engine.optimizer.param_groups:
        group["lr"] = line["rate"]
    total = torch.zeros(1, dtype=torch.float64, device=run.device)
    for number in range(run.accumulation):
        at = number * run.world + run.rank
        loss = token_loss(run, micros[at] if at < len(micros) else [])
        total += loss.detach().double()
        # DeepSpeed divides by processes and accumulation; the loss is a mean over tokens, so that is undone here.
        run.engine.backward(loss * (run.world * run.accumulation / labelled))
        run.engine.step()
    torch.distributed.all_reduce(total)
    run.step += 1
    mean = float(total.item()) / labelled
    require_finite(run.step, mean)
    run.losses.append([run.step, mean, line["rate"]])
    run.tokens += sum(len(run.examples[row]["input_ids"]) for rows in micros for row in rows)
    if run.first:
        norm = run.engine.get_global_grad_norm()
        run.files.progress(
            run.step, mean, line["rate"], grad_norm=None if norm is None else float(norm), tokens=run.tokens
        )


def token_loss(run: DeepspeedTraining, rows: list[int]) -> torch.Tensor:
    """Cross-entropy of a micro-batch, summed over its labelled tokens. Without rows, zero with a gradient of zeros:
    every process has to take part in every collective operation."""
    examples = [run.examples[row] for row in rows] or [
        {"input_ids": [run.files.plan["pad_id"]] * 2, "labels": [IGNORED] * 2}
    ]

    def pad_rows(rows: list[list[int]], filler: int) -> torch.Tensor:
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=filler).to(run.device)

    ids_BT = pad_rows([row["input_ids"] for row in examples], int(run.files.plan["pad_id"]))
    labels_BT = pad_rows([row["labels"] for row in examples], IGNORED)
    mask_BT = pad_rows([[1] * len(row["input_ids"]) for row in examples], 0)
    logits_BTV = run.engine(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits
    if not rows:
        return logits_BTV.float().sum() * 0.0
    return torch.nn.functional.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1).float(), labels_BT[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )


def save(run: DeepspeedTraining) -> None:
    facts = {"processes": run.world, "strategy": run.files.config["launch"]["strategy"]}
    state = {"step": run.step, "losses": run.losses, "tokens": run.tokens}
    adapter = run.files.plan["lora"] is not None
    saved = shards.save(run.engine, run.files.folder, state, facts, layout=run.layout, adapter=adapter)
    if run.first:
        run.files.emit("checkpoint", **saved)


def write_result(run: DeepspeedTraining) -> None:
    """Gather the weights in process 0 and write them as PEFT or transformers would."""
    target = run.files.output_dir() if run.first else None
    shards.gather(run.engine, target)
    if target is None:
        return
    versions = {module.__name__: module.__version__ for module in (torch, transformers, peft, deepspeed)}
    tool = {"name": "deepspeed", "version": importlib.metadata.version("deepspeed")}
    run.files.report(losses=run.losses, tool=tool, versions=versions, **run.facts)
