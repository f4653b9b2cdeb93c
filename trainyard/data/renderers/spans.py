"""The text of a template and the boundaries in it: of messages, of the assistant's text, of its stop tokens.

Borders are found by rendering: a conversation cut short, or asked for the next answer, begins like the whole one up to
the border. A border never lies inside a control token.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import encode_marked_chat, mark_control_tokens

from trainyard.data.renderers.choice import recognise_template
from trainyard.data.renderers.contract import RendererSpec, Tools, Turn
from trainyard.data.renderers.day import DAY
from trainyard.data.renderers.limited import LimitedTemplate, is_known, open_limited
from trainyard.data.renderers.turns import REFUSALS, refusals, sort_results, to_blocks, with_arguments

OPEN, CLOSE = "\U000f0000", "\U000f0001"
MARKERS = re.compile(f"[{OPEN}{CLOSE}]")
ASKED: Turn = {"role": "user", "content": "melon"}
ANSWERED: Turn = {"role": "assistant", "content": "kiwi"}


@dataclass(frozen=True)
class Span:
    """A stretch of a rendered text, and the index of its message."""

    start: int
    end: int
    message: int


class Control:
    """The control tokens of a tokenizer under a template.

    Control tokens that a user writes stay text: `<|im_end|>` in a question must not end the turn.

    Before a template runs, control tokens in the messages are put between two private-use characters; when the rendered
    text is tokenised, the text between them is encoded without added tokens. The marking is that of transformers
    (`mark_control_tokens`, `encode_marked_chat`), which does the same for a whole chat
    (`apply_chat_template(sanitize_control_tokens=True)`); here it also works on pieces, and what the assistant says may
    contain tokens that are not special, such as `<think>`, because it is what the model itself writes.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str) -> None:
        self.tokenizer = tokenizer
        added = [token for token in tokenizer.added_tokens_decoder.values() if token.content.strip()]
        special = {token.content for token in added if token.special}
        written = {token.content for token in added if token.content in template}
        self.anyone = pattern(special | written)
        """Tokens that only the template may write: special tokens, and added tokens that the template uses."""
        self.special = pattern(special)
        """Further texts that the assistant may not write."""
        self.longest = max(map(len, special | written), default=0)
        newline = tokenizer("\n", add_special_tokens=False)["input_ids"]
        self.keeps_start = tokenizer("\na", add_special_tokens=False)["input_ids"] == [
            *newline, *tokenizer("a", add_special_tokens=False)["input_ids"],
        ]  # fmt: skip
        """Whether a text is encoded alike at the start and elsewhere; SentencePiece may put a space before a start."""

    def mark_turns(self, turns: list[Turn]) -> list[Turn]:
        """Return the turns with control tokens marked; roles are not data and stay as they are."""
        return [
            {
                key: value if key == "role" else self.text(value, assistant=turn.get("role") == "assistant")
                for key, value in turn.items()
            }
            for turn in turns
        ]

    def text(self, value: Any, *, assistant: bool = False) -> Any:
        """Return a text, list or mapping with control tokens marked."""
        return mark_control_tokens(value, self.special if assistant else self.anyone)

    def ids(self, text: str, *, start: bool = True) -> list[int]:
        """Ids of marked text; `start` says whether a sequence begins with it."""
        if MARKERS.search(text) or not (start or self.keeps_start):
            # A lone marker is dropped and has the rest encoded as text that continues.
            return encode_marked_chat(self.tokenizer, text if start else OPEN + text)
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def ids_of_texts(self, texts: Sequence[str], starts: Sequence[bool]) -> list[list[int]]:
        """Ids of several texts, as `ids` gives them. The tokenizer encodes those without marks in one call, on every
        core and without positions, which `tokenizer(...)` would compute: a third less CPU time."""
        together = [
            index for index, (text, start) in enumerate(zip(texts, starts, strict=True))
            if self.tokenizer.is_fast and (start or self.keeps_start) and not MARKERS.search(text)
        ]  # fmt: skip
        by_index: dict[int, list[int]] = {}
        if together:
            # `ids` was called before (`keeps_start`), so truncation and padding are off here.
            batch = [texts[index] for index in together]
            encoded = self.tokenizer.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            by_index = {index: encoding.ids for index, encoding in zip(together, encoded, strict=True)}
        return [
            by_index[index] if index in by_index else self.ids(text, start=start)
            for index, (text, start) in enumerate(zip(texts, starts, strict=True))
        ]


def pattern(tokens: set[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the tokens, the longest first; none never matches."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=lambda token: (-len(token), token)))) or "(?!)")


def remove_marks(text: str) -> str:
    return MARKERS.sub("", text) if OPEN in text or CLOSE in text else text


class TemplateText:
    """Text that a template writes, with the control tokens of the users marked. Probed when it is needed."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, spec: RendererSpec | None = None, template: str | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template or tokenizer.get_chat_template()
        self.spec = spec or recognise_template(self.template)
        self.control = Control(tokenizer, self.template)
        self.end_ids = set(tokenizer.all_special_ids)
        self.is_trusted = is_known(self.template) and not DAY.applies_to(self.template)
        """Whether the template runs here; any other is rendered in a child under limits, every time, and so is one that
        writes a fixed day."""

    def text(self, turns: list[Turn], tools: Tools | str | None = None, *, ask: bool = False) -> str:
        """Return the template's text; `ask` ends it where the assistant begins. `tools` is a list, or its JSON text.

        Raises `TemplateRefusal`, whatever the template raised, and `TemplateLimit` for one that took too much.
        """
        with refusals():
            return self.written(
                self.adapt_turns(turns), orjson.loads(tools) if isinstance(tools, str) else tools, ask=ask
            )

    def written(self, turns: list[Turn], tools: Tools | None, *, ask: bool) -> str:
        template = self.template if self.is_trusted else self.variables
        rendered = self.tokenizer.apply_chat_template(
            self.control.mark_turns(turns),
            tools=self.control.text(tools),
            chat_template=template,
            tokenize=False,
            add_generation_prompt=ask,
        )
        return str(rendered) if self.is_trusted else self.child.render(str(rendered))

    @cached_property
    def child(self) -> LimitedTemplate:
        return open_limited(self.template)

    @cached_property
    def variables(self) -> str:
        """Return a template that writes, as JSON, all that transformers would show to the real one."""
        names = ["messages", "tools", "documents", "add_generation_prompt", *self.tokenizer.special_tokens_map]
        return "{{ {" + ", ".join(f"'{name}': {name}" for name in names) + "} | tojson }}"

    def adapt_turns(self, turns: list[Turn]) -> list[Turn]:
        """The turns in the form that the template takes: contents as text or blocks, arguments as objects or text, and
        results in the order of their calls. Raises `TemplateRefusal` for arguments that are not an object."""
        if any(turn.get("tool_calls") for turn in turns):
            turns = [with_arguments(turn, as_text=self.wants_argument_text) for turn in sort_results(turns)]
        return to_blocks(turns) if self.wants_blocks else turns

    # Facts of the template

    @cached_property
    def wants_blocks(self) -> bool:
        """Whether a content has to be a list of blocks, as in templates of models that see pictures."""
        results = [ASKED["content"] in self.attempt(turns, ask=True) for turns in ([ASKED], to_blocks([ASKED]))]
        return results == [False, True]

    @cached_property
    def wants_argument_text(self) -> bool:
        """Whether the arguments of a call have to be JSON text; most templates take an object and write the JSON."""
        function = {"name": "weigh", "arguments": {"fruit": "kiwi"}}
        called: Turn = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        forms = [[ASKED, with_arguments(called, as_text=as_text)] for as_text in (False, True)]
        results = [bool(self.attempt(to_blocks(form) if self.wants_blocks else form, ask=False)) for form in forms]
        return results == [False, True]

    def attempt(self, turns: list[Turn], *, ask: bool) -> str:
        """Return the text for turns in this form; empty if the template does not take them."""
        try:
            return self.written(turns, None, ask=ask)
        except REFUSALS:
            return ""

    @cached_property
    def stops(self) -> dict[str, int]:
        """Stop tokens -> ids: the one that the template writes after a last answer, the row's, and the end of text."""
        stop = self.after_answer([ASKED, ANSWERED]) or self.separator
        tokens = [stop, *self.spec.stops, self.tokenizer.eos_token]
        added = self.tokenizer.get_added_vocab()
        return {token: added[token] for token in tokens if token and token in added}

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        return frozenset(self.stops.values())

    @cached_property
    def separator(self) -> str | None:
        """Return the token that the template writes between an answer and the next question, if there is one."""
        return self.after_answer([ASKED, ANSWERED, ASKED])

    def after_answer(self, turns: list[Turn]) -> str | None:
        """The stop token after the probe's answer: of the control tokens there, one of the row's, or the first."""
        try:
            text = self.text(turns)
        except REFUSALS:
            return None
        _, answer, rest = text.rpartition(ANSWERED["content"])
        run = re.match(rf"(?:\s*(?:{self.control.anyone.pattern}))+", rest) if answer else None
        tokens = self.control.anyone.findall(run.group()) if run else []
        return next((token for token in tokens if token in self.spec.stops), tokens[0] if tokens else None)

    @cached_property
    def lead(self) -> str:
        """Text of the template between a generation prompt and the answer: a space, an empty block for thoughts."""
        try:
            prompt, whole = self.text([ASKED], ask=True), self.text([ASKED, ANSWERED])
        except REFUSALS:
            return ""
        lead, answer, _ = whole[self.border(prompt, whole) :].partition(ANSWERED["content"])
        return lead if answer else ""

    @cached_property
    def trailer(self) -> str:
        """What the template writes after the stop token of a last answer and not after an earlier one: some write the
        header of the next answer whether it is asked for or not."""
        try:
            last = self.text([ASKED, ANSWERED]).rpartition(ANSWERED["content"])[2]
            earlier = self.text([ASKED, ANSWERED, ASKED]).partition(ANSWERED["content"])[2]
        except REFUSALS:
            return ""
        stop = self.after_answer([ASKED, ANSWERED])
        if stop is None or earlier.startswith(last) or not earlier.lstrip().startswith(stop):
            return ""
        return last.partition(stop)[2].strip()

    # Borders

    def border(self, first: str, other: str) -> int:
        """Where two texts part, moved to the start of a control token of either that it would cut."""
        position = common_prefix(first, other)
        return min(self.move_outside_tokens(text, position) for text in (first, other))

    def move_outside_tokens(self, text: str, position: int) -> int:
        matches = self.control.anyone.finditer(text, max(0, position - self.control.longest))
        return next((match.start() for match in matches if match.start() < position < match.end()), position)

    def learned(self, turns: list[Turn], tools: Tools | str | None, whole: str, *, first: int = 0) -> list[Span]:
        """Return the spans of the assistant's turns in the rendered text, stop tokens included, from a turn on.

        A template that rewrites earlier turns (some drop old thoughts) gives no border for them: then they are shown,
        not learned, because the model would not say them so. `Renderer.cut` has them learned apart.
        """
        spans: list[Span] = []
        position = 0
        for index, turn in enumerate(turns):
            if index < first or turn["role"] != "assistant":
                continue
            upto = whole if index == len(turns) - 1 else self.text(turns[: index + 1], tools)
            start = self.answer_start(turns[:index], tools, whole)
            end = self.turn_end(upto)
            if start is not None and start >= position and end > start and whole.startswith(upto[:end]):
                spans.append(Span(start, self.with_stop(whole, end), index))
                position = spans[-1].end
        return spans

    def answer_start(self, history: list[Turn], tools: Tools | str | None, whole: str) -> int | None:
        """Return where the answer to `history` starts in the whole text; None if that is ambiguous.

        Without a history, as in chats that an assistant opens, it starts after the header of the template's answers.
        """
        if not history:
            return self.first_answer_start(whole)
        prompt = self.text(history, tools, ask=True)
        start = self.border(prompt, whole)
        if start == len(prompt):
            return start
        # They part either in what the prompt writes for the answer (`<think>`), or earlier, in a turn that the whole
        # text writes in another way. Then the answer starts after the header that follows the last turn.
        opened = self.border(self.text(history, tools), prompt)
        if start >= opened:
            return start
        content = str(history[-1].get("content") or "").strip()
        content_start = whole.rfind(content) if content else -1
        header = prompt[opened:]
        header_start = whole.find(header, content_start + len(content)) if content_start >= 0 and header.strip() else -1
        return header_start + len(header) if header_start >= 0 else None

    def first_answer_start(self, whole: str) -> int | None:
        """Return where the text of an assistant that speaks first starts; what is before it belongs to the template."""
        header = self.header.lstrip()
        if not header:
            return self.border(self.text([ASKED]), whole)
        start = whole.find(header)
        return start + len(header) if start >= 0 else None

    @cached_property
    def header(self) -> str:
        """Text of the template between a question and its answer, such as `<|im_start|>assistant` and a newline."""
        try:
            question, prompt, whole = self.text([ASKED]), self.text([ASKED], ask=True), self.text([ASKED, ANSWERED])
        except REFUSALS:
            return ""
        return whole[self.border(question, prompt) : self.answer_start([ASKED], None, whole)]

    def turn_end(self, upto: str) -> int:
        """Where the last turn of a text ends: after the first of the stop tokens at its end."""
        if self.trailer and upto.rstrip().endswith(self.trailer):
            upto = upto.rstrip().removesuffix(self.trailer)
        stop = "|".join(map(re.escape, self.stops)) or "(?!)"
        tail = re.search(rf"(?:(?:{stop})\s*)+\Z", upto)
        first = re.match(stop, tail.group()) if tail else None
        return tail.start() + first.end() if tail and first else len(upto.rstrip())

    def with_stop(self, whole: str, end: int) -> int:
        """Return the end of a turn, moved past a stop token that only the next turn writes."""
        if any(whole.endswith(stop, 0, end) for stop in self.stops):
            return end
        return next((end + len(stop) for stop in self.stops if whole.startswith(stop, end)), end)

    def message_starts(self, turns: list[Turn], tools: Tools | str | None, whole: str) -> list[int]:
        """Where each message starts in the text, then where the last one ends; never falling.

        What the template writes before the first message belongs to it.
        """
        starts, position = [0], 0
        for count in range(1, len(turns) + 1):
            content = str(turns[count - 1].get("content") or "").strip()
            content_start = whole.find(content, position) if content else -1
            end = max(position, content_start + len(content))
            if stop := next((stop for stop in self.stops if whole.startswith(stop, end)), ""):
                rest = whole[end + len(stop) :]
                end = len(whole) - len(rest.lstrip())
            position = end
            with contextlib.suppress(*REFUSALS):  # some templates take no conversation that ends here
                position = max(self.border(self.text(turns[:count], tools), whole), end)
            starts.append(position)
        return starts


def common_prefix(first: str, other: str) -> int:
    """Length of what two texts begin with alike."""
    pairs = enumerate(zip(first, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(first), len(other)))
