"""Spelling of names: the shapes of persons' and organisations' names, and the words that are never part of one.

The rules know no list of names. They know the opposite: words of meetings, of groups and of roles that occur where a
name could be. In running text a document itself says more: a word that it also writes in lower case is a word.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

UPPER = "A-Z" + "".join(chr(code) for code in range(0xC0, 0x530) if chr(code).isupper())
# Every repetition is bounded: a document of capitals only must not cost the square of its length.
W = rf"[{UPPER}][\w'’&\-]{{1,40}}"
PARTICLE = r"(?:[JS]r\.?|van|von|de|der|den|del|della|di|da|dos|du|la|le|el|al|bin|ben|ter|zu)"
TITLE = r"(?:(?:Dr|Mr|Ms|Mrs|Prof|Sir)\.?[ \t]+)"
NAME = rf"{W}(?:[ \t]+(?:{PARTICLE}|{W}|[A-Z]\.)){{0,5}}"
OWN = rf"[{UPPER}][\w'’\-]{{1,40}}"
PERSON = rf"{TITLE}?{OWN}(?:[ \t]+(?:{PARTICLE}|[A-Z]\.)){{0,3}}[ \t]+{OWN}"
FULL_PERSON = rf"{TITLE}?(?:{OWN}|[{UPPER}]\.)(?:[ \t]+(?:{PARTICLE}|{OWN}|[{UPPER}]\.?)){{0,4}}[ \t]+{OWN}"
"""With middle names: where a line or a cell says where the name begins."""
FORM = (
    r"(?:GmbH|AG|KG|KGaA|Inc\.?|Ltd\.?|LLC|LLP|PLC|Corp\.?|SA|S\.A\.|SE|SAS|SARL|S\.r\.l\.|S\.p\.A\.|SpA|BV|B\.V\.|NV|"
    r"N\.V\.|AB|Oy|Oyj|A/S|Pty|Limited|Corporation)"
)
INSTITUTION = (
    r"(?:Foundation|Institute|University|Association|Consortium|Federation|Society|Agency|Bank|College|Alliance|"
    r"Hospital|Initiative|Stiftung|Verband|Universität)"
)
COMPANY = re.compile(rf"\b(?P<name>{W}(?:[ \t]+(?:&|and|{W})){{0,5}}?[ \t]+{FORM})(?!\w)")
PART = rf"[{UPPER}][\w'’&\-]{{0,40}}(?:\.[\w\-]{{1,20}}){{0,3}}"
INSTITUTE = re.compile(rf"(?<![\w.])(?P<name>{PART}(?:[ \t]+(?:&|{PART})){{0,4}}?[ \t]+{INSTITUTION})(?![\w-])")
"""`Node.js Foundation`: an organisation by its last word; see `institute` for what precedes a name without being it."""

WORD = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*")
LOWER = re.compile(r"(?<![\w@/#.\-])[^\W\d_A-Z]{2,}(?![\w@/\-]|\.\w)")

_WORDS = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
DETERMINERS, GROUPS, ORGANISATIONS, ROLES, REMARKS, TOPICS, PRODUCTS, ADDRESSES = (
    frozenset(" ".join(_WORDS[name]).split())
    for name in ("determiners", "groups", "organisations", "roles", "remarks", "topics", "products", "addresses")
)
"""Words that are never part of a name, by what they mean; products are known to every reader of minutes. Those of
addresses end a name at most: `Nathan Lane`."""
NEVER_PEOPLE = (
    GROUPS
    | ORGANISATIONS
    | TOPICS
    | PRODUCTS
    | (DETERMINERS - {"an", "new"})
    | (ROLES - {"po", "md", "jr", "sr", "ii", "iii"})
)
NO_NAME = re.compile(r"^(?:none|n/?a|tbd|tbc|unknown|open|yes|no|null|true|false|nobody|vacant|-+)$", re.IGNORECASE)
ABBREVIATION = re.compile(rf"[{UPPER}](?:\.?[{UPPER}0-9]){{1,3}}\.?")


def common_words(document: str) -> frozenset[str]:
    """Return the words that a document writes in lower case."""
    return frozenset(word for word in LOWER.findall(document) if word.islower())


def is_person(name: str) -> bool:
    """Whether a text of two words or more can be a person's name."""
    words = [word.casefold() for word in name.replace("_", " ").split()]
    plain = [word.strip(".,") for word in words]
    capital = [word for word in name.split() if word[:1].isupper()]
    return (
        len(plain) > 1
        and len(capital) > 1
        and not all(word.isupper() and len(word) < 5 for word in name.split())
        and not re.search(r"[\d@/]", name)
        and not any(word in NEVER_PEOPLE for word in plain)
        and not (len(plain) > 2 and is_address(name))
    )


def is_address(text: str) -> bool:
    """Return whether a text is a part of a postal address: it names a street, or begins or ends with a number."""
    parts = [part.casefold().strip(".,") for part in text.split()]
    numbered = len(parts) > 1 and any(re.fullmatch(r"\d{1,5}[a-z]?", part) for part in (parts[0], parts[-1]))
    return numbered or any(part in ADDRESSES or part.endswith(("straße", "strasse")) for part in parts[1:] or parts)


def is_person_in_text(name: str, common: frozenset[str]) -> bool:
    """The same in running text, where capitals also begin sentences and titles: most of it must not be common words."""
    words = [word for word in WORD.findall(name) if word[0].isupper()]
    return is_person(name) and sum(word.casefold() in common for word in words) * 2 < len(words)


def is_abbreviation(short: str, name: str) -> bool:
    """Whether capitals such as `JD` or `RPR` are made of a name.

    They begin with its first letter and have that of its last word, or are three letters of it or more in their order.
    """
    letters = short.replace(".", "").casefold()
    parts = [word.casefold() for word in WORD.findall(name)]
    if not ABBREVIATION.fullmatch(short) or len(parts) < 2:
        return False
    remaining = iter("".join(parts))
    in_order = len(letters) > 2 and all(letter in remaining for letter in letters)
    return letters[0] == parts[0][0] and (in_order or parts[-1][0] in letters[1:])


def institute(match: re.Match[str], common: frozenset[str]) -> str:
    """The organisation of an `INSTITUTE` match without what only precedes it; empty when nothing is left of its name.

    A determiner goes, and so does the capital that begins a line or a sentence when the document writes the word in
    lower case elsewhere.
    """
    words = match["name"].split()
    before = match.string[max(0, match.start() - 3) : match.start()].rstrip(" \t*_-")
    begins = not before or before[-1] in "\n.!?:"
    while len(words) > 1:
        first = words[0].casefold()
        if first not in DETERMINERS and not (begins and (first in common or first in TOPICS)):
            break
        words, begins = words[1:], False
    return " ".join(words) if any(word.casefold() not in TOPICS for word in words[:-1]) else ""


def company_name(text: str) -> str:
    """The organisation that an affiliation names; empty for a role, a committee, a handle, a remark or a sentence."""
    text = " ".join(text.split()).strip(" ,;:*\"'`()[]")
    if COMPANY.fullmatch(text):
        return text
    if match := INSTITUTE.match(text):
        return institute(match, frozenset())
    parts = text.split()
    plain = [part.casefold().strip(".,") for part in parts]
    if not 1 <= len(parts) <= 5 or NO_COMPANY.search(text) or not re.search(r"[^\W\d_]{2}|\d[^\W\d_]", text):
        return ""
    if is_address(text):
        return ""
    if any(word in NOT_COMPANIES for word in plain) or all(word in TOPICS or word in DETERMINERS for word in plain):
        return ""
    return text if all(is_capital(part) or part in CONNECTORS for part in parts) and is_capital(parts[0]) else ""


NOT_COMPANIES = GROUPS | ROLES | REMARKS
NO_COMPANY = re.compile(r"[@/\\:<>{}|=#?!_]")
CONNECTORS = frozenset({"of", "and", "the", "for", "de", "der", "des", "du", "und", "et", "&"})


def is_capital(word: str) -> bool:
    """`Acme`, `eBay`, `3M`: a capital among the first letters."""
    return any(letter.isupper() for letter in word[:3])
