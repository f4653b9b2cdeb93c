"""Llama 3: roles in header tokens, `<|eot_id|>` after each turn; 3.1 and later write a call as one JSON object."""

from __future__ import annotations

from trainyard.data.renderers.contract import CALLING, CONTENT, PLAIN, RendererSpec

STOPS = ("<|end_of_text|>", "<|eom_id|>")

LLAMA3 = RendererSpec("llama3", {"llama3": PLAIN, "llama3_training": PLAIN}, CONTENT, stops=STOPS)
LLAMA31 = RendererSpec(
    "llama3.1",
    {"llama3_1": CALLING, "llama3_2": CALLING},
    {
        "tool_calls": {
            "open_pattern": r'\A\{"name":\s*"(?P<name>[^"]+)",\s*"parameters":\s*', "close_pattern": r"\}\s*\Z",
            "repeats": True, "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        **CONTENT,
    },
    stops=STOPS,
)  # fmt: skip
