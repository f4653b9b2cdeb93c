"""English sentences cut into subject, verb and rest by a list of common verbs; None where that is not certain."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from trainyard.data.extractive.lexicon import BASE, GERUNDS, PARTICIPLES, PAST, THIRD, word_set

BE = ("is", "are", "was", "were")
MODALS = ("can", "could", "may", "might", "must", "should", "shall", "will", "would")
HAVE = ("has", "have", "had")
AUXILIARIES = frozenset((*BE, *MODALS, *HAVE))
CONTRACTED = {
    "can't": "can", "cannot": "can", "won't": "will", "don't": "do", "doesn't": "does", "didn't": "did", "isn't": "is",
    "aren't": "are", "wasn't": "was", "weren't": "were", "shouldn't": "should", "couldn't": "could",
    "wouldn't": "would", "mustn't": "must", "hasn't": "has", "haven't": "have",
}  # fmt: skip
PRONOUNS = word_set("en_pronouns")
POINTING_SUBJECTS = word_set("en_pointing_subjects")
DETERMINERS = word_set("en_determiners")
PREPOSITIONS = word_set("en_prepositions")
TAILS = word_set("en_tails")
RELATIVE = word_set("en_relative")
ADVERBS = word_set("en_adverbs")
NOT_FIRST = word_set("en_not_first")
NO_START = word_set("en_no_start")
NOUN_PREPOSITIONS = {name: word_set(f"en_before_{name}") for name in ("to", "for", "on", "in", "with", "from")}
"""Preposition -> nouns after which it belongs to the object."""
AMBIGUOUS = word_set("en_ambiguous")
"""Forms that may be plural nouns."""


class Clause(NamedTuple):
    """Subject, verb and rest of a sentence. `auxiliary` is what a question begins with; `verb` follows the subject."""

    subject: str
    auxiliary: str
    verb: str
    rest: str
    surface: str
    """The verb as it is in the sentence, the auxiliary included."""
    negative: bool
    kind: str
    """be, modal, have, verb or command."""


def parse_clause(text: str, vocabulary: Collection[str]) -> Clause | None:
    """Cut a sentence at its verb; None where that is not certain."""
    words = [] if "not only" in text else text.split()
    first = words[0].lower() if words else ""
    if (
        first in AUXILIARIES
        or (first in THIRD and first not in AMBIGUOUS and words[1:] and words[1].lower() not in AUXILIARIES)
        or not re.match(r"[\w`\"'“‘<$.(]", first)
    ):
        return None
    if (
        first in BASE
        and first != "default"
        and len(words) > 2
        and words[1].lower() not in AUXILIARIES
        and second_of_command(words)
    ):
        return Clause("you", "should", first, " ".join(words[1:]), f"should {first}", False, "command")
    words = [] if first in BASE and f"{first}s" not in AMBIGUOUS else words
    for place, word in enumerate(words[1:13], 1):
        plain = word.lower().replace("’", "'")
        before, after = words[place - 1], words[place + 1 :]
        if before[-1:] in ",;:" or before.lower() in RELATIVE or plain in RELATIVE:
            return None
        subject = strip_adverbs(words[:place])
        if not subject or not noun_like(subject):
            continue
        helps = plain in ("do", "does", "did") and after[:1] == ["not"]
        if plain in CONTRACTED or plain in AUXILIARIES or helps:
            return with_auxiliary(subject, plain, after, vocabulary)
        found = finite_verb(plain, subject, after)
        if found:
            auxiliary, verb = found
            return Clause(
                decapitalise(" ".join(subject), vocabulary), auxiliary, verb, " ".join(after), word, False, "verb"
            )
    return None


def second_of_command(words: list[str]) -> bool:
    """Whether a sentence that begins with a verb's base form is a command: "Open the lid", not "Access rights are"."""
    second = words[1].lower().strip("\"'`“,")
    if second in DETERMINERS or second in PREPOSITIONS or words[1][0] in '`"“' or second in ("sure", "out", "up"):
        return True
    verbs = [word for word in words[2:8] if word.lower() in AUXILIARIES or word.lower() in THIRD]
    return not verbs


def noun_like(subject: list[str]) -> bool:
    last = subject[-1].lower().strip("`\"”'")
    if any(word.lower() in PRONOUNS for word in subject[1:]):
        return False
    if len(subject) == 1 and last in PRONOUNS:
        return True
    if subject[0].lower() in POINTING_SUBJECTS and len(subject) == 1:
        return False
    if subject[0].lower() in NOT_FIRST:
        return False
    return last not in DETERMINERS and last not in PREPOSITIONS and last not in ("and", "or", "to")


def strip_adverbs(words: list[str]) -> list[str]:
    while words and (words[-1].lower() in ADVERBS or (words[-1].endswith("ly") and len(words) > 1)):
        words = words[:-1]
    return words


def is_plural(subject: list[str]) -> bool:
    last = subject[-1].lower()
    head = [word for word in subject if word.lower() not in DETERMINERS][:1]
    if last in PRONOUNS or "and" in [word.lower() for word in subject]:
        return True
    for place, word in enumerate(subject):
        if word.lower() in PREPOSITIONS and place:
            last = subject[place - 1].lower()
            break
    return bool(head) and (last in ("people", "children", "data", "others") or bool(re.search(r"[^su]s$", last)))


def is_followed_by_object(following: str, word: str) -> bool:
    """Whether the word after an ambiguous form shows that the form is a verb."""
    return (
        following in DETERMINERS
        or following in ("that", "you", "us", "how", "what")
        or (word[:1] in '`"“$€£' or word[:1].isdigit() or word[:1].isupper())
    )


def finite_verb(word: str, subject: list[str], after: list[str]) -> tuple[str, str] | None:
    """(auxiliary of the question, base form) of a word that is the verb of this subject; None if it is none."""
    following = after[0].lower().strip(',.`"') if after else ""
    if following in AUXILIARIES or (following in THIRD and following not in BASE):
        return None
    if any(
        later.lower() in AUXILIARIES and after[place].lower() not in RELATIVE and after[place].lower() not in PRONOUNS
        for place, later in enumerate(after[1:4])
    ):
        return None
    plural, pronoun = is_plural(subject), subject[-1].lower() in PRONOUNS
    code = len(subject) == 1 and subject[0][0] == subject[0][-1] == "`"
    sure = code or is_followed_by_object(following, after[0] if after else "")
    if word in THIRD and not plural and (sure or word not in AMBIGUOUS):
        return "does", THIRD[word]
    if word in BASE and (pronoun or plural) and following not in ("and", "or"):
        adverb = following in ADVERBS or following in PREPOSITIONS or following.endswith("-time")
        return ("do", word) if pronoun or sure or adverb or f"{word}s" not in AMBIGUOUS else None
    if word in PAST and following in DETERMINERS and word not in PARTICIPLES:
        return "did", PAST[word]
    return None


def with_auxiliary(subject: list[str], word: str, after: list[str], vocabulary: Collection[str]) -> Clause | None:
    negative = word in CONTRACTED or bool(after and after[0].lower() in ("not", "never", "no"))
    auxiliary = CONTRACTED.get(word, word)
    if after and after[0].lower() in ("not", "never"):
        after = after[1:]
    while (
        len(after) > 1
        and (after[0].lower() in ADVERBS or after[0].endswith("ly"))
        and after[0].lower() not in BASE
        and auxiliary not in BE
    ):
        after = after[1:]
    if not after:
        return None
    name = decapitalise(" ".join(subject), vocabulary)
    if auxiliary in BE:
        return Clause(name, auxiliary, "", " ".join(after), auxiliary, negative, "be")
    following = after[0].lower()
    participle = following in PARTICIPLES or following.endswith("ed")
    if auxiliary in HAVE and participle and len(after) > 1:
        second = after[1].lower()
        if following != "been" and second not in DETERMINERS and second not in PREPOSITIONS and second != "to":
            return None
    if auxiliary in HAVE and not participle:
        helper = {"has": "does", "have": "do", "had": "did"}[auxiliary]
        return Clause(name, helper, "have", " ".join(after), auxiliary, negative, "verb")
    kind = "have" if auxiliary in HAVE else "modal"
    return Clause(name, auxiliary, after[0], " ".join(after[1:]), f"{auxiliary} {after[0]}", negative, kind)


def cut(text: str) -> str:
    """A phrase up to its first comma, dash, colon or bracket outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    for place, part in enumerate(parts):
        if place % 2 == 0 and (match := re.search(r"[,;:(]|\s[–—-]\s|\.\s", part)):
            return "".join([*parts[:place], part[: match.start()]]).strip()
    return text.strip()


def join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def split_object(rest: str) -> tuple[str, str]:
    """(object, what follows it from its first preposition or conjunction on)."""
    rest = until_verb(rest)
    words = rest.split()
    for place, word in enumerate(words):
        plain = word.lower()
        if words[place - 1][-1:] in ",;:" and place:
            return " ".join(words[:place]), ""
        if plain in RELATIVE and place:
            return " ".join(words[:place]), ""
        belongs = place and words[place - 1].lower() in NOUN_PREPOSITIONS.get(plain, ()) and place + 1 < len(words)
        if belongs and (plain != "to" or words[place + 1].lower() not in BASE):
            continue
        if plain in TAILS:
            return " ".join(words[:place]), until_verb(cut(" ".join(words[place:])))
    return until_verb(rest), ""


def until_verb(text: str) -> str:
    """The text before an "and" or "or" that a further verb follows."""
    for match in re.finditer(r" (?:and|or) ([\w-]+)", text):
        if match[1].lower() in BASE or match[1].lower() in THIRD:
            return text[: match.start()]
    return text


def noun_start(text: str) -> bool:
    """Whether a phrase begins like a thing and not like an adverb or a clause."""
    first = text.split(maxsplit=1)[0].lower().strip(",")
    if first in NO_START or first in ADVERBS:
        return False
    return not first.endswith("ly") and first not in PREPOSITIONS


def first_word(text: str) -> str:
    return text.split(maxsplit=1)[0].lower().strip(",") if text.split() else ""


def decapitalise(text: str, vocabulary: Collection[str]) -> str:
    """The text with a small first letter, unless its first word is a name."""
    first = text.split(maxsplit=1)[0] if text.split() else ""
    lower = first.lower()
    known = (
        lower.removesuffix("s") in vocabulary
        or lower in GERUNDS
        or lower in DETERMINERS
        or lower in PREPOSITIONS
        or (len(text.split()) > 1 and lower.endswith(("ed", "able", "ible", "ive", "ous")))
        or lower
        in ("we", "you", "everyone", "nobody", "anyone", "further", "additional", "certain", "various", "multiple")
    )
    if first != "I" and first[1:].islower() | (len(first) == 1) and (known or lower in vocabulary):
        return text[0].lower() + text[1:]
    return text
