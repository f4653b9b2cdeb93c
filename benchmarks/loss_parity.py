"""Does our engine train to the same losses as TRL's trainers, step by step?

Fifty steps in fp32 from the same random weights, on the same batches in the same order, all weights moving, with AdamW,
a linear schedule and a clip at 1. What is compared is the loss of every step: the largest difference counts. A second
row of each stage says how far its losses lie apart, since losses that do not move agree easily.

    python -m benchmarks.loss_parity
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl.trainer.dpo_config import DPOConfig
from trl.trainer.kto_config import KTOConfig
from trl.trainer.reward_config import RewardConfig
from trl.trainer.sft_config import SFTConfig

from benchmarks.harness import Row, finish, size
from benchmarks.trainers import (
    LIKE_OURS,
    Shape,
    assembled,
    build_model,
    build_trl,
    in_training_order,
    losses_of,
    quiet,
    text_of,
    train_ours,
)
from trainyard.data.rows import LabelledRow, Message, PreferenceRow, SftRow
from trainyard.data.rows import Row as DataRow
from trainyard.spec.axes.data import Port
from trainyard.train.contracts import Encoded

STEPS, BATCH = size(50, 5), 4
MILLION = 1e6
LARGEST, LEAST_RANGE = 100, 0.01 if size(1, 0) else 0.0001
"""Largest difference of a step's losses, in millionths, and least range of the losses, which few steps hardly move."""
SMALL = Shape(hidden=size(128, 64), inner=size(344, 96), layers=2)

Examples = Sequence[Encoded]


def turn(chance: random.Random, role: str, word_range: tuple[int, int]) -> list[Message]:
    return [Message(role, text_of(chance, chance.randint(*word_range)))]


def sft_row(chance: random.Random, _index: int) -> DataRow:
    return SftRow([*turn(chance, "user", (4, 40)), *turn(chance, "assistant", (2, 40))])


def preference_row(chance: random.Random, _index: int) -> DataRow:
    """The better answer is the one with the usual words: something to learn."""
    better, worse = (Message("assistant", text_of(chance, chance.randint(4, 30))) for _ in range(2))
    if sum(map(rank, better.content.split())) > sum(map(rank, worse.content.split())):
        better, worse = worse, better
    return PreferenceRow(turn(chance, "user", (4, 40)), [better], [worse])


def rank(word: str) -> int:
    return int(word[1:])


def labelled_row(chance: random.Random, index: int) -> DataRow:
    return LabelledRow(turn(chance, "user", (4, 40)), turn(chance, "assistant", (4, 30)), bool(index % 2))


def whole_rows(examples: Examples) -> list[dict[str, Any]]:
    """Pairs as TRL's reward trainer takes them."""
    return [
        {side: example["prompt_ids"] + example[side] for side in ("chosen_ids", "rejected_ids")} for example in examples
    ]


def with_mismatched(examples: Examples) -> list[dict[str, Any]]:
    """Rows as TRL's KTO trainer takes them, each with the answer of the row before it in its batch."""
    names, rows = ("prompt_ids", "completion_ids"), []
    for start in range(0, len(examples), BATCH):
        batch = examples[start : start + BATCH]
        for example, before in zip(batch, [batch[-1], *batch[:-1]], strict=True):
            row_ids = {name: example[name] for name in names}
            rows.append(
                {**row_ids, "KL_completion_ids": before["completion_ids"], "label": bool(example["desirable"][0])}
            )
    return rows


@dataclass(frozen=True)
class Case:
    """One stage: its rows, and how TRL takes them."""

    port: Port
    row: Callable[[random.Random, int], DataRow]
    config: Callable[..., Any]
    learning_rate: float
    as_trl: Callable[[Examples], Sequence[Any]] = list


CASES = {
    "sft": Case(Port.SFT, sft_row, SFTConfig, 1e-3),
    "dpo": Case(Port.PREFERENCE, preference_row, DPOConfig, 1e-4),
    "reward": Case(Port.PREFERENCE, preference_row, RewardConfig, 1e-3, whole_rows),
    "kto": Case(Port.LABELLED, labelled_row, KTOConfig, 1e-4, with_mismatched),
}


def losses(stage: str, base: Path, folder: Path) -> tuple[list[float], list[float]]:
    """Our losses and TRL's."""
    case, chance = CASES[stage], random.Random(0)
    config = {
        "stage": stage,
        "method": "full",
        "hyperparameters": {
            "epochs": 1, "batch_size": BATCH, "learning_rate": case.learning_rate, "precision": "fp32",
            "warmup_ratio": 0, "max_length": 512,
        },
        "engine": {"batching": "padded"},
    }  # fmt: skip
    rows = [case.row(chance, index) for index in range(STEPS * BATCH)]
    run = assembled(folder / "ours", base, case.port, rows, config)
    trainer = build_trl(
        stage, case.config, base, folder / "trl", case.as_trl(in_training_order(run)), num_train_epochs=1,
        per_device_train_batch_size=BATCH, learning_rate=case.learning_rate, logging_steps=1, **LIKE_OURS,
    )  # fmt: skip
    trainer.model.load_state_dict(run.policy.model.state_dict())  # a reward model's new head is random
    our_losses = [loss for _, loss, _ in train_ours(run).losses]
    return our_losses, losses_of(trainer)


def main() -> int:
    quiet()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = build_model(folder / "model", SMALL)
        for stage in CASES:
            our_losses, other = losses(stage, base, folder / stage)
            assert len(our_losses) == len(other) == STEPS, (len(our_losses), len(other))
            largest = MILLION * max(
                abs(our_loss - trl_loss) for our_loss, trl_loss in zip(our_losses, other, strict=True)
            )
            metric = f"{stage}, largest difference of the loss x 1e6"
            rows.append(Row(metric, our_losses[-1], other[-1], "TRL", largest, LARGEST, "<", largest < LARGEST))
            rows.append(Row.at_least(f"{stage}, range of the losses", max(our_losses) - min(our_losses), LEAST_RANGE))
    return finish("loss_parity", rows, {})


if __name__ == "__main__":
    sys.exit(main())
