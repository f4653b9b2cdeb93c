"""Liquid LFM 2 and 2.5: ChatML with tool tokens and calls that read as Python; 2.5 thinks."""

from __future__ import annotations

from trainyard.data.renderers.contract import CALLING, CONTENT, PLAIN, THOUGHTS, Grammar, RendererSpec

CALLS: Grammar = {
    "tool_calls": {
        "open_pattern": r"(?:<\|tool_call_start\|>\[|,\s*)(?P<name>\w+)\(",
        "close_pattern": r"\)(?:\]<\|tool_call_end\|>)?",
        "repeats": True, "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"(?P<key>\w+)=(?P<value>'[^']*'|[^,)]*)",
            "value_parser": {"name": "json", "args": {"string_delims": [["'", "'"]], "allow_non_json": True}},
        },
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    }
}  # fmt: skip
"""`<|tool_call_start|>[name(key='value')]<|tool_call_end|>`; lists and objects as values are not read."""

LFM2 = RendererSpec(
    "lfm2",
    {"lfm2_v2": CALLING, "lfm2": PLAIN, "lfm2_training": PLAIN, "lfm2_v2_training": CALLING},
    {**CALLS, **CONTENT},
)
LFM25 = RendererSpec(
    "lfm2.5", {"lfm2_2_5_v2": CALLING, "lfm2_2_5": CALLING, "lfm2_2_5_vl": CALLING}, {**CALLS, **THOUGHTS}
)
