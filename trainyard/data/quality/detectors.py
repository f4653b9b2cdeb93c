"""Detectors of sensitive text: e-mail addresses, phone and card numbers, keys of services, private keys.

One row of `DETECTORS` a rule: a pattern by which Arrow finds the few texts that have to be looked at (RE2, linear), the
function that finds the places, and the placeholder. Precision comes first, because a training set is full of numbers,
hashes and versions: cards need a known prefix, Luhn's check digit and their own groups, keys a service's prefix or
a name such as `api_key` with a random-looking value.

Own patterns, because no kept library has them small and offline: detect-secrets is without a release since May 2024,
reads lines of files and brings an HTTP client; presidio brings spaCy and its models; python-stdnum does not search in
text. Phone numbers are judged by phonenumberslite (`phones`). No pattern backtracks more than a bounded number of
characters, so that time grows with the length of a text whatever is in it.

Phone numbers in running text, judged by the plans of 240 countries (phonenumberslite, a port of libphonenumber).

A number with its country's code (`+49 30 …`, `0049 30 …`) is judged by that country's plan. One without is ambiguous:
an order number may look the same. It counts if it is valid in one of the wanted regions and is written as a number is
there, or if a word such as "phone" precedes it; a word such as "order" counts against it.

Every pattern is linear: bounded, possessive, and begun only where a number can begin. What is dear is the judgement,
about 0.1 ms a candidate and region on one core; the same text is judged once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

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


# --- e-mail ---------------------------------------------------------------------------------------------------------

_LETTERS = "A-Za-z0-9À-ÖØ-öø-ɏ"
_LABEL = rf"[{_LETTERS}-]{{1,63}}"
EMAIL = re.compile(rf"(?<![{_LETTERS}._%+'/@-])[{_LETTERS}._%+'-]{{1,64}}+@({_LABEL}(?:\.{_LABEL}){{1,8}})")
TOP_LEVEL = frozenset(
    """com org net edu gov mil int info biz name pro app dev page cloud online site website shop store blog email mail
    tech agency company digital solutions services group team world life live media news wiki work works zone space
    today academy school university college institute foundation center care health clinic law legal consulting design
    studio art music photo photos video games software systems network technology tools engineering science bio eco
    earth energy finance bank capital money tax jobs careers events travel hotel restaurant cafe bar club social
    community church berlin hamburg koeln cologne bayern wien paris london amsterdam tokyo nyc swiss scot wales cat eus
    gal asia africa lat xyz top icu vip fun one plus global international ltd gmbh inc llc limited example test
    invalid""".split()  # noqa: SIM905 - a hundred short words read better as a text
)
"""Top-level domains in use besides the two-letter ones. `example` and `test` are what invented addresses end in."""


def find_emails(text: str) -> Iterator[Span]:
    """Addresses whose domain ends in a top-level domain; not remotes of git, logins in URLs, calls in code."""
    for match in EMAIL.finditer(text) if "@" in text else ():
        labels = match[1].split(".")
        while len(labels) > 1 and not is_top_level(labels[-1]):
            labels.pop()
        end = match.start(1) + len(".".join(labels))
        start = match.start() + len(match[0]) - len(match[0].lstrip(".'%+=-"))
        local = text[start : match.start(1) - 1]
        after = text[end : end + 2]
        # The `user@host` or `password@host` of a URL.
        _, scheme, before = text[max(0, start - 80) : start].rpartition("://")
        is_login = scheme and not re.search(r"[\s/?#]", before)
        if len(labels) < 2 or not local or after[:1] in ("(", "[") or is_login:
            continue
        if after[:1] == ":" and local == "git":  # git@github.com:owner/name
            continue
        if "" in labels or any(label[0] == "-" or label[-1] == "-" for label in labels):
            continue
        yield start, end


def is_top_level(label: str) -> bool:
    low = label.lower()
    if label not in (low, label.upper()):
        return False
    return (len(low) == 2 and low.isascii() and low.isalpha()) or low in TOP_LEVEL or low.startswith("xn--")


# --- card numbers ---------------------------------------------------------------------------------------------------

CARD = re.compile(r"(?<![\w.,/+#@-])(?<!\d )\d(?:[ -]?\d){13,18}+(?!\w|[.,:/-]\d| \d)")
NETWORKS = re.compile(
    r"4\d{15}(?:\d{3})?"  # Visa
    r"|(?:5[1-5]|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d*(?<=^.{16})"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|(?:6011|64[4-9]|65)\d*(?<=^.{16})"  # Discover
    r"|35(?:2[89]|[3-8]\d)\d{12}"  # JCB
    r"|3(?:0[0-5]|[689]\d)\d{11}"  # Diners
    r"|62\d{14,17}"  # UnionPay
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{12}"  # Maestro
    r"|220[0-4]\d{12}"  # Mir
)
CARD_GROUPS = frozenset({(4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 4, 3), (6, 13)})
SAYS_NO_CARD = re.compile(
    r"(?:#|№|\b(?:order|bestell|auftrag|rechnung|invoice|ticket|serial|sku|ref|part|id|isbn|tracking|parcel|batch|timestamp"
    r"|commande|facture|pedido|imei|ean|gtin)\w{0,12}\W{0,3}(?:(?:no|nr|number|nummer|id)\W{0,3})?$)",
    re.IGNORECASE,
)


def find_cards(text: str) -> Iterator[Span]:
    """Numbers of payment cards: a network's prefix and length, Luhn's check digit, and its groups if it has any."""
    for match in CARD.finditer(text):
        digits = re.sub(r"\D", "", match[0])
        if len(set(digits)) < 2 or not NETWORKS.fullmatch(digits) or not luhn(digits):
            continue
        groups = tuple(map(len, re.split(r"[ -]", match[0])))
        one_kind = not (" " in match[0] and "-" in match[0])
        if len(groups) > 1:
            is_card = one_kind and groups in CARD_GROUPS
        else:
            is_card = not SAYS_NO_CARD.search(text[max(0, match.start() - 30) : match.start()])
        if is_card:
            yield match.span()


def luhn(digits: str) -> bool:
    """The check digit of ISO/IEC 7812: from the right every second digit doubled, the sum a multiple of ten."""
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[::-2])) + sum(doubled)) % 10 == 0


# --- keys of services -----------------------------------------------------------------------------------------------

TOKEN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9][A-Za-z0-9_.-]{15,2047}+")
SERVICES = {
    "AKIA ASIA ABIA ACCA": r"[0-9A-Z]{16}", "ghp_ gho_ ghu_ ghs_ ghr_": r"\w{36,255}", "github_pat_": r"\w{60,255}",
    "glpat-": r"[\w-]{20,300}", "xoxb- xoxp- xoxa- xoxr- xoxs-": r"[\w-]{20,100}", "xapp-": r"[\w-]{20,200}",
    "sk-": r"[\w-]{20,250}", "hf_": r"[A-Za-z0-9]{30,40}", "AIza": r"[\w-]{35}", "ya29.": r"[\w-]{20,1000}",
    "sk_live_ sk_test_ rk_live_ rk_test_": r"[0-9A-Za-z]{16,200}", "whsec_": r"[0-9A-Za-z+/]{32,64}",
    "SK key-": r"[0-9a-f]{32}", "SG.": r"[\w-]{16,32}\.[\w-]{32,64}", "npm_": r"[A-Za-z0-9]{36}",
    "pypi-": r"AgE[\w-]{50,1000}", "dop_v1_": r"[0-9a-f]{64}", "dapi": r"[0-9a-f]{32}(?:-\d)?",
    "shpat_ shpss_": r"[0-9a-fA-F]{32}", "gsk_ ntn_": r"[A-Za-z0-9]{40,60}", "xai-": r"[A-Za-z0-9]{60,100}",
    "ty_": r"[\w-]{43}", "r8_": r"[A-Za-z0-9]{37}", "hvs.": r"[\w-]{24,300}", "lin_api_": r"[A-Za-z0-9]{32,64}",
    "eyJ": r"[\w-]{8,1000}\.eyJ[\w-]{8,2000}\.[\w-]{16,}",
}  # fmt: skip
"""Prefixes of services' keys -> what follows them. A token begins where no letter or digit precedes it."""
SERVICE_PATTERNS = {
    prefix: re.compile(re.escape(prefix) + rest, re.ASCII)
    for prefixes, rest in SERVICES.items()
    for prefix in prefixes.split()
}
PREFIXES = tuple(SERVICE_PATTERNS)
NAMED = re.compile(
    r"(?<![a-z])(?:api[_-]?key|apikey|secret|token|passw(?:or)?d|pwd|credential|account[_-]?key|access[_-]?key|bearer"
    r"|auth)[a-z_-]{0,24}+[\"'\])]{0,2}\s{0,3}(?::=|=>|[:=]|\s)\s{0,3}(?:bearer\s)?[\"'`]?"
    r"(?P<value>[A-Za-z0-9_+/.~-]{16,512}+={0,2}+)(?![(\[])",
    re.IGNORECASE,
)
"""A value behind a name such as `api_key`, `client_secret`, `Authorization: Bearer`."""
LOGIN = re.compile(r"://[^\s:/@\"'<>]{1,64}+:(?P<value>[^\s/@\"'<>]{6,128}+)@[\w.-]{2,253}")
"""A password in a URL."""
WEBHOOK = re.compile(r"https://hooks\.slack\.com/services/T\w{6,12}+/B\w{6,14}+/\w{20,30}+")
PLACEHOLDER = re.compile(
    r"your|example|change.?me|placeholder|redacted|dummy|sample|xxxx|\*\*\*|[$<{]|password|passwd", re.IGNORECASE
)
LEAST_CHANGES = 3
"""How often letters and digits change in a value that looks random."""
UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


KEY_CANDIDATES = (
    r"[A-Za-z0-9_.+/~-]{16}|://[^\s/]+:[^\s/]+@",
    r"[A-Za-z][_.+/-]?[0-9]|[0-9][_.+/-]?[A-Za-z]|hf_|://",
    r"(?i:key|secret|token|passw|pwd|credential|bearer|auth)|://|" + "|".join(map(re.escape, PREFIXES)),
)
"""A long run, a change between letters and digits, which words and paths rarely have, and a prefix or a name."""
KEY_PATTERNS = tuple(map(re.compile, KEY_CANDIDATES))


def may_have_key(text: str) -> bool:
    """Whether a text has everything that a key, token or password has: cheaper than looking for them."""
    return all(pattern.search(text) for pattern in KEY_PATTERNS)


def find_keys(text: str) -> Iterator[Span]:
    """Keys and tokens of services, values behind a name such as `api_key`, passwords in URLs."""
    for match in TOKEN.finditer(text):
        prefix = next((candidate for candidate in PREFIXES if match[0].startswith(candidate)), "")
        key = SERVICE_PATTERNS[prefix].match(match[0]) if prefix else None
        if key and (prefix != "sk-" or changes(key[0]) >= 3):  # sk-learn-compatible-estimators
            yield match.start(), match.start() + len(key[0].rstrip(".-_"))
    for match in NAMED.finditer(text):
        value = match["value"]
        if is_random(value) and not PLACEHOLDER.search(value) and not UUID.fullmatch(value):
            yield match.span("value")
    if "://" in text:
        yield from (match.span("value") for match in LOGIN.finditer(text) if not PLACEHOLDER.search(match["value"]))
        yield from (match.span() for match in WEBHOOK.finditer(text))


def changes(value: str) -> int:
    """Return how often letters and digits change: many times in a random text, rarely in a name with a number."""
    kinds = [char.isdigit() for char in value if char.isalnum()]
    return sum(first is not two for first, two in pairwise(kinds))


def is_random(value: str) -> bool:
    """Return whether a value looks random: letters and digits often change, and there are many different ones."""
    return changes(value) >= LEAST_CHANGES and len(set(value)) >= 8 and value.count(".") <= 2 and "/." not in value


# --- private keys ---------------------------------------------------------------------------------------------------

ARMOR = re.compile(r"-----(BEGIN|END) (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
KEY_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s]|\\[nr]|[A-Z][A-Za-z-]{2,20}: [^\n]{1,80}\n){0,20000}+")
AGE_KEY = re.compile(r"AGE-SECRET-KEY-1[0-9A-Z]{50,64}")
LEAST_BODY = 16
"""Base64 characters of a key; a text that only speaks of the marker has none."""


def find_private_keys(text: str) -> Iterator[Span]:
    """PEM and PGP private keys from marker to marker, or to the end of the Base64 text if the second is missing."""
    begin: re.Match[str] | None = None
    for marker in ARMOR.finditer(text) if "PRIVATE KEY" in text else ():
        if begin is not None:
            yield from whole_key(text, begin, marker)
        begin = marker if marker[1] == "BEGIN" else None
    if begin is not None:
        yield from whole_key(text, begin, None)
    if "AGE-SECRET-KEY-1" in text:
        yield from (match.span() for match in AGE_KEY.finditer(text))


def whole_key(text: str, begin: re.Match[str], marker: re.Match[str] | None) -> Iterator[Span]:
    closed = marker is not None and marker[1] == "END"
    limit = len(text) if marker is None else marker.start()
    body = KEY_BODY.match(text, begin.end(), limit)
    end = body.end() if body else begin.end()
    if closed and marker is not None and end < limit and longest_letter_run(text[begin.end() : limit]) >= LEAST_BODY:
        end = limit  # headers or comments inside
    if longest_letter_run(text[begin.end() : end]) >= LEAST_BODY:
        yield begin.start(), marker.end() if closed and marker is not None and end == limit else end


def longest_letter_run(body: str) -> int:
    """Characters of the longest run of Base64."""
    return max((len(run) for run in re.findall(r"[A-Za-z0-9+/=]{8,}+", body)), default=0)


# --- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Detector:
    """Detector of one kind of sensitive text."""

    placeholder: str
    name: str
    candidates: tuple[str, ...]
    """RE2 patterns that all match any text that can contain one; cheap, with many false positives."""
    find: Callable[[str], Iterator[Span]]


def detectors(regions: tuple[str, ...]) -> dict[str, Detector]:
    """Rule -> detector, in the order in which overlapping places are decided."""
    return {
        "private_key": Detector("[PRIVATE_KEY]", "private keys", (r"PRIVATE KEY|AGE-SECRET-KEY-1",), find_private_keys),
        "api_key": Detector("[API_KEY]", "keys of services", KEY_CANDIDATES, find_keys),
        "card": Detector("[CARD]", "card numbers", (r"\d(?:[ -]?\d){13}",), find_cards),
        "email": Detector("[EMAIL]", "e-mail addresses", (r"[^\s@]@[^\s@]+\.",), find_emails),
        "phone": Detector(
            "[PHONE]",
            "phone numbers",
            (r"\d(?:[ \x{a0}().\-/–]{0,3}\d){6}",),
            partial(find_phones, regions=regions),
        ),
    }
