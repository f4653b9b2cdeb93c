"""What an English sentence is about besides its nouns: its whole subject, and what it tells the reader to do.

"You can store snapshots on a remote server" is about "storing snapshots on a remote server". A verb that only moves
through a window ("click", "select") or states an attitude ("remember", "want") names nothing to ask for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from trainyard.data.extractive.clauses import Clause, parse_clause
from trainyard.data.extractive.english_words import (
    DANGLING,
    PERSON_NOUNS,
    VAGUE_HEADS,
    WEAK_VERBS,
    content_words,
    hangs,
    read_front,
)
from trainyard.data.extractive.grammar import word_set
from trainyard.data.extractive.noun_phrases import POINTING, TIME, VAGUE, commonness, may_be_verb
from trainyard.data.language import ENGLISH

SMALL_VERBS = word_set("en_small_verbs")
"""Verbs of an instruction that name nothing that a reader wants to do."""
DOUBLED = re.compile(
    r"(?:[^aeiou]*|[^aeiou]*qu)[aeiou][bdgklmnprtvz]|(?:sub|com|ad|o|per|re|trans)mit|begin|re[fs]et|(?:re|de|con)fer|"
    r"(?:un|re)plug|(?:un)?zip|debug|equip|control|(?:un|re)map|patrol|format"
)
"""Verbs whose last letter is doubled before "ing"."""
MOST_SUBJECT, MOST_OBJECT, MOST_ACTIVITY = 7, 7, 10
"""Words of a topic."""
COMMONEST = -10.8
"""Rarest word of a subject without other words: "reports", not "things"."""
ADVICE = ("can", "should", "must", "may", "could")
CUT_OFF = re.compile(r"\s*(?:[&/\"“”‘(\[]|, (?!and |or |but |so |then )|(?:and|or) )")
"""What follows an object that is not all of it."""
UNFIT = re.compile(
    r"[\"“”()\[\]|<>=&]|^(?:our|my|an?|its?|all|any|some) |^\d|^(?:the )?(?:corresponding|additional|associated) "
)


def gerund(verb: str) -> str:
    """Return "setting up" for "set up"."""
    word, _, particle = verb.partition(" ")
    if word.endswith("ie"):
        form = f"{word[:-2]}ying"
    elif word.endswith("e") and not word.endswith(("ee", "oe", "ye")):
        form = f"{word[:-1]}ing"
    else:
        form = f"{word}{word[-1] if DOUBLED.fullmatch(word) else ''}ing"
    return f"{form} {particle}".strip()


def activity(sentence: str, vocabulary: Collection[str]) -> str:
    """Return what a sentence tells its reader to do, as "creating a snapshot"; empty where that is not certain."""
    front = read_front(sentence, vocabulary)
    clause = parse_clause(front.main, vocabulary, partly=True)
    if clause is None or clause.negative or len(clause.verb.split()) > 2:
        return ""
    advises = clause.subject.lower() in ("you", "we") and clause.auxiliary in ADVICE
    if not (clause.kind == "command" or (advises and clause.kind == "verb")):
        return ""
    if clause.lemma in WEAK_VERBS or clause.lemma in SMALL_VERBS or not may_be_verb(clause.lemma) or not clause.phrases:
        return ""
    thing = clause.phrases[0]
    if thing.kind != "noun" or hangs(thing.text) or not content_words(thing.text):
        return ""
    if "i" in clause.reading.shape[thing.start : thing.end] or thing.text.lower().startswith(("you", "us ", "me ")):
        return ""
    if len(thing.text.split()) > MOST_OBJECT or TIME.fullmatch(thing.text):
        return ""
    if re.search(r"[\"“”()\[\]|<>=&]", thing.text):
        return ""
    text = f"{gerund(clause.verb)} {thing.text}"
    return behind if (behind := with_place(clause, text)) else "" if is_cut(clause, thing.end) else text


def is_cut(clause: Clause, end: int) -> bool:
    """Whether the words at `end` belong to the phrase before."""
    tokens = clause.reading.tokens
    return end < len(tokens) and bool(CUT_OFF.match(clause.reading.text[tokens[end - 1].end :]))


def with_place(clause: Clause, text: str) -> str:
    """Return an activity with the phrase behind its object, where that ends it; else an empty string."""
    if len(clause.phrases) < 2:
        return ""
    place = clause.phrases[1]
    fits = len(f"{text} {place.text}".split()) <= MOST_ACTIVITY and place.start == clause.phrases[0].end
    whole = len(clause.phrases) == 2 or clause.phrases[2].kind in ("infinitive", "when", "means")
    fits = fits and whole and not is_cut(clause, place.end)
    return f"{text} {place.text}" if place.kind == "place" and fits and not hangs(place.text) else ""


def subject(sentence: str, vocabulary: Collection[str]) -> str:
    """Return the whole subject of a sentence where it says enough alone; else an empty string."""
    clause = parse_clause(read_front(sentence, vocabulary).main, vocabulary, partly=True)
    if clause is None or clause.kind == "command" or hangs(clause.subject) or DANGLING.search(clause.subject):
        return ""
    text = clause.subject
    words = [word.lower() for word in re.findall(r"[\w'’-]+", text)]
    if clause.head in VAGUE_HEADS or clause.head in PERSON_NOUNS or len(words) > MOST_SUBJECT or TIME.fullmatch(text):
        return ""
    if clause.reading.shape[0] in "piA" or text.count("`") % 2 or UNFIT.search(text) or VAGUE.match(text):
        return ""
    telling = [word for word in content_words(text) if word not in POINTING and not word.isdigit()]
    rare = min((commonness(word, ENGLISH) for word in telling), default=0.0)
    return text if "`" in text or len(telling) > 1 or rare <= COMMONEST else ""


def topics(sentence: str, vocabulary: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Yield what a sentence is about, and whether it is something to do."""
    if name := subject(sentence, vocabulary):
        yield name, False
    if doing := activity(sentence, vocabulary):
        yield doing, True
