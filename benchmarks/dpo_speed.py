"""How many preference pairs does DPO train per CPU second, beside TRL?

Prompt and answer have three tokens to one, together the lengths of a chat; three epochs over the pairs; all weights of
a random Llama of 5.3 M parameters move, so that the reference is a second model. What it says of each pair is computed
once with us, and that is part of what is timed; TRL computes it at every step unless told otherwise.

    TRL default    DPOConfig as it comes (batches of 8, bf16, gradient checkpointing)
    TRL, no recompute   … without gradient checkpointing, which costs time to save memory
    first step     fp32, the same batch: the loss of both

    python -m benchmarks.dpo_speed
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trl.trainer.dpo_config import DPOConfig

from benchmarks.harness import Row, alternate, finish, median, size
from benchmarks.trainers import (
    LIKE_OURS,
    LONGEST,
    assembled,
    build_model,
    build_trl,
    chat_length,
    in_training_order,
    losses_of,
    quiet,
    run_ours,
    run_trl,
    text_of,
    train_ours,
)
from trainyard.backends.native.assembly import policy_request, reference_scores
from trainyard.data.rows import Message, PreferenceRow
from trainyard.spec.axes.data import Port
from trainyard.train.methods.table import build
from trainyard.train.session.session import Session

PAIRS, BATCH, EPOCHS = size(16, 4), size(8, 2), size(3, 1)


def pairs(count: int, prompt_tokens: int = 3) -> list[PreferenceRow]:
    """Pairs with so many tokens of prompt for each one of the answer."""
    chance = random.Random(0)
    return [pair(chance, chat_length(chance, least=32), prompt_tokens) for _ in range(count)]


def pair(chance: random.Random, length: int, prompt_tokens: int) -> PreferenceRow:
    """A prompt, and two answers of about the same length."""
    answer = length // (prompt_tokens + 1)
    chosen, rejected = (text_of(chance, round(answer * factor)) for factor in (chance.uniform(0.8, 1.2), 1.0))
    return PreferenceRow(
        [Message("user", text_of(chance, length - answer))],
        [Message("assistant", chosen)],
        [Message("assistant", rejected)],
    )


def config(**changes: Any) -> dict[str, Any]:
    hyper = {"epochs": EPOCHS, "batch_size": BATCH, "learning_rate": 1e-6, "max_length": LONGEST, "warmup_ratio": 0}
    return {"stage": "dpo", "method": "full", "hyperparameters": {**hyper, **changes}}


def variants(folder: Path, base: Path) -> dict[str, Callable[[], float]]:
    run = assembled(folder / "native", base, Port.PREFERENCE, pairs(PAIRS), config())
    reference = build(policy_request(run.job, "cpu"), with_reference=True).reference
    units = float(EPOCHS * len(run.feed.examples))

    def ask_reference(session: Session) -> None:
        session.engine.reference = reference
        run.feed.reference = reference_scores(session, run.feed)

    def trl(name: str, **arguments: Any) -> Callable[[], float]:
        training_arguments = {"num_train_epochs": EPOCHS, **arguments}
        return run_trl(build_trl("dpo", DPOConfig, base, folder / name, run.feed.examples, **training_arguments), units)

    return {
        "native": run_ours(run, units, ask_reference),
        "TRL default": trl("default"),
        "TRL, no recompute": trl("plain", gradient_checkpointing=False),
    }


def first_losses(folder: Path, base: Path) -> tuple[float, float]:
    """Our loss of the first step and TRL's, in fp32 on the same batch."""
    same = {**config(max_steps=1, precision="fp32"), "engine": {"batching": "padded"}}
    run = assembled(folder / "first", base, Port.PREFERENCE, pairs(PAIRS), same)
    arguments = {"max_steps": 1, "per_device_train_batch_size": BATCH, "logging_steps": 1, **LIKE_OURS}
    trl = build_trl("dpo", DPOConfig, base, folder / "first-trl", in_training_order(run), **arguments)
    return train_ours(run).losses[0][1], losses_of(trl)[0]


def main() -> int:
    quiet()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = build_model(folder / "model")
        our_loss, other = first_losses(folder, base)
        samples = alternate(variants(folder, base), rounds=5)
    rate = {name: median(variant_samples, "per_cpu_second") for name, variant_samples in samples.items()}
    metric, native = "pairs per CPU second", rate["native"]
    difference = abs(our_loss - other)
    rows = [
        Row.ratio_at_least(metric, native, rate["TRL default"], "TRL default", 1.8),
        Row.ratio_at_least(metric, native, rate["TRL, no recompute"], "TRL, no recompute", 1.5),
        Row("first loss, difference", our_loss, other, "TRL fp32", difference, 1e-4, "<=", difference <= 1e-4),
    ]
    return finish("dpo_speed", rows, samples)


if __name__ == "__main__":
    sys.exit(main())
