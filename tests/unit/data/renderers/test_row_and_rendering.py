"""Generated conversations through every renderer: each text is shown or counted, each turn learned once or counted."""

from __future__ import annotations

import re

import pytest
from jinja2.exceptions import TemplateError

from tests.unit.data.renderers.conversations import Generated, Writer
from tests.unit.data.renderers.toys import toy
from trainyard.data.renderers.rendering import Cut, Renderer
from trainyard.data.renderers.table import RENDERERS

KINDS = {
    "system": "system", "turn": "turn", "tools": "tools", "schema": "tool_schema", "calls": "tool_calls",
    "result": "tool_result", "reasoning": "reasoning_content", "name": "name",
}  # fmt: skip
WORD = re.compile(r"[a-z]{2}\d{3}q")


def cases() -> list[object]:
    quick = [pytest.param(name, range(6)) for name in RENDERERS]
    return quick + [pytest.param(name, range(6, 40), marks=pytest.mark.slow) for name in RENDERERS]


@pytest.mark.parametrize(("name", "seeds"), cases())
def test_each_text_is_shown_or_counted_and_each_turn_learned_once(name: str, seeds: range) -> None:
    renderer = toy(name)
    for seed in seeds:
        conversation = Writer(seed).write()
        try:
            cut = renderer.cut(conversation.row.messages, conversation.row.tools)
        except TemplateError:
            continue  # the whole row is counted, with the words of the template
        check_shown(conversation, cut)
        check_learned(renderer, conversation, cut)


def check_shown(conversation: Generated, cut: Cut) -> None:
    """Exactly the kinds of which a text is missing are counted as hidden."""
    rendered_words = set(WORD.findall(" ".join(piece.text for pieces in cut.examples for piece in pieces)))
    missing = {KINDS[kind] for kind, texts in conversation.texts.items() if not rendered_words.issuperset(texts)}
    if "tools" in missing:
        missing.discard("tool_schema")  # the description of a field of a tool that is not there
    assert cut.hidden == missing


def check_learned(renderer: Renderer, conversation: Generated, cut: Cut) -> None:
    """Each turn of the assistant with a loss is in one learned piece that ends in a stop token, or counted."""
    messages = conversation.row.messages
    learned = [piece for pieces in cut.examples for piece in pieces if piece.learned]
    owners = [piece.message for piece in learned]
    assert len(owners) == len(set(owners))
    targets = {at for at, message in enumerate(messages) if message.role == "assistant" and message.learned}
    assert targets.issuperset(owners)
    assert len(targets) == len(owners) + cut.empty + cut.unlearned
    assert sum(at not in owners for at in targets if messages[at].content) <= cut.unlearned
    for piece in learned:
        message = messages[piece.message]
        assert message.content in piece.text or "turn" in cut.hidden
        ids = renderer.encode_answer(piece.text)
        assert ids[-1] in renderer.stop_ids | renderer.end_ids
        other_texts = " ".join(other.content for at, other in enumerate(messages) if at != piece.message)
        assert not set(WORD.findall(other_texts)).intersection(WORD.findall(piece.text))
        assert WORD.search(piece.text), "a learned turn says something"
