"""A model's chat template is a program of a stranger: it is tried in a child process with limits before it is used.

Sample conversations are rendered in jinja's immutable sandbox, under limits of memory and processor time
(`trainyard.data.renderers.limited`). What passes may still be refused later for a conversation that it does not
support; it cannot reach Python's objects, the disk or the net.
"""

from __future__ import annotations

import json
from pathlib import Path

import jinja2

from trainyard.data.renderers.limited import LimitedTemplate, TemplateLimit
from trainyard.data.template_child import Unsupported
from trainyard.errors import InvalidInput
from trainyard.stores.models import chat_template

CPU_S = 3.0
MAX_TEMPLATE_CHARS = 256 << 10
MAX_RENDERED_CHARS = 64 << 10
"""A template adds some hundred characters to the samples; one that adds more is not a chat template."""
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "tools": None}
SAMPLES: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello. How can I help?"},
        {"role": "user", "content": "Tell me more."},
    ],
)


def check_folder(folder: Path) -> None:
    """Check a model folder's template; a folder without one passes. Raises as `check_chat_template`."""
    text = chat_template(folder)
    if text is not None:
        check_chat_template(text)


def check_chat_template(text: str, *, cpu_s: float = CPU_S) -> None:
    """Try a template in a child process. Raises `InvalidInput` (`E-CHAT-TEMPLATE`) with what it did."""
    if len(text) > MAX_TEMPLATE_CHARS:
        raise refused_error(f"it has {len(text):,} characters; {MAX_TEMPLATE_CHARS:,} are allowed")
    child = LimitedTemplate(text, cpu_s=cpu_s)
    try:
        for number, messages in enumerate(SAMPLES):
            for ask in (True, False):
                try_sample(child, messages, ask=ask, required=number == 0)
    finally:
        child.stop()


def try_sample(child: LimitedTemplate, messages: list[dict[str, str]], *, ask: bool, required: bool) -> None:
    """Render one sample; a template need not support those that are not required."""
    try:
        rendered = child.render(json.dumps({**NAMES, "messages": messages, "add_generation_prompt": ask}))
    except Unsupported as error:
        if required:
            raise refused_error(f"it takes no plain user message ({error})") from error
        return
    except (TemplateLimit, jinja2.TemplateError) as error:
        raise refused_error(error.what if isinstance(error, TemplateLimit) else str(error)) from error
    if len(rendered) > MAX_RENDERED_CHARS:
        length = sum(len(message["content"]) for message in messages)
        raise refused_error(f"it turned {length} characters into {len(rendered):,}")


def refused_error(why: str) -> InvalidInput:
    return InvalidInput(
        f"The chat template is refused: {why.rstrip('.')}.",
        why="A chat template is a program; it may only arrange messages.",
        do="Use the template of the model's maker, or a plain one such as ChatML.",
        code="E-CHAT-TEMPLATE",
    )
