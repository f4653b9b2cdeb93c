"""Sparse attention as a technique: its phases by epoch, its loss, and what it leaves for others to load."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig
from pydantic import ValidationError

from tests.unit.train.latent.latent_models import (
    FAMILIES,
    PAD,
    PLAIN_ROWS,
    TOKENIZER,
    attach_latent,
    causal_model,
    config_with,
    stage_with,
)
from trainyard.backends.native.assembly import choose_attention_kernel
from trainyard.errors import InvalidInput
from trainyard.train.contracts import Head, Sampling
from trainyard.train.latent import table
from trainyard.train.latent.dsa.technique import WARMING, SparseAttention
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.adapters import inject
from trainyard.train.model.sampling import PLAIN, sample

TOKENS = {"type": "dsa", "granularity": {"type": "token", "top_k": 3, "index_heads": 2, "index_dim": 8, "warmup": 2}}
HEADS = {"type": "dsa", "granularity": {"type": "head", "shared": 1, "active": 2, "balance": 0.5}}
GREEDY = Sampling(max_new_tokens=4, temperature=0, stop_ids=())
PROMPTS = [[5, 9, 3, 7, 2, 2], [4, 8, 2, 9, 9, 1, 3, 11, 6]]


def batch_at(latent: dict[str, Any], epoch: int | None, **fields: Any) -> dict[str, torch.Tensor]:
    """The rows as they are learned in an epoch, or as they are evaluated."""
    stage, config = stage_with(latent, **fields), config_with(latent, **fields)
    examples = list(stage.encode(PLAIN_ROWS, TOKENIZER, config)[0])
    if epoch is not None:
        assert stage.at_epoch is not None
        examples = [stage.at_epoch(example, row, epoch) for row, example in enumerate(examples)]
    return stage.collate(examples, PAD)


def list_trained_names(model: Any, latent: dict[str, Any], epoch: int) -> set[str]:
    """Names of the weights that the loss of an epoch reaches."""
    stage, batch = stage_with(latent), batch_at(latent, epoch)
    model.zero_grad()
    stage.loss(batch, stage.score(model, batch, Head.FULL), None, config_with(latent))[0].backward()
    return {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_indexer_learns_alone_while_it_warms_up_and_then_with_the_model(family: str) -> None:
    model = causal_model(family)
    attach_latent(model, TOKENS)
    everything = {name for name, _ in model.named_parameters()}
    chooser_names = {name for name in everything if "choosers" in name}
    assert [list_trained_names(model, TOKENS, epoch) == chooser_names for epoch in (0, 1, 2)] == [True, True, False]
    assert chooser_names < list_trained_names(model, TOKENS, 2)


def test_rows_that_are_evaluated_are_computed_as_they_are_served() -> None:
    flags = [batch_at(TOKENS, epoch)[WARMING].tolist() for epoch in (0, 2, None)]
    assert flags == [[1, 1], [0, 0], [0, 0]]


def test_the_loss_is_that_of_the_answers_and_of_the_selection_per_token() -> None:
    model, stage, batch = causal_model("llama"), stage_with(TOKENS), batch_at(TOKENS, 2)
    attach_latent(model, TOKENS)
    units = stage.units(batch)
    scores = stage.score(model, batch, Head.FULL)
    total, metrics = stage.loss(batch, scores, None, config_with(TOKENS))
    assert metrics.keys() == {"answer_loss", "index_divergence", "attended_share"}
    assert total.item() == pytest.approx(float(metrics["answer_loss"] + metrics["index_divergence"]), rel=1e-6)
    assert float(metrics["answer_loss"]) == pytest.approx(-float(scores["logprobs_N"].detach().sum()), rel=1e-6)
    assert 0 < float(metrics["attended_share"]) / units < 1
    warm = batch_at(TOKENS, 0)
    loss, again = stage.loss(warm, stage.score(model, warm, Head.FULL), None, config_with(TOKENS))
    assert loss.item() == pytest.approx(float(again["index_divergence"]), rel=1e-6)
    assert 0 < float(again["attention_recall"]) / units < 1


def test_a_mean_over_rows_is_that_of_stage_sft() -> None:
    model = causal_model("llama")
    attach_latent(model, TOKENS)
    stage, batch, config = stage_with(TOKENS, average="row"), batch_at(TOKENS, 2), config_with(TOKENS, average="row")
    scores = stage.score(model, batch, Head.FULL)
    plain = STAGES[config.stage.type].chosen(config_with(None, average="row"))
    expected, _ = plain.loss(batch, scores, None, config)
    assert stage.units(batch) == 2
    assert float(stage.loss(batch, scores, None, config)[1]["answer_loss"]) == pytest.approx(expected.item(), rel=1e-6)


def test_routed_heads_have_a_balance_and_train_from_the_first_epoch() -> None:
    model = causal_model("llama")
    attach_latent(model, HEADS)
    assert {name for name, _ in model.named_parameters() if "choosers" in name} < list_trained_names(model, HEADS, 0)
    stage, batch = stage_with(HEADS), batch_at(HEADS, 0)
    total, metrics = stage.loss(batch, stage.score(model, batch, Head.FULL), None, config_with(HEADS))
    assert metrics.keys() == {"answer_loss", "head_balance", "attended_share"}
    assert total.item() == pytest.approx(float(metrics["answer_loss"] + 0.5 * metrics["head_balance"]), rel=1e-6)


def test_more_heads_than_the_model_has_are_refused() -> None:
    with pytest.raises(InvalidInput, match="has 4 heads"):
        attach_latent(causal_model("llama"), {"type": "dsa", "granularity": {"type": "head", "active": 5}})


def test_a_router_without_a_choice_is_refused() -> None:
    with pytest.raises(ValidationError, match="active is above shared"):
        config_with({"type": "dsa", "granularity": {"type": "head", "shared": 3, "active": 3}})


def test_the_word_of_a_granularity_has_its_defaults() -> None:
    stage: Any = config_with({"type": "dsa", "granularity": "head"}).stage
    assert (stage.latent.granularity.shared, stage.latent.granularity.active) == (1, 3)
    assert config_with({"type": "dsa"}).stage == config_with({"type": "dsa", "granularity": "token"}).stage


@pytest.mark.parametrize("latent", [TOKENS, HEADS], ids=["tokens", "heads"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_answers_the_same_elsewhere_without_being_attached(
    family: str, latent: dict[str, Any], tmp_path: Path
) -> None:
    model = causal_model(family)
    technique = attach_latent(model, latent, seed=3)
    if latent is HEADS:
        for weight in technique.parameters():
            torch.nn.init.normal_(weight, std=0.5)
    with table.detach_technique(model):
        assert not any("latent" in name for name in model.state_dict())
    table.save(technique, tmp_path)
    other = causal_model(family)
    again = table.load_technique(tmp_path, other, TOKENIZER)
    assert isinstance(again, SparseAttention)
    with torch.no_grad():
        dense = sample(other, TOKENIZER, PROMPTS, GREEDY, reader=PLAIN)
        expected = sample(model, TOKENIZER, PROMPTS, GREEDY, reader=technique)
        assert sample(other, TOKENIZER, PROMPTS, GREEDY, reader=again) == expected
        assert sample(other, TOKENIZER, PROMPTS, GREEDY, reader=PLAIN) == dense
        alone = [sample(other, TOKENIZER, [prompt], GREEDY, reader=again)[0].ids for prompt in PROMPTS]
    assert [completion.logprobs_at_one for completion in expected] != [
        completion.logprobs_at_one for completion in dense
    ]
    assert alone == [completion.ids for completion in expected]


def test_an_adapter_trains_next_to_its_indexer() -> None:
    model = inject(causal_model("llama"), LoraConfig(r=2, target_modules="all-linear"), "new")
    attach_latent(model, TOKENS)
    trainable = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name.split(".")[0] for name in trainable} == {"base_model", "trainyard_latent"}
    assert all("lora" in name or "choosers" in name for name in trainable)
    names = list_trained_names(model, TOKENS, 2)
    assert any("lora_B" in name for name in names)
    assert any("choosers" in name for name in names)


def test_a_kernel_that_takes_a_mask_is_chosen_and_recorded(tiny_model: Path) -> None:
    for latent in ("dsa", "quiet_star"):
        job: Any = SimpleNamespace(base=str(tiny_model), config=config_with({"type": latent}))
        choice = choose_attention_kernel(job, "cpu")
        assert (choice.name, choice.why) == ("sdpa", "it takes a mask of its caller")
    job = SimpleNamespace(base=str(tiny_model), config=config_with({"type": "pause"}))
    assert choose_attention_kernel(job, "cpu").why != "it takes a mask of its caller"
