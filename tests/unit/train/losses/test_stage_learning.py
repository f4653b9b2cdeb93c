"""Each preference stage learns a toy preference, and what it learned holds for rows it has not seen."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.unit.train.losses.stage_rows import PAD, TOKENIZER, assistant, make_model, settings, user
from trainyard.data.rows import LabelledRow, PreferenceRow
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Encoded, Head
from trainyard.train.losses.table import STAGES

WORDS = ["node", "chain", "trainer", "adapter", "documents", "pairs", "answer", "base", "system", "token", "list"]
STEPS, ROWS, BATCH = 40, 96, 16


def sentences(seed: int) -> list[tuple[str, str, str]]:
    """Questions with a good and a bad answer of random words: the good one says `reads`, the bad one `jumps`."""
    draw = random.Random(seed)

    def vocab_size(count: int) -> str:
        return " ".join(draw.choices(WORDS, k=count))

    return [
        (vocab_size(3), f"{vocab_size(2)} reads {vocab_size(2)}", f"{vocab_size(2)} jumps {vocab_size(2)}")
        for _ in range(ROWS)
    ]


def toy_pairs(seed: int) -> list[PreferenceRow]:
    return [PreferenceRow([user(ask)], [assistant(good)], [assistant(bad)]) for ask, good, bad in sentences(seed)]


def toy_labels(seed: int) -> list[LabelledRow]:
    rows = [
        LabelledRow([user(ask)], [assistant(answer)], label=label)
        for ask, good, bad in sentences(seed)
        for answer, label in ((good, True), (bad, False))
    ]
    random.Random(seed).shuffle(rows)
    return rows


def train(model: Any, reference: Any, config: TrainerConfig, examples: list[Encoded]) -> None:
    stage, optimizer = STAGES[config.stage.type], torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        at = step * BATCH % (len(examples) - BATCH + 1)
        batch = stage.collate(examples[at : at + BATCH], PAD)
        with torch.no_grad():
            against = stage.score(reference, batch, Head.FULL) if stage.needs_reference(config) else None
        total, _ = stage.loss(batch, stage.score(model, batch, Head.FULL), against, config)
        optimizer.zero_grad()
        (total / stage.units(batch)).backward()
        optimizer.step()


def measure_accuracy(model: Any, reference: Any, config: TrainerConfig, examples: list[Encoded]) -> float:
    stage = STAGES[config.stage.type]
    batch = stage.collate(examples, PAD)
    with torch.no_grad():
        against = stage.score(reference, batch, Head.FULL) if stage.needs_reference(config) else None
        _, metrics = stage.loss(batch, stage.score(model, batch, Head.FULL), against, config)
    return metrics["reward_accuracy"].item() / stage.units(batch)


@pytest.mark.parametrize(
    "config",
    [
        *(settings(Stage.DPO, preference={"loss": loss}) for loss in PreferenceLoss),
        settings(Stage.KTO),
        settings(Stage.REWARD),
    ],
    ids=[*PreferenceLoss, "kto", "reward"],
)
def test_what_is_preferred_is_learned(config: TrainerConfig) -> None:
    stage = STAGES[config.stage.type]
    rows = toy_labels if config.stage.type is Stage.KTO else toy_pairs
    (seen, _), (unseen, _) = (stage.encode(rows(seed), TOKENIZER, config) for seed in (1, 2))
    model, reference = make_model(stage.head), make_model(stage.head)
    assert measure_accuracy(model, reference, config, unseen) < 0.75
    train(model, reference, config, seen)
    assert measure_accuracy(model, reference, config, unseen) > 0.9
