"""An indexer learns which token answers, and Quiet-STaR lowers its own loss (a minute of one core each); rows of both,
of pauses, and what a token takes."""

from __future__ import annotations

import random

import pytest
import torch

from benchmarks.latent import dsa_decode, dsa_recall, pause_counts, quiet_star_hops
from trainyard.train.contracts import IGNORED


def test_a_row_of_recall_answers_each_key_with_the_value_of_its_pair() -> None:
    rows = dsa_recall.draw_rows(3, torch.Generator().manual_seed(0))
    for ids, labels in zip(rows["input_ids"].tolist(), rows["labels"].tolist(), strict=True):
        pairs = dict(divmod(token, dsa_recall.VALUES) for token in ids[: dsa_recall.PAIRS])
        keys = [token - dsa_recall.KEYS * dsa_recall.VALUES for token in ids[dsa_recall.PAIRS : -1]]
        assert labels[dsa_recall.PAIRS + 1 :] == [pairs[key] for key in keys]
        assert set(labels[: dsa_recall.PAIRS + 1]) == {IGNORED}


def test_a_row_of_hops_ends_with_two_steps_of_its_walk() -> None:
    first, size = quiet_star_hops.FIRST_SYMBOL, quiet_star_hops.SYMBOLS
    rows = quiet_star_hops.draw_rows(3, torch.Generator().manual_seed(0))
    for ids in rows["input_ids"].tolist():
        after = dict(divmod(token, size) for token in ids[:size])
        *walk, _, start, answer = (token - first for token in ids[size + 1 :])
        assert walk[1:] == [after[symbol] for symbol in walk[:-1]]
        assert answer == after[after[start]]


@pytest.mark.slow
def test_an_indexer_that_warmed_up_finds_the_token_that_answers() -> None:
    accuracies = dsa_recall.run_tokens(0)
    assert accuracies.dense > 0.99
    assert accuracies.sparse >= 0.95
    assert max(accuracies.random, accuracies.window) <= 0.4
    assert accuracies.all_tokens <= 1e-6
    assert accuracies.divergence_after < accuracies.divergence_before / 2


@pytest.mark.slow
def test_thoughts_lower_the_loss_and_change_what_is_said() -> None:
    result = quiet_star_hops.train_variant(0, "quiet", 250)
    assert result.last_loss < 0.9 * result.first_loss
    assert abs(result.thought_nll - result.base_nll) > 1e-3


def test_a_row_of_counts_has_the_number_of_places_that_agree() -> None:
    dice, length, letters = random.Random(0), pause_counts.LENGTH, pause_counts.LETTERS
    for _ in range(20):
        row = pause_counts.draw(dice)
        *letters_of_both, last = row["prompt_ids"]
        first, second = letters_of_both[:length], [token - letters for token in letters_of_both[length:]]
        shift = last - pause_counts.FIRST_SHIFT
        agreeing = sum(symbol == second[(index + shift) % length] for index, symbol in enumerate(first))
        assert row["answer_ids"] == [pause_counts.FIRST_ANSWER + agreeing]


def test_pauses_are_trained_and_left_out_with_a_share_of_the_steps() -> None:
    result = pause_counts.measure(0, share=2 / pause_counts.STEPS, way="4")
    assert {"accuracy", "left_out", "loss", "guess"} <= result.keys()
    assert 0.2 < result["guess"] < 0.5


def test_a_token_after_a_row_is_measured_both_ways() -> None:
    timing = dsa_decode.decode(dsa_decode.Setting(top_k=64, tokens=1), 256)
    assert min(timing.dense_attention, timing.sparse_attention, timing.dense_layer, timing.sparse_layer) > 0
    assert timing.difference <= 1e-6
