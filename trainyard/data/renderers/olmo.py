"""OLMo 3: ChatML in which the last answer ends with the end-of-text token and an earlier one with `<|im_end|>`.

Functions are listed in the system message, calls and results are in tags.
source: the chat format in the model card of allenai/Olmo-3-7B-Instruct
"""

from __future__ import annotations

from trainyard.data.renderers.contract import NONE, THOUGHTS, RendererSpec

OLMO3_TEMPLATE = """\
{%- set calling = 'You are a helpful function-calling AI assistant. ' %}
{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}
{{- '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else calling) }}
{%- if tools %}
    {{- ' <functions>' + (tools | tojson) + '</functions>' }}
{%- else %}
    {{- ('' if messages[0].role == 'system' else 'You do not currently have access to any functions.') }}
    {{- ' <functions></functions>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for turn in turns %}
    {%- if turn.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (turn.content or '') }}
        {%- if turn.tool_calls %}
            {{- '<function_calls>' }}
            {%- for call in turn.tool_calls %}
                {%- set call = call.function if call.function else call %}
                {{- call.name + '(' }}
                {%- for key, value in call.arguments.items() %}
                    {{- key + '=' + (value | tojson) + (', ' if not loop.last else '') }}
                {%- endfor %}
                {{- ')' + ('\\n' if not loop.last else '') }}
            {%- endfor %}
            {{- '</function_calls>' }}
        {%- endif %}
        {{- eos_token if loop.last else '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + ('environment' if turn.role == 'tool' else turn.role) + '\\n' }}
        {{- turn.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

OLMO3 = RendererSpec(
    "olmo3",
    {"olmo3": NONE},
    {
        "tool_calls": {
            "open_pattern": r"(?:<function_calls>|\n)(?P<name>[\w.]+)\(", "close_pattern": r"\)(?:</function_calls>)?",
            "repeats": True, "content": "xml-inline",
            "content_args": {
                "tag_pattern": r'(?P<key>\w+)=(?P<value>"(?:[^"\\]|\\.)*"|[^,"]+)',
                "value_parser": {"name": "json", "args": {"allow_non_json": True}},
            },
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        **THOUGHTS,
    },
    own={"olmo3": OLMO3_TEMPLATE},
    tokens=("<|endoftext|>",),
)  # fmt: skip
