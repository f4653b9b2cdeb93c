"""Fronts of the main clause of an English sentence: a condition, a purpose, a place or an adverb."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from trainyard.data.extractive.clauses import parse_clause
from trainyard.data.extractive.phrases import Reading, read

ADVERBIAL = re.compile(
    r"(?:(?:Please(?: do)?|(?:Please note|Note|Remember) that|Remember to|(?:Make|Be) sure (?:to|that)),?"
    r"|In (?:general|fact|particular|addition|short|practice|other words|(?:most|some|many) cases|this way|turn),"
    r"|(?:By default|For (?:example|instance)|As a result|At the moment|As always|As such|Of course|At first|"
    r"Most (?:often|importantly)),) (?=\S)"
)
"""Phrases in front that say nothing of what a sentence is about."""
CONDITION = re.compile(
    r"(?:if|when|whenever|unless|once|in case|as soon as|as long as|even if|before|after|while|until)\b", re.I
)
PLAIN_ADVERB = re.compile(
    r"(?:Now|Often|Sometimes|Also|Then|Thus|Hence|Typically|Usually|Generally|Normally|Currently) (?=\S)"
)
REASON = re.compile(r"(?:because|since|although|though|as)\b", re.I)
PURPOSE = re.compile(r"(?:In order to|To) (?=[a-z])")
MOST_COMMAS = 4


class Front(NamedTuple):
    """The kind of the phrase in front of the main clause, its text, and the main clause."""

    kind: str
    """condition, purpose, place, reason, or empty."""
    text: str
    main: str


def read_front(sentence: str, vocabulary: Collection[str]) -> Front:
    """Cut a sentence at the comma behind the phrase that is in front."""
    text = without_adverbs(plain(sentence))
    kind = kind_of(text)
    if not kind:
        return Front("", "", text)
    reading = read(text)
    for index in commas(reading)[:MOST_COMMAS]:
        main = re.sub(r"^(?:then |please )", "", text[reading.tokens[index].end :].strip(), flags=re.I)
        if re.match(r"(?:and|or|but|which|that)\b", main) or not parse_clause(main, vocabulary, partly=True):
            continue
        front = reading.words(0, index)
        if kind == "purpose":
            front = PURPOSE.sub("", front)
        return Front(kind, front, main)
    return Front("", "", text)


def without_adverbs(text: str) -> str:
    """Return a sentence without "However," and "Note that" in front."""
    while (match := ADVERBIAL.match(text)) or (match := adverb(text)):
        text = text[match.end() :]
        text = text[:1].upper() + text[1:]
    return text


def plain(sentence: str) -> str:
    """Return a sentence without its full stop, its remarks in brackets and "for example"."""
    text = sentence.strip().rstrip(".!。").strip()
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"\s+\([^()]*\)|,? for (?:example|instance)\b,?", "", part) for part in parts[::2]]
    return "".join(parts).strip()


def adverb(text: str) -> re.Match[str] | None:
    """Return the adverb that a sentence begins with: "However,", "First,", "Typically"."""
    reading = read(text)
    if re.match("[Aa],", reading.shape) and reading.tokens[1].text == "," and reading.tokens[0].tag in ("AV0", "ORD"):
        return re.compile(r"\w+, *(?=\S)").match(text)
    return PLAIN_ADVERB.match(text) if re.match("A[dpn]", reading.shape) else None


def kind_of(text: str) -> str:
    if (match := PURPOSE.match(text)) and read(text[match.end() - 3 :]).shape[1:2] in ("I", "B", "H", "A"):
        return "purpose"
    if CONDITION.match(text):
        return "condition"
    if REASON.match(text):
        return "reason"
    return "place" if read(text).shape[:1] == "r" else ""


def commas(reading: Reading) -> list[int]:
    """Return the tokens that are commas."""
    return [index for index, token in enumerate(reading.tokens) if token.text == "," and index]
