"""Sentences become tokens whose text is that of the sentence; code is one name, whatever is in it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.data.extractive.tagging import base_form, tag_sentence
from trainyard.data.language import ENGLISH, GERMAN


def tag_text(sentence: str, language: str) -> str:
    return " ".join(f"{token.text}/{token.tag}" for token in tag_sentence(sentence, language))


@pytest.mark.parametrize(
    ("language", "sentence", "tags"),
    [
        (ENGLISH, "Don't open it.", "Do/VDB n't/XX0 open/VVI it/PNP ./PUN"),
        (ENGLISH, "The `a b` flag sets ./etc/x.yml.", "The/AT0 `a b`/NP0 flag/NN1 sets/VVZ ./etc/x.yml/NP0 ./PUN"),
        (GERMAN, "Wir bieten den Kurs an.", "Wir/PPER bieten/VV(FIN) den/ART Kurs/NN an/PTKVZ ./$."),
        (GERMAN, "Wichtiger sind Zeit und Geld.", "Wichtiger/ADJ(D) sind/VA(FIN) Zeit/NN und/KON Geld/NN ./$."),
    ],
)
def test_words_have_the_tags_of_their_language(language: str, sentence: str, tags: str) -> None:
    assert tag_text(sentence, language) == tags


@given(st.text(max_size=80), st.sampled_from([ENGLISH, GERMAN]))
def test_tokens_are_parts_of_the_sentence_in_order(sentence: str, language: str) -> None:
    tokens = tag_sentence(sentence, language)
    assert all(sentence[token.start : token.end] == token.text for token in tokens)
    assert all(first.end <= second.start for first, second in pairwise(tokens))
    assert {letter for token in tokens for letter in token.text} >= {s for s in sentence if s.isalnum()}


def test_words_have_base_forms() -> None:
    assert base_form("provides", "VVZ", ENGLISH) == "provide"
    assert base_form("Werten", "NN", GERMAN) == "Wert"
