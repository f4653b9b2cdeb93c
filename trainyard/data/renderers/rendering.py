"""A renderer: a tokenizer, a template, and the facts about the two together.

The template is run, never imitated, so the ids are those of `apply_chat_template` (a parity test compares them on every
template that is known). What this adds: where the assistant's turns begin and end, which message a token belongs to,
control tokens in a user's text that stay text, an answer read back as a message, and a conversation that continues from
sampled tokens without rendering them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import orjson
from jinja2.exceptions import TemplateError

from trainyard.data.renderers.contract import Parsed, Rendered, Termination, Tools, Turn
from trainyard.data.renderers.spans import ANSWERED, ASKED, Span, TemplateText, common_prefix, remove_marks
from trainyard.data.renderers.turns import REFUSALS
from trainyard.data.renderers.visibility import REASONING, Visibility, names_of_calls, shows_words
from trainyard.data.rows import TEMPLATE_EXTRAS, Message
from trainyard.json_types import JsonObject
from trainyard.loading import load_object

ANCHOR = "\x02"
"""Where an answer begins, for the parser of transformers, which looks for it in the prompt."""


@dataclass(frozen=True)
class Piece:
    """A stretch of a rendered conversation."""

    text: str
    learned: bool
    message: int = 0
    """Index of the message that it belongs to; if there are many, the last."""


@dataclass(frozen=True)
class Cut:
    """A conversation, or the answers to a prompt, cut where the learner changes."""

    examples: list[list[Piece]]
    """Of a conversation: the whole, then a shorter one for each turn that has no border in it, which alone is learned
    there. Of answers: each of them."""
    hidden: set[str]
    """Kinds of parts that no example shows (`visibility.KINDS`)."""
    empty: int = 0
    """Turns that would be learned and of which nothing is shown but the end."""
    unlearned: int = 0
    """Turns that would be learned and have no border in any text."""
    prompt: str = ""
    """Messages before the answers."""


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

    def encode_answer(self, text: str, *, start: bool = False) -> list[int]:
        """Ids of an assistant's turn. Where the template has no stop token the end of text is added: a model that
        never sees an end does not learn to stop."""
        return self.ended(self.ids(text, start=start))

    def ended(self, ids: list[int]) -> list[int]:
        """Return an assistant's turn with an end, if it has none."""
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
        """Return the conversation as `apply_chat_template` tokenises it, with weights and message indices.

        A token that reaches into an assistant's turn counts as learned. Raises errors of the template.
        """
        text = self.text(turns, tools, ask=add_generation_prompt)
        learned = self.learned(turns, tools, text)
        starts = self.message_starts(turns, tools, text)
        boundaries = {0, len(text), *starts, *(boundary for span in learned for boundary in (span.start, span.end))}
        ids, spans = self.ids_and_places(text, sorted(boundaries))
        weights = [float(any(span.start < end and start < span.end for span in learned)) for start, end in spans]
        owners = [sum(start >= border for border in starts[1:]) for start, _ in spans]
        return Rendered(ids, weights, owners)

    def ids_and_places(self, text: str, boundaries: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a text, and the position of each token; text with marked control tokens is cut at the boundaries."""
        if text == remove_marks(text) and self.tokenizer.is_fast:
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            return list(encoded["input_ids"]), [(start, end) for start, end in encoded["offset_mapping"]]
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for start, end in pairwise(boundaries):
            piece_ids = self.ids(text[start:end], start=start == 0)
            ids += piece_ids
            spans += [(start, end)] * len(piece_ids)
        return ids, spans

    def pieces(self, messages: Sequence[Message | Turn], tools: Tools | str | None = None) -> list[Piece]:
        """Return the whole conversation, cut where the learner changes. What follows the last stop token is left out.

        A turn of the assistant whose weight is 0 is shown, not learned.
        """
        turns = list(map(build_turn, messages))
        whole = self.text(turns, tools)
        return self.split(whole, self.learned(turns, tools, whole), messages, turns)

    def split(self, text: str, spans: list[Span], messages: Sequence[Message | Turn], turns: list[Turn]) -> list[Piece]:
        """Return the pieces of a text with these spans of the assistant."""
        pieces: list[Piece] = []
        position = 0
        for span in spans:
            at = span.message
            pieces.append(Piece(text[position : span.start], False, max(0, at - 1)))
            pieces.append(Piece(text[span.start : span.end], is_learned(messages[at]), at))
            position = span.end
        if position < len(text.rstrip()):
            pieces.append(Piece(text[position:], False, len(turns) - 1))
        return [piece for piece in pieces if piece.text]

    def says_something(self, turn: Turn, answer: str) -> bool:
        """Whether a turn's text has more than control tokens and white space, and a part of the turn.

        A template without calls writes a turn of calls as an empty answer: learned, it would teach silence.
        """
        content = str(turn.get("content") or "").strip()
        if content and content in answer:
            return True
        if not self.control.anyone.sub("", answer).strip():
            return False
        if content:
            return True
        texts = [str(turn.get(REASONING) or "").strip(), *names_of_calls(turn)]
        plain = remove_marks(answer)
        return any(text in plain or shows_words(plain, text) for text in texts if text)

    def cut(self, messages: Sequence[Message | Turn], tools: Tools | str | None = None) -> Cut:
        """The conversation as examples in which each turn of the assistant that takes part in the loss is learned once.

        Raises `TemplateError` for a conversation that the template refuses.
        """
        turns = list(map(build_turn, messages))
        whole = self.text(turns, tools)
        spans = self.learned(turns, tools, whole)
        pieces = [
            replace(piece, learned=piece.learned and self.says_something(turns[piece.message], piece.text))
            for piece in self.split(whole, spans, messages, turns)
        ]
        examples, texts, lengths = [pieces], [whole], [len(turns)]
        spoken, bordered = {piece.message for piece in pieces if piece.learned}, {span.message for span in spans}
        empty = unlearned = 0
        for index, message in enumerate(messages):
            if not is_learned(message) or index in spoken:
                continue
            turn_pieces = None if index in bordered else self.cut_turn(turns[: index + 1], tools)
            if turn_pieces is not None and self.says_something(turns[index], turn_pieces[-1].text):
                examples.append(turn_pieces)
                texts.append("".join(piece.text for piece in turn_pieces))
                lengths.append(index + 1)
            elif index in bordered or turn_pieces is not None or not has_texts(turns[index]):
                empty += 1
            else:
                unlearned += 1
        plain_texts = list(map(remove_marks, texts))
        return Cut(examples, self.visibility.hidden(turns, tools, plain_texts, lengths), empty, unlearned)

    def cut_turn(self, turns: list[Turn], tools: Tools | str | None) -> list[Piece] | None:
        """The conversation up to a turn of the assistant, which alone is learned; None where it has no border."""
        last = len(turns) - 1
        try:
            text = self.text(turns, tools)
            start = self.answer_start(turns[:-1], tools, text)
        except TemplateError:
            return None
        end = self.turn_end(text)
        if start is None or end <= start:
            return None
        pieces = [Piece(text[:start], False, max(0, last - 1)), Piece(text[start:end], True, last)]
        return [piece for piece in pieces if piece.text]

    @cached_property
    def visibility(self) -> Visibility:
        """Return the parts of a row that the template shows."""
        return Visibility(self)

    def answered(
        self, turns: list[Turn], answers: Sequence[list[Turn]], tools: Tools | str | None = None
    ) -> tuple[str, list[str]]:
        """Texts of a prompt and of each answer to it, stop tokens included.

        Raises `TemplateError` for a row that the template refuses, and where its output does not let the two be
        distinguished.
        """
        texts, start = self.answer_texts(turns, answers, tools)
        return texts[0][:start], [text[start : self.turn_end(text)] for text in texts]

    def answer_texts(
        self, turns: list[Turn], answers: Sequence[list[Turn]], tools: Tools | str | None
    ) -> tuple[list[str], int]:
        """Return the conversation with each answer, and where the answers start in all of them."""
        texts = [self.text([*turns, *answer], tools) for answer in answers]
        starts = [self.answer_start(turns, tools, text) for text in texts]
        borders = [start for start in starts if start is not None]
        if len(borders) < len(starts):
            raise TemplateError("the template writes the turns before the answer in another way once it is there")
        return texts, min(borders)

    def cut_answers(
        self,
        prompt: Sequence[Message | Turn],
        answers: Sequence[Sequence[Message | Turn]],
        tools: Tools | str | None = None,
    ) -> Cut:
        """The answers to a prompt, each as pieces. In one of several turns those of the assistant alone are learned.

        A lone turn without a text is a rated answer and is learned; one whose calls the template hides is not.
        Raises what `answered` raises.
        """
        before, turns = list(map(build_turn, prompt)), [list(map(build_turn, answer)) for answer in answers]
        texts, start = self.answer_texts(before, turns, tools)
        hidden: set[str] = set()
        examples: list[list[Piece]] = []
        empty = unlearned = 0
        for messages, answer_turns, text in zip(answers, turns, texts, strict=True):
            pieces = self.split_answer(before, answer_turns, tools, (text, start))
            bordered = {piece.message - len(before) for piece in pieces if piece.learned}
            left = [turn for at, turn in enumerate(answer_turns) if is_learned(messages[at]) and at not in bordered]
            empty += sum(not has_texts(turn) for turn in left)
            unlearned += sum(map(has_texts, left))
            for at, piece in enumerate(pieces):
                if not piece.learned:
                    continue
                turn = answer_turns[piece.message - len(before)]
                heard = self.says_something(turn, piece.text) or (len(answer_turns) == 1 and not has_texts(turn))
                empty += not heard
                if not (heard and is_learned(messages[piece.message - len(before)])):
                    pieces[at] = replace(piece, learned=False)
            whole = [*before, *answer_turns]
            hidden |= self.visibility.hidden(whole, tools, [remove_marks(text)], [len(whole)])
            examples.append(pieces)
        return Cut(examples, hidden, empty, unlearned, texts[0][:start])

    def split_answer(
        self, before: list[Turn], answer: list[Turn], tools: Tools | str | None, text_start: tuple[str, int]
    ) -> list[Piece]:
        """The pieces of an answer in a text, from `text_start` on; those of the assistant are marked as learned."""
        text, start = text_start
        if len(answer) == 1:
            return [Piece(text[start : self.turn_end(text)], answer[0]["role"] == "assistant", len(before))]
        pieces: list[Piece] = []
        position = start
        for span in self.learned([*before, *answer], tools, text, first=len(before)):
            begin = start if span.message == len(before) else span.start
            pieces.append(Piece(text[position:begin], False, max(len(before), span.message - 1)))
            pieces.append(Piece(text[begin : span.end], True, span.message))
            position = span.end
        pieces.append(Piece(text[position : max(position, self.turn_end(text))], False, len(before) + len(answer) - 1))
        return [piece for piece in pieces if piece.text]

    # Back to a message, and on from it

    def parse(self, ids: Sequence[int], *, opened: str = "") -> Parsed:
        """Return a sampled turn as a message.

        Args:
            ids: what the model sampled, from the end of the prompt on; what follows a stop token is ignored.
            opened: what the prompt already wrote of the answer, such as `<think>` (see `opening`).
        """
        stopped = next((index for index, id in enumerate(ids) if id in self.stop_ids), None)
        text = str(self.tokenizer.decode(list(ids[:stopped])))
        if not opened and "open" not in self.spec.grammar["content"]:
            text = text.removeprefix(self.lead)
        grammar = {"defaults": {"role": "assistant"}, "start_anchor": ANCHOR, "fields": dict(self.spec.grammar)}
        try:
            turn = load_object("transformers.utils.chat_parsing:parse_response")(text, grammar, prefix=ANCHOR + opened)
        except (ValueError, KeyError, TypeError):  # a call that is not JSON, or not the JSON of a call
            return Parsed({"role": "assistant", "content": text}, Termination.MALFORMED)
        calls = turn.get("tool_calls", [])
        if not all(isinstance(call.get("function"), dict) and "name" in call["function"] for call in calls):
            return Parsed({"role": "assistant", "content": text}, Termination.MALFORMED)
        content = str(turn.get("content") or "")
        whole = {**turn, "content": content.rstrip("\n") if calls else content}
        return Parsed(whole, Termination.LENGTH if stopped is None else Termination.STOP)

    def open_parser(self, opened: str = "") -> Any:
        """Return transformers' parser of an answer that is read as it comes; calls stay text.

        source: transformers, utils/chat_parsing, `ResponseParser`
        """
        fields = {name: part for name, part in self.spec.grammar.items() if name != "tool_calls"}
        grammar = {"defaults": {"role": "assistant"}, "start_anchor": ANCHOR, "fields": fields}
        return load_object("transformers.utils.chat_parsing:ResponseParser")(grammar, prefix=ANCHOR + opened)

    def opening(self, prompt: str) -> str:
        """Return what a prompt's text has already written of the answer's first field, such as `<think>`."""
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
        """Return the template's text after an answer when `turns` follow it; None if that depends on the answer."""
        answers: list[Turn] = [{**ANSWERED, "content": text} for text in ("kiwi", "plum")]
        if turns[0]["role"] == "tool":
            answers = [{"role": "assistant", "content": "", "tool_calls": [call(name)]} for name in ("kiwi", "plum")]
        try:
            first, other = (self.text([*before, answer, *turns], ask=True) for answer in answers)
        except REFUSALS:
            return None
        # The two texts differ in the answer alone.
        end = common_prefix(first, other) + len("kiwi")
        if turns[0]["role"] == "tool":
            end = min((position for stop in self.stops if (position := first.find(stop, end)) >= 0), default=len(first))
        return first[end:] if first[end:] and other.endswith(first[end:]) else None


def call(name: str) -> JsonObject:
    return {"id": "call00001", "type": "function", "function": {"name": name, "arguments": {}}}


def is_learned(message: Message | Turn) -> bool:
    """Whether a turn is the assistant's and takes part in the loss."""
    if isinstance(message, Message):
        return message.role == "assistant" and message.learned
    return bool(message["role"] == "assistant")


def has_texts(turn: Turn) -> bool:
    """Whether a turn says, thinks or calls anything."""
    return bool(str(turn.get("content") or "").strip() or turn.get(REASONING) or turn.get("tool_calls"))


def build_turn(message: Message | Turn) -> Turn:
    """Return a message as chat templates expect it."""
    if not isinstance(message, Message):
        return message
    turn: Turn = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = orjson.loads(message.tool_calls)
    if message.more:
        turn |= {name: value for name, value in message.extras.items() if name in TEMPLATE_EXTRAS}
    return turn
