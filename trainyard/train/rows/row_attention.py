"""Attention kernels of packed and padded rows in a run, decided on its own model."""

from __future__ import annotations

from typing import Any

import torch

from trainyard.train.contracts import Encoded
from trainyard.train.model.head import evaluating, label_logprobs
from trainyard.train.model.sequence_attention import KERNEL, explain_unsupported, set_kernel, takes_borders
from trainyard.train.rows.batching import pack, pad

ROWS = ((1, 2, 3, 4, 2), (5, 6, 7, 8, 9, 10, 11))
"""Tokens of the rows that both kernels are compared on, packed and padded."""
CLOSE = {torch.float32: 1e-4}
CLOSE_IN_HALF = 2e-2


def choose_row_attention(model: Any, device: str, dtype: torch.dtype) -> str:
    """Let a model compute its rows sequence by sequence, if it gives the log-probabilities that it had before.

    A family may do something with its mask or its scores that `attend` does not know. `dtype` is the precision of the
    training. Returns why the kernel is used, or why it is not; then the model is as it was.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if against := explain_unsupported(base, device, dtype):
        return f"SDPA with a mask: {against}"
    before, name = base.config._attn_implementation, type(base).__name__
    masked_N = probe(model, dtype)
    set_kernel(base, KERNEL)
    if not takes_borders(base):
        return f"SDPA with a mask: the attention of {name} cannot be exchanged"
    separate_N = probe(model, dtype)
    close = CLOSE.get(dtype, CLOSE_IN_HALF)
    if torch.allclose(masked_N, separate_N, rtol=close, atol=close, equal_nan=True):
        return "each sequence separately, without a mask"
    set_kernel(base, before)
    return f"SDPA with a mask: {name} gives other numbers sequence by sequence"


def probe(model: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return the log-probabilities of two short rows, packed and padded, computed in a precision."""
    vocab_size = model.config.get_text_config().vocab_size
    rows: list[Encoded] = []
    for row in ROWS:
        ids = [token % vocab_size for token in row]
        rows.append({"input_ids": ids, "labels": ids})
    with evaluating(model), torch.autocast(model.device.type, dtype, enabled=dtype is not torch.float32):
        batches = (collate(rows, 0) for collate in (pack, pad))
        on_device = ({name: value.to(model.device) for name, value in batch.items()} for batch in batches)
        return torch.cat([label_logprobs(model, batch).logprobs_N for batch in on_device])
