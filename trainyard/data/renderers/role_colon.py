"""`user: …`, `assistant: …`: for a base model without a template; needs no special token but the end of text."""

from __future__ import annotations

from trainyard.data.renderers.contract import CONTENT, PLAIN, RendererSpec

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{{ eos_token if message.role == 'assistant' }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""For a base model without a chat template; saved with the adapter, so that serving uses the same."""

ROLE_COLON = RendererSpec("role_colon", {"role_colon": PLAIN}, CONTENT, own={"role_colon": PLAIN_TEMPLATE})
