"""A tiny real model for tests and examples: random weights, a trained tokenizer, a chat template, no download.

`python -m trainyard.testing.tiny FOLDER [SEED]` writes one. It loads through the same `from_pretrained` calls as any
other model, trains in seconds and learns nothing useful.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trainyard.data.renderers.table import TINY_TEMPLATE as CHAT_TEMPLATE

SPECIAL_TOKENS = ["<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = (
    "A chain is a list of nodes. What is a chain? A node reads documents, writes question and answer pairs, keeps "
    "the good ones, trains an adapter, compares it with its base and deploys it. user assistant system 0123456789 "
    "The quick brown fox jumps over the lazy dog, and the trainer counts every token that it reads. "
)


def build_tokenizer(texts: list[str], *, vocabulary: int = 600, max_length: int = 2048) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on `texts`, with ChatML-like special tokens and template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        bos_token=None,
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def build_tiny_model(folder: Path, *, seed: int = 0, hidden: int = 64, layers: int = 2) -> Path:
    """Write a random Llama with its tokenizer to `folder` as safetensors; the same seed gives the same bytes."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer([TEXT * 20])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    build_tiny_model(Path(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
