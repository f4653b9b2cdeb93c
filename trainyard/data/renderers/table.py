"""The renderers by name, family by family.

A row says which chat templates belong to it, in which kinds of conversation their turns extend one another, how an
answer becomes a message, and which stop tokens there are besides those that the template writes.

The chat templates that are written here; those of other families are files that TRL ships.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainyard.data.renderers.contract import ALL, CALLING, NONE, PLAIN, Flavour, Grammar, RendererSpec

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
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{{ eos_token if message.role == 'assistant' }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""For a base model without a chat template; saved with the adapter, so that serving uses the same."""


def read_template(name: str) -> str:
    """Return the text of a `.jinja` file of this folder."""
    return Path(__file__).with_name(f"{name}.jinja").read_text(encoding="utf-8").removesuffix("\n")


NO_SYSTEM = frozenset({Flavour.PLAIN})
LENIENT_JSON = {"name": "json", "args": {"allow_non_json": True}}
END = ("<|endoftext|>",)
LLAMA_STOPS = ("<|end_of_text|>", "<|eom_id|>")

CONTENT: Grammar = {"content": {"content": "text", "content_args": {"strip": False}}}
"""An answer that is all text."""
THOUGHTS: Grammar = {
    "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"}, **CONTENT
}  # fmt: skip
JSON_CALLS: Grammar = {
    "tool_calls": {
        "open": "<tool_call>", "close_pattern": r"</tool_call>\s*", "repeats": True, "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    }
}  # fmt: skip
"""`<tool_call>{"name": …, "arguments": …}</tool_call>`, as Hermes and Qwen write calls."""


def calls(open_pattern: str, close_pattern: str, content: str, **more: Any) -> Grammar:
    """Calls between two patterns, the first of which has the group `name`; what is between them is the arguments."""
    function = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
    patterns = {"open_pattern": open_pattern, "close_pattern": close_pattern}
    return {"tool_calls": {**patterns, "repeats": True, "content": content, "transform": function, **more}}


XML_CALLS = calls(
    r"<tool_call>\s*<function=(?P<name>[^\n>]+)>", r"</tool_call>\s*", "xml-inline",
    content_args={
        "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>",
        "value_parser": {"name": "json", "args": {"allow_non_json": True}},
    },
)  # fmt: skip
"""`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`, as Qwen 3.5 and Nemotron."""

DEFAULT = RendererSpec("default", {}, THOUGHTS)
"""For a template that no row knows: everything about it is probed."""


def claim(names: str, flavours: frozenset[Flavour]) -> dict[str, frozenset[Flavour]]:
    """Templates that extend their turns in the same kinds of conversation."""
    return dict.fromkeys(names.split(), flavours)


COHERE = RendererSpec(
    "cohere",
    claim("cohere cohere2 cohere_training cohere2_training", PLAIN),
    {"content": {"close": "<|END_RESPONSE|>", "content": "text", "content_args": {"strip": False}}},
    stops=("<|END_OF_TURN_TOKEN|>",),
)
"""Cohere's Aya: one token for each role, trimmed contents."""

DEEPSEEK_CALLS = calls(
    r"(?:<｜tool▁calls▁begin｜>|\s*)<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\n]+)\n"
    r"```json\n",
    r"\n```<｜tool▁call▁end｜>(?:<｜tool▁calls▁end｜>)?",
    "json",
)
DEEPSEEK_GRAMMAR = {**DEEPSEEK_CALLS, **THOUGHTS}
"""DeepSeek V3 and R1: the prompt opens a thought for the model, the history drops it, so turns do not extend."""

GEMMA4 = RendererSpec(
    "gemma4",
    claim("gemma4_v5 gemma4_v4 gemma4_v3 gemma4_v2 gemma4 diffusion_gemma diffusion_gemma_training", CALLING),
    {
        "reasoning_content": {"open": "<|channel>thought\n", "close_pattern": r"<channel\|>\s*", "content": "text"},
        **calls(
            r"<\|tool_call>call:(?P<name>\w+)", r"<tool_call\|>\s*", "json",
            content_args={"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
        ),
        **CONTENT,
    },
    stops=("<|tool_response>",),
    tokens=('<|"|>',),
)  # fmt: skip
"""Gemma: the assistant is called `model`, contents are trimmed, and a system message goes before the first question."""

GLM4 = RendererSpec(
    "glm4.5",
    {"glm4moe": CALLING, "glm4moe_training": CALLING},
    {
        **calls(
            r"\n?<tool_call>(?P<name>\S+)\n?", r"</tool_call>", "xml-inline",
            content_args={
                "tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
                "value_parser": LENIENT_JSON,
            },
        ),
        **THOUGHTS,
        "reasoning_content": {"open_pattern": r"\n?<think>", "close_pattern": r"</think>\n?", "content": "text"},
    },
    stops=("<|user|>", "<|observation|>", "<|endoftext|>"),
)  # fmt: skip
"""GLM 4.5: a turn has no end of its own; the model stops by naming who speaks next (`<|user|>`, `<|observation|>`)."""

GPT_OSS = RendererSpec(
    "gpt-oss",
    {"gptoss": NONE, "gptoss_training": NONE},
    {
        "reasoning_content": {
            "open": "<|channel|>analysis<|message|>", "close_pattern": r"<\|end\|>(?:<\|start\|>assistant)?",
            "content": "text",
        },
        **calls(
            r"\s*to=functions\.(?P<name>\S+?)<\|channel\|>commentary\s+json<\|message\|>", r"<\|call\|>", "json"
        ),
        "content": {
            "open": "<|channel|>final<|message|>", "content": "text", "content_args": {"strip": False},
        },
    },
    stops=("<|return|>", "<|call|>"),
)  # fmt: skip
"""gpt-oss writes OpenAI's harmony: channels for thoughts, calls and the answer. A last answer ends with `<|return|>`,
one in the history with `<|end|>`, and thoughts leave the history: turns do not extend.
source: openai/harmony, docs/format.md"""

LFM_CALLS = calls(
    r"(?:<\|tool_call_start\|>\[|,\s*)(?P<name>\w+)\(", r"\)(?:\]<\|tool_call_end\|>)?", "xml-inline",
    content_args={
        "tag_pattern": r"(?P<key>\w+)=(?P<value>'[^']*'|[^,)]*)",
        "value_parser": {"name": "json", "args": {"string_delims": [["'", "'"]], "allow_non_json": True}},
    },
)  # fmt: skip
"""`<|tool_call_start|>[name(key='value')]<|tool_call_end|>`; lists and objects as values are not read. Liquid LFM 2
and 2.5 are ChatML with tool tokens and calls that read as Python; 2.5 thinks."""

LLAMA31 = RendererSpec(
    "llama3.1",
    {"llama3_1": CALLING, "llama3_2": CALLING},
    {**calls(r'\A\{"name":\s*"(?P<name>[^"]+)",\s*"parameters":\s*', r"\}\s*\Z", "json"), **CONTENT},
    stops=LLAMA_STOPS,
)
"""Llama 3: roles in header tokens, `<|eot_id|>` after each turn; 3.1 and later write a call as one JSON object."""

MISTRAL = RendererSpec(
    "mistral",
    {"mistral": NO_SYSTEM},
    {
        "tool_calls": {
            "open": "[TOOL_CALLS]", "content": "json", "transform_each": True,
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
        },
        **CONTENT,
    },
    own_templates={"mistral": read_template("mistral")},
)  # fmt: skip
"""Mistral Instruct (v0.3): instructions in brackets, `</s>` after each answer, the system prompt in the last question.
Because the system prompt and the tools move to the last question, a conversation that has them does not extend.
source: mistral-common, docs/usage/tokenizers.md (instruct tokenizer v3)"""

NEMOTRON3 = RendererSpec(
    "nemotron3",
    claim("nemotron_3_nano nemotron_3_super nemotron_3_ultra nemotron_3_nano_training nemotron_3_super_training "
          "nemotron_3_ultra_training nemotron_3_5_lightning nemotron_3_5_lightning_training", NONE),
    {**XML_CALLS, **THOUGHTS},
)  # fmt: skip
"""Nemotron 3: ChatML that opens a thought in the prompt; a history keeps an empty block only."""

OLMO3 = RendererSpec(
    "olmo3",
    {"olmo3": NONE},
    {
        **calls(
            r"(?:<function_calls>|\n)(?P<name>[\w.]+)\(", r"\)(?:</function_calls>)?", "xml-inline",
            content_args={
                "tag_pattern": r'(?P<key>\w+)=(?P<value>"(?:[^"\\]|\\.)*"|[^,"]+)',
                "value_parser": LENIENT_JSON,
            },
        ),
        **THOUGHTS,
    },
    own_templates={"olmo3": read_template("olmo3")},
    tokens=("<|endoftext|>",),
)  # fmt: skip
"""OLMo 3: ChatML in which the last answer ends with the end-of-text token and an earlier one with `<|im_end|>`.
Functions are listed in the system message, calls and results are in tags.
source: the chat format in the model card of allenai/Olmo-3-7B-Instruct"""

QWEN = (
    RendererSpec(
        "qwen2.5",
        {"qwen2_5": CALLING, "qwen2_5_training": CALLING, "qwen2_5_vl": PLAIN, "qwen2_5_vl_training": PLAIN},
        {**JSON_CALLS, **CONTENT},
        stops=END,
    ),
    # As the models of April 2025 were published: thoughts only in the last turn.
    RendererSpec("qwen3", {"qwen3": NONE}, {**JSON_CALLS, **THOUGHTS}, stops=END),
    # The models of July 2025 that do not think, and Qwen 3 VL.
    RendererSpec(
        "qwen3-instruct",
        claim("qwen3_instruct_2507 qwen3_instruct_2507_training qwen3_vl qwen3_vl_training", CALLING),
        {**JSON_CALLS, **CONTENT},
        stops=END,
    ),
    # Thoughts stay in the history; every turn has a block for them.
    RendererSpec("qwen3-keep", {"qwen3_training": ALL}, {**JSON_CALLS, **THOUGHTS}, stops=END),
    RendererSpec(
        "qwen3.5",
        {**claim("qwen3_5_think qwen3_5_nothink qwen3_6", NONE), "qwen3_5_nothink_training": CALLING},
        {**XML_CALLS, **THOUGHTS},
        stops=END,
    ),
    # Qwen 3.5 and 3.6 with their thoughts kept, and Qwen 3.8, which keeps them.
    RendererSpec(
        "qwen3.5-keep",
        claim("qwen3_5_think_training qwen3_6_training qwen3_8 qwen3_8_training", ALL),
        {**XML_CALLS, **THOUGHTS},
        stops=END,
    ),
)  # fmt: skip
"""Qwen 2.5 is ChatML with a system prompt of its own. From Qwen 3 on, the hybrid models drop thoughts from the history,
so their turns do not extend one another."""

ROLE_COLON = RendererSpec("role_colon", {"role_colon": PLAIN}, CONTENT, own_templates={"role_colon": PLAIN_TEMPLATE})
"""`user: …`, `assistant: …`: for a base model without a template; needs no special token but the end of text."""

RENDERERS: dict[str, RendererSpec] = {
    spec.name: spec
    for spec in (
        RendererSpec("chatml", {"chatml": PLAIN}, CONTENT, own_templates={"chatml": CHATML_TEMPLATE}),
        COHERE,
        RendererSpec("deepseek-r1", claim("deepseek_r1_distill deepseek_r1_distill_training", NONE), DEEPSEEK_GRAMMAR),
        RendererSpec("deepseek-v3", {"deepseekv3": NONE, "deepseekv3_training": NONE}, DEEPSEEK_GRAMMAR),
        RendererSpec("gemma", {"gemma": NO_SYSTEM, "gemma_training": NO_SYSTEM}, CONTENT),  # 1 and 2
        RendererSpec("gemma3", {"gemma3": PLAIN, "gemma3_training": PLAIN}, CONTENT),
        *(GEMMA4, GLM4, GPT_OSS),
        RendererSpec(
            "lfm2",
            {"lfm2_v2": CALLING, "lfm2": PLAIN, "lfm2_training": PLAIN, "lfm2_v2_training": CALLING},
            {**LFM_CALLS, **CONTENT},
        ),
        RendererSpec("lfm2.5", claim("lfm2_2_5_v2 lfm2_2_5 lfm2_2_5_vl", CALLING), {**LFM_CALLS, **THOUGHTS}),
        RendererSpec("llama3", {"llama3": PLAIN, "llama3_training": PLAIN}, CONTENT, stops=LLAMA_STOPS),
        *(LLAMA31, MISTRAL, NEMOTRON3, OLMO3),
        # Phi 3 and 3.5: one token for each role. The template closes a conversation with the end-of-text token.
        RendererSpec("phi3", claim("phi3 phi3_5 phi3_training phi3_5_training", PLAIN), CONTENT),
        *(*QWEN, ROLE_COLON),
    )
}
