"""Questions for German sentences, made of the sentence's own words.

A subordinate clause keeps its word order in a question ("Was gilt, wenn …?"), and a phrase with a preposition its case
("Was gilt bei …?"), so that nothing has to be inflected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from trainyard.data.extractive.clauses import join
from trainyard.data.extractive.english import Ask
from trainyard.data.extractive.lexicon import word_set

FINITE = word_set("de_finite")
CONDITION = re.compile(
    r"(?P<clause>(?:Wenn|Falls|Sofern|Sobald|Bevor|Solange|Nachdem) [^,;:()]{8,110}), (?:dann |so )?(?P<main>.+)"
)
CONDITION_LAST = re.compile(
    r"(?P<main>.{12,}?), (?P<clause>(?:wenn|falls|sofern|sobald|bevor|solange|nachdem) [^,;:()]{8,110})"
)
PURPOSE = re.compile(r"(?P<goal>Um [^,;:]{4,100} (?:\w*zu\w+|zu \w+)), (?P<main>.+)")
PURPOSE_LAST = re.compile(r"(?P<main>.{10,}?), (?P<goal>um [^,;:()]{4,100} (?:\w*zu\w+|zu \w+))")
BECAUSE = re.compile(r"(?P<main>.{12,}?), (?:weil|da) (?P<why>.{8,})")
PLACE = re.compile(
    r"(?P<place>(?:Bei|Beim|Für|Mit|Im|In|Nach|Ohne|Zur|Zum|Seit|Ab|Vor|Während|Innerhalb|Außerhalb) .+)"
)
PREPOSITION = (
    r"(?:Bei|Beim|Für|Mit|I[nm]|Nach|Ohne|Zu[rm]?|Seit|Ab|Vor|Während|Neben|Statt|A[mn]|Auf|Aus|Durch|Unter|Über|"
    r"Von|Vom) "
)
IDIOM = re.compile(
    r"(?:Zur Zeit|Am besten|Im Folgenden|Im Allgemeinen|In der Regel|Zum Beispiel|Nach wie vor|Im Grunde|Im Moment|"
    r"Vor allem|Im Prinzip|Am Ende|Zum Schluss|Im Beispiel|Nach dem|In Zukunft|Zum einen|Zum anderen|Mit Hilfe|"
    r"I[mn] (?:Kapitel|Abschnitt)|"
    r"Mithilfe|Mit Blick|In (?:den meisten|vielen|einigen|manchen) Fällen|Im Ernstfall|Im Gegensatz|"
    r"Im Unterschied|In diese[rmn]?|Mit diese[rmn]?|Nach diese[rmn]?|Nach Betätigen)\b"
)
"""Beginnings that say nothing of what a sentence is about."""
UNITS = r"(?:Sekunden?|Minuten?|Stunden?|Tage?n?|Werktage?n?|Arbeitstage?n?|Wochen?|Monate?n?|Jahre?n?|Kalendertage?n?)"
NUMBER = r"(?:\d[\d.,]*|ein(?:e[rmns]?)?|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|zwölf|vierzehn|dreißig)"
TIMES = (
    (re.compile(rf"(?:jede[nrs]? (?:{UNITS}|\w+tag)|(?:einmal|zweimal|dreimal|{NUMBER}-?mal) "
                r"(?:pro|im|am|in der|je) \w+|"
                r"täglich|wöchentlich|monatlich|jährlich|vierteljährlich)"), "Wie oft"),
    (re.compile(rf"(?:innerhalb (?:von )?|binnen ){NUMBER} {UNITS}"), "In welcher Frist"),
    (re.compile(rf"(?:seit|ab|bis|spätestens|am|vor|nach) (?:zum |dem |de[rmn] )?"
                rf"(?:\d{{1,2}}\. ?\w+(?: \d{{4}})?|\d{{1,2}}(?:[.:]\d\d)? Uhr|"
                rf"\w+ \d{{4}}|{NUMBER} {UNITS})"), "Wann"),
    (re.compile(rf"{NUMBER} {UNITS} lang"), "Wie lange"),
)  # fmt: skip
MODALS = word_set("de_modals")
BE = word_set("de_be")
ARTICLES = word_set("de_articles")
POINTING = re.compile(
    r"\b(?:dies\w*|jene\w*|solche\w*|hier\w*|dort|dabei|dafür|damit|dazu|daher|dadurch|folgende\w*|"
    r"obige\w*|er|sie|es|ihn|ihm|"
    r"ihr\w*|deren|dessen|so|beide\w*|wir|unser\w*|uns)\b"
)
STOP_WORDS = word_set("de_stop_words")
VAGUE = (
    r"(?:zweit|dritt|besonder|genannt|direkt|letzt|nächst|vergleichbar|"
    r"entsprech|verschied|weiter|erst|ander|jeweilig|neu|eigen|welch|gewünscht|nachfolg|obig|beliebig|folgend|best)"
)
DEFINED = re.compile(r"(?:ein|eine|der|die|das)\b")


UNFINISHED = re.compile(r"\b(?:und|oder|sowie|B\.|der|die|das|ein|eine|von|mit|zu)\W*\?$")
LONGEST_SUBJECT = 7


def content_words(text: str) -> list[str]:
    """The words of a text in small letters without stop words."""
    return [word for word in re.findall(r"[\w’-]+", text.lower()) if word not in STOP_WORDS]


def ask_german(sentence: str, vocabulary: Collection[str] = frozenset(), subject: str = "") -> list[Ask]:
    """Return the question that a sentence answers, if there is one. `subject` replaces a pronoun at the start."""
    text = re.sub(r"\s*\([^()]*\)$", "", sentence.strip().rstrip(".!").strip())
    text = re.sub(r"^(?:Bitte (?:beachten Sie, dass )?|Hinweis: |Wichtig: |Achtung: )(?=[A-ZÄÖÜ])", "", text)
    for ask in forms_of(text):
        asked = set(content_words(ask.topic))
        fresh = [word for word in content_words(sentence) if word not in asked]
        if POINTING.search(re.sub(r"\bSie\b|\bIhr\w*\b", "", re.sub(r"`[^`]*`", "x", ask.topic))):
            continue
        if UNFINISHED.search(ask.topic):
            continue
        if asked and len(fresh) >= 2 and len(ask.topic.split()) <= 24 and ask.topic.count("„") == ask.topic.count("“"):
            return [ask]
    return []


def forms_of(text: str) -> Iterator[Ask]:
    if match := CONDITION.fullmatch(text) or CONDITION_LAST.fullmatch(text):
        clause = match["clause"][0].lower() + match["clause"][1:]
        if not re.match(r"\w+ (?:es|sie|er|dies\w*|das|auch|nicht|möglich|nötig|überhaupt)\b", clause):
            yield Ask("condition", clause)
    match = PURPOSE.fullmatch(text) or PURPOSE_LAST.fullmatch(text)
    if (
        match
        and not re.search(r"beschrieben|erläutert|erklärt|gezeigt", match["main"])
        and not re.match(r"(?:ob|wie|dass|was|es) ", match["main"], re.I)
        and not re.search(r"\b(?:nicht|kein\w*)\b", match["main"])
    ):
        yield Ask("purpose", match["goal"][0].lower() + match["goal"][1:])
    parts = cut_at_verb(text)
    if parts is None:
        return
    before, verb, rest = parts
    if match := BECAUSE.fullmatch(text):
        main = cut_at_verb(match["main"])
        if main and not PLACE.fullmatch(main[0]):
            yield Ask("bare", f"Warum {main[1]} {small(main[0])} {main[2]}?")
    if IDIOM.match(before):
        return
    if (
        PLACE.fullmatch(before)
        and re.search(r" [A-ZÄÖÜ„`]", before)
        and len(before.split()) <= 12
        and "," not in before
    ):
        phrase = before[0].lower() + before[1:]
        yield Ask("case", phrase)
        return
    if "," in before or not is_noun_phrase(before) or len(before.split()) > LONGEST_SUBJECT:
        return
    subject, short = small(before), re.split(r"[,;:(]| – | - ", rest)[0].strip()
    for pattern, word in TIMES:
        if match := pattern.search(short):
            left = " ".join((short[: match.start()] + short[match.end() :]).split())
            yield Ask("bare", f"{join(word, verb, subject, left)}?")
    article = re.match(r"(?:der|die|das|ein|eine) ", subject)
    if verb in BE and DEFINED.match(short) and (article or " " not in subject):
        yield Ask("bare", f"Was {verb} {subject}?")
    elif verb in ("kostet", "kosten"):
        yield Ask("bare", f"Wie viel {verb} {subject}?")
    elif verb in ("beträgt", "betragen"):
        yield Ask("bare", f"Wie hoch {'ist' if verb == 'beträgt' else 'sind'} {subject}?")
    elif verb in ("dauert", "dauern"):
        yield Ask("bare", f"Wie lange {verb} {subject}?")
    elif verb in ("heißt", "bedeutet", "bezeichnet", "enthält", "umfasst", "ermöglicht", "bietet", "regelt") and short:
        yield Ask("bare", f"{'Wie' if verb == 'heißt' else 'Was'} {verb} {subject}?")


def small(phrase: str) -> str:
    """A subject with a small first letter where it begins with an article or an adjective."""
    first = phrase.split(maxsplit=1)[0]
    if first.lower() in ARTICLES or (
        len(phrase.split()) > 1
        and re.search(r"(?:e|en|er|es)$", first)
        and first.isalpha()
        and phrase.split()[1][:1].isupper()
    ):
        return phrase[0].lower() + phrase[1:]
    return phrase


def cut_at_verb(text: str) -> tuple[str, str, str] | None:
    """(what is before the finite verb, the verb, the rest) of a main clause."""
    words = text.split()
    for place, word in enumerate(words[1:14], 1):
        if words[place - 1][-1:] in ",;:":
            return None
        if word in FINITE and words[place - 1].lower() not in ARTICLES:
            return " ".join(words[:place]), word, " ".join(words[place + 1 :])
    return None


ADVERBS = word_set("de_adverbs")
NOT_ADJECTIVES = STOP_WORDS | ADVERBS | ARTICLES | word_set("de_not_adjectives")


def is_noun_phrase(text: str) -> bool:
    words = text.split()
    if len(words) == 1 and text.lower() in FINITE:
        return False
    if words[0].lower() in ADVERBS or (len(words) == 1 and words[0].lower() in NOT_ADJECTIVES):
        return False
    if POINTING.match(text) or POINTING.match(text.lower()) or text.lower() in word_set("de_no_subject"):
        return False
    if words[0].lower() in word_set("de_not_first"):
        return False
    return any(word.strip('„`"')[:1].isupper() for word in words[1:] or words)
