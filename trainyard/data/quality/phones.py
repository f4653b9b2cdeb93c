"""Phone numbers in running text, judged by the plans of 240 countries (phonenumberslite, a port of libphonenumber).

A number with its country's code (`+49 30 …`, `0049 30 …`) is judged by that country's plan. One without is ambiguous:
an order number may look the same. It counts if it is valid in one of the wanted regions and is written as a number is
there, or if a word such as "phone" precedes it; a word such as "order" counts against it.

Every pattern is linear: bounded, possessive, and begun only where a number can begin. What is dear is the judgement,
about 0.1 ms a candidate and region on one core; the same text is judged once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import phonenumbers
from phonenumbers import NumberParseException, is_valid_number, parse

Span = tuple[int, int]

CANDIDATE = re.compile(
    r"(?<![\w.,/:+#=@&%$€£*^~-])(?:\(?\+|(?<!\d ))\(?\d(?:[ \xa0().\-/–]{0,3}\d){6,16}+(?!\w|[.,:/–-]\d)"
)
ASKED = 24
"""Characters before a number in which a word says what it is."""
SAYS_PHONE = re.compile(
    r"\b(?:tele?fon|tele?phone|tél|tel|fon|phone|mob|handy|móvil|cell|cel|call|dial|ring|fax|whatsapp|sms|hotline|ruf|anruf"
    r"|appel|llam|chiam|тел)|电话|電話|手机|전화|☎|📞",
    re.IGNORECASE,
)
SAYS_OTHER = re.compile(
    r"(?:#|№|\b(?:order|bestell|auftrag|rechnung|kunden|artikel|invoice|inv|ticket|serial|sku|ref|part|id|isbn|issn|doi|pmid"
    r"|vat|ust|iban|bic|konto|account|acct|version|build|rev|commit|no|nr|number|nummer|commande|facture|pedido|factura"
    r"|tracking|parcel|zip|plz|case|policy|licen[cs]e|patent|model|port|pid|uid|batch|lot|timestamp|epoch)\w{0,12}\W{0,3}$)",
    re.IGNORECASE,
)
OTHER_SHAPES = re.compile(
    r"\d+\.\d+"  # a decimal fraction
    r"|\d{4}[-./]\d{1,2}[-./]\d{1,2}(?: \d{2})*"  # a date, perhaps with a time
    r"|\d{1,2}[-./]\d{1,2}[-./]\d{2,4}(?: \d{2})*"
    r"|\d{1,3}(?:\.\d{1,3}){3}"  # an IP address or a version
    r"|\d{1,3}(?:[. \xa0]\d{3})+"  # thousands
    r"|(?:19|20)\d\d ?[-–/] ?(?:19|20)\d\d"  # years
    r"|\d{3}-\d{2}-\d{4}"  # a social security number
    r"|97[89][- ]?(?:\d[- ]?){9}\d"  # an ISBN
)
NORTH_AMERICAN = re.compile(r"(?:\+?1[-. ])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[-. ])\d{3}[-. ]\d{4}")
"""The shape of the North American plan. 555 is the area of numbers that are made up, which no plan knows."""


WITHOUT_ZERO = frozenset({"US", "CA"})
"""Regions in which no number begins with a zero."""


def find_phones(text: str, regions: tuple[str, ...]) -> Iterator[Span]:
    """Yield the spans of phone numbers. `regions` are ISO 3166 codes for numbers without a country's code."""
    for match in CANDIDATE.finditer(text):
        start, end = match.span()
        while text[start] == "(" and ")" not in text[start:end]:
            start += 1  # an opening bracket that the number does not close
        if is_phone(text[start:end], text[max(0, start - ASKED) : start], regions):
            yield start, end


def is_phone(number: str, before: str, regions: tuple[str, ...]) -> bool:
    """Whether a candidate is a phone number, by its shape, its plan and the text before it."""
    bare = number.lstrip("(")
    if bare.startswith("+"):
        return is_international(number)
    is_named = SAYS_PHONE.search(before) is not None
    if not is_named and (OTHER_SHAPES.fullmatch(number) or SAYS_OTHER.search(before)):
        return False
    grouped = not number.isdigit()
    if bare.startswith("00"):
        return (grouped or is_named) and is_international("+" + bare[2:].lstrip())
    if not is_named and not grouped:
        return False
    if "US" in regions and NORTH_AMERICAN.fullmatch(number) and is_north_american(number, is_named):
        return True
    return any(is_national(number, region, is_named) for region in regions)


@lru_cache(maxsize=1 << 16)
def is_international(number: str) -> bool:
    """Whether a number with its country's code is in that country's plan, or written in groups and as long as one."""
    try:
        parsed = parse(number, None)
    except NumberParseException:
        return False
    groups = re.findall(r"\d+", number)
    return is_valid_number(parsed) or (
        len(groups) > 2 and sum(map(len, groups)) > 8 and phonenumbers.is_possible_number(parsed)
    )


@lru_cache(maxsize=1 << 16)
def is_north_american(number: str, is_named: bool) -> bool:
    marked = is_named or "(" in number or "-" in number or "." in number
    made_up = re.match(r"\D*(?:1\D+)?\(?555", number) is not None
    return marked and (made_up or is_valid_number(parse(number, "US")))


@lru_cache(maxsize=1 << 16)
def is_national(number: str, region: str, is_named: bool) -> bool:
    """Whether a number without a country's code is one of `region`; in its groups, if no word says that it is one."""
    zero = number.lstrip("(").startswith("0")
    if (zero and region in WITHOUT_ZERO) or (not zero and not is_named):
        return False
    try:
        if not is_valid_number(parse(number, region)):
            return False
    except NumberParseException:
        return False
    leniency = phonenumbers.Leniency.VALID if is_named else phonenumbers.Leniency.STRICT_GROUPING
    return phonenumbers.PhoneNumberMatcher(number, region, leniency=leniency).has_next()
