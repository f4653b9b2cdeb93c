"""Pauses: where they are, which weight is theirs, and that they are read when the model answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.train.latent.latent_models import (
    FAMILIES,
    PLAIN_ROWS,
    TOKENIZER,
    attach_latent,
    causal_model,
    config_with,
    encode_rows,
    stage_with,
)
from tests.unit.train.losses.stage_rows import PAD
from trainyard.errors import Corrupt
from trainyard.train.contracts import IGNORED, Head, Sampling
from trainyard.train.latent import table
from trainyard.train.losses.table import STAGES
from trainyard.train.model.sampling import PLAIN, sample

PAUSES = {"type": "pause", "count": 3}


def test_pauses_come_after_the_prompt_and_have_no_label() -> None:
    first = encode_rows(PAUSES, PLAIN_ROWS)[0]
    batch = stage_with(PAUSES).collate([first], PAD)
    prompt, answer = first["prompt_ids"], first["answer_ids"]
    assert batch["slots"][0].tolist() == [0] * len(prompt) + [1] * 3 + [0] * len(answer)
    assert batch["labels"][0].tolist() == [IGNORED] * (len(prompt) + 3) + answer
    assert batch["input_ids"][0, : len(prompt)].tolist() == prompt


def test_the_prompt_has_the_ids_of_plain_sft() -> None:
    config = config_with(None)
    plain = STAGES["sft"].encode(PLAIN_ROWS, TOKENIZER, config)[0]  # type: ignore[index]
    for latent, other in zip(encode_rows(PAUSES, PLAIN_ROWS), plain, strict=True):
        assert [*latent["prompt_ids"], *latent["answer_ids"]] == other["input_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_vector_moves_when_the_rest_is_frozen(family: str) -> None:
    model = causal_model(family).requires_grad_(False)
    technique = attach_latent(model, PAUSES)
    stage = stage_with(PAUSES)
    batch = stage.collate(encode_rows(PAUSES, PLAIN_ROWS), PAD)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    stage.loss(batch, stage.score(model, batch, Head.FULL), None, config_with(PAUSES))[0].backward()
    assert technique.vectors_KD.grad is not None
    assert float(technique.vectors_KD.grad.norm()) > 0
    optimizer.step()
    moved = [name for name, value in model.named_parameters() if not torch.equal(value, before[name])]
    assert moved == ["trainyard_latent.vectors_KD"]


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_reads_what_training_read(family: str) -> None:
    """The log-probabilities of generated tokens are those that the stage scores, with prompts of two lengths."""
    model = causal_model(family)
    technique = attach_latent(model, PAUSES)
    stage = stage_with(PAUSES)
    prompts = [example["prompt_ids"] for example in encode_rows(PAUSES, PLAIN_ROWS)]
    sampling = Sampling(max_new_tokens=5, temperature=0, stop_ids=())
    with torch.no_grad():
        completions = sample(model, TOKENIZER, prompts, sampling, reader=technique)
        for prompt, completion in zip(prompts, completions, strict=True):
            row = {"prompt_ids": prompt, "step_ids": [], "step_lengths": [], "answer_ids": completion.ids}
            batch = stage.collate([row], PAD)
            scored = stage.score(model, batch, Head.FULL)["logprobs_N"].tolist()
            assert completion.logprobs_at_one == pytest.approx(scored, abs=1e-5)


def test_without_its_vector_the_model_answers_otherwise() -> None:
    model = causal_model("llama")
    technique = attach_latent(model, PAUSES)
    prompt = [encode_rows(PAUSES, PLAIN_ROWS)[0]["prompt_ids"]]
    sampling = Sampling(max_new_tokens=1, temperature=0)
    with torch.no_grad():
        paused, plain = (sample(model, TOKENIZER, prompt, sampling, reader=reader)[0] for reader in (technique, PLAIN))
    assert paused.logprobs_at_one != pytest.approx(plain.logprobs_at_one, abs=1e-6)


def test_saved_weights_are_loaded_to_the_bit(tmp_path: Path) -> None:
    model = causal_model("llama")
    technique = attach_latent(model, PAUSES, seed=7)
    with table.detach_technique(model) as detached:
        assert detached is technique
        assert not any("latent" in name for name in model.state_dict())
    table.save(technique, tmp_path)
    again = table.load_technique(tmp_path, causal_model("llama"), TOKENIZER)
    assert again is not None
    assert again.settings == technique.settings
    assert torch.equal(again.vectors_KD, technique.vectors_KD)
    assert table.load_technique(tmp_path / "elsewhere", model, TOKENIZER) is None


@pytest.mark.parametrize("broken", ["not json", '{"latent": {"type": "telepathy"}}', '{"latent": {"count": 0}}'])
def test_a_broken_record_is_refused(tmp_path: Path, broken: str) -> None:
    technique = attach_latent(causal_model("llama"), PAUSES)
    table.save(technique, tmp_path)
    (tmp_path / table.SETTINGS_FILE).write_text(broken)
    with pytest.raises(Corrupt, match="cannot be loaded"):
        table.load_technique(tmp_path, causal_model("llama"), TOKENIZER)
