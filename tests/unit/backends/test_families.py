"""Model families with random weights: which attention each is trained with, and which no stage can train."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto import modeling_auto

from tests.selection import choose_by_default
from tests.small_jobs import Jobs, train_here
from trainyard.backends.trl.loading import load_tokenizer
from trainyard.errors import InvalidInput, Refused, Unavailable
from trainyard.spec.axes.data import Port
from trainyard.spec.estimate.shape import ENCODERS, BaseFacts, ModelLayout
from trainyard.stores.models import base_facts
from trainyard.testing.tiny import TEXT, build_tokenizer
from trainyard.train.methods.loading import find_architecture

FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 64,
    },
    "bloom": {"hidden_size": 32, "n_layer": 1, "n_head": 4},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
    "mamba2": {
        "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1,
    },
    "bert": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64},
    "distilbert": {"dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 64},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4},
    "vit": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64},
}  # fmt: skip
STEPS = {"max_steps": 6, "learning_rate": 3e-3, "batch_size": 32}
"""Every step sees the same rows, so that the loss has to fall."""
Family = Callable[..., Path]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer([TEXT])


@pytest.fixture
def family(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Family:
    """Writes a model of a type with random weights and the tokenizer; returns its folder."""

    def write(name: str, vocabulary: int | None = None) -> Path:
        rows = {} if name == "vit" else {"vocab_size": vocabulary or len(tokenizer)}
        special = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
        config = AutoConfig.for_model(name, **FAMILIES[name], **rows, **special)
        causal = type(config) in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING and name != "bert"
        torch.manual_seed(0)
        model = (AutoModelForCausalLM if causal else AutoModel).from_config(config)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return tmp_path / name

    return write


WITHOUT_SDPA = {
    "gemma2": ("lora", "transformers has no sdpa attention for Gemma2ForCausalLM"),
    "bloom": ("lora", "transformers has no sdpa attention for BloomForCausalLM"),
    "mamba": ("lora", "MambaForCausalLM has no attention"),
    "mamba2": ("full", "Mamba2ForCausalLM has no attention"),
}


@pytest.mark.parametrize("name", choose_by_default(["gemma2", "mamba"], WITHOUT_SDPA))
def test_a_family_without_sdpa_trains_and_says_with_what(name: str, family: Family, jobs: Jobs, tmp_path: Path) -> None:
    method, why = WITHOUT_SDPA[name]
    ran = train_here(jobs(backend="native", base=family(name), method=method, hyperparameters=STEPS), tmp_path / "run")
    assert (ran.record["attention"], ran.record["attention_why"]) == ("eager", why)
    assert ran.record["final_loss"] < ran.record["first_loss"]


def test_preferences_train_a_state_space_model_too(family: Family, jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(Port.PREFERENCE, backend="native", base=family("mamba"), hyperparameters=STEPS)
    assert train_here(job, tmp_path / "run").record["first_loss"] == pytest.approx(0.6931, abs=1e-3)


@pytest.mark.parametrize("name", ["bloom", "mamba"])
def test_an_attention_that_the_family_lacks_is_refused_by_name(
    name: str, family: Family, jobs: Jobs, tmp_path: Path
) -> None:
    job = jobs(backend="native", base=family(name), engine={"attention": "sdpa"}, hyperparameters=STEPS)
    with pytest.raises(Unavailable, match=r"E-PACKAGE-MISSING: .*sdpa.* Do: Use attention: auto"):
        train_here(job, tmp_path / "run")


def test_a_type_without_a_score_makes_no_reward_model(family: Family) -> None:
    with pytest.raises(InvalidInput, match="E-MODEL-INVALID: transformers has no reward model for the type mamba"):
        find_architecture(str(family("mamba")), "reward")


NO_DECODERS = {
    "bert": r"an encoder \(bert\)",
    "distilbert": r"an encoder \(distilbert\)",
    "t5": r"an encoder-decoder \(t5\)",
    "vit": r"no language model \(vit\)",
}


@pytest.mark.parametrize("name", NO_DECODERS)
@pytest.mark.parametrize("backend", ["native", "trl"])
def test_what_is_no_decoder_is_refused_by_the_child(
    name: str, backend: str, family: Family, jobs: Jobs, tmp_path: Path
) -> None:
    pattern = rf"R-BASE-MISMATCH config\.base_model: .* is {NO_DECODERS[name]}"
    with pytest.raises(Refused, match=pattern) as refused:
        train_here(jobs(backend=backend, base=family(name)), tmp_path / "run")
    assert refused.value.code == "R-BASE-MISMATCH"


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused_by_the_child(
    family: Family, jobs: Jobs, tokenizer: PreTrainedTokenizerFast
) -> None:
    folder = family("bloom", vocabulary=len(tokenizer) - 1)
    with pytest.raises(Refused, match=rf"R-BASE-MISMATCH .* embeddings for {len(tokenizer) - 1} tokens"):
        load_tokenizer(jobs(base=folder))


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("bloom", ModelLayout.DECODER),
        ("mamba", ModelLayout.DECODER),
        ("bert", ModelLayout.ENCODER),
        ("t5", ModelLayout.ENCODER_DECODER),
    ],
)
def test_the_files_say_the_same_as_the_loaded_config(
    name: str, layout: ModelLayout, family: Family, tokenizer: PreTrainedTokenizerFast
) -> None:
    facts = base_facts(family(name))
    assert facts == BaseFacts(name, layout, len(tokenizer), len(tokenizer), facts.context)


def test_ids_of_added_tokens_and_of_lists_are_counted(family: Family) -> None:
    folder = family("bloom")
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text())
    value["added_tokens"].append({**value["added_tokens"][0], "id": 9_999, "content": "<|late|>"})
    path.write_text(json.dumps(value))
    assert base_facts(folder).tokens == 10_000
    path.write_text(json.dumps({"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]]}}))
    assert base_facts(folder).tokens == 2
    path.unlink()
    assert base_facts(folder).tokens is None


def test_every_encoder_of_transformers_is_known() -> None:
    masked = set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    assert masked - set(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES) <= ENCODERS
    assert not ENCODERS & {"llama", "gpt2", "gemma2", "bloom", "mamba", "bart"}
