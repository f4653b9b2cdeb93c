"""Cohere's Aya: one token for each role, trimmed contents."""

from __future__ import annotations

from trainyard.data.renderers.contract import PLAIN, RendererSpec

COHERE = RendererSpec(
    "cohere",
    {"cohere": PLAIN, "cohere2": PLAIN, "cohere_training": PLAIN, "cohere2_training": PLAIN},
    {"content": {"close": "<|END_RESPONSE|>", "content": "text", "content_args": {"strip": False}}},
    stops=("<|END_OF_TURN_TOKEN|>",),
)
