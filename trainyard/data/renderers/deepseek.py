"""DeepSeek V3 and R1: the prompt opens a thought for the model, the history drops it, so turns do not extend."""

from __future__ import annotations

from trainyard.data.renderers.contract import NONE, THOUGHTS, Grammar, RendererSpec

CALLS: Grammar = {
    "tool_calls": {
        "open_pattern": r"(?:<｜tool▁calls▁begin｜>|\s*)<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\n]+)\n"
        r"```json\n",
        "close_pattern": r"\n```<｜tool▁call▁end｜>(?:<｜tool▁calls▁end｜>)?", "repeats": True, "content": "json",
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    }
}  # fmt: skip

DEEPSEEK_V3 = RendererSpec("deepseek-v3", {"deepseekv3": NONE, "deepseekv3_training": NONE}, {**CALLS, **THOUGHTS})
DEEPSEEK_R1 = RendererSpec(
    "deepseek-r1", {"deepseek_r1_distill": NONE, "deepseek_r1_distill_training": NONE}, {**CALLS, **THOUGHTS}
)
