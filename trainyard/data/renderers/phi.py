"""Phi 3 and 3.5: one token for each role. The template closes a conversation with the end-of-text token."""

from __future__ import annotations

from trainyard.data.renderers.contract import CONTENT, PLAIN, RendererSpec

PHI3 = RendererSpec(
    "phi3",
    {"phi3": PLAIN, "phi3_5": PLAIN, "phi3_training": PLAIN, "phi3_5_training": PLAIN},
    CONTENT,
)
