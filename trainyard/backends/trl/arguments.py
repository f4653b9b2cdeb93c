"""Our hyperparameters as TRL's arguments. Every default of TRL that matters is set, so that none is inherited.

TRL switches bf16 and gradient checkpointing on by default; both change numbers or speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from trl.trainer.dpo_config import DPOConfig
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.kto_config import KTOConfig

from trainyard.backends.frame import total_steps
from trainyard.backends.job import TrainingJob
from trainyard.json_types import JsonObject
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.stages import DpoSettings, GrpoSettings, KtoSettings, PreferenceLoss, SftSettings
from trainyard.spec.estimate.timing import save_steps

MOST_LOSSES = 1000
"""Points of the loss curve that are logged: every step of a short run, fewer of a long one."""


@dataclass(frozen=True)
class Length:
    """Length of a run, in optimizer steps."""

    total_steps: int
    epochs: float
    save_steps: int
    logging_steps: int
    whole_steps: int = 1
    """Steps that share what was drawn for the first of them: a checkpoint is made only between two such groups."""


def count_completions(job: TrainingJob) -> int:
    """Completions that are drawn for each row; 1 where the row itself is learned from."""
    return job.config.stage.num_generations if isinstance(job.config.stage, GrpoSettings) else 1


def prompts_of_a_step(job: TrainingJob) -> int:
    """Rows of an optimizer step that completions are drawn for."""
    hyper = job.config.hyperparameters
    completions = hyper.batch_size * hyper.gradient_accumulation * job.config.launch.processes
    return max(1, completions // count_completions(job))


def count_left_out(job: TrainingJob, rows: int) -> int:
    """Rows that each pass leaves out, which are others in each: KTO compares the rows of a batch, and a last batch of
    one would be compared with itself; GRPO compares completions, and a step takes the same number of prompts."""
    if isinstance(job.config.stage, GrpoSettings):
        return rows % prompts_of_a_step(job)
    return int(job.config.stage.facts.compares_rows and rows % job.config.hyperparameters.batch_size == 1)


def run_length(job: TrainingJob, rows: int) -> Length:
    """Steps of a run over `rows` rows a pass, and how often it logs and saves."""
    hyper = job.config.hyperparameters
    batches = math.ceil(rows * count_completions(job) / (hyper.batch_size * job.config.launch.processes))
    # The steps that learn from the same completions belong together.
    whole = job.config.stage.num_iterations if isinstance(job.config.stage, GrpoSettings) else 1
    per_epoch = max(1, math.ceil(batches / hyper.gradient_accumulation)) * whole
    total = total_steps(hyper, per_epoch)
    save = math.ceil(save_steps(hyper, total) / whole) * whole
    return Length(total, total / per_epoch, save, max(1, total // MOST_LOSSES), whole)


def common_arguments(
    job: TrainingJob, length: Length, folder: Path, device: str, precision: Precision
) -> dict[str, object]:
    """Arguments that all stages share."""
    hyper, stage = job.config.hyperparameters, job.config.stage
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": hyper.batch_size,
        "gradient_accumulation_steps": hyper.gradient_accumulation,
        "max_steps": length.total_steps,
        "learning_rate": hyper.learning_rate,
        "lr_scheduler_type": "constant",  # `CommittedCheckpoints` replaces it by our curve
        "optim": job.config.backend.facts.optimizers[hyper.optimizer],
        "weight_decay": hyper.weight_decay,
        "max_grad_norm": hyper.max_grad_norm,
        "max_length": hyper.max_length,
        "neftune_noise_alpha": stage.neftune_alpha if isinstance(stage, SftSettings) else None,
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
        "save_strategy": "no",  # Trainyard commits its own checkpoints
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": device == "cuda",
        "push_to_hub": False,
    }


def dpo_config(common: JsonObject, job: TrainingJob) -> DPOConfig:
    """Dropout stays off: the first loss of DPO is then ln 2, which proves that the reference is the right one.

    TRL's `sigmoid` takes no label smoothing: with it the loss is `robust`, its unbiased form for noisy labels
    (Chowdhury et al. 2024, arXiv 2403.00409), which starts at ln 2 as well.
    """
    preference = job.config.stage
    assert isinstance(preference, DpoSettings), preference
    smoothed = preference.label_smoothing > 0 and preference.loss is PreferenceLoss.SIGMOID
    return DPOConfig(
        **common,
        beta=preference.beta,
        loss_type=["robust" if smoothed else preference.loss.value],
        label_smoothing=preference.label_smoothing,
        disable_dropout=True,
        precompute_ref_log_probs=False,
    )


def kto_config(common: JsonObject, job: TrainingJob) -> KTOConfig:
    """The reference is computed without dropout, as for DPO: the first loss is 0.5 where the weights are 1.

    TRL asks for rows in their given order because it pairs neighbours beforehand; here each batch pairs its own rows.
    """
    preference = job.config.stage
    assert isinstance(preference, KtoSettings), preference
    return KTOConfig(
        **common,
        beta=preference.beta,
        loss_type="kto",
        desirable_weight=preference.desirable_weight,
        undesirable_weight=preference.undesirable_weight,
        train_sampling_strategy="sequential",
        disable_dropout=True,
        precompute_ref_log_probs=False,
    )


def grpo_config(common: JsonObject, rollouts: GrpoSettings) -> GRPOConfig:
    """Completions are drawn for one optimizer step and used in `num_iterations` of them. Where that is 1, the policy
    that drew is the policy itself, and nothing is clipped.

    The prompts are cut to no length here, and dropout stays off: what is learned from is what was drawn.
    """
    return GRPOConfig(
        **{name: value for name, value in common.items() if name != "max_length"},
        num_generations=rollouts.num_generations,
        max_completion_length=rollouts.max_completion_length,
        temperature=rollouts.temperature,
        top_p=1.0,
        top_k=0,
        beta=rollouts.beta,
        epsilon=rollouts.epsilon,
        loss_type=rollouts.loss,
        scale_rewards=rollouts.scale_rewards,
        reward_weights=[reward.weight for reward in rollouts.rewards],
        num_iterations=rollouts.num_iterations,
        disable_dropout=True,
        remove_unused_columns=False,
        use_vllm=False,
        log_completions=False,
    )
