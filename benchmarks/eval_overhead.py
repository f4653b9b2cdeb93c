"""What does evaluation during training cost, with its defaults?

SFT over 1,000 chat rows of 128 tokens on average, 16 a step, three epochs of a random Llama of 5.3 M parameters: with
LoRA, whose backward pass is short, and of all weights. 5 % of the rows are held out, and the engine chooses how often
they are evaluated. Printed is the time of all evaluations as a share of the time of the steps. Both are taken within
one run, so that a busy machine slows them alike.

    python -m benchmarks.eval_overhead
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, Sample, finish, size
from benchmarks.sft_speed import chat_row
from benchmarks.trainers import LONGEST, assembled, build_model, chat_length, quiet, save_nothing
from trainyard.backends.native.assembly import NativeRun
from trainyard.callbacks import ignore
from trainyard.spec.axes.data import Port
from trainyard.train.evaluation import PeriodicEvaluation
from trainyard.train.loop import train

ROWS, BATCH, EPOCHS, LIMIT = size(1000, 60), 16, size(3, 1), 0.05


def report_nothing(_event: str, **_fields: object) -> None:
    """Stand in for the events file."""


def evaluated_run(folder: Path, model: Path, method: str) -> tuple[NativeRun, PeriodicEvaluation, float]:
    """A training to its end; returns it with its evaluations and the seconds of both together."""
    chance = random.Random(0)
    rows = [chat_row(chance, chat_length(chance)) for _ in range(ROWS)]
    hyper = {
        "epochs": size(3, 1),
        "batch_size": BATCH,
        "learning_rate": 2e-5,
        "max_length": LONGEST,
        "precision": "fp32",
    }
    config: dict[str, Any] = {"stage": "sft", "method": method, "hyperparameters": hyper, "eval": {}}
    run = assembled(folder / method, model, Port.SFT, rows, config)
    assert run.held_out is not None
    assert run.job.config.eval is not None
    evaluation = PeriodicEvaluation(
        run.session, run.progress, run.held_out, run.job.config.eval,
        total_steps=run.total_steps, save=save_nothing, emit=report_nothing, at=ignore,
    )  # fmt: skip
    started = time.perf_counter()
    train(
        run.session, run.feed, run.progress, total_steps=run.total_steps, save=save_nothing,
        save_steps=run.total_steps, stop=lambda: False, hooks=[evaluation],
    )  # fmt: skip
    return run, evaluation, time.perf_counter() - started


def measure(folder: Path) -> int:
    model, table, samples = build_model(folder / "model"), [], {}
    for method in ("lora", "full"):
        cpu_s = time.process_time()
        run, evaluation, seconds = evaluated_run(folder, model, method)
        training_s, rounds = seconds - evaluation.seconds, len(run.progress.evaluations.found)
        rows = run.held_out.rows if run.held_out else 0
        print(f"{method}: {rounds} evaluations of {rows} rows {evaluation.seconds:.2f} s, the steps {training_s:.1f} s")
        name = f"seconds of the evaluations per second of training, {method}"
        table.append(Row.ratio_at_most(name, evaluation.seconds, training_s, "the steps", LIMIT))
        samples[method] = [Sample(run.total_steps, seconds, time.process_time() - cpu_s)]
    return finish("eval_overhead", table, samples)


def main() -> int:
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
