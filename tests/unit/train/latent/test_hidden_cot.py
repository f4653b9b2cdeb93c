"""Hidden chains of thought: tokens that are taken away step by step, and CODI's two rows of one question."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.unit.train.latent.latent_models import (
    FAMILIES,
    TOKENIZER,
    attach_latent,
    causal_model,
    config_with,
    encode_rows,
    stage_with,
)
from tests.unit.train.losses.stage_rows import PAD
from trainyard.spec.axes.latent import ALL_TOKENS, HiddenCotSettings, Latent
from trainyard.train.contracts import IGNORED, Head, Sampling
from trainyard.train.latent import rollout, table
from trainyard.train.latent.codi import BEGIN, END, THOUGHT
from trainyard.train.latent.hidden_cot import arrange, count_removed_tokens
from trainyard.train.model.sampling import sample

STEPWISE = {"type": "hidden_cot", "tokens_per_epoch": 2, "whole_epochs": 1, "most_tokens": 6, "smoothing": None}
CODI = {"type": "codi", "thoughts": 2}
SMALL = {"prompt_ids": [5, 6], "step_ids": [10, 11, 20, 30], "step_lengths": [2, 1, 1], "answer_ids": [40, 41]}


def settings(**fields: Any) -> HiddenCotSettings:
    return HiddenCotSettings(**{**STEPWISE, "type": Latent.HIDDEN_COT, **fields})


def test_tokens_go_from_the_left_and_at_last_all_of_them() -> None:
    curriculum = settings()
    assert [curriculum.stage_at(epoch) for epoch in range(5)] == [0, 2, 4, ALL_TOKENS, ALL_TOKENS]
    assert curriculum.curriculum_epochs == 3
    token_rows = [arrange(SMALL, curriculum.stage_at(epoch))["input_ids"] for epoch in range(4)]
    assert token_rows == [[5, 6, 10, 11, 20, 30, 40, 41], [5, 6, 20, 30, 40, 41], [5, 6, 40, 41], [5, 6, 40, 41]]
    assert arrange(SMALL, 3)["labels"] == [IGNORED, IGNORED, 30, 40, 41]


def test_the_draw_beyond_the_schedule_falls_off_exponentially() -> None:
    curriculum = settings(smoothing=1.0)
    beyond = Counter(count_removed_tokens(curriculum, 1, row, 0) - 2 for row in range(4000))
    assert beyond[0] / 4000 == pytest.approx(1 - 0.3679, abs=0.03)
    assert beyond[1] / beyond[0] == pytest.approx(0.3679, abs=0.04)
    assert [count_removed_tokens(curriculum, 1, row, 0) for row in range(50)] == [
        count_removed_tokens(curriculum, 1, row, 0) for row in range(50)
    ]


def test_the_optimizer_begins_again_with_each_removal() -> None:
    assert [epoch for epoch in range(8) if settings().begins_again(epoch)] == [1, 2, 3]


def test_what_is_internalised_leaves_no_file(tmp_path: Path) -> None:
    """Nothing is read when it is served, so the result is an ordinary model."""
    table.save(attach_latent(causal_model("llama"), STEPWISE), tmp_path)
    assert list(tmp_path.iterdir()) == []


# CODI


def codi_batch() -> dict[str, torch.Tensor]:
    return stage_with(CODI).collate(encode_rows(CODI), PAD)


def test_both_rows_of_a_question() -> None:
    batch = stage_with(CODI).collate([SMALL], PAD)
    assert batch["slots"].tolist() == [[0, 0, BEGIN, THOUGHT, THOUGHT, END, 0, 0]]
    assert batch["labels"].tolist() == [[IGNORED] * 6 + [40, 41]]
    assert batch["words/input_ids"].tolist() == [[5, 6, 10, 11, 20, 30, 40, 41]]
    assert batch["words/labels"].tolist() == [[IGNORED, IGNORED, 10, 11, 20, 30, 40, 41]]
    assert batch["words/answer_B"].tolist() == [6]


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_those_of_each_row_alone(family: str) -> None:
    """Cross-entropy of the words by transformers' own loss, and the distance by hand."""
    model = causal_model(family)
    technique: Any = attach_latent(model, CODI)
    stage = stage_with(CODI)
    with torch.no_grad():
        together = stage.score(model, codi_batch(), Head.FULL)
        for index, example in enumerate(encode_rows(CODI)):
            ids = torch.tensor([[*example["prompt_ids"], *example["step_ids"], *example["answer_ids"]]])
            labels = ids.clone()
            labels[:, : len(example["prompt_ids"])] = IGNORED
            reply = model(input_ids=ids, labels=labels, output_hidden_states=True)
            assert float(together["words_B"][index]) == pytest.approx(float(reply.loss), abs=1e-5)
            alone = stage.score(model, stage.collate([example], PAD), Head.FULL)
            torch.testing.assert_close(
                together["thoughts_B"][index : index + 1], alone["thoughts_B"], rtol=0, atol=1e-5
            )
            before = len(example["prompt_ids"]) + len(example["step_ids"]) - 1
            _, layers = technique.layers_after_thoughts(model, stage.collate([example], PAD))
            pairs = zip(layers, (layer[:, before] for layer in reply.hidden_states), strict=True)
            expected = [functional.smooth_l1_loss(layer_states, other) / other.std() for layer_states, other in pairs]
            assert float(together["distance_B"][index]) == pytest.approx(float(torch.stack(expected).mean()), abs=1e-5)


def naive_layers(
    model: Any, technique: Any, batch: dict[str, torch.Tensor], row: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """States of one row without padding, and those of each layer before its answer: computed again for each thought."""
    seen = batch["attention_mask"][row].bool()
    alone = {name: batch[name][row, seen][None] for name in ("input_ids", "slots")}
    embeds = rollout.embed(model, alone, technique.vectors_KD)
    mask = torch.ones_like(alone["input_ids"])
    for column in (alone["slots"][0] == THOUGHT).nonzero()[:, 0].tolist():
        thought = technique.project(rollout.run(model, embeds[:, :column], mask[:, :column])[:, -1:])
        embeds = torch.cat([embeds[:, :column], thought, embeds[:, column + 1 :]], 1)
    end = int((alone["slots"][0] == END).nonzero())
    layers = rollout.run_layers(model, embeds, mask)
    return layers[-1][0], torch.stack([layer[0, end] for layer in layers])


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_passes_equal_naive_ones_in_values_and_gradients(family: str) -> None:
    model = causal_model(family)
    technique: Any = attach_latent(model, CODI)
    batch, twin = codi_batch(), copy.deepcopy(model)
    seen = batch["attention_mask"].bool()
    hidden, before = technique.layers_after_thoughts(model, batch)
    naive = [naive_layers(twin, twin.trainyard_latent, batch, row) for row in range(len(seen))]
    for row, (states, layers) in enumerate(naive):
        torch.testing.assert_close(hidden[row, seen[row]], states, rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.stack([layer[row] for layer in before]), layers, rtol=0, atol=1e-5)
    weights = torch.randn(hidden.shape[-1], generator=torch.Generator().manual_seed(1))
    (hidden[seen] @ weights).tanh().sum().backward()  # type: ignore[no-untyped-call]
    sum((states @ weights).tanh().sum() for states, _ in naive).backward()  # type: ignore[union-attr]
    compared = [
        (name, parameter.grad, other.grad)
        for (name, parameter), other in zip(model.named_parameters(), twin.parameters(), strict=True)
        if parameter.grad is not None
    ]
    assert any("project" in name for name, _, _ in compared)
    for _, gradient, other in compared:
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-5)


def test_no_gradient_of_the_distance_reaches_the_words() -> None:
    """With the distance alone, a row's steps get no gradient: their embeddings stay where they are."""
    model = causal_model("llama")
    attach_latent(model, CODI)
    batch = stage_with(CODI).collate([{**SMALL, "step_ids": [100, 101, 102, 103]}], PAD)
    stage_with(CODI).score(model, batch, Head.FULL)["distance_B"].sum().backward()
    moved = model.get_input_embeddings().weight.grad.abs().sum(1)
    assert float(moved[100:104].sum()) == 0.0
    assert float(moved[5]) > 0


def test_weights_of_the_loss_are_those_of_the_settings() -> None:
    model = causal_model("gpt2")
    latent = {**CODI, "distance_weight": 3.0, "words_weight": 0.5}
    attach_latent(model, latent)
    stage = stage_with(latent)
    batch = stage.collate(encode_rows(latent), PAD)
    with torch.no_grad():
        scores = stage.score(model, batch, Head.FULL)
        total, metrics = stage.loss(batch, scores, None, config_with(latent))
    sums = {name: float(value.sum()) for name, value in scores.items()}
    assert float(total) == pytest.approx(0.5 * sums["words_B"] + sums["thoughts_B"] + 3 * sums["distance_B"], rel=1e-6)
    assert set(metrics) == {"words_loss", "thoughts_loss", "distance"}
    assert stage.units(batch) == len(encode_rows(latent))


@pytest.mark.parametrize("family", FAMILIES)
def test_codi_generates_what_it_trains(family: str) -> None:
    model = causal_model(family)
    technique = attach_latent(model, CODI)
    stage = stage_with(CODI)
    prompts = [example["prompt_ids"] for example in encode_rows(CODI)]
    with torch.no_grad():
        completions = sample(
            model, TOKENIZER, prompts, Sampling(max_new_tokens=3, temperature=0, stop_ids=()), reader=technique
        )
        for prompt, completion in zip(prompts, completions, strict=True):
            row = {"prompt_ids": prompt, "step_ids": [7], "step_lengths": [1], "answer_ids": completion.ids}
            scored = stage.score(model, stage.collate([row], PAD), Head.FULL)["thoughts_B"]
            assert -sum(completion.logprobs_at_one) / 3 == pytest.approx(float(scored), abs=1e-5)


def test_codi_comes_back_from_its_files(tmp_path: Path) -> None:
    model = causal_model("llama")
    technique = attach_latent(model, CODI)
    other = copy.deepcopy(technique)
    table.save(technique, tmp_path)
    again = table.load_technique(tmp_path, model, TOKENIZER)
    assert again is not None
    for name, value in other.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
