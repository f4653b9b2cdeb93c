"""Words and patterns of the English rules, and the question that rules return."""

from __future__ import annotations

import re
from typing import NamedTuple

from trainyard.data.extractive.clauses import Clause, join
from trainyard.data.extractive.grammar import LEXICON, word_set

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
