"""Every technique on several architectures of transformers, with all weights and with LoRA; others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    Qwen3Config,
)

from tests.selection import choose_by_default
from tests.unit.train.latent.latent_models import ROWS, TOKENIZER, attach_latent, config_with, stage_with
from tests.unit.train.latent.test_coconut import naive_hidden
from tests.unit.train.losses.stage_rows import PAD
from trainyard.errors import InvalidInput
from trainyard.train.contracts import Batch, Head, Sampling
from trainyard.train.latent import table
from trainyard.train.methods.adapters import inject
from trainyard.train.model.sampling import sample

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # PEFT asks transformers

WORDS: dict[str, Any] = {"vocab_size": len(TOKENIZER), "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES: dict[str, Any] = {
    **WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 256,
}  # fmt: skip
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
"""Shorter than the rows."""
CONFIGS: dict[str, Any] = {
    "gpt2": GPT2Config(**WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "llama": LlamaConfig(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED),
    "gemma2": Gemma2Config(**GROUPED, **WINDOW, query_pre_attn_scalar=8),
    "gemma3": Gemma3TextConfig(**GROUPED, **WINDOW, query_pre_attn_scalar=8),
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "opt": OPTConfig(**{**SIZES, "pad_token_id": 0}, ffn_dim=64, word_embed_proj_dim=32, dropout=0.0),
}
OTHERS: dict[str, Any] = {
    "mistral": MistralConfig(**GROUPED, sliding_window=8),
    "bloom": BloomConfig(**WORDS, hidden_size=32, n_layer=2, n_head=4),
    "mamba": MambaConfig(**WORDS, hidden_size=32, num_hidden_layers=2, state_size=4),
}
TECHNIQUES: dict[str, dict[str, Any]] = {
    "pause": {"type": "pause", "count": 2},
    "coconut": {"type": "coconut", "max_stage": 2, "thoughts_per_step": 2, "epochs_per_stage": 1},
    "hidden_cot": {"type": "hidden_cot"},
    "codi": {"type": "codi", "thoughts": 2},
    "tokens": {
        "type": "dsa",
        "granularity": {"type": "token", "top_k": 3, "index_heads": 2, "index_dim": 8, "warmup": 0},
    },
    "heads": {"type": "dsa", "granularity": {"type": "head", "active": 2}},
    "quiet_star": {"type": "quiet_star", "thought_tokens": 2, "ahead": 2},
}
GREEDY = Sampling(max_new_tokens=3, temperature=0, stop_ids=())
CELLS = [
    (family, name, method)
    for family in CONFIGS for name in TECHNIQUES if (family[:5], name) != ("gemma", "quiet_star")
    for method in ("full", "lora")
]  # fmt: skip
QUICK = [cell for cell in CELLS if cell[2] == "lora" or cell[0] == "gpt2"]


def build(family: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config({**CONFIGS, **OTHERS}[family]).eval()


def make_batch(latent: dict[str, Any]) -> tuple[Batch, list[list[int]]]:
    """The rows of three stages of the curriculum, and their prompts."""
    stage, config = stage_with(latent), config_with(latent)
    examples = list(stage.encode(ROWS, TOKENIZER, config)[0])
    prompts = [example.get("prompt_ids") or example["input_ids"][:9] for example in examples]
    if stage.at_epoch is not None:
        examples = [stage.at_epoch(example, row, row) for row, example in enumerate(examples)]
    return stage.collate(examples, PAD), prompts


@pytest.mark.parametrize(("family", "name", "method"), choose_by_default(QUICK, CELLS))
def test_a_technique_trains_and_answers_on_an_architecture(family: str, name: str, method: str, tmp_path: Path) -> None:
    latent, base = TECHNIQUES[name], build(family)
    lora = LoraConfig(r=2, target_modules="all-linear", fan_in_fan_out=family == "gpt2")
    model = inject(base, lora, "new") if method == "lora" else base
    technique = attach_latent(model, latent)
    stage, config = stage_with(latent), config_with(latent)
    batch, prompts = make_batch(latent)
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    torch.manual_seed(0)
    first = stage.loss(batch, stage.score(model, batch, Head.FULL), None, config)[0]
    (first / stage.units(batch)).backward()
    assert all(weight.grad is not None for weight in technique.parameters())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    torch.manual_seed(0)
    with torch.no_grad():
        assert stage.loss(batch, stage.score(model, batch, Head.FULL), None, config)[0] < first
        together = sample(model, TOKENIZER, prompts, GREEDY, reader=technique)
        alone = [sample(model, TOKENIZER, [prompt], GREEDY, reader=technique)[0] for prompt in prompts]
        table.save(technique, tmp_path)
        again = table.load_technique(tmp_path, model, TOKENIZER)
        if again is not None:
            technique.detach(model)
            assert sample(model, TOKENIZER, prompts, GREEDY, reader=again) == together
    assert [completion.ids for completion in together] == [completion.ids for completion in alone]


@pytest.mark.parametrize("family", list(CONFIGS))
def test_cached_thoughts_equal_naive_ones_on_an_architecture(family: str) -> None:
    model = build(family)
    technique: Any = attach_latent(model, TECHNIQUES["coconut"])
    batch, _ = make_batch(TECHNIQUES["coconut"])
    with torch.no_grad():
        hidden, seen = technique.hidden_states(model, batch), batch["attention_mask"].bool()
        for row in range(len(seen)):
            torch.testing.assert_close(
                hidden[row, seen[row]], naive_hidden(model, technique, batch, row), rtol=0, atol=1e-5
            )


@pytest.mark.parametrize("name", ["coconut", "codi", "quiet_star"])
def test_a_model_without_a_cache_of_keys_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="MambaForCausalLM cannot read a row in passes"):
        attach_latent(build("mamba"), TECHNIQUES[name])


def test_a_model_that_takes_no_mask_is_refused_for_parallel_thoughts() -> None:
    with pytest.raises(InvalidInput, match="BloomForCausalLM cannot think at all positions at once"):
        attach_latent(build("bloom"), TECHNIQUES["quiet_star"])


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_thoughts_beyond_a_sliding_window_are_refused(family: str) -> None:
    model, latent = build(family), TECHNIQUES["quiet_star"]
    technique = attach_latent(model, latent)
    batch, prompts = make_batch(latent)
    with pytest.raises(InvalidInput, match="7 in the window of its layers"):
        stage_with(latent).score(model, batch, Head.FULL)
    with torch.no_grad():
        with pytest.raises(InvalidInput, match="7 in the window of its layers"):
            sample(model, TOKENIZER, prompts, GREEDY, reader=technique)
        assert sample(model, TOKENIZER, [prompts[0][:1]], GREEDY, reader=technique)[0].ids


@pytest.mark.parametrize("family", ["bloom", "mamba", "mistral"])
def test_a_model_without_a_layer_for_a_selection_is_refused(family: str) -> None:
    with pytest.raises(InvalidInput, match="has no layer for sparse attention"):
        attach_latent(build(family), TECHNIQUES["tokens"])
