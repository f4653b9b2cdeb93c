"""Words and patterns of the English rules, fronts of a main clause, and the question that rules return."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from trainyard.data.extractive.clauses import Clause, join, parse_clause
from trainyard.data.extractive.grammar import LEXICON, word_set
from trainyard.data.extractive.phrases import Reading, read

UNITS = r"(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?|business days?|working days?|cycles?)"
NUMBER = r"(?:\d[\d.,]*|an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|several|a few)"
HANGING = re.compile(
    r"^(?:(?:if|when|whenever|unless|once|after|before|while|to \w+|that|even if|in case) )?"
    r"(?:it|its|this|that|these|those|they|them|their|he|she|so|such|one|there|not|no|any)\b",
    re.I,
)
DANGLING = re.compile(
    r"\b(?:this|these|those|them|such|the above|above(?! \w)|below(?! \w)|below in|above in|here|latter|"
    r"do so|doing so|so doing|both|former|following|it|they|its|their|same|other|others|another|further)\b",
    re.I,
)
"""A question with such a word needs the text around it."""
STOP_WORDS = word_set("en_stop_words")
PERSON_NOUNS = word_set("en_person_nouns")
VAGUE_HEADS = word_set("en_generic")
POINTING_ADJECTIVES = word_set("en_pointing_adjectives")
"""Adjectives that make a noun depend on the text around it."""
WEAK_VERBS = word_set("en_weak_verbs")
INTENDING_VERBS = word_set("en_intending_verbs")
TO_DO_VERBS = word_set("en_to_do_verbs")
PLACED_VERBS = word_set("en_placed_verbs")
PLACE_NOUNS = word_set("en_place_nouns")
STATING_VERBS = word_set("en_stating_verbs")
REFERRING_VERBS = ("see", "refer", "consult", "visit", "read", "view", "note", "remember", "learn", "check out")
FRAMES = {
    verb: set(prepositions.split(","))
    for verb, prepositions in (pair.split(":") for pair in LEXICON["en_frames"].split())
}
"""Verb -> prepositions of what it needs besides its object: "replace A with B"."""
FOLLOWING = re.compile(r"(?:this|that|these|those|such|the same|it|they|he|she)\b", re.I)
LONGEST_TAIL = 12


class Ask(NamedTuple):
    """A question for a sentence. `topic` is what the rule's wordings need; `clause` is the question as a clause."""

    rule: str
    topic: str
    clause: str = ""


def content_words(text: str) -> list[str]:
    """Return the words of a text in small letters without stop words."""
    return [word for word in re.findall(r"[\w'’-]+", text.lower()) if word not in STOP_WORDS]


def ask_with(word: str, clause: Clause, *tail: str) -> Ask:
    """Return a question with its clause form: "How often do we meet?" and "how often we meet"."""
    question = join(word, clause.auxiliary, clause.subject, clause.verb, *tail)
    if word == "What" and clause.reading.tokens[0].tag in ("NN1", "AJ0", "UNC"):
        return Ask("named", f"{question}?")  # "what license of the plugin must be" would read as "which license"
    return Ask("named", f"{question}?", join(word[0].lower() + word[1:], clause.subject, clause.surface, *tail))


def pointing(clause: Clause) -> bool:
    """Whether a subject is a pronoun that needs the text around it."""
    return bool(FOLLOWING.match(clause.subject) or DANGLING.search(clause.subject))


def personal(clause: Clause) -> bool:
    return clause.kind == "command" or clause.subject.lower() in ("you", "we", "i")


def hangs(text: str) -> bool:
    """Whether a phrase begins with a pronoun, or has a word that points to the text around it."""
    return bool(HANGING.match(text) or DANGLING.search(text))


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
