"""Bytes that a model takes while it answers one request at a time.

    weights       parameters x width of the dtype
    cache         keys and values of one conversation: 2 x layers x key-value heads x head size x width for each token
    temporaries   of one block while the prompt is read: 8 d + 3 f numbers for each token (d hidden, f feed-forward)

A conversation counts as `TOKENS` tokens, or the context of a model that has a shorter one. The prompt log probabilities
of `echo` are not in it: they take what the request asks for, and its own limits apply.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.spec.estimate.bases import ContextFacts
from trainyard.spec.estimate.shape import ModelShape

TOKENS = 4096
"""Most tokens that the embedded server generates for one request by default."""


def answering_bytes(config: Mapping[str, object], parameters: int, width: int) -> int:
    """Return the bytes of a base with this `config.json`; of an unknown layout only the weights are counted."""
    text = config.get("text_config")
    settings = text if isinstance(text, Mapping) else config
    shape, context = ModelShape.from_config(settings), ContextFacts.from_config(settings).positions
    weights = parameters * width
    if shape is None:
        return weights
    tokens = min(TOKENS, context or TOKENS)
    cache = 2 * shape.layers * shape.key_value_heads * shape.head_size
    temporaries = 8 * shape.hidden + 3 * shape.feed_forward
    return weights + (cache + temporaries) * width * tokens
