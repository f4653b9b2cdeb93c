"""Fronts of English sentences: the part before the comma, the main clause, and whether the latter instructs.

The cut is sure by its words alone, because the tags of a long sentence are not: a front is a condition, a purpose, a
reason or a place by its first word, and ends at the first comma behind which a main clause begins.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from trainyard.data.extractive.clauses import begins_with_command, parse_clause
from trainyard.data.extractive.grammar import word_set
from trainyard.data.extractive.noun_phrases import may_be_verb
from trainyard.data.extractive.phrases import FINITE, Reading, read

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
NO_MAIN = re.compile(
    r"(?:and|or|but|nor|which|that|who|whose|where|as|such|so|e\.g|i\.e|etc|for example|for instance|ideally|"
    r"especially|particularly|including|the \w+ of (?:which|whom)|if|when|unless|whether|because|not|rather|"
    r"preferably|however|plus)\b|[\"“”(\[]|[^\w`]",
    re.I,
)
"""How a part of a sentence begins that is not a main clause."""
LIGHT_ADVERB = re.compile(r"(?:please|then|just|simply|first|also|always|either|instead) ", re.I)
ADVICE = re.compile(
    r"(?:you|we)(?:['’]ll)? (?:(?:also|then|first|always|probably|usually|often|still) )?"
    r"(?:can|could|should(?! (?:now )?(?:see|get|notice|receive|have|be able)\b)|must|may|might|"
    r"(?:will )?(?:(?:need|have) to|be able to)|are (?:welcome|encouraged|advised|expected|required|free|able) to|"
    r"recommend|suggest|ask (?:you|that)|encourage|advise)\b"
    r"|it(?:['’]s| is) (?:\w+ )?(?:recommended|best|advisable|important|essential|vital|good practice|a good idea)\b"
    r"|(?:feel free|be sure|make sure|do not|don['’]t|never|always|avoid|try|consider|contact|email) \w",
    re.I,
)
"""How advice begins."""
COMMANDS = word_set("en_commands")
NO_PURPOSE = re.compile(
    r"(?:this|that|date|some|which|whom|what|many|me|us|you|my|our|your|be (?:clear|honest|fair|sure))\b"
)


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
        main = re.sub(r"^(?:then |please )+", "", text[reading.tokens[index].end :].strip(), flags=re.I)
        if not begins_main(main, vocabulary):
            continue
        front = reading.words(0, index)
        if kind == "purpose":
            front = PURPOSE.sub("", front)
        return Front(kind, front, main)
    return Front("", "", text)


def begins_main(text: str, vocabulary: Collection[str]) -> bool:
    """Whether a main clause begins here, not one more condition of a list or a remark."""
    if NO_MAIN.match(text) or re.match(r"[^,]*, (?:or|and) [^,]*, ", text):
        return False
    if instructs(text) or parse_clause(text, vocabulary, partly=True):
        return True
    reading = read(text)
    shape = reading.shape[: reading.boundary(0)]
    return shape[:1] in tuple("dnpie1aG") and bool(re.search(rf"[{FINITE}]", shape))


def instructs(text: str) -> bool:
    """Whether a main clause instructs the reader: "use the other key", "you should ask"."""
    if ADVICE.match(text):
        return True
    words = re.findall(r"[^\s,]+", LIGHT_ADVERB.sub("", text, count=1))[:2]
    if len(words) == 1 and words[0].lower() in COMMANDS:
        return True
    if len(words) < 2 or words[0].lower() not in COMMANDS:
        return begins_with_command(text)
    reading = read(f"{words[0]} {words[1]}")
    return re.match(rf".[{FINITE}]", reading.shape) is None or words[1][0] == "`"


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
    if (match := PURPOSE.match(text)) and is_infinitive(text, match.end()):
        return "purpose"
    if CONDITION.match(text):
        return "condition"
    if REASON.match(text):
        return "reason"
    return "place" if read(text).shape[:1] == "r" else ""


def is_infinitive(text: str, start: int) -> bool:
    """Whether a verb follows "To"; the tagger takes many for nouns."""
    if NO_PURPOSE.match(text[start:]):
        return False
    if read(text[start - 3 :]).shape[1:2] in ("I", "B", "H", "A"):
        return True
    word, _, rest = text[start:].partition(" ")
    follows = re.match(r"(?:the|an?|your|our|all|any|each|more|multiple|new|`)|[A-Z]", rest)
    return bool(follows) and (word in COMMANDS or may_be_verb(word) or word[:4] in ("sync", "auto"))


def commas(reading: Reading) -> list[int]:
    """Return the tokens that are commas outside of quotations."""
    places: list[int] = []
    quoted = False
    for index, token in enumerate(reading.tokens):
        quoted ^= token.text in QUOTES
        inside_number = reading.text[token.end : token.end + 1].isdigit()
        if token.text == "," and index and not quoted and not inside_number:
            places.append(index)
    return places


QUOTES = '"“”'
