"""What holds for every stage: its ports, its batches, and a gradient that does not depend on the cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.unit.train.losses.stage_rows import PAD, TOKENIZER, conversations, make_labelled, make_model, pairs, settings
from trainyard.data.rows import DocumentRow, TextRow
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, Encoded, Head
from trainyard.train.losses.table import STAGES

TEXTS = [TextRow("A node reads documents. " * n) for n in range(1, 6)]
ROWS: dict[Stage, list[Any]] = {
    Stage.CPT: TEXTS,
    Stage.SFT: conversations(),
    Stage.REWARD: pairs(),
    Stage.DPO: pairs(),
    Stage.KTO: make_labelled(),
    Stage.DISTILL: conversations(),
}
LOCAL_LOSSES = [loss for loss in PreferenceLoss if loss is not PreferenceLoss.KTO_PAIR]
"""Losses whose rows know nothing of one another."""
CONFIGS = {
    "cpt": settings(Stage.CPT, max_length=12),
    "sft": settings(Stage.SFT),
    "reward": settings(Stage.REWARD, engine={"reward_centering": 0.01}),
    "kto": settings(Stage.KTO),
    "distill": settings(Stage.DISTILL.settings(teacher="teacher", label_weight=0.5)),
    **{f"dpo-{loss}": settings(Stage.DPO, preference={"loss": loss}) for loss in PreferenceLoss},
}


def encode_rows(config: TrainerConfig) -> list[Encoded]:
    examples, ledger = STAGES[config.stage.type].encode(ROWS[config.stage.type], TOKENIZER, config)
    assert ledger.balanced
    assert ledger.trained
    return examples


def compute_loss(
    model: Any, reference: Any, config: TrainerConfig, examples: Sequence[Encoded]
) -> tuple[torch.Tensor, int]:
    """The loss of one micro-batch, and its units."""
    stage = STAGES[config.stage.type]
    batch = stage.collate(examples, PAD)
    with torch.no_grad():
        against = stage.score(reference, batch, Head.FULL) if stage.needs_reference(config) else None
    total, metrics = stage.loss(batch, stage.score(model, batch, Head.FULL), against, config)
    assert total.shape == ()
    assert all(value.shape == () and not value.requires_grad for value in metrics.values())
    return total, stage.units(batch)


@pytest.mark.parametrize("name", CONFIGS)
def test_batches_are_padded_on_the_right_and_only_answers_have_labels(name: str) -> None:
    stage, examples = STAGES[CONFIGS[name].stage.type], encode_rows(CONFIGS[name])
    batch = stage.collate(examples, PAD)
    ids_BT, mask_BT, labels_BT = batch["input_ids"], batch["attention_mask"], batch["labels"]
    assert ids_BT.shape[1] == max(map(stage.width, examples))
    assert (mask_BT.diff(dim=1) <= 0).all()
    assert (labels_BT[mask_BT == 0] == IGNORED).all()
    assert (ids_BT[mask_BT == 0] == PAD).all()
    learned_BT = labels_BT != IGNORED
    assert torch.equal(labels_BT[learned_BT], ids_BT[learned_BT])


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in ("kto", f"dpo-{PreferenceLoss.KTO_PAIR}")])
def test_eight_rows_at_once_and_one_by_one_give_the_same_gradient(name: str) -> None:
    """The sum over all units, divided once: padding and the cut change nothing but rounding."""
    config, examples = CONFIGS[name], encode_rows(CONFIGS[name])[:8]
    head = STAGES[config.stage.type].head
    results = []
    for size in (8, 1):
        model, reference = make_model(head, seed=1), make_model(head, seed=2)
        parts = [
            compute_loss(model, reference, config, examples[at : at + size]) for at in range(0, len(examples), size)
        ]
        units = sum(count for _, count in parts)
        sum((total / units for total, _ in parts), torch.zeros(())).backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        results.append((units, torch.cat(gradients)))
    assert results[0][0] == results[1][0]
    assert results[0][1].abs().max() > 1e-4
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_chunked_head_gives_the_same_loss(name: str) -> None:
    config, examples = CONFIGS[name], encode_rows(CONFIGS[name])
    stage = STAGES[config.stage.type]
    batch = stage.collate(examples, PAD)
    model, reference = make_model(stage.head, seed=1), make_model(stage.head, seed=2)
    against = stage.score(reference, batch, Head.FULL) if stage.needs_reference(config) else None
    full, chunked = (
        stage.loss(batch, stage.score(model, batch, head), against, config)[0] for head in (Head.FULL, Head.CHUNKED)
    )
    torch.testing.assert_close(full, chunked)


@pytest.mark.parametrize("name", CONFIGS)
def test_scoring_draws_no_random_number_and_repeats_itself(name: str) -> None:
    config = CONFIGS[name]
    stage, examples = STAGES[config.stage.type], encode_rows(config)
    model, batch = make_model(stage.head), stage.collate(examples, PAD)
    before = torch.get_rng_state()
    first, second = (stage.score(model, batch, Head.FULL) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_what_a_document_teaches_is_its_text() -> None:
    config = CONFIGS["cpt"]
    documents = [DocumentRow("d", "file.md", "markdown", "A title", row.text) for row in TEXTS]
    assert list(STAGES[Stage.CPT].encode(documents, TOKENIZER, config)[0]) == list(encode_rows(config))
