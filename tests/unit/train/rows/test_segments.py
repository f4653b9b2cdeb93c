"""Answers behind one prompt: where their tokens lie, what they see, and that their losses are those of rows apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.train.losses.stage_rows import PAD, make_model
from tests.unit.train.session.engines import encode_examples, make_config
from trainyard.spec.axes.stages import PreferenceLoss, Stage, StageSettings
from trainyard.train.contracts import IGNORED, MASK_GROUPS, SEQUENCES, Batch, Head
from trainyard.train.losses.table import STAGES
from trainyard.train.model.head import attention_mask, label_logprobs
from trainyard.train.progress import count_batch
from trainyard.train.rows.segments import PromptGroup, collate_packed, collate_rows, sequence_lengths

GROUP = PromptGroup([5, 6, 7], [(0, [8, 9]), (1, [10, 11, 12])])
LAYOUTS = [(True, False), (True, True), (False, True)]
"""(shared, packed)"""
LOSSES = [Stage.DPO.settings(loss=loss, label_smoothing=0.1 * (loss == "sigmoid")) for loss in PreferenceLoss]


# Where tokens lie


def test_a_row_repeats_the_last_token_of_the_prompt_before_each_further_answer() -> None:
    row = GROUP.row(1)
    assert row["input_ids"] == [5, 6, 7, 8, 9, 7, 10, 11, 12]
    assert row["position_ids"] == [0, 1, 2, 3, 4, 2, 3, 4, 5]
    assert row["labels"] == [IGNORED] * 3 + [8, 9] + [IGNORED] + [10, 11, 12]
    assert row[SEQUENCES] == [0] * 5 + [1] * 4
    assert row[MASK_GROUPS] == [-1, -1] + [1] * 7
    assert GROUP.width == len(row["input_ids"])


def test_answers_without_a_prompt_share_nothing() -> None:
    group = PromptGroup([], [(0, [8, 9]), (1, [10, 11])])
    row = group.row(1)
    assert row["input_ids"] == [8, 9, 10, 11]
    assert row["labels"] == [IGNORED, 9, IGNORED, 11]  # the first of each has no predecessor
    assert row["position_ids"] == [0, 1, 0, 1]
    assert group.width == 4


def test_each_token_sees_its_prompt_and_its_own_answer() -> None:
    other = PromptGroup([5], [(2, [6])])
    model: Any = make_model("causal")
    seen_TT = attention_mask(collate_packed([GROUP, other], shared=True), model)[0, 0]
    # 5 6 | 7 8 9 | 7 10 11 12 || 5 6
    assert seen_TT.int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1],
    ]


def test_rows_are_filled_up_and_padding_sees_itself() -> None:
    batch = collate_rows([GROUP, PromptGroup([5, 6], [(2, [7])])], PAD)
    assert batch["input_ids"].shape == (2, 9)
    assert batch["attention_mask"].sum(1).tolist() == [9, 3]
    assert batch[SEQUENCES][1].tolist() == [2] * 3 + [-1] * 6
    assert attention_mask(batch, make_model("causal")).any(-1).all()
    assert sequence_lengths(batch).tolist() == [5, 6, 3]


def test_the_mask_of_eager_attention_is_added() -> None:
    model: Any = make_model("causal")
    batch = collate_packed([GROUP], shared=True)
    visible = attention_mask(batch, model)
    expected = label_logprobs(model, batch).logprobs_N
    model.set_attn_implementation("eager")
    added = attention_mask(batch, model)
    assert torch.equal(added == 0, visible)
    assert added.dtype is model.dtype
    torch.testing.assert_close(label_logprobs(model, batch).logprobs_N, expected, atol=1e-5, rtol=1e-5)


# The same losses


def batch_in(stage: StageSettings, shared: bool, packed: bool, count: int = 6) -> Batch:
    spec = STAGES[stage.type]
    assert spec.layout is not None
    return spec.layout.collate(encode_examples(make_config(stage), count), PAD, shared=shared, packed=packed)


def loss_and_gradient(stage: StageSettings, batch: Batch, model: Any, head: Head = Head.FULL) -> tuple[float, Any]:
    config, spec, reference = make_config(stage), STAGES[stage.type], make_model("causal", seed=1)
    with torch.no_grad():
        reference_scores = spec.score(reference, batch, head) if spec.needs_reference(config) else None
    model.zero_grad()
    total, _ = spec.loss(batch, spec.score(model, batch, head), reference_scores, config)
    total.backward()
    return total.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("stage", LOSSES, ids=lambda stage: stage.loss.value)
@pytest.mark.parametrize(("shared", "packed"), LAYOUTS)
def test_a_pair_has_the_loss_and_the_gradient_of_two_rows(stage: StageSettings, shared: bool, packed: bool) -> None:
    apart = STAGES[stage.type].collate(encode_examples(make_config(stage), 6), PAD)
    model = make_model("causal")
    expected, gradient = loss_and_gradient(stage, apart, model)
    batch = batch_in(stage, shared, packed)
    loss, model_gradient = loss_and_gradient(stage, batch, model)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-5)
    torch.testing.assert_close(model_gradient, gradient, atol=1e-5 * float(gradient.abs().max()), rtol=1e-4)
    spec = STAGES[stage.type]
    assert spec.units(batch) == spec.units(apart) == 6
    assert count_batch(batch, 6) == count_batch(apart, 6)
    if shared:
        assert batch["input_ids"].numel() < apart["input_ids"].numel()


@pytest.mark.parametrize("count", [3, 7])
def test_kto_has_the_same_loss_with_its_mismatched_answers_behind_the_prompt(count: int) -> None:
    """Of seven rows two have a prompt that occurred before; three have none."""
    stage = Stage.KTO.settings()
    apart = STAGES[Stage.KTO].collate(encode_examples(make_config(stage), count), PAD)
    model = make_model("causal")
    expected, gradient = loss_and_gradient(stage, apart, model)
    batch = batch_in(stage, True, False, count)
    loss, model_gradient = loss_and_gradient(stage, batch, model)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-5)
    torch.testing.assert_close(model_gradient, gradient, atol=1e-5 * float(gradient.abs().max()), rtol=1e-4)
    assert len(batch["input_ids"]) == min(count, 5)
    assert count_batch(batch, count) == count_batch(apart, count)


@pytest.mark.parametrize("stage", [Stage.DPO.settings(), Stage.KTO.settings()], ids=["dpo", "kto"])
@pytest.mark.parametrize("head", [Head.FULL, Head.CHUNKED])
def test_recomputed_activations_and_a_chunked_head_change_nothing(stage: StageSettings, head: Head) -> None:
    batch, model = batch_in(stage, True, False), make_model("causal").train()
    expected, gradient = loss_and_gradient(stage, batch, model)
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    loss, model_gradient = loss_and_gradient(stage, batch, model, head)
    assert loss == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(model_gradient, gradient, atol=1e-6, rtol=1e-4)
