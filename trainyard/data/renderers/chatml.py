"""ChatML, and Qwen 2.5, which writes it with a system prompt of its own."""

from __future__ import annotations

from trainyard.data.renderers.contract import CALLING, CONTENT, JSON_CALLS, PLAIN, RendererSpec

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

STARTER_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- '<|im_start|>assistant\n' -}}"
    "{% generation %}{{- message['content'] + '<|im_end|>' -}}{% endgeneration %}"
    "{{- '\n' -}}"
    "{%- else -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
"""ChatML without a default system prompt and without a date: the same messages always give the same text."""
TINY_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{ '<|im_start|>assistant\n' }}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{{ '\n' }}"
    "{%- else -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
"""The tiny model's, which tests and examples build."""
MARKED_TEMPLATES = (STARTER_TEMPLATE, TINY_TEMPLATE)
"""ChatML with the assistant's part marked for loss masks: of the models that come with this package."""

CHATML = RendererSpec("chatml", {"chatml": PLAIN}, CONTENT, own={"chatml": CHATML_TEMPLATE})
QWEN25 = RendererSpec(
    "qwen2.5",
    {"qwen2_5": CALLING, "qwen2_5_training": CALLING, "qwen2_5_vl": PLAIN, "qwen2_5_vl_training": PLAIN},
    {**JSON_CALLS, **CONTENT},
    stops=("<|endoftext|>",),
)
