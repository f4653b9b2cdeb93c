"""English sentences as tagged words and the phrases that they form.

A sentence has a *shape*: one letter for each token (`LETTERS`). Phrases are regular expressions over the shape, so that
"the logs of the server" is found as `dnodn` whatever its words are.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from trainyard.data.extractive.tagging import Token, tag_sentence
from trainyard.data.language import ENGLISH

TAGS = {
    "d": "AT0 DPS DT0", "a": "AJ0 AJC AJS ORD", "1": "CRD", "n": "NN0 NN1 NN2 NN NP0 UNC ZZ0 !!!", "p": "PNP PNX",
    "i": "PNI", "s": "POS", "o": "PRF", "r": "PRP", "c": "CJC", "C": "CJS", "T": "CJT PNQ DTQ", "Q": "AVQ", "t": "TO0",
    "v": "VVB", "z": "VVZ", "D": "VVD", "m": "VM0", "b": "VBB VBZ VBD", "h": "VHB VHZ VHD", "x": "VDB VDZ VDD",
    "I": "VVI VDI", "B": "VBI", "H": "VHI", "M": "VBN", "N": "VVN VHN VDN", "G": "VVG VHG VDG", "g": "VBG",
    "A": "AV0 ITJ", "P": "AVP", "X": "XX0", "e": "EX0", "q": "PUQ", "(": "PUL", ")": "PUR",
}  # fmt: skip
LETTERS = {tag: letter for letter, tags in TAGS.items() for tag in tags.split()}
"""Tag -> letter of the shape; a mark that is not listed is a comma."""
QUOTES = "\"“”„‘’'«»"
FINITE = "vzDmbhx"
NOUN = r"(?:(?:[dq]+(?:A?[a1GNqs])*|(?:A?[a1Nqs])*)n(?:[nqs1]|[aGN](?=n))*(?<=[nq1])|[pi])"
"""A noun with the words before it: "the two shared folders"."""
NOUNS = rf"{NOUN}(?:o{NOUN})*(?:c{NOUN}(?:o{NOUN})*)?"
"""Nouns with "of", "and" and "or": a preposition other than "of" may belong to the verb."""
TAIL = rf"(?:[or]{NOUN})*"
SUBJECT = re.compile(
    rf"(?P<subject>(?:GP?)?{NOUN}{TAIL}(?:NP?r{NOUN}{TAIL}|tIP?(?:r?{NOUN})?{TAIL})?(?:c{NOUN}{TAIL})?|d)A*(?=[{FINITE}])"
)
"""A subject in front of its verb, with a participle or an infinitive: "the files stored in it", "a way to stop it"."""
PHRASES = (
    ("noun", re.compile(rf"{NOUNS}|d(?![aGN1])")),
    ("place", re.compile(rf"[ro]{NOUNS}")),
    ("means", re.compile(r"[ro]A*[GgQTX]")),
    ("infinitive", re.compile(r"tA?[IBH]|I")),
    ("that", re.compile(r"T")),
    ("when", re.compile(r"[CQ]")),
    ("gerund", re.compile(r"G")),
    ("participle", re.compile(r"N")),
    ("adverb", re.compile(r"[APX]")),
    ("adjective", re.compile(r"[a1]")),
)
AS_NOUN = re.compile(rf"{NOUNS}(?![{FINITE}A]|T[{FINITE}])")
"""What follows an "as" that is a preposition: "acts as a server"."""
LONG = ("means", "infinitive", "that", "when", "gerund", "participle")
"""Phrases that reach to the next mark or conjunction."""
BOUNDARY = re.compile(rf"[,(]|c(?=A?[{FINITE}IT])")
CONJUNCTION = re.compile(r"(?<!A)[CQ]")


class Phrase(NamedTuple):
    """A phrase behind the verb, with its text and its place in the shape."""

    kind: str
    text: str
    start: int
    end: int
    first: str
    """Its first word in small letters."""


class Reading:
    """A tagged sentence."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: tuple[Token, ...] = tag_sentence(text, ENGLISH)
        self.shape = "".join(letter_of(token) for token in self.tokens)
        if re.match(rf"a[{FINITE}]", self.shape) and self.tokens[0].text[0].isupper():
            self.shape = f"n{self.shape[1:]}"  # a name that is an adjective, too: "Paperless will"
        for index, token in enumerate(self.tokens):
            if self.shape[index] == "C" and token.text.lower() == "as" and AS_NOUN.match(self.shape, index + 1):
                self.shape = f"{self.shape[:index]}r{self.shape[index + 1 :]}"

    def words(self, start: int, end: int) -> str:
        """Return the text of the tokens from `start` up to `end`."""
        return self.text[self.tokens[start].start : self.tokens[end - 1].end] if start < end else ""

    def lower(self, index: int) -> str:
        return self.tokens[index].text.lower().replace("’", "'") if index < len(self.tokens) else ""

    def boundary(self, start: int) -> int:
        """Return where the clause at `start` ends."""
        match = BOUNDARY.search(self.shape, start)
        return match.start() if match else len(self.shape)

    def head(self, start: int, end: int) -> Token | None:
        """Return the noun that a noun phrase is about: the last one before "of" or another preposition."""
        match = re.match(rf"{NOUN}", self.shape[start:end])
        nouns = [index for index in range(start, start + match.end()) if self.shape[index] in "npi1"] if match else []
        return self.tokens[nouns[-1]] if nouns else None


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    return Reading(text)


def letter_of(token: Token) -> str:
    return "q" if token.text in QUOTES else LETTERS.get(token.tag, ",")


def read_phrases(reading: Reading, start: int, *, partly: bool = False) -> list[Phrase] | None:
    """Return the phrases from `start` up to the end of the clause.

    Where a verb shows that the sentence was cut wrongly: None, or with `partly` the phrases in front of it.
    """
    phrases: list[Phrase] = []
    index, limit = start, reading.boundary(start)
    while index < limit:
        kind, end = phrase_at(reading, index, limit)
        if reading.shape[index] == "c":
            break
        if not kind:
            # "the files you need": a clause without "that" behind its noun
            contact = reading.shape[index] in FINITE and len(phrases) > 1 and phrases[-1].kind == "noun"
            if not contact or reading.shape[phrases[-1].start] != "p":
                return phrases[:-1] if partly else None
            kind, end = "that", limit
            index = phrases.pop().start
        if kind != "adverb":
            phrases.append(Phrase(kind, reading.words(index, end), index, end, reading.lower(index)))
        index = end
    return phrases


def phrase_at(reading: Reading, index: int, limit: int) -> tuple[str, int]:
    for kind, pattern in PHRASES:
        match = pattern.match(reading.shape, index, limit)
        if match is None:
            continue
        if kind not in LONG:
            return kind, match.end()
        conjunction = CONJUNCTION.search(reading.shape, match.end(), limit)
        return kind, conjunction.start() if conjunction and kind != "when" else limit
    return "", index
