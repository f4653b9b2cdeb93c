"""Mistral Instruct (v0.3): instructions in brackets, `</s>` after each answer, the system prompt in the last question.

Because the system prompt and the tools move to the last question, a conversation that has them does not extend.
source: mistral-common, docs/usage/tokenizers.md (instruct tokenizer v3)
"""

from __future__ import annotations

from trainyard.data.renderers.contract import CONTENT, Flavour, RendererSpec

MISTRAL_TEMPLATE = """\
{%- set system = messages[0].content if messages[0].role == 'system' else none %}
{%- set turns = messages[1:] if system is not none else messages %}
{%- set asked = namespace(last=-1) %}
{%- for turn in turns if turn.role == 'user' %}{% set asked.last = asked.last + 1 %}{% endfor %}
{%- set seen = namespace(users=-1) %}
{{- bos_token }}
{%- for turn in turns %}
    {%- if turn.role == 'user' %}
        {%- set seen.users = seen.users + 1 %}
        {%- set is_last = seen.users == asked.last %}
        {%- if is_last and tools %}
            {{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + (system + '\\n\\n' if is_last and system else '') + turn.content + '[/INST]' }}
    {%- elif turn.role == 'assistant' and turn.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in turn.tool_calls %}
            {%- set call = call.function if call.function else call %}
            {{- '{"name": ' + (call.name | tojson) + ', "arguments": ' + (call.arguments | tojson) + '}' }}
            {{- ', ' if not loop.last }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif turn.role == 'assistant' %}
        {{- ' ' + turn.content + eos_token }}
    {%- elif turn.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + (turn.content | tojson) + '}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception('only user, assistant and tool turns follow the system message') }}
    {%- endif %}
{%- endfor %}"""

MISTRAL = RendererSpec(
    "mistral",
    {"mistral": frozenset({Flavour.PLAIN})},
    {
        "tool_calls": {
            "open": "[TOOL_CALLS]", "content": "json", "transform_each": True,
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
        },
        **CONTENT,
    },
    own={"mistral": MISTRAL_TEMPLATE},
)  # fmt: skip
