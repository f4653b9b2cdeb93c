"""Noun phrases of a sentence with the part that each plays in it, from the tags of its words. English and German.

A phrase is what a question may name: a noun with the adjectives and nouns before it, a name, a code span. Persons,
pronouns and phrases with pointing words are none; nor is half of "security and compliance".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from trainyard.data.extractive.grammar import word_set
from trainyard.data.extractive.tagging import Token, load_tagger, tag_sentence
from trainyard.data.language import ENGLISH, GERMAN

SUBJECT, FRONT, OBJECT, OTHER, INNER = "subject", "front", "object", "other", "inner"
"""Parts: before the verb, in a phrase before the subject, after the verb, elsewhere, after a preposition."""
NOUNS = {ENGLISH: ("NN0", "NN1", "NN2", "NP0", "UNC"), GERMAN: ("NN", "NE", "NNA", "NNI", "FM")}
INSIDE = {ENGLISH: (*NOUNS[ENGLISH], "AJ0", "POS"), GERMAN: NOUNS[GERMAN]}
"""Tags inside a phrase."""
DETERMINERS = {
    ENGLISH: ("AT0", "DPS", "DT0", "CRD", "ORD"),
    GERMAN: ("ART", "PPOSAT", "PIAT", "PDAT", "CARD", "ADJ(A)"),
}
PREPOSITIONS = {ENGLISH: ("PRP", "PRF"), GERMAN: ("APPR", "APPRART", "KOKOM")}
JOINING = {ENGLISH: "CJC", GERMAN: "KON"}
POINTING = word_set("en_pointing_adjectives")
GENERIC = word_set("en_generic")
SUBORDINATE = {
    ENGLISH: ("CJS", "CJT", "DTQ", "PNQ", "AVQ"),
    GERMAN: ("KOUS", "KOUI", "PRELS", "PRELAT", "PWS", "PWAV", "PWAT"),
}
"""Tags of words that begin a clause of lower rank, which ends at a comma."""
MOST_WORDS = 6
SHORT = 6
"""Tokens of a German sentence that may end with its verb."""
KEPT_ARTICLES = ("the", "a", "an", "your")
DEMONSTRATIVE = frozenset(("this", "these", "those", "such", "another", "no", "every", "each", "any"))
OWN = ("our", "its", "their", "his", "her")
"""Words before a noun in place of which a question has "the"."""
TIME = re.compile(
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December|Monday|Tuesday|"
    r"Wednesday|Thursday|Friday|Saturday|Sunday|today|tomorrow|(?:\w+ )?(?:seconds?|minutes?|hours?|days?|weeks?|"
    r"months?|years?|times?|moments?))", re.I
)  # fmt: skip
CUT = re.compile(r"^\d|\.[A-Za-z]$|[a-z] (?:running|working|being|going|using|coming)$")
"""A phrase that was cut, "continental U.S", or begins with a number."""
NAME = re.compile(r"`[^`]+`|[A-ZÄÖÜ][A-Z0-9.]+s?|[A-Z]\w*[a-z]\w*[A-Z]\w*|\w+[.-]\w*[A-Z]\w*")
"""Code, an acronym, or a word with a capital inside."""


@lru_cache(maxsize=65_536)
def possible_tags(word: str, language: str) -> dict[str, float]:
    """Return the tags that a word may have, with the logarithms of their probabilities."""
    return {str(tag): float(weight) for tag, weight in load_tagger(language).tag_word(word)}


def commonness(word: str, language: str) -> float:
    """Return how common a word is as the logarithm of a probability: -8 for "time", -12 for "password" and rarer."""
    forms = (word, word.lower()) if language == ENGLISH else (word,)
    return max((weight for form in forms for weight in possible_tags(form, language).values()), default=-99.0)


def may_be_verb(word: str) -> bool:
    """Whether an English word may be a verb in the present tense."""
    return bool({"VVB", "VVI", "VVZ"} & possible_tags(word, ENGLISH).keys())


def may_be_noun(word: str) -> bool:
    """Whether an English word may be a noun."""
    return bool({"NN0", "NN1", "NN2", "NP0"} & possible_tags(word.lower(), ENGLISH).keys())


def is_sentence(text: str, language: str) -> bool:
    """Whether a text has a verb of its own, and begins with its subject, or commands."""
    tokens = tag_sentence(re.sub(r"^Please ", "", text), language)
    verbs = main_verbs(tokens, language)
    if language == GERMAN:
        return bool(verbs) and (verbs[0] < len(tokens) - 2 or len(tokens) < SHORT)
    following = tokens[1].tag if len(tokens) > 1 else ""
    if tokens and may_be_verb(tokens[0].text) and "VVZ" not in possible_tags(tokens[0].text, ENGLISH):
        command = following in ("AT0", "DPS", "DT0", "AVP", "NP0", "PRP", "XX0") or tokens[0].tag.startswith("VV")
        if command or (not verbs and text[-1:] in ".!"):
            return True
    if not verbs and text[-1:] == ".":
        return any({"VVZ", "VVB"} & possible_tags(token.text, ENGLISH).keys() for token in tokens[1:-2])
    return bool(verbs) and verbs[0] > 0 and tokens[0].tag not in ("VVN", "VVD", "VVZ")


def main_verbs(tokens: Sequence[Token], language: str) -> list[int]:
    """Return the places of the finite verbs that belong to no clause of lower rank."""
    verbs: list[int] = []
    below = absorbed = False
    for index, token in enumerate(tokens):
        if token.tag in SUBORDINATE[language]:
            below = True
        elif token.text in ",;:–":
            below = absorbed = False
        elif is_finite(token, language):
            following = tokens[index + 1].tag if index + 1 < len(tokens) else ""
            inverted = language == GERMAN and following == "PPER" and verbs == []  # "Als Quelle können Sie"
            if below and not inverted:
                below, absorbed = False, True
            elif not (absorbed and index and tokens[index - 1].tag == JOINING[language]):
                verbs.append(index)
    return verbs


class NounPhrase(NamedTuple):
    text: str
    head: str
    part: str
    is_name: bool
    """Whether it is code or a name in capitals."""
    words: int
    """Words without the article."""


def noun_phrases(sentence: str, language: str) -> Iterator[NounPhrase]:
    """Yield the noun phrases of a sentence in its order."""
    tokens = tag_sentence(sentence, language)
    verb = next((index for index, token in enumerate(tokens) if is_finite(token, language)), len(tokens))
    words = Words(sentence, tokens, verb, language)
    index = 0
    while index < len(tokens):
        end = index
        while end < len(tokens) and is_inside(tokens, end, language):
            end += 1
        if end == index:
            index += 1
            continue
        if phrase := phrase_at(words, index, end):
            yield phrase
        index = end


def is_finite(token: Token, language: str) -> bool:
    if language == GERMAN:
        return "FIN" in token.tag or "IMP" in token.tag
    return (
        token.text == "cannot"
        or token.tag in ("VM0", "VVZ", "VVD", "VVB")
        or token.tag in (f"V{verb}{form}" for verb in "BHD" for form in "ZBD")
    )


def is_inside(tokens: Sequence[Token], index: int, language: str) -> bool:
    token = tokens[index]
    if token.tag not in INSIDE[language] or token.text == "cannot":
        return False
    return bool(re.match(r"[\w`'’]", token.text))


def is_verb_first(tokens: Sequence[Token], index: int, end: int) -> bool:
    """Whether the first word of a run of nouns may be a verb: "Review access logs", "For help, visit Example Pages".

    It is none where a verb follows the run: "Pull request reviews are required".
    """
    word = tokens[index].text
    if end < len(tokens) and is_finite(tokens[end], ENGLISH):
        return False
    if index == 0:
        return may_be_verb(word) or bool(re.fullmatch(r"[A-Z][a-z]+ed", word))
    return tokens[index - 1].text.lower() in (",", "please", "then") and word.islower() and may_be_verb(word)


class Words(NamedTuple):
    """A tagged sentence with the place of its first finite verb."""

    sentence: str
    tokens: tuple[Token, ...]
    verb: int
    language: str


def span_of(words: Words, start: int, end: int) -> tuple[int, int, int] | None:
    """Return (start, end, end of the head) of the phrase in a run of nouns; None where it may be a part of one."""
    tokens, language = words.tokens, words.language
    head_end = end
    if language == ENGLISH:
        if start == 1 and may_be_noun(tokens[0].text) and end < len(tokens) and is_finite(tokens[end], ENGLISH):
            start = 0  # "Pull request reviews are", where "Pull" is taken for the verb
        start += is_verb_first(tokens, start, end)
        while start < end and (tokens[start].text.lower() in POINTING or tokens[start].tag == "POS"):
            start += 1
        while start < end and tokens[end - 1].tag not in NOUNS[language]:
            end -= 1
        head_end = end
        if start < end < len(tokens) and tokens[end].tag == "PRF":
            end = extended(tokens, end) or start
        if start >= end or is_cut_before_verb(tokens, start, end, words.verb):
            return None
    elif end - start > 1:
        start = end - 1  # "die Schaltfläche Original": the name is last
    closes = end < len(tokens) and re.match(r"[)\]\"”“/*:]", tokens[end].text)
    return None if closes else (start, end, head_end)


def phrase_at(words: Words, start: int, end: int) -> NounPhrase | None:
    """Return the noun phrase of a run of nouns with the words before it."""
    sentence, tokens, verb, language = words
    if (span := span_of(words, start, end)) is None:
        return None
    start, end, head_end = span
    before = start - 1
    while before >= 0 and tokens[before].tag in DETERMINERS[language]:
        before -= 1
    pointing = [token.text.lower() for token in tokens[before + 1 : start]] if language == ENGLISH else []
    if not DEMONSTRATIVE.isdisjoint(pointing) or (language == ENGLISH and is_part_of_list(tokens, start)):
        return None
    opened = before >= 0 and re.match(r"[\"“„(\[‘]", tokens[before].text)
    if opened or (before >= 0 and belongs_to_noun(tokens, before, language)):
        return None
    first = start - 1 if pointing and pointing[-1] in KEPT_ARTICLES else start
    text = sentence[tokens[first].start : tokens[end - 1].end]
    if pointing and pointing[-1] in OWN and tokens[head_end - 1].tag == "NN1":
        text = f"the {text}"
    bare = sentence[tokens[start].start : tokens[end - 1].end]
    if language == ENGLISH and text == bare and start > 1 and tokens[start - 1].text.lower() in POINTING:
        article = tokens[start - 2].text.lower() in ("the", *OWN)
        text = f"the {text}" if article and tokens[head_end - 1].tag != "NN2" else text
    if language == ENGLISH and (first == 0 or tokens[first - 1].text == ":"):
        text = lower_first(text, tokens[0])
    part = part_of(tokens, before, start, verb, language)
    if language == ENGLISH:
        part = OTHER if part == OBJECT and is_below(tokens, start) else part
        part = SUBJECT if start == 0 and end < len(tokens) and is_finite(tokens[end], language) else part
    is_name = bool(NAME.fullmatch(bare)) or (start and bare.count(" ") and all(w[0].isupper() for w in bare.split()))
    joined = is_joined(tokens, before + 1 if language == ENGLISH else start, end, language)
    cut = language == ENGLISH and CUT.search(bare)
    strange = cut or re.search(r"[\"“”„()\[\]<>|={}]", bare.strip("`")) or TIME.fullmatch(bare)
    if strange or len(bare.split()) > MOST_WORDS or (joined and not (" " in bare or is_name)):
        return None
    head = tokens[head_end - 1].text
    passing = part in (OTHER, INNER) and not is_name and "`" not in bare and is_below(tokens, start)
    weak = passing or is_weak(head, part, joined=joined and "`" not in bare, is_name=bool(is_name))
    if language == ENGLISH and weak:
        return None
    return NounPhrase(text, head, OTHER if joined and part != SUBJECT else part, bool(is_name), len(bare.split()))


def is_weak(head: str, part: str, *, joined: bool, is_name: bool) -> bool:
    """Whether a phrase is only one of several, or its noun says nothing."""
    return (joined and part != SUBJECT) or (not is_name and head.lower().removesuffix("s") in GENERIC)


def is_part_of_list(tokens: Sequence[Token], start: int) -> bool:
    """Whether the first word of a run continues verbs or adjectives, or an adverb: "mute and unmute guests"."""
    if start and tokens[start - 1].text.lower() in ("less", "more", "most", "least"):
        return True
    if start > 1 and tokens[start - 1].tag == "AV0" and tokens[start - 2].tag == "TO0":
        return True  # "to silently drop guests", where "drop" is taken for a noun
    if start < 2 or (tokens[start - 1].tag != "CJC" and tokens[start - 1].text != ","):
        return False
    joined = tokens[start - 1].tag == "CJC" and tokens[start].text.islower() and may_be_verb(tokens[start].text)
    return joined or tokens[start - 2].tag.startswith("AJ")


def extended(tokens: Sequence[Token], of: int) -> int | None:
    """Return the end of a phrase with "of", as in "the security of your account"."""
    index = of + 1
    while index < len(tokens) and tokens[index].tag in DETERMINERS[ENGLISH]:
        if tokens[index].text.lower() in ("this", "these", "those", "their", "its", "that", "such", "our"):
            return None
        index += 1
    end = index
    while end < len(tokens) and is_inside(tokens, end, ENGLISH):
        end += 1
    while end > index and tokens[end - 1].tag not in NOUNS[ENGLISH]:
        end -= 1
    if end == index or (end < len(tokens) and tokens[end].tag in ("PRF", "CJC")):
        return None
    return end


def is_cut_before_verb(tokens: Sequence[Token], start: int, end: int, verb: int) -> bool:
    """Whether the word after a phrase, or its last one, may be a noun and a verb: "phone calls", "features work"."""
    following = tokens[end].tag if end < len(tokens) else ""
    if end < len(tokens) and following.startswith("V") and tokens[end].text[0].isupper():
        return True  # "the Docker Compose files", where "Compose" is taken for a verb
    if verb == len(tokens) and any("VVZ" in possible_tags(token.text, ENGLISH) for token in tokens[start + 1 : end]):
        return True
    if start and tokens[start - 1].text == "," and may_be_verb(tokens[end - 1].text) and end - start > 1:
        return True
    if end > verb and following in ("VVB", "VVZ", "VVI"):
        return bool({"NN1", "NN2"} & possible_tags(tokens[end].text, ENGLISH).keys())
    if end - start < 2 or not may_be_verb(tokens[end - 1].text):
        return False
    return tokens[end - 2].tag == "NN2" or (
        start < verb and end < verb and following not in ("AV0", "PRP", "DTQ", "CJT", "XX0")
    )


def belongs_to_noun(tokens: Sequence[Token], before: int, language: str) -> bool:
    """Whether a phrase follows a noun that it completes: "Office of American Innovation", "Erstellung der Vorlage"."""
    if language == GERMAN:
        return tokens[before].tag in NOUNS[GERMAN]
    return tokens[before].tag == "PRF" and before > 0 and tokens[before - 1].tag in NOUNS[ENGLISH]


def is_joined(tokens: Sequence[Token], start: int, end: int, language: str) -> bool:
    """Whether a phrase is a part of "A, B and C"."""
    joining = JOINING[language]
    before, after = tokens[start - 1] if start else None, tokens[end] if end < len(tokens) else None
    if before and (before.tag == joining or before.text in "/&"):
        return True
    if after and (after.tag == joining or after.text in "/&") and not is_clause_after(tokens, end, language):
        return True
    return bool(before and before.text == "," and after and after.text == ",")


def is_clause_after(tokens: Sequence[Token], joint: int, language: str) -> bool:
    """Whether a verb follows "and", so that it joins clauses."""
    return any(is_finite(token, language) or token.tag == "VVI" for token in tokens[joint + 1 : joint + 3])


def part_of(tokens: Sequence[Token], before: int, start: int, verb: int, language: str) -> str:
    if before >= 0 and tokens[before].tag in PREPOSITIONS[language]:
        return FRONT if before == 0 else INNER
    if start < verb:
        return SUBJECT if before < 0 or tokens[before].text in ",;" else OTHER
    while before >= 0 and tokens[before].tag in ("AV0", "ADV", "PRF", "XX0", "PTKNEG"):
        before -= 1
    if before >= 0 and tokens[before].tag.startswith("V") and tokens[before].tag not in NO_OBJECT:
        return OBJECT
    return OTHER


def is_below(tokens: Sequence[Token], index: int) -> bool:
    """Whether a word of an English sentence is in a clause of lower rank, or behind the first of its infinitives."""
    below, before = False, ""
    for token in tokens[:index]:
        if token.tag in SUBORDINATE[ENGLISH] or (token.tag == "TO0" and before not in OBLIGING):
            below = True
        elif token.text in ",;:–":
            below = False
        before = token.text.lower()
    return below


OBLIGING = ("need", "needs", "have", "has", "able", "going")
"""Words whose infinitive is the verb of the clause: "you need to move the file"."""
NO_OBJECT = ("VBZ", "VBB", "VBD", "VBI", "VBN", "VVG", "VA(FIN)", "VA(INF)")
"""Verbs before what a subject is, and participles: "X is a tool", "taking the average"."""


def lower_first(text: str, token: Token) -> str:
    """The text with a small first letter, unless its first word is a name."""
    if token.tag == "NP0" or not re.fullmatch(r"[A-Z][a-z'’-]*", token.text):
        return text
    following = text.split()[1:2]
    if token.tag != "AT0" and following and following[0][:1].isupper():
        return text
    return text[0].lower() + text[1:]
