"""Passages of a section: runs of whole sentences that can be read alone, and what each is about.

A passage is a paragraph, or a part of a long one, of up to 60 words; a paragraph that points back continues the one
before it. Its topics are noun phrases that the rest of the section does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from trainyard.data.extractive import german_topics, sentences
from trainyard.data.extractive.clauses import begins_with_preposition
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
ANNOUNCES = re.compile(
    r"(?:(?:(?:Now|First|Next),? )?[Ll]et['’]s |"
    r"Here (?:is|are)|Below (?:is|are)|There are (?:some|several|a few|many|various|\w+ (?:ways|options|types)))\b"
)
"""A last sentence that announces what comes after it."""
MOST_WORDS = 60
LEAST_WORDS = 8
PART_POINTS = {
    ENGLISH: {SUBJECT: 3.0, FRONT: 2.5, OBJECT: 2.0, OTHER: 1.5, INNER: 1.5},
    GERMAN: {SUBJECT: 3.0, FRONT: 2.5, OBJECT: 1.5, OTHER: 0.5, INNER: 0.5},
}
REPEATED, CODE, NAMED, LONG, FIRST = 1.5, 1.5, 0.5, 1.0, 0.5
"""Points of a phrase that occurs again, is code, is a name, has two words, or is in the first sentence."""
MOST_MENTIONS = 1
"""Other sentences that may have the subject of a passage."""
LATER = 3.0
"""Points that an English phrase loses in a later sentence: readers want the passage to begin with its topic."""
LEAST_POINTS = {ENGLISH: 2.5, GERMAN: 3.0}
"""Of a topic: more than being mentioned."""
WORDS_PER_TOPIC = 14
MOST_TOPICS = 3
MOST_SHORT = 20
"""Words of a passage that is asked for no topic of another question of it."""
LONG_WORD = 18
"""Letters of a word that counts as two."""
COMMON = {ENGLISH: -11.3, GERMAN: -12.0}
"""The rarest word of a phrase is no more common: "snapshot", not "decision"."""
COMMON_ALONE = -12.0
"""The same for the only word of an English phrase."""
COMMON_TOGETHER = -21.0
"""The same for two words of a phrase together."""
LEAST_LETTERS = 5
SMALL = ("the", "a", "an", "your", "of")
UNSURE_DE = re.compile(r"(?:ende?[nrms]?|igen|ichen|iert\w*|lich|isch|weise|sam|haft)$|^(?:Sie|Ihr\w*|Dein\w*)$")
"""Endings of German words that the tagger may take for nouns."""
VAGUE = re.compile(
    r"(?:a |an |the )?(?:hood\b|certain|several|said|own|complex|similar|many|"
    r"various|necessary|immediate|additional|multiple|some|other)\b"
    r"|(?:an? |the )?(?:lot|plethora|wealth|handful|"
    r"number|variety|bit|couple|range|few|series|set|majority|kind|sort|part|piece)s? of\b"
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
    """Yield the passages of adjacent paragraphs."""
    pending: list[str] = []
    for text in texts:
        for index, sentence in enumerate(sentences.sentences(text)):
            if not usable(sentence):
                yield from finished(pending)
                pending = []
                continue
            leaning = follows(sentence)
            fits = num_words(" ".join([*pending, sentence])) <= MOST_WORDS
            if pending and (leaning or index) and fits:
                pending.append(sentence)
                continue
            yield from finished(pending)
            if leaning and (rest := CONNECTIVE.sub("", sentence)) != sentence and not follows(rest):
                sentence = rest[0].upper() + rest[1:] if rest[0].islower() and rest[1:2].islower() else rest
                leaning = False
            pending = [] if leaning or sentence.rstrip()[-1:] in "?？" else [sentence]
    yield from finished(pending)


def finished(pending: list[str]) -> Iterator[Passage]:
    """Yield a passage of these sentences, without questions and what announces something at its end."""
    while pending and (pending[-1].rstrip()[-1:] in "?？" or ANNOUNCES.match(pending[-1])):
        pending = pending[:-1]
    if pending and num_words(" ".join(pending)) >= LEAST_WORDS:
        yield Passage(tuple(pending))


@dataclass
class Candidate:
    """A phrase that a passage may be about."""

    text: str
    wording: str
    """The phrase as a question has it."""
    points: float
    chief: bool = False
    """Whether it is what a sentence says something of, so that another sentence may mention it."""

    def is_in(self, text: str) -> bool:
        """Whether a text, as `plain_text`, has the phrase."""
        return f" {stemmed(self.text)}" in f" {text}"


def candidates(passage: Passage, language: str) -> list[Candidate]:
    """Return the noun phrases that a passage may be about, the surest first."""
    by_stem: dict[str, Candidate] = {}
    for number, sentence in enumerate(passage.sentences):
        for candidate in candidates_of(sentence, language):
            candidate.points += FIRST * (number == 0)
            if number and language == ENGLISH:
                candidate.points -= LATER
            before = by_stem.setdefault(stemmed(candidate.text), candidate)
            if before is not candidate:
                before.points = max(before.points, candidate.points) + REPEATED
                before.chief = before.chief or candidate.chief
    phrases = [each for each in by_stem.values() if language != ENGLISH or is_phrase(each.text)]
    return sorted(phrases, key=lambda candidate: -candidate.points)


def is_phrase(text: str) -> bool:
    """Whether an English phrase may be a topic: no "activated/implemented", no "at startup"."""
    return not (re.search(r"(?<!`)\b\w+/\w+\b(?!`)", text) or begins_with_preposition(text))


def candidates_of(sentence: str, language: str) -> Iterator[Candidate]:
    certain: list[str] = []
    if language == GERMAN:
        for text, most in german_topics.topics(sentence):
            points = PART_POINTS[GERMAN][SUBJECT if most == german_topics.SUBJECT_SENTENCES else OBJECT]
            certain.append(text)
            yield Candidate(text, german_topics.in_question(text, sentence), points + LONG * (" " in text))
    for phrase in noun_phrases(sentence, language):
        if says_what(phrase, language) and not any(phrase.text in text for text in certain):
            quoted = language == GERMAN and "`" not in phrase.text
            points = PART_POINTS[language][phrase.part] + (CODE if "`" in phrase.text else NAMED * phrase.is_name)
            points += LONG * (phrase.words > 1 or len(phrase.text) >= LONG_WORD)
            wording = f"„{phrase.text}“" if quoted else re.sub("^your ", "the ", phrase.text)
            chief = language == ENGLISH and phrase.part in (SUBJECT, FRONT)
            yield Candidate(phrase.text, wording, points, chief)


def choose_topics(
    candidates: list[Candidate],
    most: int,
    other_sentences: Collection[str],
    is_new: Callable[[str], bool],
    *,
    language: str = ENGLISH,
) -> list[Candidate]:
    """Return up to `most` topics: phrases that no other sentence has, or only one where the phrase is a subject here.

    `other_sentences` are those of the same section as `plain_text`; `is_new` is false for the words of its headings.
    Two phrases named together, neither of which is the topic alone, make a question that nobody would ask.
    """
    return [
        candidate
        for candidate in candidates
        if candidate.points >= LEAST_POINTS[language]
        and is_new(candidate.text)
        and sum(candidate.is_in(other) for other in other_sentences) <= MOST_MENTIONS * candidate.chief
    ][:most]


def says_what(phrase: NounPhrase, language: str) -> bool:
    """Return whether a phrase is clear alone."""
    text = phrase.text
    if language == ENGLISH and phrase.part not in (SUBJECT, OBJECT) and re.match(r"(?:an?|your) ", text):
        return False
    if phrase.is_name:
        return ("`" in text or len(text) >= LEAST_LETTERS) and (language == ENGLISH or text[-1] != "-")
    if language == GERMAN and (not re.match(r"[A-ZÄÖÜ]", text) or text[-1] == "-" or UNSURE_DE.search(text)):
        return False
    if VAGUE.match(text) or len(text) < LEAST_LETTERS:
        return False
    words = [word for word in re.findall(r"[\w'’-]+", text) if word.lower() not in SMALL]
    weights = sorted(commonness(word, language) for word in words)
    if language == ENGLISH and len(words) == 1 and (re.match(r"an? ", text) or weights[0] > COMMON_ALONE):
        return False
    return bool(weights) and (weights[0] <= COMMON[language] or sum(weights[:2]) <= COMMON_TOGETHER)


def stemmed(text: str) -> str:
    """Return the words of a text in small letters, without the article before them and the plural of the last one."""
    words = " ".join(re.findall(r"\w+", text.lower()))
    return re.sub(r"^(?:the|an?|your) |(?<=\w\w\w)(?:es|s)$", "", words)
