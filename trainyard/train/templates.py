"""Chat templates: what a conversation looks like to the model, and where the assistant's turns begin and end.

A template is a program that comes with a model. transformers runs it in Jinja's sandbox; here it also gets a limit on
time and memory.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import orjson
import psutil
from transformers import PreTrainedTokenizerBase

from trainyard.data.rows import Message
from trainyard.errors import TrainyardError

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{{ eos_token if message.role == 'assistant' }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""For a base model without a chat template; saved with the adapter, so that serving uses the same."""
TEMPLATE_CPU_S = 5.0
TEMPLATE_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True)
class Piece:
    """A stretch of a rendered conversation."""

    text: str
    learned: bool


class TemplateLimit(TrainyardError):
    """A chat template that used up what one row may cost."""

    default_code = "E-TEMPLATE-LIMIT"


@contextmanager
def template_limits(cpu_s: float = TEMPLATE_CPU_S, memory_bytes: int = TEMPLATE_MEMORY_BYTES) -> Iterator[None]:
    """Bound what a chat template, which comes with a model, may cost: CPU time and memory. The main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(_signal: int, _frame: FrameType | None) -> None:
        raise TemplateLimit(
            f"The chat template took more than {cpu_s:g} s of CPU time for one row.",
            why="A template is a program that comes with the model; this one is broken or hostile.",
            do="Use another model, or replace its chat template.",
        )

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    ceiling = psutil.Process(os.getpid()).memory_info().vms + memory_bytes
    previous = signal.signal(signal.SIGVTALRM, over)
    resource.setrlimit(resource.RLIMIT_AS, (ceiling if hard == resource.RLIM_INFINITY else min(ceiling, hard), hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    except MemoryError:
        raise TemplateLimit(
            "The chat template asked for more memory than a row may cost.",
            why="A template is a program that comes with the model; this one is broken or hostile.",
            do="Use another model, or replace its chat template.",
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, previous)


def turn(message: Message) -> dict[str, Any]:
    """A message as chat templates expect it."""
    given: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        given["tool_calls"] = orjson.loads(message.tool_calls)
    return given


class Renderer:
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.end_ids = set(tokenizer.all_special_ids)

    def text(self, turns: list[dict[str, Any]], tools: str | None, *, ask: bool) -> str:
        """The template's text; `ask` ends it where the assistant begins."""
        tool_list = orjson.loads(tools) if tools else None
        rendered = self.tokenizer.apply_chat_template(turns, tools=tool_list, tokenize=False, add_generation_prompt=ask)
        return str(rendered)

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def learned_ids(self, text: str) -> list[int]:
        """Ids of an assistant turn. Where the template has no end-of-turn token the end-of-text one is added:
        a model that never sees an end does not learn to stop."""
        ids = self.ids(text)
        eos = self.tokenizer.eos_token_id
        if ids and ids[-1] not in self.end_ids and eos is not None:
            ids.append(eos)
        return ids

    def pieces(self, messages: list[Message], tools: str | None) -> list[Piece]:
        """The conversation, cut at the borders of the assistant's turns.

        A template that rewrites earlier turns (some drop old thoughts) gives no border for them: then they are shown,
        not learned. What follows the last end-of-turn token is left out.
        """
        turns = [turn(message) for message in messages]
        whole = self.text(turns, tools, ask=False)
        pieces: list[Piece] = []
        position = 0
        for index, message in enumerate(messages):
            if message.role != "assistant":
                continue
            is_last = index == len(messages) - 1
            upto = whole if is_last else self.text(turns[: index + 1], tools, ask=False)
            start = common_prefix(self.text(turns[:index], tools, ask=True), whole) if index else 0
            end = len(upto.rstrip())
            if start >= position and end > start and whole.startswith(upto[:end]):
                pieces += [Piece(whole[position:start], False), Piece(whole[start:end], True)]
                position = end
        if position < len(whole.rstrip()):
            pieces.append(Piece(whole[position:], False))
        return [piece for piece in pieces if piece.text]


def common_prefix(one: str, other: str) -> int:
    """Length of what two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))
