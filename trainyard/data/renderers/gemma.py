"""Gemma: the assistant is called `model`, contents are trimmed, and a system message goes before the first question."""

from __future__ import annotations

from trainyard.data.renderers.contract import CALLING, CONTENT, PLAIN, Flavour, RendererSpec

NO_SYSTEM = frozenset({Flavour.PLAIN})

GEMMA = RendererSpec("gemma", {"gemma": NO_SYSTEM, "gemma_training": NO_SYSTEM}, CONTENT)
"""Gemma 1 and 2, whose template refuses a system message."""
GEMMA3 = RendererSpec("gemma3", {"gemma3": PLAIN, "gemma3_training": PLAIN}, CONTENT)
GEMMA4 = RendererSpec(
    "gemma4",
    {
        "gemma4_v5": CALLING, "gemma4_v4": CALLING, "gemma4_v3": CALLING, "gemma4_v2": CALLING, "gemma4": CALLING,
        "diffusion_gemma": CALLING, "diffusion_gemma_training": CALLING,
    },
    {
        "reasoning_content": {"open": "<|channel>thought\n", "close_pattern": r"<channel\|>\s*", "content": "text"},
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close_pattern": r"<tool_call\|>\s*", "repeats": True,
            "content": "json", "content_args": {"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        **CONTENT,
    },
    stops=("<|tool_response>",),
    tokens=('<|"|>',),
)  # fmt: skip
