"""Renderers against transformers and TRL, on every chat template that the installed TRL ships and on our own.

The tokenizer is trained here and holds each template's special tokens; no model and no network.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from trainyard.data.renderers.choice import list_shipped, recognise_template, template_text
from trainyard.data.renderers.contract import Flavour, Turn
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.spans import REFUSALS
from trainyard.data.renderers.table import RENDERERS
from trainyard.data.renderers.verify import samples, toy_tokenizer

OWN = {name: text for spec in RENDERERS.values() for name, text in spec.own_templates.items()}
TEMPLATES = sorted({*list_shipped(), *OWN})
MASKED = [name for name in list_shipped() if name.endswith("_training")]


def user(text: str) -> Turn:
    return {"role": "user", "content": text}


def assistant(text: str) -> Turn:
    return {"role": "assistant", "content": text}


SYSTEM: Turn = {"role": "system", "content": "Be brief."}
CONVERSATIONS: dict[str, list[Turn]] = {
    "asked": [user("Is a melon a fruit?")],
    "one turn": [user("Is a melon a fruit?"), assistant("Yes.")],
    "system": [SYSTEM, user("Is a melon a fruit?"), assistant("Yes.")],
    "two turns": [user("one"), assistant("two"), user("three"), assistant("four")],
    "three turns": [SYSTEM, user("a"), assistant("b"), user("c"), assistant("d"), user("e"), assistant("f")],
    "unicode": [user("héllo 你好 🦊"), assistant("naïve ﬁ ½ 👩‍🚀"), user("“quoted” — ok"), assistant("ñ")],
    "spaces": [user("trailing  "), assistant("spaces  "), user("  leading\n"), assistant("\n\nlines \n")],
    "empty": [user(""), assistant(""), user("so?"), assistant("")],
    "like a token": [user("<|im_ and </thin"), assistant("< | im_end | >")],
}


@cache
def renderer(name: str) -> Renderer:
    text = OWN[name] if name in OWN else list_shipped()[name].read_text(encoding="utf-8")
    return Renderer(toy_tokenizer(text, recognise_template(text)))


def apply_template(chat_renderer: Renderer, turns: list[Turn], **options: Any) -> Any:
    return chat_renderer.tokenizer.apply_chat_template(chat_renderer.adapt_turns(turns), **options)


def test_trl_ships_the_templates_that_this_was_written_for() -> None:
    assert len(list_shipped()) == 72


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_apply_chat_template(name: str) -> None:
    chat_renderer, compared = renderer(name), 0
    plain = [(turns, None) for turns in CONVERSATIONS.values()]
    more = [
        (sample.turns, sample.tools) for flavour in (Flavour.THOUGHTS, Flavour.TOOLS) for sample in samples(flavour)
    ]
    for turns, tools in [*plain, *more]:
        for ask in (False, True):
            try:
                template_ids = apply_template(
                    chat_renderer, turns, tools=tools, add_generation_prompt=ask, return_dict=False
                )
            except REFUSALS:
                continue
            rendered = chat_renderer.render(turns, tools, add_generation_prompt=ask)
            assert rendered.ids == template_ids, turns
            assert len(rendered.ids) == len(rendered.weights) == len(rendered.message_index)
            compared += 1
    assert compared >= 14, "the template refuses more of the conversations than it should"


HEADERS = ("<｜Assistant｜>", "<|start|>assistant", "<think>", "</think>", "</s>")
"""What TRL's templates also train on, beside line breaks: parts of a generation prompt, and Phi's end of a text."""


@pytest.mark.parametrize("name", MASKED)
def test_what_is_learned_lies_inside_the_mask_that_trl_trains_on(name: str) -> None:
    chat_renderer = renderer(name)
    for turns in (CONVERSATIONS["one turn"], CONVERSATIONS["two turns"]):
        templated = apply_template(chat_renderer, turns, return_assistant_tokens_mask=True, return_dict=True)
        rendered = chat_renderer.render(turns)
        pairs = list(zip(rendered.weights, templated["assistant_masks"], rendered.ids, strict=True))
        assert all(mask for weight, mask, _ in pairs if weight)
        learned = chat_renderer.tokenizer.decode([id for weight, _, id in pairs if weight])
        assert turns[-1]["content"] in learned
        assert any(learned.endswith(stop) for stop in chat_renderer.stops)
        extra = chat_renderer.tokenizer.decode([id for weight, mask, id in pairs if mask and not weight])
        for header in HEADERS:
            extra = extra.replace(header, "")
        # gpt-oss writes an earlier answer in another way than the model says it: here only the last one is learned.
        assert extra.strip() == ("<|channel|>final<|message|>two<|end|>" if "gptoss" in name and len(turns) > 2 else "")


@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_that_a_user_writes_stay_text(name: str) -> None:
    chat_renderer = renderer(name)
    stop = next(iter(chat_renderer.stops))
    turns = [user(f"Say {stop} and {chat_renderer.tokenizer.eos_token} now"), assistant("Yes.")]
    rendered = chat_renderer.render(turns)
    assert rendered.ids == apply_template(chat_renderer, turns, sanitize_control_tokens=True, return_dict=False)
    harmless = chat_renderer.render([user("Say this and that now"), assistant("Yes.")]).ids
    special = set(chat_renderer.tokenizer.all_special_ids) | chat_renderer.stop_ids
    assert [id for id in rendered.ids if id in special] == [id for id in harmless if id in special]
    assert f"Say {stop} and" in chat_renderer.tokenizer.decode(rendered.ids)


def test_every_named_template_is_there() -> None:
    assert all(template_text(spec, name) for spec in RENDERERS.values() for name in spec.templates)
