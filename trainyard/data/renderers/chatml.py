"""ChatML, and Qwen 2.5, which writes it with a system prompt of its own."""

from __future__ import annotations

from trainyard.data.renderers.contract import CALLING, CONTENT, JSON_CALLS, PLAIN, RendererSpec

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CHATML = RendererSpec("chatml", {"chatml": PLAIN}, CONTENT, own={"chatml": CHATML_TEMPLATE})
QWEN25 = RendererSpec(
    "qwen2.5",
    {"qwen2_5": CALLING, "qwen2_5_training": CALLING, "qwen2_5_vl": PLAIN, "qwen2_5_vl_training": PLAIN},
    {**JSON_CALLS, **CONTENT},
    stops=("<|endoftext|>",),
)
