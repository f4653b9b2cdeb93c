"""A renderer: a tokenizer, a template, and what is known about the two together.

The template is run, never imitated, so the ids are those of `apply_chat_template` (a parity test compares them on every
template that is known). What this adds: where the assistant's turns begin and end, which message a token belongs to,
control tokens in a user's text that stay text, an answer read back as a message, and a conversation that continues from
sampled tokens without rendering them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
from jinja2.exceptions import TemplateError
from transformers.utils.chat_parsing import parse_response

from trainyard.data.renderers.contract import Parsed, Rendered, Termination, Tools, Turn
from trainyard.data.renderers.spans import ANSWERED, ASKED, REFUSALS, TemplateText, common_prefix, remove_marks
from trainyard.data.rows import TEMPLATE_EXTRAS, Message

ANCHOR = "\x02"
"""Where an answer begins, for the parser of transformers, which looks for it in the prompt."""


@dataclass(frozen=True)
class Piece:
    """A stretch of a rendered conversation."""

    text: str
    learned: bool
    message: int = 0
    """Index of the message that it belongs to; if there are many, the last."""


class Renderer(TemplateText):
    """A tokenizer with a template.

    Args:
        tokenizer: of the model, with its special tokens.
        spec: the row of the table, which says how answers are read; left out, the one that knows the template.
        template: text of the chat template; left out, the tokenizer's own.
    """

    def ids(self, text: str, *, start: bool = True) -> list[int]:
        """Ids of a text of this template; `start` says whether a sequence begins with it."""
        return self.control.ids(text, start=start)

    def learned_ids(self, text: str, *, start: bool = False) -> list[int]:
        """Ids of an assistant's turn. Where the template has no stop token the end of text is added: a model that
        never sees an end does not learn to stop."""
        return self.ended(self.ids(text, start=start))

    def ended(self, ids: list[int]) -> list[int]:
        """An assistant's turn with an end, if it has none."""
        eos = self.tokenizer.eos_token_id
        if ids and ids[-1] not in self.end_ids and ids[-1] not in self.stop_ids and eos is not None:
            ids.append(eos)
        return ids

    def ids_of_pieces(self, conversations: Sequence[Sequence[Piece]]) -> list[list[list[int]]]:
        """Ids of each piece of each conversation: of its first piece as a start, of a learned one with an end."""
        pieces = [(piece, index == 0) for pieces in conversations for index, piece in enumerate(pieces)]
        ids = iter(self.control.ids_of_texts([piece.text for piece, _ in pieces], [start for _, start in pieces]))
        return [[self.ended(next(ids)) if piece.learned else next(ids) for piece in pieces] for pieces in conversations]

    # Ids with their weights

    def render(
        self, turns: list[Turn], tools: Tools | str | None = None, *, add_generation_prompt: bool = False
    ) -> Rendered:
        """The conversation as `apply_chat_template` tokenises it, with weights and message indices.

        A token that reaches into an assistant's turn counts as learned. Raises what the template raises.
        """
        text = self.text(turns, tools, ask=add_generation_prompt)
        learned = self.learned(turns, tools, text)
        starts = self.message_starts(turns, tools, text)
        boundaries = {0, len(text), *starts, *(boundary for span in learned for boundary in (span.start, span.end))}
        ids, places = self.ids_and_places(text, sorted(boundaries))
        weights = [float(any(span.start < end and start < span.end for span in learned)) for start, end in places]
        owners = [sum(start >= border for border in starts[1:]) for start, _ in places]
        return Rendered(ids, weights, owners)

    def ids_and_places(self, text: str, boundaries: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a text, and the position of each token; text with marked control tokens is cut at the boundaries."""
        if text == remove_marks(text) and self.tokenizer.is_fast:
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            return list(encoded["input_ids"]), [(start, end) for start, end in encoded["offset_mapping"]]
        ids: list[int] = []
        places: list[tuple[int, int]] = []
        for start, end in pairwise(boundaries):
            own = self.ids(text[start:end], start=start == 0)
            ids += own
            places += [(start, end)] * len(own)
        return ids, places

    def pieces(self, messages: Sequence[Message | Turn], tools: Tools | str | None = None) -> list[Piece]:
        """The conversation, cut where the learner changes. What follows the last stop token is left out.

        A turn of the assistant whose weight is 0 is shown, not learned.
        """
        turns = [turn_of(message) if isinstance(message, Message) else message for message in messages]
        whole = self.text(turns, tools)
        pieces: list[Piece] = []
        position = 0
        for span in self.learned(turns, tools, whole):
            pieces.append(Piece(whole[position : span.start], False, max(0, span.message - 1)))
            pieces.append(Piece(whole[span.start : span.end], is_learned(messages[span.message]), span.message))
            position = span.end
        if position < len(whole.rstrip()):
            pieces.append(Piece(whole[position:], False, len(turns) - 1))
        return [piece for piece in pieces if piece.text]

    def answered(
        self, turns: list[Turn], answers: Sequence[list[Turn]], tools: Tools | str | None = None
    ) -> tuple[str, list[str]]:
        """Texts of a prompt and of each answer to it, stop tokens included.

        Raises what the template raises, and `TemplateError` where its output does not let the two be distinguished.
        """
        texts = [self.text([*turns, *answer], tools) for answer in answers]
        starts = [self.answer_start(turns, tools, text) for text in texts]
        found = [start for start in starts if start is not None]
        if len(found) < len(starts):
            raise TemplateError("the template writes the turns before the answer in another way once it is there")
        start = min(found)
        return texts[0][:start], [text[start : self.turn_end(text)] for text in texts]

    # Back to a message, and on from it

    def parse(self, ids: Sequence[int], *, opened: str = "") -> Parsed:
        """A sampled turn as a message.

        Args:
            ids: what the model sampled, from the end of the prompt on; what follows a stop token is ignored.
            opened: what the prompt already wrote of the answer, such as `<think>` (see `opening`).
        """
        stopped = next((place for place, id in enumerate(ids) if id in self.stop_ids), None)
        said = str(self.tokenizer.decode(list(ids[:stopped])))
        if not opened and "open" not in self.spec.grammar["content"]:
            said = said.removeprefix(self.lead)
        grammar = {"defaults": {"role": "assistant"}, "start_anchor": ANCHOR, "fields": dict(self.spec.grammar)}
        try:
            turn = parse_response(said, grammar, prefix=ANCHOR + opened)
        except (ValueError, KeyError, TypeError):  # a call that is not JSON, or not the JSON of a call
            return Parsed({"role": "assistant", "content": said}, Termination.MALFORMED)
        calls = turn.get("tool_calls", [])
        if not all(isinstance(call.get("function"), dict) and "name" in call["function"] for call in calls):
            return Parsed({"role": "assistant", "content": said}, Termination.MALFORMED)
        content = str(turn.get("content") or "")
        whole = {**turn, "content": content.rstrip("\n") if calls else content}
        return Parsed(whole, Termination.LENGTH if stopped is None else Termination.STOP)

    def opening(self, prompt: str) -> str:
        """What a prompt's text has already written of the answer's first field, such as `<think>`."""
        opens = (str(part.get("open", "")) for part in self.spec.grammar.values())
        return next((text for text in opens if text and prompt.rstrip().endswith(text)), "")

    def bridge(self, prompt: Sequence[int], completion: Sequence[int], turns: list[Turn]) -> list[int] | None:
        """Ids of the next prompt: prompt and completion as they were, then the new turns and a generation prompt.

        The sampled tokens are kept, so the result extends them whatever the template does with its history.
        None where that is impossible: the completion did not stop, an assistant's turn is among the new ones, or what
        the template writes after an answer depends on what was before it.
        """
        if not completion or completion[-1] not in self.stop_ids or not turns:
            return None
        if any(turn["role"] in ("assistant", "system") for turn in turns):
            return None
        tails = {self.tail(turns, before) for before in ([ASKED], [ASKED, ANSWERED, ASKED])}
        tail = tails.pop()
        if tails or tail is None:
            return None
        ids = self.ids(tail, start=False)
        if self.separator is not None:
            if not ids or ids[0] != completion[-1]:
                return None  # the model ended in another way than the template writes
            ids = ids[1:]
        return [*prompt, *completion, *ids]

    def tail(self, turns: list[Turn], before: list[Turn]) -> str | None:
        """What the template writes after an answer when `turns` follow it; None if that depends on the answer."""
        answers: list[Turn] = [{**ANSWERED, "content": text} for text in ("kiwi", "plum")]
        if turns[0]["role"] == "tool":
            answers = [{"role": "assistant", "content": "", "tool_calls": [call(name)]} for name in ("kiwi", "plum")]
        try:
            one, other = (self.text([*before, answer, *turns], ask=True) for answer in answers)
        except REFUSALS:
            return None
        # The two texts differ in the answer alone.
        end = common_prefix(one, other) + len("kiwi")
        if turns[0]["role"] == "tool":
            end = min((place for stop in self.stops if (place := one.find(stop, end)) >= 0), default=len(one))
        return one[end:] if one[end:] and other.endswith(one[end:]) else None


def call(name: str) -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": name, "arguments": {}}}


def is_learned(message: Message | Turn) -> bool:
    """Whether a turn is the assistant's and takes part in the loss."""
    if isinstance(message, Message):
        return message.role == "assistant" and message.learned
    return bool(message["role"] == "assistant")


def turn_of(message: Message) -> Turn:
    """A message as chat templates expect it."""
    given: Turn = {"role": message.role, "content": message.content}
    if message.tool_calls:
        given["tool_calls"] = orjson.loads(message.tool_calls)
    if message.more:
        given |= {name: value for name, value in message.extras.items() if name in TEMPLATE_EXTRAS}
    return given
