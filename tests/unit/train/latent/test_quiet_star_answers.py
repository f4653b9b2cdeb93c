"""Quiet-STaR when it answers: what training scored, in a batch as alone, and no trace of thoughts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.train.latent.latent_models import (
    FAMILIES,
    PAD,
    PLAIN_ROWS,
    TOKENIZER,
    attach_latent,
    causal_model,
    config_with,
    encode_rows,
    stage_with,
)
from trainyard.errors import InvalidInput
from trainyard.train.contracts import Head, Sampling
from trainyard.train.latent import table
from trainyard.train.latent.quiet_star import QuietStar
from trainyard.train.latent.quiet_star_thoughts import Thinker, ThoughtSettings, find_positions
from trainyard.train.model.sampling import PLAIN, sample

QUIET = {"type": "quiet_star", "thought_tokens": 3, "ahead": 2}
PROMPTS = [[5, 9, 3, 7], [4, 8, 2, 9, 9, 1, 3]]


def thinking_model(family: str) -> tuple[object, QuietStar]:
    """A model with thoughts that change what it says."""
    model = causal_model(family)
    technique = attach_latent(model, QUIET)
    assert isinstance(technique, QuietStar)
    torch.manual_seed(5)
    for weight in technique.head.mixing.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model, technique


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_the_parallel_thoughts(family: str) -> None:
    model, technique = thinking_model(family)
    sampling = Sampling(max_new_tokens=4, temperature=0, stop_ids=())
    settings = ThoughtSettings(num_tokens=3, num_ahead=1, num_thoughts=1, temperature=0)
    with torch.no_grad():
        for prompt, completion in zip(
            PROMPTS, sample(model, TOKENIZER, PROMPTS, sampling, reader=technique), strict=True
        ):
            ids = torch.tensor([[*prompt, *completion.ids]])
            thinker = Thinker(model, technique.head, settings)
            thoughts = thinker.think({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, find_positions(ids, 1))
            mixed = technique.head.mix(thoughts.base_BTD[:, :-1], thoughts.ahead_QNAD[:, :, 0])
            logprobs = thinker.output(mixed).log_softmax(-1)[0, len(prompt) - 1 :]
            assert logprobs.argmax(-1).tolist() == completion.ids
            expected = logprobs.gather(1, torch.tensor(completion.ids)[:, None])[:, 0].tolist()
            assert completion.logprobs_at_one == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_of_a_batch_answers_as_it_does_alone(family: str) -> None:
    model, technique = thinking_model(family)
    sampling = Sampling(max_new_tokens=4, temperature=0, stop_ids=())
    with torch.no_grad():
        together = sample(model, TOKENIZER, PROMPTS, sampling, reader=technique)
        alone = [sample(model, TOKENIZER, [prompt], sampling, reader=technique)[0] for prompt in PROMPTS]
    assert [completion.ids for completion in together] == [completion.ids for completion in alone]


def test_a_new_head_answers_as_the_base_and_a_trained_one_does_not() -> None:
    model = causal_model("llama")
    technique = attach_latent(model, QUIET)
    sampling = Sampling(max_new_tokens=4, temperature=0, stop_ids=())
    other, thinking = thinking_model("llama")
    with torch.no_grad():
        plain = sample(model, TOKENIZER, PROMPTS, sampling, reader=PLAIN)
        assert sample(model, TOKENIZER, PROMPTS, sampling, reader=technique) == plain
        thought = sample(other, TOKENIZER, PROMPTS, sampling, reader=thinking)
    assert [completion.logprobs_at_one for completion in thought] != [
        completion.logprobs_at_one for completion in plain
    ]


def test_thoughts_leave_no_columns_in_the_cache() -> None:
    model, technique = thinking_model("llama")
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        reading, _ = technique.open(model, ids, torch.ones_like(ids))
        assert reading.cache.get_seq_length() == 4
        reading, _ = technique.step(model, reading, torch.tensor([3]))
    assert reading.cache.get_seq_length() == 5 == reading.mask_BT.shape[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stage_scores_rows_and_reports_its_terms(family: str) -> None:
    model, _ = thinking_model(family)
    stage, config = stage_with(QUIET), config_with(QUIET)
    rows = list(stage.encode(PLAIN_ROWS, TOKENIZER, config)[0])
    batch = stage.collate(rows, PAD)
    total, metrics = stage.loss(batch, stage.score(model, batch, Head.FULL), None, config)
    total.backward()
    assert metrics.keys() == {"base_loss", "thought_loss", "thought_gain", "thought_weight"}
    plain = stage_with(QUIET).units(batch)
    assert 0 < plain == int((batch["labels"][:, 1:] != -100).sum())
    assert encode_rows(QUIET, PLAIN_ROWS) == rows


def test_saved_weights_think_the_same(tmp_path: Path) -> None:
    model, technique = thinking_model("llama")
    with table.detach_technique(model):
        assert not any("latent" in name for name in model.state_dict())
    table.save(technique, tmp_path)
    other = causal_model("llama")
    again = table.load_technique(tmp_path, other, TOKENIZER)
    assert again is not None
    sampling = Sampling(max_new_tokens=4, temperature=0, stop_ids=())
    with torch.no_grad():
        expected = sample(model, TOKENIZER, PROMPTS, sampling, reader=technique)
        assert sample(other, TOKENIZER, PROMPTS, sampling, reader=again) == expected


def test_a_thought_beyond_the_last_position_is_refused() -> None:
    model, technique = thinking_model("gpt2")
    ids = torch.full((1, 252), 5)
    with pytest.raises(InvalidInput, match="takes 5 positions, and the model has 256"), torch.no_grad():
        technique.open(model, ids, torch.ones_like(ids))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    with pytest.raises(InvalidInput, match="after 251 tokens takes 6 positions"):
        stage_with(QUIET).score(model, batch, Head.FULL)


def test_without_its_thoughts_the_model_says_something_else() -> None:
    model, technique = thinking_model("llama")
    ids = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        _, with_thoughts = technique.open(model, ids, torch.ones_like(ids))
        technique.head.start_D.zero_()
        _, with_others = technique.open(model, ids, torch.ones_like(ids))
    assert not torch.allclose(with_thoughts, with_others, atol=1e-4)


def test_each_token_of_an_answer_counts_with_its_thought() -> None:
    _, technique = thinking_model("llama")
    assert (technique.positions, technique.num_read(4)) == (5, 24)
