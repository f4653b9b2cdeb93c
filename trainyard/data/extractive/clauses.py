"""English sentences cut into subject, verb and the phrases behind it; None where that is not certain."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from trainyard.data.extractive.phrases import FINITE, SUBJECT, Phrase, Reading, read, read_phrases
from trainyard.data.extractive.tagging import base_form
from trainyard.data.language import ENGLISH

CONTRACTED = {"ca": "can", "wo": "will", "sha": "shall", "'s": "is", "'re": "are", "'ll": "will", "'ve": "have"}
NEVER = ("never", "rarely", "hardly", "neither", "no longer")
PRONOUNS = ("we", "you", "i")
COMMON = ["AT0", "DPS", "DT0", "PRP", "VVG", "VVN", "AV0", "CRD", "PNI", "PNP", "CJS", "TO0", "ORD", "NN2", "AVQ"]
ADJECTIVES = ("AJ0", "AJC", "AJS")
"""Tags of a first word that is written in small letters within a sentence."""
PAST_BE = ("was", "were")


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
    """be, passive, verb or command."""
    lemma: str
    phrases: tuple[Phrase, ...]
    head: str
    """Noun of the subject in small letters."""
    plural: bool
    reading: Reading


class Verb(NamedTuple):
    """A finite verb with its auxiliaries, from the sentence's words; `end` is the first token after it."""

    auxiliary: str
    verb: str
    surface: str
    negative: bool
    kind: str
    lemma: str
    end: int


def parse_clause(text: str, vocabulary: Collection[str], *, partly: bool = False) -> Clause | None:
    """Cut a sentence at its verb; None where that is not certain.

    With `partly`, only subject and verb have to be certain; the phrases behind the verb may be missing.
    """
    reading = read(text)
    if not reading.shape or "not only" in text:
        return None
    if is_command(reading):
        return parse_command(reading, partly=partly)
    match = SUBJECT.match(reading.shape)
    if match is None:
        return None
    verb = read_verb(reading, match.end())
    if verb is None or not agrees(reading, match, verb):
        return None
    phrases = read_phrases(reading, verb.end, partly=partly)
    if phrases is None:
        return None
    if any(reading.lower(index) in NEVER for index in range(match.end("subject"), match.end())):
        verb = verb._replace(negative=True)
    end = match.end("subject")
    head = reading.head(1 if reading.shape[0] == "G" else 0, end)
    name = decapitalise(reading.words(0, end), vocabulary)
    rest = text[reading.tokens[verb.end].start :] if verb.end < len(reading.tokens) else ""
    singular = reading.tokens[match.end()].tag[-1] == "Z"
    plural = (bool(head and head.tag == "NN2") and not singular) or reading.lower(match.end()) in (
        "are",
        "were",
        "have",
        "do",
    )
    return Clause(
        name, verb.auxiliary, verb.verb, rest, verb.surface, verb.negative, verb.kind, verb.lemma, tuple(phrases),
        head.text.lower() if head else "", plural, reading,
    )  # fmt: skip


def begins_with_command(text: str) -> bool:
    return is_command(read(text))


def begins_with_preposition(text: str) -> bool:
    return read(text).shape[:1] in ("r", "o")


def is_command(reading: Reading) -> bool:
    """Whether a sentence begins with a verb's base form: "Open the lid", not "Access rights are"."""
    tokens, shape = reading.tokens, reading.shape
    if len(shape) < 3 or not tokens[0].text.isalpha() or shape[1] in FINITE:
        return False
    opening = shape[0] in "vIB" or tokens[0].text.lower() in ("be", "do") or (shape[0] == "A" and shape[1] == "v")
    if not opening and shape[0] in "naN" and (shape[1] in "dq" or tokens[1].text[0] == "`"):
        probe = read(f"You should {tokens[0].text.lower()}{reading.text[tokens[0].end :]}").shape[2:3]
        opening = probe == "I" or (probe == "n" and tokens[1].tag in ("AT0", "DPS"))
    return opening and not re.match(r"(?:that|which|who) (?!the|you|a|your|all)", reading.text[tokens[1].start :])


def parse_command(reading: Reading, *, partly: bool) -> Clause | None:
    start = 1 + (reading.shape[0] == "A" and reading.shape[1] == "v")
    particle = has_particle(reading, start)
    verb = reading.words(start - 1, start + particle).lower()
    phrases = read_phrases(reading, start + particle, partly=partly)
    if phrases is None:
        return None
    rest = reading.text[reading.tokens[start + particle].start :] if start + particle < len(reading.tokens) else ""
    return Clause(
        "you", "should", verb, rest, f"should {verb}", False, "command", verb.split()[0], tuple(phrases), "you", True,
        reading,
    )  # fmt: skip


def agrees(reading: Reading, subject: re.Match[str], verb: Verb) -> bool:
    """Whether the number of the verb is that of the subject; what does not agree was tagged wrongly."""
    shape, end = subject["subject"], subject.end("subject")
    finite = reading.tokens[subject.end()].tag
    if finite == "VVD" and "`" in reading.words(0, end):
        return False  # "`frequency` desired frequency": a participle
    if shape[0] == "G":
        return finite in ("VVZ", "VBZ", "VM0", "VHZ", "VDZ", "VBD", "VVD")
    head = reading.head(0, end)
    if head is None or head.tag in ("NP0", "PNI", "UNC") or "c" in shape:
        return True
    if head.text[0].isupper() and head.text[1:].islower() and finite in ("VVZ", "VHZ", "VDZ", "VBZ"):
        return True  # a name that looks like a plural
    singular = head.tag in ("NN1", "NN0", "CRD")
    many = head.tag in ("NN2",) or head.text.lower() in ("we", "you", "they", "i", "people", "staff", "data")
    if finite in ("VVZ", "VHZ", "VDZ", "VBZ"):
        return not many or head.text.lower() == "data"
    return many or not singular or finite not in ("VVB", "VHB", "VDB", "VBB")


def read_verb(reading: Reading, start: int) -> Verb | None:  # noqa: PLR0911 (one return for each form of an English verb)
    """Return the verb group at `start`: "is stored", "must not be moved", "does not copy", "runs"."""
    shape, letter = reading.shape, reading.shape[start]
    auxiliary = CONTRACTED.get(reading.lower(start), reading.lower(start))
    index, negative = skip_adverbs(reading, start + 1)
    following = shape[index] if index < len(shape) else ""
    if letter == "m":
        return read_modal(reading, index, auxiliary, negative)
    if letter == "x" and following in ("I", "H") and index > start + 1:
        word = reading.lower(index)
        return Verb(auxiliary, word, f"{auxiliary} {word}", negative, "verb", word, index + 1)
    if letter == "h" and following in ("N", "M"):
        return participle(reading, index, auxiliary, "", negative)
    if letter == "b":
        if following in ("N", "g", "G"):
            return participle(reading, index, auxiliary, "", negative)
        return Verb(auxiliary, "", auxiliary, negative, "be", "be", index)
    if negative or shape[start] not in "vzDhx":
        return None
    word = reading.lower(start)
    helper = {"B": "do", "Z": "does", "D": "did"}.get(reading.tokens[start].tag[-1], "")
    lemma = base_form(reading.tokens[start].text, reading.tokens[start].tag, ENGLISH)
    if not helper or not lemma.isalpha():
        return None
    end = start + 1
    if has_particle(reading, end):
        return Verb(
            helper, f"{lemma} {reading.lower(end)}", f"{word} {reading.lower(end)}", False, "verb", lemma, end + 1
        )
    return Verb(helper, lemma, word, False, "verb", lemma, end)


def read_modal(reading: Reading, index: int, auxiliary: str, negative: bool) -> Verb | None:
    letter = reading.shape[index : index + 1]
    word = reading.lower(index)
    if letter in ("B", "H"):
        after, also = skip_adverbs(reading, index + 1)
        following = reading.shape[after : after + 1]
        if following in ("N", "M", "G", "g") and (letter == "B" or following in "NM"):
            return participle(reading, after, auxiliary, word, negative or also)
        kind = "be" if letter == "B" else "verb"
        return Verb(auxiliary, word, f"{auxiliary} {word}", negative, kind, word, index + 1)
    if letter not in ("I", "v"):
        return None
    end = index + 1
    if has_particle(reading, end):
        word, end = f"{word} {reading.lower(end)}", end + 1
    return Verb(auxiliary, word, f"{auxiliary} {word}", negative, "verb", word.split()[0], end)


def participle(reading: Reading, index: int, auxiliary: str, before: str, negative: bool) -> Verb | None:
    """Return a group that ends with a participle: "has been moved", "is being copied", "is copying"."""
    words = [word for word in (before,) if word]
    passive = auxiliary in ("is", "are", *PAST_BE) or before == "be"
    while reading.shape[index : index + 1] in ("M", "g"):
        words.append(reading.lower(index))
        passive = True
        index, also = skip_adverbs(reading, index + 1)
        negative = negative or also
    letter = reading.shape[index : index + 1]
    if letter not in ("N", "G"):
        return None
    words.append(reading.lower(index))
    lemma = base_form(reading.tokens[index].text, reading.tokens[index].tag, ENGLISH)
    kind = "passive" if letter == "N" and passive else "verb"
    if has_particle(reading, index + 1):
        index += 1
        words.append(reading.lower(index))
    group = " ".join(words)
    return Verb(auxiliary, group, f"{auxiliary} {group}", negative, kind, lemma, index + 1)


def has_particle(reading: Reading, index: int) -> bool:
    """Whether a word belongs to the verb in front of it: "set up", but not "up to 60 %"."""
    return reading.shape[index : index + 1] == "P" and reading.lower(index + 1) != "to"


def skip_adverbs(reading: Reading, index: int) -> tuple[int, bool]:
    """Return the first token other than an adverb, and whether one of them denies."""
    negative = False
    while index < len(reading.shape) and reading.shape[index] in "AX":
        negative = negative or reading.shape[index] == "X" or reading.lower(index) in NEVER
        index += 1
    return index, negative


def cut(text: str) -> str:
    """Return a phrase up to its first comma, dash, colon or bracket outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    for index, part in enumerate(parts):
        if index % 2 == 0 and (match := re.search(r"[,;:(]|\s[–—-]\s|\.\s", part)):
            return "".join([*parts[:index], part[: match.start()]]).strip()
    return text.strip()


def join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def decapitalise(text: str, vocabulary: Collection[str]) -> str:
    """The text with a small first letter, unless its first word is a name."""
    first = read(text).tokens[:1]
    if not first or first[0].text == "I" or not (first[0].text[1:].islower() or len(first[0].text) == 1):
        return text
    word, tag = first[0].text.lower(), first[0].tag
    if tag not in COMMON and len(words := text.split()) > 1 and words[1][:1].isupper():
        return text  # a name of several words: "Quick Sync Video"
    common = tag in COMMON or (tag in ADJECTIVES and read(text).shape[1:2] in ("a", "n") and not text.istitle())
    if common or word in vocabulary or word.removesuffix("s") in vocabulary or f"{word}s" in vocabulary:
        return text[0].lower() + text[1:]
    return text
