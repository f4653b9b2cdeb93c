"""A base is loaded whole: no matrix of it is random."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainyard.errors import InvalidInput
from trainyard.train.methods.loading import load_for_answers, load_model

OPTIONS = {"trust_remote_code": False, "use_safetensors": True}


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"])
def test_a_base_without_one_of_its_matrices_is_refused(name: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidInput, match=r"E-MODEL-INVALID: .* do not have 1 weights of the model, such as"):
        load_model(str(folder), "causal", OPTIONS)


def test_packed_weights_that_are_left_out_are_not_replaced_by_random_ones(tiny_model: Path, tmp_path: Path) -> None:
    """What a base in gptq looks like when its quantization config is not read."""
    folder = shutil.copytree(tiny_model, tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    packed = {name.replace("proj.weight", "proj.qweight"): value for name, value in weights.items()}
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidInput, match=r"E-MODEL-INVALID: .* do not have 14 weights of the model"):
        load_model(str(folder), "causal", OPTIONS)


def test_tied_embeddings_and_the_score_of_a_reward_model_may_be_missing(tiny_model: Path) -> None:
    assert "lm_head.weight" not in load_file(tiny_model / "model.safetensors")
    assert load_model(str(tiny_model), "causal", OPTIONS).config.tie_word_embeddings
    assert load_model(str(tiny_model), "reward", OPTIONS).score.weight.shape[0] == 1


@pytest.mark.parametrize("load", ["to answer", "to train"])
def test_a_model_that_was_loaded_does_not_attend_by_cudnn(load: str, tiny_model: Path) -> None:
    """It would make a plan for each new length of the keys: with every token of an answer."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    if load == "to answer":
        load_for_answers(str(tiny_model), torch.float32)
    else:
        load_model(str(tiny_model), "causal", OPTIONS)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
