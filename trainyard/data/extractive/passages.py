"""Passages of a section: runs of whole sentences that can be read alone, and what each is about.

A passage is a paragraph, or a part of a long one, of up to 60 words; a paragraph that points back continues the one
before it. Its topics are noun phrases that the rest of the section does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from trainyard.data.extractive import sentences, soundness
from trainyard.data.extractive.cleaning import only_refers, spoken
from trainyard.data.extractive.noun_phrases import (
    FRONT,
    GENERIC,
    GENERIC_DE,
    INNER,
    OBJECT,
    OTHER,
    SUBJECT,
    NounPhrase,
    noun_phrases,
)
from trainyard.data.extractive.sentences import num_words
from trainyard.data.language import ENGLISH, GERMAN

MOST_WORDS = 60
LEAST_WORDS = 8
PART_POINTS = {SUBJECT: 3.0, FRONT: 2.5, OBJECT: 2.0, OTHER: 0.5, INNER: 0.5}
REPEATED, NAMED, LONG, FIRST = 1.5, 1.5, 1.0, 0.5
"""Points of a phrase that occurs again, is a name, has two words, or is in the first sentence."""
LEAST_POINTS = 3.0
WORDS_PER_TOPIC = 16
MOST_TOPICS = 3
COMPOUND = 11
"""Letters of a German noun that says enough alone."""


@dataclass(frozen=True)
class Passage:
    """Sentences in page order."""

    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    @property
    def words(self) -> int:
        return num_words(self.text)


def passages(texts: Iterable[str], follows: Callable[[str], bool], usable: Callable[[str], bool]) -> Iterator[Passage]:
    """Yield the passages of paragraphs that stand one after the other."""
    taken: list[str] = []
    for text in texts:
        for place, sentence in enumerate(sentences.sentences(text)):
            if not usable(sentence):
                yield from finished(taken)
                taken = []
                continue
            leaning = follows(sentence)
            fits = num_words(" ".join([*taken, sentence])) <= MOST_WORDS
            if taken and (leaning or place) and fits:
                taken.append(sentence)
                continue
            yield from finished(taken)
            taken = [] if leaning or sentence.rstrip()[-1:] in "?？" else [sentence]
    yield from finished(taken)


def finished(taken: list[str]) -> Iterator[Passage]:
    """Yield a passage of these sentences, without questions at its end."""
    while taken and taken[-1].rstrip()[-1:] in "?？":
        taken = taken[:-1]
    if taken and num_words(" ".join(taken)) >= LEAST_WORDS:
        yield Passage(tuple(taken))


@dataclass
class Candidate:
    phrase: NounPhrase
    points: float
    sentences: set[int]


def topics_of(passage: Passage, language: str, others: Collection[str]) -> Iterator[str]:
    """Yield the noun phrases that a passage is about, the surest first.

    `others` are the other sentences of its place as `plain_text`; none of them has the phrase.
    """
    found: dict[str, Candidate] = {}
    for number, sentence in enumerate(passage.sentences):
        for phrase in noun_phrases(sentence, language):
            if not names_something(phrase, language):
                continue
            key = stemmed(phrase.text)
            points = PART_POINTS[phrase.part] + FIRST * (number == 0)
            if key not in found:
                points += NAMED * phrase.is_name + LONG * (phrase.words > 1 or len(phrase.text) >= 18)
                found[key] = Candidate(phrase, points, {number})
                continue
            candidate = found[key]
            candidate.points = max(candidate.points, points) + REPEATED
    best = sorted(found.values(), key=lambda candidate: -candidate.points)
    for candidate in best:
        if candidate.points < LEAST_POINTS:
            return
        shown = stemmed(candidate.phrase.text)
        if not any(f" {shown}" in f" {other}" for other in others):
            yield candidate.phrase.text


def names_something(phrase: NounPhrase, language: str) -> bool:
    """Whether a phrase says alone what is meant."""
    if language == GERMAN:
        noun = phrase.text
        if noun in GENERIC_DE or noun.endswith("-") or not noun[0].isupper() and noun[0] != "`":
            return False
        return phrase.is_name or len(noun) >= COMPOUND or "-" in noun
    head = phrase.head.lower()
    if head in GENERIC or head.removesuffix("s") in GENERIC:
        return phrase.words > 2
    return phrase.is_name or phrase.words > 1 or len(phrase.head) >= 6


def stemmed(text: str) -> str:
    """The words of a text in small letters without articles and the plural of the last one."""
    words = [word for word in re.findall(r"\w+", text.lower()) if word not in ("the", "a", "an", "your")]
    return re.sub(r"(?:es|s)$", "", " ".join(words))
