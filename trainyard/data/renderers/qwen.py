"""Qwen 3 and later. The hybrid models drop thoughts from the history, so their turns do not extend one another."""

from __future__ import annotations

from trainyard.data.renderers.contract import ALL, CALLING, CONTENT, JSON_CALLS, NONE, THOUGHTS, XML_CALLS, RendererSpec

END = ("<|endoftext|>",)

QWEN3 = RendererSpec("qwen3", {"qwen3": NONE}, {**JSON_CALLS, **THOUGHTS}, stops=END)
"""As the models of April 2025 were published: thoughts only in the last turn."""
QWEN3_KEEP = RendererSpec("qwen3-keep", {"qwen3_training": ALL}, {**JSON_CALLS, **THOUGHTS}, stops=END)
"""Thoughts stay in the history; every turn has a block for them."""
QWEN3_INSTRUCT = RendererSpec(
    "qwen3-instruct",
    {
        "qwen3_instruct_2507": CALLING, "qwen3_instruct_2507_training": CALLING,
        "qwen3_vl": CALLING, "qwen3_vl_training": CALLING,
    },
    {**JSON_CALLS, **CONTENT},
    stops=END,
)  # fmt: skip
"""The models of July 2025 that do not think, and Qwen 3 VL."""
QWEN35 = RendererSpec(
    "qwen3.5",
    {
        "qwen3_5_think": NONE, "qwen3_5_nothink": NONE, "qwen3_6": NONE,
        "qwen3_5_nothink_training": CALLING,
    },
    {**XML_CALLS, **THOUGHTS},
    stops=END,
)  # fmt: skip
QWEN35_KEEP = RendererSpec(
    "qwen3.5-keep",
    {"qwen3_5_think_training": ALL, "qwen3_6_training": ALL, "qwen3_8": ALL, "qwen3_8_training": ALL},
    {**XML_CALLS, **THOUGHTS},
    stops=END,
)
"""Qwen 3.5 and 3.6 with their thoughts kept, and Qwen 3.8, which keeps them."""
