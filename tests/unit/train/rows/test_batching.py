"""The plan: every row once an epoch, budgets kept, the same for the same seed; and packed rows that stay apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import OPTConfig, OPTForCausalLM

from tests.unit.train.losses.stage_rows import PAD, make_model
from tests.unit.train.session.engines import accumulate, copy_gradients, encode_examples, make_config, make_session
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import Stage
from trainyard.train.contracts import IGNORED, Cursor, Encoded
from trainyard.train.losses.table import STAGES
from trainyard.train.model.head import label_logprobs
from trainyard.train.rows.batching import BatchPlan, Cut, Feed, choose_cut, pack, sound_cut

WIDTHS = st.lists(st.integers(1, 64), min_size=1, max_size=60)
CUTS = st.builds(
    lambda mode, per_batch, accumulation, budget, seed: Cut(
        mode, "drawn", per_batch * accumulation, per_batch, budget, seed
    ),
    st.sampled_from(["padded", "buckets", "packed"]),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(8, 200),
    st.integers(0, 2**31 - 1),
)
SFT, DPO, KTO = STAGES[Stage.SFT], STAGES[Stage.DPO], STAGES[Stage.KTO]


def make_conversation(width: int, seed: int = 0) -> Encoded:
    """A row of random tokens, of which the second half is learned."""
    ids = torch.randint(4, 400, (width,), generator=torch.Generator().manual_seed(seed)).tolist()
    half = max(1, width // 2)
    return {"input_ids": ids, "labels": [IGNORED] * half + ids[half:]}


# The plan


@given(WIDTHS, CUTS, st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_every_row_occurs_once_an_epoch(widths: list[int], cut: Cut, epoch: int) -> None:
    plan = BatchPlan(widths, cut, SFT)
    steps = plan.steps(epoch)
    assert sorted(row for step in steps for micro in step for row in micro) == list(range(len(widths)))
    assert all(micro for step in steps for micro in step)
    assert len(steps) == plan.steps_per_epoch
    sizes = sorted(sum(map(len, step)) for step in steps)
    assert sizes[-1] <= cut.rows_per_step
    assert all(size == cut.rows_per_step for size in sizes[1:])  # at most one step is smaller


@given(WIDTHS, CUTS, st.sampled_from([SFT, DPO]))
@settings(max_examples=150, deadline=None)
def test_no_micro_batch_is_larger_than_its_budget(widths: list[int], cut: Cut, stage: Any) -> None:
    for step in BatchPlan(widths, cut, stage).steps(0):
        for micro in step:
            longest, tokens = max(widths[row] for row in micro), sum(widths[row] for row in micro)
            if cut.mode == "padded":
                assert len(micro) <= cut.rows_per_batch
            elif len(micro) > 1:  # a row that is larger by itself cannot be cut
                assert (tokens if cut.mode == "packed" else longest * len(micro)) * stage.sequences <= cut.budget


@given(WIDTHS, CUTS)
@settings(max_examples=60, deadline=None)
def test_the_plan_depends_on_seed_and_epoch_alone(widths: list[int], cut: Cut) -> None:
    first_plan, other = BatchPlan(widths, cut, SFT), BatchPlan(list(widths), replace(cut), SFT)
    first = first_plan.steps(0)
    assert first_plan.steps(1) == other.steps(1)
    assert first_plan.steps(0) == first == other.steps(0)


def test_epochs_and_seeds_differ() -> None:
    cut = Cut("padded", "", 4, 4, 64, 1)
    plan = BatchPlan([8] * 40, cut, SFT)
    assert plan.steps(0) != plan.steps(1)
    assert plan.steps(0) != BatchPlan([8] * 40, replace(cut, seed=2), SFT).steps(0)


@given(WIDTHS, CUTS)
@settings(max_examples=60, deadline=None)
def test_the_cursor_visits_every_micro_batch_of_every_epoch(widths: list[int], cut: Cut) -> None:
    plan = BatchPlan(widths, cut, SFT)
    cursor, batches = Cursor(), []
    while cursor.epoch < 2:
        batches.append(plan.at(cursor)[cursor.micro])
        cursor = plan.after(cursor)
    assert batches == [micro for epoch in (0, 1) for step in plan.steps(epoch) for micro in step]
    assert cursor == Cursor(2, 0, 0)


@given(st.lists(st.integers(1, 64), min_size=2, max_size=40), st.integers(2, 5), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_a_stage_that_compares_rows_never_gets_one_alone(widths: list[int], per_batch: int, accumulation: int) -> None:
    plan = BatchPlan(widths, Cut("padded", "", per_batch * accumulation, per_batch, 64, 3), KTO)
    steps = plan.steps(0)
    assert min(len(micro) for step in steps for micro in step) >= 2
    assert sorted(row for step in steps for micro in step for row in micro) == list(range(len(widths)))
    assert len(steps) == plan.steps_per_epoch


@given(WIDTHS, CUTS)
@settings(max_examples=60, deadline=None)
def test_the_padding_ratio_is_that_of_the_batches(widths: list[int], cut: Cut) -> None:
    feed = Feed([make_conversation(width) for width in widths], BatchPlan(widths, cut, SFT), SFT, PAD)
    batches = [feed.batch(micro) for step in feed.plan.steps(0) for micro in step]
    tokens = sum(widths)
    assert feed.plan.padding_ratio() == pytest.approx(1 - tokens / sum(batch["input_ids"].numel() for batch in batches))


def test_buckets_waste_far_less_than_rows_in_their_order() -> None:
    widths = [8 + (n * 37) % 120 for n in range(400)]
    padded, buckets, packed = (
        BatchPlan(widths, Cut(mode, "", 16, 4, 512, 0), SFT).padding_ratio() for mode in ("padded", "buckets", "packed")
    )
    assert packed == 0
    assert buckets < 0.05
    assert padded > 0.3


# Which cut


def test_auto_suits_the_device_and_says_why() -> None:
    config = make_config(batch_size=4, gradient_accumulation=2, max_length=64)
    here, there = choose_cut(config, SFT, "cpu"), choose_cut(config, SFT, "cuda")
    assert (here.mode, there.mode) == ("buckets", "packed")
    assert "similar length" in here.why
    assert "CUDA" in there.why
    assert (here.rows_per_step, here.rows_per_batch, here.budget) == (8, 4, 128)
    assert choose_cut(make_config(Stage.DPO), DPO, "cuda").mode == "buckets"
    kto = choose_cut(make_config(Stage.KTO), KTO, "cpu")
    assert (kto.mode, kto.why) == ("padded", "stage kto compares the rows of a batch")


def test_what_is_asked_for_is_taken() -> None:
    for mode in ("padded", "buckets", "packed"):
        cut = choose_cut(make_config(engine={"batching": mode, "token_budget": 300}), SFT, "cpu")
        assert (cut.mode, cut.why, cut.budget) == (mode, "asked for", 300)


@pytest.mark.parametrize("stage", [Stage.KTO, Stage.REWARD])
def test_rows_that_are_scored_as_wholes_are_not_packed(stage: Stage) -> None:
    with pytest.raises(InvalidInput, match=f"E-BATCH: Rows of stage {stage} cannot be packed.*auto or buckets"):
        choose_cut(make_config(stage, engine={"batching": "packed"}), STAGES[stage], "cpu")


def test_kto_with_one_row_a_batch_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"E-BATCH: .*batch_size is 1.*at least 2"):
        choose_cut(make_config(Stage.KTO, batch_size=1), KTO, "cpu")


# The cut does not move the gradient


CUTS_OF_STAGES = [(stage, mode) for stage in (Stage.SFT, Stage.DPO, Stage.REWARD) for mode in ("buckets", "padded")]


@pytest.mark.parametrize(("stage", "mode"), [(Stage.SFT, "packed"), *CUTS_OF_STAGES])
def test_one_row_at_a_time_gives_the_gradient_of_all_at_once(stage: Stage, mode: str, tmp_path: Path) -> None:
    cuts = [{"batch_size": 8}, {"batch_size": 1, "gradient_accumulation": 8}]
    budgets = [8 * 128, 8]  # everything in one micro-batch, and one row in each
    results = []
    for cut, budget in zip(cuts, budgets, strict=True):
        config = make_config(stage, engine={"batching": mode, "token_budget": budget}, **cut)
        spec, examples = STAGES[stage], encode_examples(config, 8)
        feed = Feed(
            examples, BatchPlan(list(map(spec.width, examples)), choose_cut(config, spec, "cpu"), spec), spec, PAD
        )
        batches = feed.step(Cursor())
        session = make_session(tmp_path, config, dropout=0.0)
        units = sum(map(spec.units, batches))
        losses = [accumulate(session, batch, normalizer=units) for batch in batches]
        results.append((len(batches), units, sum(losses), copy_gradients(session)))
    (single, units, loss, gradients), (eight, same_units, other_loss, other_gradients) = results
    assert (single, eight) == (1, 8)
    assert units == same_units
    assert loss == pytest.approx(other_loss, abs=1e-6)
    for value, other in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(value, other, atol=1e-7, rtol=1e-4)


# Packed rows


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_rows_have_the_logprobs_of_rows_by_themselves(attention: str) -> None:
    model = make_model("causal")
    model.set_attn_implementation(attention)
    examples = [make_conversation(width, seed=width) for width in (12, 3, 31, 2, 7)]
    with torch.no_grad():
        packed = label_logprobs(model, pack(examples, PAD)).logprobs_N
        padded = label_logprobs(model, SFT.collate(examples, PAD)).logprobs_N
        alone = torch.cat([label_logprobs(model, SFT.collate([example], PAD)).logprobs_N for example in examples])
    torch.testing.assert_close(packed, padded, atol=1e-6, rtol=0)
    torch.testing.assert_close(packed, alone, atol=1e-6, rtol=0)


def test_no_packed_row_sees_another() -> None:
    model = make_model("causal")
    first, second = make_conversation(9, seed=1), make_conversation(14, seed=2)
    second_rows = [make_conversation(9, seed=seed) for seed in (3, 4)]
    with torch.no_grad():
        logprobs = [
            label_logprobs(model, pack([other, second], PAD)).logprobs_N[-7:] for other in (first, *second_rows)
        ]
    assert all(torch.equal(logprobs[0], values) for values in logprobs[1:])


def test_packed_rows_stay_apart_in_training_with_checkpointed_activations() -> None:
    gradients = []
    for checkpointed in (False, True):
        model = make_model("causal").train()
        if checkpointed:
            model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        batch = pack([make_conversation(9, seed=1), make_conversation(14, seed=2)], PAD)
        label_logprobs(model, batch).logprobs_N.sum().backward()
        gradients.append([value.grad for value in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, atol=1e-6, rtol=1e-5)


def mixing_model() -> Any:
    """A model whose attention is not told by position ids where a row begins."""
    torch.manual_seed(0)
    model = OPTForCausalLM(
        OPTConfig(vocab_size=64, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2)
    ).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(50)  # as sure of itself as a trained one
    return model


def test_a_model_that_mixes_packed_rows_gets_buckets_and_the_reason() -> None:
    config = make_config()
    cut = choose_cut(config, SFT, "cuda")
    assert sound_cut(cut, make_model("causal"), config) is cut
    model = mixing_model().train()
    sound = sound_cut(cut, model, config)
    assert (sound.mode, sound.why) == ("buckets", "OPTForCausalLM does not keep packed rows apart")
    assert sound.budget == cut.budget
    assert model.training
    buckets = replace(cut, mode="buckets")
    assert sound_cut(buckets, model, config) is buckets


def test_a_base_in_half_precision_with_norms_in_float32_keeps_packed_rows_apart() -> None:
    """What method qlora loads on a GPU: the output layer takes no float32 outside of autocast."""
    model = make_model("causal").to(torch.bfloat16)
    for weight in model.parameters():
        if weight.ndim == 1:
            weight.data = weight.data.float()
    cut = choose_cut(make_config(), SFT, "cuda")
    assert sound_cut(cut, model, make_config()) is cut


def test_packing_by_name_is_refused_for_a_model_that_mixes_rows() -> None:
    config = make_config(engine={"batching": "packed"})
    with pytest.raises(InvalidInput, match=r"E-BATCH: OPTForCausalLM does not keep packed rows apart.*auto or buckets"):
        sound_cut(choose_cut(config, SFT, "cpu"), mixing_model(), config)


def test_pack_begins_anew_at_each_row() -> None:
    examples = [{"input_ids": [5, 6, 7], "labels": [IGNORED, 6, 7]}, {"input_ids": [8, 9], "labels": [8, 9]}]
    batch = pack(examples, PAD)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert batch["labels"].tolist() == [[IGNORED, 6, 7, IGNORED, 9]]  # 8 has no predecessor in its row
    assert "attention_mask" not in batch


# The feed


def test_known_scores_of_the_reference_travel_with_their_rows() -> None:
    config = make_config(Stage.DPO, batch_size=2)
    examples = encode_examples(config, 5)
    plan = BatchPlan(list(map(DPO.width, examples)), choose_cut(config, DPO, "cpu"), DPO)
    scores = [{"chosen_P": float(row), "rejected_P": -float(row)} for row in range(5)]
    batch = Feed(examples, plan, DPO, PAD, scores).batch([3, 1])
    assert batch["reference/chosen_P"].tolist() == [3.0, 1.0]
    assert batch["reference/rejected_P"].tolist() == [-3.0, -1.0]


def test_in_order_gives_every_example_once_whatever_the_seed() -> None:
    config = make_config(seed=1)
    examples = encode_examples(config, 7)
    widths = list(map(SFT.width, examples))
    feeds = [
        Feed(examples, BatchPlan(widths, replace(choose_cut(config, SFT, "cpu"), seed=seed), SFT), SFT, PAD)
        for seed in (1, 2)
    ]
    order, other = ([rows for rows, _ in feed.in_order(3)] for feed in feeds)
    assert order == other
    assert sorted(row for rows in order for row in rows) == list(range(7))
    assert [batch["input_ids"].shape[0] for _, batch in feeds[0].in_order(3)] == [3, 3, 1]
