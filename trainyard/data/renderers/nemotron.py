"""Nemotron 3: ChatML that opens a thought in the prompt; a history keeps an empty block only."""

from __future__ import annotations

from trainyard.data.renderers.contract import NONE, THOUGHTS, XML_CALLS, RendererSpec

SIZES = ("nano", "super", "ultra")
NEMOTRON3 = RendererSpec(
    "nemotron3",
    {
        **{f"nemotron_3_{size}{kind}": NONE for kind in ("", "_training") for size in SIZES},
        "nemotron_3_5_lightning": NONE, "nemotron_3_5_lightning_training": NONE,
    },
    {**XML_CALLS, **THOUGHTS},
)  # fmt: skip
