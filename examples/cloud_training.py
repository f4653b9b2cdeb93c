"""A training at a cloud provider, from Python alone.

    export TOGETHER_API_KEY=…
    python examples/cloud_training.py train.jsonl

Needs the provider's client (`pip install 'trainyard[cloud]'`) and costs money there.
"""

from __future__ import annotations

import os
import sys
import time

from trainyard import CloudFineTuneConfig, FineTuneProviderFactory, TrainingHyperparams, TrainingJobStatus

POLL_S = 30.0


def train_at_openai(key: str, training_file: str, validation_file: str, poll_s: float = POLL_S) -> str:
    """Train GPT-4o mini and wait for the end; return the job's id. Raises `RuntimeError` for one that failed."""
    provider = FineTuneProviderFactory.create("openai", key)
    config = CloudFineTuneConfig(
        model="gpt-4o-mini-2024-07-18",
        training_file=training_file,
        validation_file=validation_file,
        hyperparams=TrainingHyperparams(epochs=3, learning_rate=1e-5, batch_size=4),
    )
    job_id = provider.submit(config)
    while True:
        status = provider.status(job_id)
        match status.state:
            case TrainingJobStatus.COMPLETED:
                return job_id
            case TrainingJobStatus.FAILED | TrainingJobStatus.CANCELED:
                raise RuntimeError(status.reason)
        time.sleep(poll_s)


def train_at_together(key: str, training_file: str) -> str:
    """Start a training of a Llama with the provider's own settings; return the job's id."""
    together = FineTuneProviderFactory.create("together", key)
    return together.submit(CloudFineTuneConfig(model="meta-llama/Llama-3-8b", training_file=training_file))


if __name__ == "__main__":
    print(train_at_together(os.environ["TOGETHER_API_KEY"], sys.argv[1]))
