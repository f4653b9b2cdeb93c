"""Renderers over a tokenizer that is trained here, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from trainyard.data.renderers.choice import choose_template, list_shipped, recognise_template
from trainyard.data.renderers.contract import Rendered, Tools, Turn
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.verify import toy_tokenizer
from trainyard.data.rows import Message


@cache
def toy(name: str) -> Renderer:
    """The renderer of a name, or of a template that TRL ships."""
    shipped = list_shipped()
    if name in shipped:
        text = shipped[name].read_text(encoding="utf-8")
        return Renderer(toy_tokenizer(text, recognise_template(text)))
    template = choose_template(name)
    return Renderer(toy_tokenizer(template.text, template.spec), template.spec, template.text)


def user(text: str) -> Turn:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> Turn:
    return {"role": "assistant", "content": text, **more}


def example(renderer: Renderer, messages: Sequence[Message | Turn], tools: Tools | str | None = None) -> Rendered:
    """The conversation as training encodes it: piece by piece, with a stop token at the end of a last turn."""
    ids: list[int] = []
    weights: list[float] = []
    owners: list[int] = []
    for number, piece in enumerate(renderer.pieces(messages, tools)):
        piece_ids = (renderer.encode_answer if piece.learned else renderer.ids)(piece.text, start=number == 0)
        ids += piece_ids
        weights += [float(piece.learned)] * len(piece_ids)
        owners += [piece.message] * len(piece_ids)
    return Rendered(ids, weights, owners)


SYSTEM: Turn = {"role": "system", "content": "Be brief."}
TALK = [SYSTEM, user("one"), assistant("two"), user("three"), assistant("four")]
