"""German noun phrases without their article, and in the accusative, as "über" and "für" want them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainyard.data.extractive.german_clauses import DETERMINERS, NOUNS, MainClause
from trainyard.data.extractive.tagging import Token, base_form
from trainyard.data.language import GERMAN

WEAK = re.compile(
    r"(?:[^i]e|ant|[^e]ist|(?:[Ss]tud|[Dd]oz|[Pp]ati|präsid|[Aa]bsolv|[Kk]onsum|[Aa]ssist|[Aa]g|[Aa]bonn)ent|Herr|Mensch)$"
)
"""Endings of masculine nouns that have "-n" or "-en" in the accusative."""


def core_of(tokens: Sequence[Token], *, whole: bool = False) -> tuple[Token, ...]:
    """Return a noun phrase without its preposition, determiner and, unless `whole`, what follows its genitive."""
    start = 0
    for tags in (("ADV", "ADJ(D)", "KOKOM", "PTKA"), ("APPR", "APPRART"), DETERMINERS):
        while start < len(tokens) and tokens[start].tag in tags:
            start += 1
    end = start
    seen = False
    if whole:
        return tuple(tokens[start:])
    while end < len(tokens):
        token = tokens[end]
        genitive = token.tag == "ART" and token.text in ("der", "des", "eines", "einer")
        genitive = genitive or (token.tag == "ADJ(A)" and (tokens[end - 1].tag == "ART" or token.text.endswith("er")))
        if seen and not (token.tag in NOUNS or genitive):
            break
        if not seen and token.tag not in (*NOUNS, "ADJ(A)", "TRUNC", "ADV", "ADJ(D)") and token.text not in '„“"':
            break
        seen = seen or token.tag in NOUNS
        end += 1
    return tuple(tokens[start:end]) if seen else ()


def accusative(before: Sequence[Token], core: Sequence[Token], clause: MainClause, *, nominative: bool) -> str:
    """Return "den neuen Pfad" for "der neue Pfad"; empty where the gender or the case is not certain.

    `before` has the preposition and article, `core` the adjectives, the noun and what follows it.
    """
    head = next(index for index, token in enumerate(core) if token.tag in NOUNS)
    words = [token.text for token in core[:head]]
    if core[0].tag == "ADJ(A)":
        words[0] = words[0][0].lower() + words[0][1:]
    noun = clause.words(core[head:])
    if not before or before[-1].tag in ("PIAT", "CARD", "ADV", "ADJ(D)", "PTKA"):
        return without_article(before, words, core[head], noun, clause, nominative=nominative)
    article = before[-1].text.lower() if before[-1].tag == "ART" else ""
    if article in ("die", "das") or (article == "den" and not nominative):
        return " ".join([article, *words, noun])
    if article == "der" and nominative:
        tags = [token.tag for token in core[:head]]
        words = [
            f"{word}n" if tag == "ADJ(A)" and word[-2:] != "en" else word for word, tag in zip(words, tags, strict=True)
        ]
        if WEAK.search(core[head].text) and core[head].tag == "NN":
            noun = f"{core[head].text}{'n' if core[head].text.endswith('e') else 'en'}{noun[len(core[head].text) :]}"
        return " ".join(["den", *words, noun])
    return ""  # a dative or genitive, or "ein", which would ask for any of them


def without_article(
    before: Sequence[Token], words: list[str], head: Token, noun: str, clause: MainClause, *, nominative: bool
) -> str:
    """Return the accusative of "agile Teams" or "moderner Unterricht"."""
    endings = {word[-2:] for word in words}
    if before and before[-1].text.lower() == "jeder":
        return ""
    if head.tag == "NE" and not words and not before:
        return noun  # a name
    if endings == {"er"} and nominative and not before and not clause.verb.text.endswith("en"):
        return " ".join([*(f"{word[:-1]}n" for word in words), noun])
    finite = clause.verb.text
    plural = (
        finite == "sind" or (finite[-1] == "n" and finite != "kann")
        if nominative
        else base_form(head.text, "NN", GERMAN) != head.text
    )
    return " ".join([*words, noun]) if plural and not endings & {"er", "em", "en", "es"} else ""
