"""GLM 4.5: a turn has no end of its own; the model stops by naming who speaks next (`<|user|>`, `<|observation|>`)."""

from __future__ import annotations

from trainyard.data.renderers.contract import CALLING, THOUGHTS, RendererSpec

GLM4 = RendererSpec(
    "glm4.5",
    {"glm4moe": CALLING, "glm4moe_training": CALLING},
    {
        "tool_calls": {
            "open_pattern": r"\n?<tool_call>(?P<name>\S+)\n?", "close_pattern": r"</tool_call>", "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
                "value_parser": {"name": "json", "args": {"allow_non_json": True}},
            },
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        **THOUGHTS,
        "reasoning_content": {"open_pattern": r"\n?<think>", "close_pattern": r"</think>\n?", "content": "text"},
    },
    stops=("<|user|>", "<|observation|>", "<|endoftext|>"),
)  # fmt: skip
