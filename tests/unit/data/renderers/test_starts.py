"""BOS, and what else a tokenizer puts first: once in every chat, in training and where it is served."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import UndefinedError
from tokenizers import pre_tokenizers, processors
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerBase

from trainyard.data.renderers.choice import choose_template, recognise_template
from trainyard.data.renderers.limited import is_known
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.table import RENDERERS
from trainyard.data.renderers.tokenizer import choose_for_tokenizer, find_start
from trainyard.data.renderers.verify import toy_tokenizer

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Is a melon a fruit?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "And a kiwi?"},
    {"role": "assistant", "content": "It is."},
]
OWN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


def make_plain_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """A tokenizer without a template, with a BOS that it does not add; `name` is a renderer, whose tokens it has."""
    tokenizer = toy_tokenizer(choose_template(name).text, RENDERERS[name])
    tokenizer.chat_template = None
    return tokenizer


def put_first(tokenizer: PreTrainedTokenizerBase, *tokens: str, last: str = "") -> PreTrainedTokenizerBase:
    """Let the post-processor put tokens before every text, and one behind it."""
    tokenizer.add_special_tokens({"extra_special_tokens": [*tokenizer.extra_special_tokens, *tokens]})
    single = " ".join([*tokens, "$A", *([last] if last else [])])
    named = [(token, tokenizer.convert_tokens_to_ids(token)) for token in (*tokens, last) if token]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=f"{single} $B", special_tokens=named
    )
    return tokenizer


def remove_bos(name: str) -> PreTrainedTokenizerBase:
    tokenizer = make_plain_tokenizer(name)
    tokenizer.bos_token = None
    return tokenizer


def like_sentencepiece(name: str) -> PreTrainedTokenizerBase:
    """Only the start of a text gets a space before it."""
    tokenizer = put_first(make_plain_tokenizer(name), "<s>")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def like_llama(name: str, *, adds: bool) -> PreTrainedTokenizerBase:
    """A tokenizer whose setting `add_bos_token` decides."""
    del name
    tokens = ["<unk>", "<s>", "</s>", *map(chr, range(32, 127)), "\n"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return LlamaTokenizer(vocab=vocabulary, merges=[], add_bos_token=adds)


KINDS: dict[str, tuple[Callable[[str], PreTrainedTokenizerBase], str]] = {
    "bytes, adds BOS": (lambda name: put_first(make_plain_tokenizer(name), "<s>"), "<s>"),
    "bytes, adds BOS and EOS": (lambda name: put_first(make_plain_tokenizer(name), "<s>", last="</s>"), "<s>"),
    "bytes, adds two tokens": (lambda name: put_first(make_plain_tokenizer(name), "[gMASK]", "<sop>"), "[gMASK]<sop>"),
    "bytes, adds none": (make_plain_tokenizer, ""),
    "bytes, has none": (remove_bos, ""),
    "space before a start, adds BOS": (like_sentencepiece, "<s>"),
    "add_bos_token": (lambda name: like_llama(name, adds=True), "<s>"),
    "not add_bos_token": (lambda name: like_llama(name, adds=False), ""),
}
NEED_BOS = {"llama3"}
"""Templates that refuse every conversation where the tokenizer has no BOS."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_template_begins_with_what_the_tokenizer_adds(kind: str) -> None:
    build, start = KINDS[kind]
    for name in set(RENDERERS) - (NEED_BOS if kind == "bytes, has none" else set()):
        tokenizer = build(name)
        assert find_start(tokenizer) == start
        template = choose_for_tokenizer(tokenizer, name)
        assert recognise_template(template.text) is RENDERERS[name]
        assert is_known(template.text)
        assert start or template == choose_template(name), "a template changes only for a tokenizer that adds tokens"
        tokenizer.chat_template = template.text
        renderer = Renderer(tokenizer)
        served: Any = tokenizer.apply_chat_template
        ids = renderer.render(TALK).ids
        assert ids == served(renderer.adapt_turns(TALK), return_dict=False), name
        (pieces,) = renderer.ids_of_pieces([renderer.pieces(TALK)])
        prompt_ids = served(renderer.adapt_turns(TALK[:1]), add_generation_prompt=True, return_dict=False)
        assert renderer.ids(renderer.text(TALK[:1], ask=True)) == prompt_ids
        first = tokenizer.convert_tokens_to_ids(["[gMASK]", "<sop>"] if "gMASK" in start else ["<s>"])
        for token_ids in (ids, prompt_ids, list(chain.from_iterable(pieces))):
            assert not start or token_ids[: len(first)] == first, name
            assert token_ids.count(first[0]) <= 1, name


@pytest.mark.parametrize("name", sorted(NEED_BOS))
def test_a_template_that_needs_a_bos_refuses_a_tokenizer_without(name: str) -> None:
    tokenizer = remove_bos(name)
    with pytest.raises(UndefinedError, match="'bos_token' is undefined"):
        Renderer(tokenizer, template=choose_for_tokenizer(tokenizer, name).text).text(TALK)


def test_a_base_without_a_template_gets_one_with_bos(tmp_path: Path) -> None:
    tokenizer = put_first(make_plain_tokenizer("role_colon"), "<s>")
    template = choose_for_tokenizer(tokenizer)
    assert template.text.startswith("{{ bos_token }}{% for")
    assert "The template does not write <s>, which the tokenizer puts first" in template.note
    tokenizer.chat_template = template.text
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.decode(again.apply_chat_template(TALK[:2], return_dict=False)).startswith("<s>user: Is a")
    assert choose_for_tokenizer(again) == choose_template("auto", template.text), "what was saved stays as it is"


def test_the_own_template_of_a_base_stays_and_is_named() -> None:
    tokenizer = put_first(make_plain_tokenizer("role_colon"), "<s>")
    tokenizer.chat_template = OWN
    template = choose_for_tokenizer(tokenizer)
    assert template.text == OWN
    assert template.note == (
        "The tokenizer puts <s> before a text, and the base's own chat template does not: no chat has it."
    )


def test_a_file_is_treated_as_a_name(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(OWN)
    (tmp_path / "begins.jinja").write_text("{{ bos_token }}" + OWN)
    tokenizer = put_first(make_plain_tokenizer("role_colon"), "<s>")
    assert choose_for_tokenizer(tokenizer, "mine.jinja", roots=(tmp_path,)).text == "{{ bos_token }}" + OWN
    assert choose_for_tokenizer(tokenizer, "begins.jinja", roots=(tmp_path,)).text == "{{ bos_token }}" + OWN
