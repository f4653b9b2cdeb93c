"""Renderers over a tokenizer that is trained here, for the tests of this folder."""

from __future__ import annotations

from functools import cache
from typing import Any

from trainyard.data.renderers.choice import choose_template, list_shipped, recognise_template
from trainyard.data.renderers.contract import Turn
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.verify import toy_tokenizer


@cache
def toy(name: str) -> Renderer:
    """The renderer of a name, or of a template that TRL ships."""
    known = list_shipped()
    if name in known:
        text = known[name].read_text(encoding="utf-8")
        return Renderer(toy_tokenizer(text, recognise_template(text)))
    chosen = choose_template(name)
    return Renderer(toy_tokenizer(chosen.text, chosen.spec), chosen.spec, chosen.text)


def user(text: str) -> Turn:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> Turn:
    return {"role": "assistant", "content": text, **more}


SYSTEM: Turn = {"role": "system", "content": "Be brief."}
TALK = [SYSTEM, user("one"), assistant("two"), user("three"), assistant("four")]
