"""A LoRA training and an alignment on pairs, from Python alone: no server is needed.

    python examples/local_training.py [ROWS PAIRS]

The jobs are those of `trainyard jobs list`. With the starter as the base it takes about a minute on two cores.
"""

from __future__ import annotations

import sys
import time

from trainyard import (
    AdapterMethod,
    AlignmentMethod,
    ComputeDevice,
    InstructDataset,
    LocalTrainingConfig,
    LoraConfig,
    LrScheduler,
    PreferenceDataset,
    TrainingHyperparams,
    TrainingJobStatus,
    TrainingManager,
)


def train_adapter(manager: TrainingManager, dataset: InstructDataset) -> str:
    """Start a LoRA training whose checkpoints go to `checkpoints/`; return its id."""
    config = LocalTrainingConfig(
        adapter=AdapterMethod.LORA,
        device=ComputeDevice.WGPU,  # the best device that is here; the job's record has both
        lora=LoraConfig(rank=16, alpha=32.0, dropout=0.05, target_modules=("q_proj", "k_proj", "v_proj")),
        hyperparams=TrainingHyperparams(
            epochs=3, learning_rate=2e-4, batch_size=8, lr_scheduler=LrScheduler.COSINE
        ),
        checkpoint_dir="checkpoints/",
    )  # fmt: skip
    job_id = manager.submit_local(config, dataset, name="adapter")
    progress = manager.status(job_id)
    print(f"Step {progress.step}, loss: {progress.loss}")
    return job_id


def align(manager: TrainingManager, dataset: PreferenceDataset, device: str = ComputeDevice.cuda(0)) -> str:
    """Start DPO on pairs of answers, on the first GPU; return its id. Raises `Refused` (`R-DEVICE`) without one."""
    config = LocalTrainingConfig(
        adapter=AdapterMethod.LORA,
        alignment=AlignmentMethod.DPO,
        device=device,
        hyperparams=TrainingHyperparams(epochs=1, learning_rate=5e-5, batch_size=4),
    )
    return manager.submit_local(config, dataset, name="aligned")


def follow(manager: TrainingManager, job: str, every_s: float = 1.0) -> str:
    """Print the progress of a job until its end; return what came out. `job` is an id or a name."""
    while True:
        status = manager.status(job)
        match status.state:
            case TrainingJobStatus.RUNNING:
                progress = manager.progress(job)
                if progress.loss is not None and progress.learning_rate is not None:
                    print(
                        f"Epoch {progress.epoch}/{progress.total_epochs}, step {progress.step}, "
                        f"loss: {progress.loss:.4f}, lr: {progress.learning_rate:.2e}"
                    )
            case TrainingJobStatus.COMPLETED:
                metrics = manager.metrics(job)
                return f"Done! Train loss: {metrics.train_loss:.4f}, duration: {metrics.duration_s:.0f} s"
            case TrainingJobStatus.FAILED | TrainingJobStatus.CANCELED:
                return f"Failed: {status.reason}"
        time.sleep(every_s)


def main(rows: str, pairs: str) -> None:
    manager = TrainingManager()
    train_adapter(manager, InstructDataset.from_file(rows))
    print(follow(manager, "adapter"))
    align(manager, PreferenceDataset.from_file(pairs), ComputeDevice.WGPU)
    print(follow(manager, "aligned"))
    print([job.name for job in manager.list_jobs(TrainingJobStatus.COMPLETED)])


if __name__ == "__main__":
    main(*(sys.argv[1:] or ("examples/alignment/instructions.jsonl", "examples/alignment/preferences.jsonl")))
