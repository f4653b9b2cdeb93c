"""Small models, rows and settings for the tests of latent techniques."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.unit.train.losses.stage_rows import PAD, TOKENIZER, assistant, user
from trainyard.data.rows import Message, SftRow
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Encoded, StageSpec
from trainyard.train.latent import table
from trainyard.train.latent.contract import LatentModule
from trainyard.train.losses.table import STAGES

FAMILIES = ("llama", "gpt2")


def causal_model(family: str, seed: int = 0, **sizes_given: Any) -> Any:
    """A random two-layer model in evaluation mode: rotary positions (llama) or learned ones (gpt2)."""
    torch.manual_seed(seed)
    vocab_size = len(TOKENIZER)
    if family == "llama":
        sizes = {"intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 256}
        config: Any = LlamaConfig(
            vocab_size=vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, **sizes
        )
        return LlamaForCausalLM(config).eval()
    config = GPT2Config(vocab_size=vocab_size, n_embd=32, n_layer=2, n_head=4, n_positions=256, **sizes_given)
    return GPT2LMHeadModel(config).eval()


def row_with_steps(question: str, steps: list[str], answer: str) -> SftRow:
    more = Message("assistant", answer, None, '{"reasoning_content":"' + "\\n".join(steps) + '"}')
    return SftRow([user(question), more])


ROWS = [
    row_with_steps("What is a node?", ["It reads.", "It counts tokens."], "A document."),
    row_with_steps("Why?", ["Because."], "The fox jumps."),
    row_with_steps("Who reads the documents of a chain?", ["a node", "b", "the trainer reads"], "The trainer."),
]
PLAIN_ROWS = [SftRow([user("What is a node?"), assistant("A node reads.")]), SftRow([user("Why?"), assistant("b")])]


def config_with(latent: dict[str, Any] | None, **fields: Any) -> TrainerConfig:
    stage = Stage.SFT.settings(**({"latent": latent} if latent is not None else {}), **fields)
    return TrainerConfig(stage=stage, method="full", hyperparameters={"max_length": 128})


def stage_with(latent: dict[str, Any], **fields: Any) -> StageSpec:
    return STAGES[Stage.SFT].chosen(config_with(latent, **fields))


def attach_latent(model: Any, latent: dict[str, Any], seed: int = 0) -> LatentModule:
    config: Any = config_with(latent)
    return table.attach(model, TOKENIZER, config.stage.latent, seed=seed)


def encode_rows(latent: dict[str, Any], rows: list[SftRow] = ROWS) -> list[Encoded]:
    config = config_with(latent)
    return list(STAGES[Stage.SFT].chosen(config).encode(rows, TOKENIZER, config)[0])


__all__ = ["PAD", "TOKENIZER"]
