"""Passages of a section: runs of whole sentences that can be read alone, and what each is about.

A passage is a paragraph, or a part of a long one, of up to 60 words; a paragraph that points back continues the one
before it. Its topics are noun phrases that the rest of the section does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from trainyard.data.extractive import german_topics, sentences
from trainyard.data.extractive.noun_phrases import (
    FRONT,
    INNER,
    OBJECT,
    OTHER,
    SUBJECT,
    NounPhrase,
    commonness,
    noun_phrases,
)
from trainyard.data.extractive.sentences import num_words
from trainyard.data.language import ENGLISH, GERMAN

CONNECTIVE = re.compile(
    r"^(?:However|Moreover|Furthermore|In addition|Additionally|Also|Therefore|Thus|Unfortunately|Fortunately|"
    r"Similarly|Finally|Lastly|Next|Then|Instead|Alternatively|Besides), "
)
"""What joins a sentence to the one before, and is left out where that is not in the answer."""
MOST_WORDS = 60
LEAST_WORDS = 8
PART_POINTS = {SUBJECT: 3.0, FRONT: 2.5, OBJECT: 2.0, OTHER: 0.5, INNER: 0.5}
REPEATED, NAMED, LONG, FIRST = 1.5, 1.5, 1.0, 0.5
"""Points of a phrase that occurs again, is a name, has two words, or is in the first sentence."""
LEAST_POINTS, LEAST_MENTIONED = 3.0, 2.0
"""Of a topic, and of one that is only mentioned, where a passage has no other."""
WORDS_PER_TOPIC = 14
MOST_TOPICS = 3
MOST_SHORT = 20
"""Words of a passage that is asked for no topic of another question of it."""
LEAST_TOGETHER = 4.0
"""Points of two phrases that are named together."""
LONG_WORD = 18
"""Letters of a word that counts as two."""
COMMON = {ENGLISH: -11.3, GERMAN: -12.0}
"""The rarest word of a phrase is no more common: "snapshot", not "decision"."""
COMMON_TOGETHER = -21.0
"""The same for two words of a phrase together."""
COMMONEST = {ENGLISH: -10.0, GERMAN: -10.5}
"""A phrase beside another may be as common."""
LEAST_LETTERS = 5
SMALL = ("the", "a", "an", "your", "of")
UNSURE_DE = re.compile(r"(?:ende?[nrms]?|igen|ichen|iert\w*|lich|isch|weise|sam|haft)$|^(?:Sie|Ihr\w*|Dein\w*)$")
"""Endings of German words that the tagger may take for nouns."""
VAGUE = re.compile(
    r"(?:a |an |the )?(?:hood\b|certain|several|said|own|complex|similar|many|"
    r"various|necessary|immediate|additional|multiple|some|other)\b"
)


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
            if leaning and (rest := CONNECTIVE.sub("", sentence)) != sentence and not follows(rest):
                sentence = rest[0].upper() + rest[1:] if rest[0].islower() and rest[1:2].islower() else rest
                leaning = False
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
    """A phrase that a passage may be about."""

    text: str
    shown: str
    """The phrase as a question has it."""
    points: float
    strength: int
    """2 for a phrase that may be a topic alone, 1 for one beside another."""

    def is_in(self, text: str) -> bool:
        """Whether a text, as `plain_text`, has the phrase."""
        return f" {stemmed(self.text)}" in f" {text}"


def candidates(passage: Passage, language: str) -> list[Candidate]:
    """Return the noun phrases that a passage may be about, the surest first."""
    found: dict[str, Candidate] = {}
    for number, sentence in enumerate(passage.sentences):
        for candidate in candidates_of(sentence, language):
            candidate.points += FIRST * (number == 0)
            before = found.setdefault(stemmed(candidate.text), candidate)
            if before is not candidate:
                before.points = max(before.points, candidate.points) + REPEATED
                before.strength = max(before.strength, candidate.strength)
    return sorted(found.values(), key=lambda candidate: -candidate.points)


def candidates_of(sentence: str, language: str) -> Iterator[Candidate]:
    certain: list[str] = []
    if language == GERMAN:
        for text, most in german_topics.topics(sentence):
            points = PART_POINTS[SUBJECT if most == german_topics.SUBJECT_SENTENCES else OBJECT]
            certain.append(text)
            yield Candidate(text, german_topics.in_question(text, sentence), points + LONG * (" " in text), 2)
    for phrase in noun_phrases(sentence, language):
        strength = strength_of(phrase, language)
        if strength and not any(phrase.text in text for text in certain):
            quoted = language == GERMAN and "`" not in phrase.text
            points = PART_POINTS[phrase.part] + NAMED * phrase.is_name
            points += LONG * (phrase.words > 1 or len(phrase.text) >= LONG_WORD)
            yield Candidate(phrase.text, f"„{phrase.text}“" if quoted else phrase.text, points, strength)


def choose_topics(
    found: list[Candidate], most: int, others: Collection[str], is_new: Callable[[str], bool]
) -> Iterator[tuple[Candidate, ...]]:
    """Yield up to `most` topics: phrases that no other sentence has, then two phrases that none has together.

    `others` are the other sentences of the place as `plain_text`; `is_new` is false for the words of its headings.
    """
    alone = [
        candidate
        for candidate in found
        if candidate.strength > 1 and is_new(candidate.text) and not any(candidate.is_in(other) for other in others)
    ]
    used = [candidate for candidate in alone if candidate.points >= LEAST_POINTS][:most]
    used = used or [candidate for candidate in alone if candidate.points >= LEAST_MENTIONED][:1]
    yield from ((candidate,) for candidate in used)
    count = len(used)
    for first, second in combinations(found, 2):
        if count >= most:
            return
        new = is_new(first.text) or is_new(second.text)
        if first in used or second in used or not new or first.strength + second.strength < 3:
            continue
        if first.points + second.points < LEAST_TOGETHER:
            continue
        if any(first.is_in(other) and second.is_in(other) for other in others):
            continue
        if words_of(first) & words_of(second):
            continue
        used += [first, second]
        count += 1
        yield (first, second)


def words_of(candidate: Candidate) -> set[str]:
    return {word[:5] for word in re.findall(r"\w+", candidate.text.lower())}


def strength_of(phrase: NounPhrase, language: str) -> int:
    """Return 2 for a phrase that says alone what is meant, 1 for one that does so beside another, else 0."""
    text = phrase.text
    if phrase.is_name:
        return 2 if language == ENGLISH or text[-1] != "-" else 0
    if language == GERMAN and (not re.match(r"[A-ZÄÖÜ]", text) or text[-1] == "-" or UNSURE_DE.search(text)):
        return 0
    if VAGUE.match(text) or len(text) < LEAST_LETTERS:
        return 0
    words = [word for word in re.findall(r"[\w'’-]+", text) if word.lower() not in SMALL]
    weights = sorted(commonness(word, language) for word in words)
    if language == ENGLISH and len(words) == 1 and re.match(r"an? ", text):
        return int(weights[0] <= COMMON[language])
    if weights and (weights[0] <= COMMON[language] or sum(weights[:2]) <= COMMON_TOGETHER):
        return 2
    return int(bool(weights) and weights[0] <= COMMONEST[language] and phrase.part in (SUBJECT, FRONT, OBJECT))


def stemmed(text: str) -> str:
    """The words of a text in small letters, without the article before them and the plural of the last one."""
    words = " ".join(re.findall(r"\w+", text.lower()))
    return re.sub(r"^(?:the|an?|your) |(?<=\w\w\w)(?:es|s)$", "", words)
