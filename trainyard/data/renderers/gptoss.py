"""gpt-oss writes OpenAI's harmony: channels for thoughts, calls and the answer.

A last answer ends with `<|return|>`, one in the history with `<|end|>`, and thoughts leave the history: turns do not
extend. source: openai/harmony, docs/format.md
"""

from __future__ import annotations

from trainyard.data.renderers.contract import NONE, RendererSpec

GPT_OSS = RendererSpec(
    "gpt-oss",
    {"gptoss": NONE, "gptoss_training": NONE},
    {
        "reasoning_content": {
            "open": "<|channel|>analysis<|message|>", "close_pattern": r"<\|end\|>(?:<\|start\|>assistant)?",
            "content": "text",
        },
        "tool_calls": {
            "open_pattern": r"\s*to=functions\.(?P<name>\S+?)<\|channel\|>commentary\s+json<\|message\|>",
            "close_pattern": r"<\|call\|>", "repeats": True, "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {
            "open": "<|channel|>final<|message|>", "content": "text", "content_args": {"strip": False},
        },
    },
    stops=("<|return|>", "<|call|>"),
)  # fmt: skip
