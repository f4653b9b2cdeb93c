"""Rows, settings and a random model for the tests of stages."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from trainyard.data.rows import LabelledRow, Message, PreferenceRow, SftRow
from trainyard.spec.axes.stages import Stage, StageSettings
from trainyard.spec.training import TrainerConfig
from trainyard.testing.tiny import TEXT, build_tokenizer

TOKENIZER = build_tokenizer([TEXT * 20])
PAD = TOKENIZER.pad_token_id
QUESTIONS = ["What is a node?", "Why?", "Who reads the documents of a chain?", "a?", "Tell me about the quick fox"]
ANSWERS = ["A node reads documents.", "Because.", "The trainer counts every token that it reads.", "b", "It jumps."]


def settings(stage: Stage | StageSettings, *, max_length: int = 128, **fields: Any) -> TrainerConfig:
    """A trainer's config; `preference` and `engine` are given as dictionaries."""
    return TrainerConfig(stage=stage, hyperparameters={"max_length": max_length}, **fields)


def make_model(head: str, seed: int = 0) -> LlamaForCausalLM | LlamaForSequenceClassification:
    """A random two-layer Llama (hidden 32) in evaluation mode."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=PAD,
        num_labels=1,
    )
    return (LlamaForCausalLM(config) if head == "causal" else LlamaForSequenceClassification(config)).eval()


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


def conversations(count: int = 8) -> list[SftRow]:
    return [SftRow([user(QUESTIONS[n % 5]), assistant(f"{ANSWERS[n % 5]} {n}")]) for n in range(count)]


def pairs(count: int = 8) -> list[PreferenceRow]:
    return [
        PreferenceRow([user(QUESTIONS[n % 5])], [assistant(f"{ANSWERS[n % 5]} {n}")], [assistant(ANSWERS[(n + 1) % 5])])
        for n in range(count)
    ]


def make_labelled(count: int = 8) -> list[LabelledRow]:
    return [
        LabelledRow([user(QUESTIONS[n % 5])], [assistant(f"{ANSWERS[n % 5]} {n}")], label=n % 3 != 0)
        for n in range(count)
    ]
