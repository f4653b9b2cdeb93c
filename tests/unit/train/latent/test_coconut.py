"""COCONUT: the curriculum, cached passes against naive ones, and generation that reads what training read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.unit.train.latent.latent_models import (
    FAMILIES,
    PLAIN_ROWS,
    ROWS,
    TOKENIZER,
    attach_latent,
    causal_model,
    config_with,
    encode_rows,
    stage_with,
)
from tests.unit.train.losses.stage_rows import PAD
from trainyard.spec.axes.latent import CoconutSettings, Latent
from trainyard.train.contracts import IGNORED, Batch, Head, Sampling
from trainyard.train.latent import rollout
from trainyard.train.latent.coconut import END, START, THOUGHT, arrange, stage_of_row
from trainyard.train.model.sampling import sample

COCONUT = {"type": "coconut", "max_stage": 2, "thoughts_per_step": 2, "epochs_per_stage": 1}
SMALL = {"prompt_ids": [5, 6], "step_ids": [10, 11, 20, 30], "step_lengths": [2, 1, 1], "answer_ids": [40, 41]}
"""Three steps of two, one and one tokens."""


def settings(**fields: Any) -> CoconutSettings:
    return CoconutSettings(**{**COCONUT, "type": Latent.COCONUT, **fields})


@pytest.mark.parametrize(
    ("stage", "slots", "learned"),
    [
        (0, [START, END], [10, 11, 20, 30, 40, 41]),
        (1, [START, THOUGHT, THOUGHT, END], [20, 30, 40, 41]),
        (2, [START, *[THOUGHT] * 4, END], [30, 40, 41]),
        (3, [START, *[THOUGHT] * 4, END], [40, 41]),
    ],
)
def test_rows_of_each_stage(stage: int, slots: list[int], learned: list[int]) -> None:
    row = arrange(SMALL, settings(), stage)
    visible_length = 2 + len(slots)
    assert row["input_ids"] == [5, 6, *[0] * len(slots), *learned]
    assert row["slots"] == [0, 0, *slots, *[0] * len(learned)]
    assert row["labels"] == [IGNORED] * visible_length + learned


def test_rows_without_markers_have_thoughts_alone() -> None:
    assert arrange(SMALL, settings(markers=False), 1)["slots"] == [0, 0, THOUGHT, THOUGHT, 0, 0, 0, 0]
    assert arrange(SMALL, settings(markers=False), 0)["slots"] == [0] * 8


def test_the_stage_rises_with_the_epochs_and_stays_at_the_last() -> None:
    coconut = settings(epochs_per_stage=2, max_stage=2, first_stage=1)
    assert [coconut.stage_at(epoch) for epoch in range(8)] == [1, 1, 2, 2, 3, 3, 3, 3]
    assert coconut.usual_epochs == 6


def test_mixed_stages_follow_from_epoch_row_and_seed_alone() -> None:
    coconut = settings(mix=1.0)
    stages = [stage_of_row(coconut, 4, row, 3, 42) for row in range(200)]
    assert set(stages) == {0, 1, 2, 3}
    assert stages == [stage_of_row(coconut, 4, row, 3, 42) for row in range(200)]
    assert stages != [stage_of_row(coconut, 5, row, 3, 42) for row in range(200)]
    none = [stage_of_row(settings(), 1, row, 3, 42) for row in range(9)]
    assert none == [1] * 9


def test_the_optimizer_begins_again_where_the_stage_changes() -> None:
    coconut = settings(epochs_per_stage=2)
    assert [epoch for epoch in range(12) if coconut.begins_again(epoch)] == [2, 4, 6]
    assert not any(settings(reset_optimizer=False).begins_again(epoch) for epoch in range(12))


def make_mixed_batch(latent: dict[str, Any] = COCONUT) -> Batch:
    """Prompts of three lengths with no, two and four thoughts."""
    stage = stage_with(latent)
    assert stage.at_epoch is not None
    return stage.collate([stage.at_epoch(example, 0, epoch) for epoch, example in enumerate(encode_rows(COCONUT))], PAD)


@pytest.mark.parametrize("markers", [True, False])
def test_all_prompts_end_in_one_column(markers: bool) -> None:
    batch = make_mixed_batch({**COCONUT, "markers": markers})
    padded = (batch["slots"] == 0) & (batch["labels"] == IGNORED) & (batch["attention_mask"] == 1)
    assert len({int(row.nonzero()[-1]) for row in padded}) == 1
    assert (batch["slots"] == THOUGHT).sum(1).tolist() == [0, 2, 4]
    assert bool((batch["attention_mask"][batch["labels"] != IGNORED] == 1).all())


def naive_hidden(model: Any, technique: Any, batch: Batch, row: int) -> torch.Tensor:
    """Hidden states of one row without padding: the whole row is computed again for each thought."""
    seen = batch["attention_mask"][row].bool()
    alone = {name: batch[name][row, seen][None] for name in ("input_ids", "slots")}
    embeds = rollout.embed(model, alone, technique.vectors_KD)
    mask = torch.ones_like(alone["input_ids"])
    for column in (alone["slots"][0] == THOUGHT).nonzero()[:, 0].tolist():
        before = rollout.run(model, embeds[:, :column], mask[:, :column])[:, -1:]
        embeds = torch.cat([embeds[:, :column], before, embeds[:, column + 1 :]], 1)
    return rollout.run(model, embeds, mask)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_passes_equal_naive_ones_in_values_and_gradients(family: str) -> None:
    """In float64; Llama's norm computes in float32 inside, which is what is left of a difference there."""
    close = {"rtol": 1e-5, "atol": 1e-5} if family == "llama" else {"rtol": 1e-9, "atol": 1e-9}
    model = causal_model(family).double()
    technique: Any = attach_latent(model, COCONUT).double()
    other = copy.deepcopy(model)
    batch = make_mixed_batch()
    hidden = technique.hidden_states(model, batch)
    seen = batch["attention_mask"].bool()
    naive = [naive_hidden(other, other.trainyard_latent, batch, row) for row in range(len(seen))]
    for row, expected in enumerate(naive):
        torch.testing.assert_close(hidden[row, seen[row]], expected, rtol=0, atol=1e-9)
    weights = torch.randn(hidden.shape[-1], dtype=torch.float64)
    sum((hidden[row, seen[row]] @ weights).tanh().sum() for row in range(len(seen))).backward()  # type: ignore[union-attr]
    sum((states @ weights).tanh().sum() for states in naive).backward()  # type: ignore[union-attr]
    for value, expected in zip(model.parameters(), other.parameters(), strict=True):
        if expected.grad is not None:
            torch.testing.assert_close(value.grad, expected.grad, **close)


@pytest.mark.parametrize("latent", [COCONUT, {**COCONUT, "feedback": False}, {**COCONUT, "markers": False}])
@pytest.mark.parametrize("family", FAMILIES)
def test_generation_reads_what_is_trained_at_the_last_stage(family: str, latent: dict[str, Any]) -> None:
    model = causal_model(family)
    technique = attach_latent(model, latent)
    stage = stage_with(latent)
    prompts = [example["prompt_ids"] for example in encode_rows(latent)]
    with torch.no_grad():
        completions = sample(
            model, TOKENIZER, prompts, Sampling(max_new_tokens=4, temperature=0, stop_ids=()), reader=technique
        )
        for prompt, completion in zip(prompts, completions, strict=True):
            row = {"prompt_ids": prompt, "step_ids": [], "step_lengths": [], "answer_ids": completion.ids}
            scored = stage.score(model, stage.collate([row], PAD), Head.FULL)["logprobs_N"].tolist()
            assert completion.logprobs_at_one == pytest.approx(scored, abs=1e-5)


def test_thoughts_are_fed_back_with_their_gradient() -> None:
    """Without its thoughts the model says something else, and what it says moves the weights before them."""
    model = causal_model("llama")
    technique: Any = attach_latent(model, COCONUT)
    prompt = torch.tensor([encode_rows(COCONUT)[0]["prompt_ids"]])
    mask = torch.ones_like(prompt)
    with_thoughts = technique.open_after(model, prompt, mask, 4)[1]
    assert not torch.allclose(with_thoughts, technique.open_after(model, prompt, mask, 0)[1])
    assert technique.vectors_KD.shape[0] == END


def test_rows_without_steps_are_counted_and_dropped() -> None:
    config = config_with(COCONUT)
    examples, ledger = stage_with(COCONUT).encode([*ROWS, *PLAIN_ROWS], TOKENIZER, config)
    assert len(examples) == 3
    assert ledger.rows["dropped_no_steps"] == 2
    assert ledger.balanced
