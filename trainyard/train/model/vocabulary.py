"""Added tokens: a tokenizer with words of its own, and a base whose embeddings and output layer have a row for each.

A new row begins as the mean of the rows that the tokenizer knew before, so that a new token is at first as likely as an
average one. Nothing is drawn: the same base and tokens give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoTokenizer


def add_tokens(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    """Add the tokens that the tokenizer does not have; returns their ids."""
    new = [token for token in tokens if token not in tokenizer.get_vocab()]
    tokenizer.add_tokens(new)
    return [int(tokenizer.convert_tokens_to_ids(token)) for token in new]


def grow_vocabulary(model: Any, folder: str, tokens: Sequence[str]) -> Any:
    """Return the model with a row for each added token; the same model without any."""
    if not tokens:
        return model
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    old_size = len(tokenizer)
    ids = add_tokens(tokenizer, tokens)
    if not ids:
        return model
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for layer in dict.fromkeys((model.get_input_embeddings(), model.get_output_embeddings())):
        if layer is not None:
            set_to_mean(layer, ids, old_size)
    return model


@torch.no_grad()
def set_to_mean(layer: Any, ids: list[int], old_size: int) -> None:
    """Set the rows of new ids to the mean of the first `old_size` ones."""
    for value in (layer.weight, getattr(layer, "bias", None)):
        if value is not None:
            value[ids] = value[:old_size].float().mean(0).to(value.dtype)
