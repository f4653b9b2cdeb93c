"""Our hyperparameters as TRL's arguments. Every default of TRL that matters is set, so that none is inherited.

TRL switches bf16 and gradient checkpointing on unless told otherwise; both change numbers or speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl.trainer.dpo_config import DPOConfig
from trl.trainer.sft_config import SFTConfig

from trainyard.backends.job import TrainingJob
from trainyard.backends.trl import OPTIMIZERS, SCHEDULES
from trainyard.spec.axes import Precision, PreferenceLoss, Schedule, Stage
from trainyard.train.schedules import POLYNOMIAL_POWER, RESTART_CYCLES, STABLE_DECAY

MOST_LOSSES = 1000
"""Points of the loss curve that are logged: every step of a short run, fewer of a long one."""
CHECKPOINTS_PER_RUN = 5
LEAST_SAVE_STEPS, MOST_SAVE_STEPS = 50, 500


@dataclass(frozen=True)
class Length:
    """How long a run is, in optimizer steps."""

    total_steps: int
    epochs: float
    save_steps: int
    logging_steps: int


def run_length(job: TrainingJob, rows: int) -> Length:
    """Steps of a run over `rows` rows, and how often it logs and saves."""
    hyper = job.config.hyperparameters
    batches = math.ceil(rows / (hyper.batch_size * job.config.launch.processes))
    per_epoch = max(1, math.ceil(batches / hyper.gradient_accumulation))
    total = hyper.max_steps or max(1, math.ceil((hyper.epochs or 3.0) * per_epoch))
    save = hyper.save_steps or min(MOST_SAVE_STEPS, max(LEAST_SAVE_STEPS, math.ceil(total / CHECKPOINTS_PER_RUN)))
    return Length(total, total / per_epoch, save, max(1, total // MOST_LOSSES))


def schedule_arguments(schedule: Schedule, total_steps: int) -> dict[str, Any]:
    """What transformers has to be told so that a schedule is the one of the native engine."""
    told: dict[Schedule, dict[str, Any]] = {
        Schedule.WSD: {"num_decay_steps": max(1, total_steps // STABLE_DECAY)},
        Schedule.COSINE_WITH_RESTARTS: {"num_cycles": RESTART_CYCLES},
        Schedule.POLYNOMIAL: {"power": POLYNOMIAL_POWER, "lr_end": 0.0},
    }
    return told.get(schedule, {})


def common_arguments(
    job: TrainingJob, length: Length, folder: Path, device: str, precision: Precision
) -> dict[str, Any]:
    """Arguments that SFT and DPO share."""
    hyper = job.config.hyperparameters
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": hyper.batch_size,
        "gradient_accumulation_steps": hyper.gradient_accumulation,
        "max_steps": length.total_steps,
        "learning_rate": hyper.learning_rate,
        "lr_scheduler_type": SCHEDULES[hyper.schedule],
        "lr_scheduler_kwargs": schedule_arguments(hyper.schedule, length.total_steps),
        "warmup_steps": math.ceil(hyper.warmup_ratio * length.total_steps),
        "optim": OPTIMIZERS[hyper.optimizer],
        "weight_decay": hyper.weight_decay,
        "max_grad_norm": hyper.max_grad_norm,
        "max_length": hyper.max_length,
        "seed": hyper.seed,
        "data_seed": hyper.seed,
        "bf16": precision is Precision.BF16,
        "fp16": precision is Precision.FP16,
        "use_cpu": device == "cpu",
        "gradient_checkpointing": hyper.gradient_checkpointing,
        "logging_strategy": "steps",
        "logging_steps": length.logging_steps,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,  # a non-finite loss has to be seen
        "save_strategy": "no",  # we commit our own checkpoints
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": device == "cuda",
        "push_to_hub": False,
    }


def sft_config(common: dict[str, Any]) -> SFTConfig:
    """Rows come tokenised and labelled, so TRL prepares nothing."""
    return SFTConfig(**common, packing=False, dataset_kwargs={"skip_prepare_dataset": True}, loss_type="nll")


def dpo_config(common: dict[str, Any], job: TrainingJob) -> DPOConfig:
    """Dropout stays off: the first loss of DPO is then ln 2, which proves that the reference is the right one.

    TRL's `sigmoid` takes no label smoothing: with it the loss is `robust`, its unbiased form for noisy labels
    (Chowdhury et al. 2024, arXiv 2403.00409), which starts at ln 2 as well.
    """
    preference = job.config.preference
    smoothed = preference.label_smoothing > 0 and preference.loss is PreferenceLoss.SIGMOID
    return DPOConfig(
        **common,
        beta=preference.beta,
        loss_type=["robust" if smoothed else preference.loss.value],
        label_smoothing=preference.label_smoothing,
        disable_dropout=True,
        precompute_ref_log_probs=False,
    )


def trains_pairs(job: TrainingJob) -> bool:
    return job.config.stage is Stage.DPO
