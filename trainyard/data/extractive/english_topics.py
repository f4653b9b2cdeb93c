"""What an English sentence is about: its subject, what it advises to do, the phrase in front, or its object."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from trainyard.data.extractive.clauses import Clause, parse_clause
from trainyard.data.extractive.english import (
    DANGLING,
    PERSON_NOUNS,
    POINTING_ADJECTIVES,
    VAGUE_HEADS,
    VAGUE_SUBJECT,
    WEAK_VERBS,
    content_words,
    personal,
)
from trainyard.data.extractive.fronts import read_front
from trainyard.data.extractive.phrases import NOUN, Reading, read

SUBJECT_SENTENCES, OBJECT_SENTENCES = 4, 2
"""Sentences of a page that may have a topic: the subject of its sentence, or another noun in it."""
LEAST_LETTERS = 6
"""Of a single word that is a topic."""
MOST_TOPIC_WORDS = 6
LEAST_BESIDES = 5
"""Words that a sentence says besides what it advises to do."""
NAME = re.compile(r"`[^`]+`|[A-Z][A-Z0-9.]+|[A-Z][a-z]+[A-Z]\w*")
"""A short phrase that is a name all the same."""
NOUN_PHRASE = re.compile(rf"{NOUN}(?:o{NOUN})?")
FOR = ("for", "with", "in", "on", "during", "under", "from")
TIMES = re.compile(r"\b(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?|times?)\b")


def english_topics(sentence: str, vocabulary: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield what a sentence is about and how many sentences of the page may have it, the surest first."""
    front = read_front(sentence, vocabulary)
    clause = parse_clause(front.main, vocabulary, partly=True)
    if clause is None or clause.reading is None:
        return
    if (
        not personal(clause)
        and is_topic(clause.subject)
        and clause.head not in PERSON_NOUNS
        and clause.reading.shape[0] != "G"
    ):
        yield clause.subject, SUBJECT_SENTENCES
    elif not personal(clause) and clause.reading.shape[0] == "G" and len(content_words(clause.subject)) > 1:
        if not DANGLING.search(clause.subject):
            yield clause.subject, SUBJECT_SENTENCES
    if doing := doing_of(clause):
        yield doing, SUBJECT_SENTENCES
    if front.kind == "place" and front.text.split()[0].lower() in FOR:
        yield from ((phrase, OBJECT_SENTENCES) for phrase in nouns_of(read(front.text), 1))
    if clause.first and clause.first.kind == "noun" and clause.kind in ("verb", "command"):
        yield from ((phrase, OBJECT_SENTENCES) for phrase in nouns_of(clause.reading, clause.first.start))


def nouns_of(reading: Reading, start: int) -> Iterator[str]:
    """Yield the noun phrase at a place, if it is a topic."""
    match = NOUN_PHRASE.match(reading.shape, start)
    if match is None or re.search("[GN]", match[0]):
        return
    phrase = reading.words(start, match.end())
    phrase = re.sub(r"^(?:an?|any|some|more|every|each|all) ", "", phrase)
    head = reading.head(start, match.end())
    if head is None or head.text.lower() in PERSON_NOUNS or TIMES.search(phrase) or not is_topic(phrase):
        return
    if len(content_words(phrase)) > 1 or NAME.fullmatch(phrase):
        yield phrase


def is_topic(phrase: str) -> bool:
    """Whether a noun phrase says alone what a sentence is about."""
    words, content = phrase.split(), content_words(phrase)
    if (
        VAGUE_SUBJECT.search(phrase)
        or DANGLING.search(phrase)
        or not 1 <= len(words) <= MOST_TOPIC_WORDS
        or not content
    ):
        return False
    named = bool(NAME.fullmatch(phrase)) and len(phrase) > 2
    if not re.match(r"[\w`.$@-]", phrase) or words[0].lower() in ("it", "there"):
        return False
    if len(content) == 1:
        word = content[0]
        return named or (
            len(word) >= LEAST_LETTERS and word.removesuffix("s") not in VAGUE_HEADS and word not in PERSON_NOUNS
        )
    head = head_of(phrase)
    if head in VAGUE_HEADS and (len(content) < 3 or content[0] in POINTING_ADJECTIVES):
        return False
    return not (content[0] in POINTING_ADJECTIVES and len(content) < 3)


def head_of(phrase: str) -> str:
    reading = read(phrase)
    head = reading.head(0, len(reading.shape))
    return head.text.lower().removesuffix("s") if head else ""


def doing_of(clause: Clause) -> str:
    """Return "using a proxy" of "You can use a proxy …"; empty where there is no such phrase."""
    advises = personal(clause) and clause.subject != "i" and (clause.kind in ("command", "verb"))
    verb = clause.verb.lower()
    first = clause.first
    if not advises or clause.negative or clause.lemma in WEAK_VERBS or first is None or first.kind != "noun":
        return ""
    reading = clause.reading
    if (
        reading is None
        or clause.auxiliary in ("have", "has", "had", "did", "am", "are", "is")
        or clause.lemma == "need"
    ):
        return ""
    obj = first.text
    if (
        re.search("[pi]", reading.shape[first.start : first.end])
        or DANGLING.search(obj)
        or len(obj.split()) > MOST_TOPIC_WORDS
    ):
        return ""
    if len(content_words(obj)) < 2 and not re.search(r"[`A-Z]", obj):
        return ""
    said = content_words(reading.text)
    if len(said) - len(content_words(f"{verb} {obj}")) < LEAST_BESIDES:
        return ""
    head, _, particle = verb.partition(" ")
    return " ".join(part for part in (gerund(head), particle, obj) if part)


DOUBLING = re.compile(
    r"[a-z]?[^aeiou][aeiou][bdgmnprt]|\w+(?:[mf]it|fer|gin)|(?:set|get|put|run|cut|let|stop|plan|drop|map)"
)
"""Verbs that double their last letter: "scan", "stop", "submit"."""


def gerund(verb: str) -> str:
    """Return "using" for "use"."""
    if DOUBLING.fullmatch(verb):
        return f"{verb}{verb[-1]}ing"
    if verb.endswith("ie"):
        return f"{verb[:-2]}ying"
    return f"{verb[:-1]}ing" if re.search(r"[^eoy]e$", verb) else f"{verb}ing"
