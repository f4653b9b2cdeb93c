"""Questions for German sentences, made of the sentence's own words.

A subordinate clause keeps its word order in a question ("Was gilt, wenn …?"), and a phrase with a preposition its case
("Was gilt bei …?"), so that nothing has to be inflected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from trainyard.data.extractive.english import LEXICON, Ask, join

FINITE = frozenset(LEXICON["de_finite"].split())
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
IDIOM = re.compile(
    r"(?:Zur Zeit|Am besten|Im Folgenden|Im Allgemeinen|In der Regel|Zum Beispiel|Nach wie vor|Im Grunde|Im Moment|"
    r"Vor allem|Im Prinzip|Am Ende|Zum Schluss|Im Beispiel|Nach dem|In Zukunft|Zum einen|Zum anderen|Mit Hilfe|Mithilfe|Im Gegensatz|Im Unterschied|In diese[rmn]?|Mit diese[rmn]?|Nach diese[rmn]?|Nach Betätigen)\b"
)
"""Beginnings that say nothing of what a sentence is about."""
UNITS = r"(?:Sekunden?|Minuten?|Stunden?|Tage?n?|Werktage?n?|Arbeitstage?n?|Wochen?|Monate?n?|Jahre?n?|Kalendertage?n?)"
NUMBER = r"(?:\d[\d.,]*|ein(?:e[rmns]?)?|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|zwölf|vierzehn|dreißig)"
TIMES = (
    (re.compile(rf"(?:jede[nrs]? (?:{UNITS}|\w+tag)|(?:einmal|zweimal|dreimal|{NUMBER}-?mal) (?:pro|im|am|in der|je) \w+|"
                r"täglich|wöchentlich|monatlich|jährlich|vierteljährlich)"), "Wie oft"),
    (re.compile(rf"(?:innerhalb (?:von )?|binnen ){NUMBER} {UNITS}"), "In welcher Frist"),
    (re.compile(rf"(?:seit|ab|bis|spätestens|am|vor|nach) (?:zum |dem |de[rmn] )?(?:\d{{1,2}}\. ?\w+(?: \d{{4}})?|\d{{1,2}}(?:[.:]\d\d)? Uhr|"
                rf"\w+ \d{{4}}|{NUMBER} {UNITS})"), "Wann"),
    (re.compile(rf"{NUMBER} {UNITS} lang"), "Wie lange"),
)  # fmt: skip
MODALS = frozenset(["kann", "können", "muss", "müssen", "darf", "dürfen", "soll", "sollen", "sollte", "sollten"])
BE = frozenset(["ist", "sind", "war", "waren"])
ARTICLES = frozenset(
    [
        "der",
        "die",
        "das",
        "den",
        "dem",
        "des",
        "ein",
        "eine",
        "einen",
        "einem",
        "einer",
        "eines",
        "kein",
        "keine",
        "jede",
        "jeder",
        "jedes",
        "alle",
    ]
)
POINTING = re.compile(
    r"\b(?:dies\w*|jene\w*|solche\w*|hier\w*|dort|dabei|dafür|damit|dazu|daher|dadurch|folgende\w*|obige\w*|er|sie|es|ihn|ihm|"
    r"ihr\w*|deren|dessen|so|beide\w*|wir|unser\w*|uns)\b"
)
STOP_WORDS = frozenset(
    [
        "der",
        "die",
        "das",
        "den",
        "dem",
        "des",
        "ein",
        "eine",
        "einen",
        "einem",
        "einer",
        "eines",
        "und",
        "oder",
        "aber",
        "von",
        "vom",
        "zu",
        "zum",
        "zur",
        "in",
        "im",
        "an",
        "am",
        "auf",
        "aus",
        "bei",
        "beim",
        "mit",
        "für",
        "nach",
        "über",
        "unter",
        "vor",
        "durch",
        "ist",
        "sind",
        "war",
        "wird",
        "werden",
        "wurde",
        "wurden",
        "hat",
        "haben",
        "kann",
        "können",
        "muss",
        "müssen",
        "darf",
        "dürfen",
        "soll",
        "sollen",
        "sollte",
        "nicht",
        "kein",
        "keine",
        "wenn",
        "falls",
        "um",
        "als",
        "auch",
        "nur",
        "noch",
        "was",
        "wie",
        "wo",
        "wer",
        "welche",
        "welcher",
        "welches",
        "sich",
        "es",
        "sie",
        "er",
        "wir",
        "ihr",
        "ihre",
        "ihren",
        "gilt",
        "man",
    ]
)
VAGUE = r"(?:entsprech|verschied|weiter|erst|ander|jeweilig|neu|eigen|welch|gewünscht|nachfolg|obig|beliebig|folgend|best)"
DEFINED = re.compile(r"(?:ein|eine|der|die|das)\b")


def content_words(text: str) -> list[str]:
    """The words of a text in small letters that are no stop words."""
    return [word for word in re.findall(r"[\w’-]+", text.lower()) if word not in STOP_WORDS]


def ask_german(sentence: str, vocabulary: Collection[str] = frozenset(), subject: str = "") -> list[Ask]:
    """Return the question that a sentence answers, if there is one. `subject` stands for a pronoun at the start."""
    text = re.sub(r"\s*\([^()]*\)$", "", sentence.strip().rstrip(".!").strip())
    text = re.sub(r"^(?:Bitte (?:beachten Sie, dass )?|Hinweis: |Wichtig: |Achtung: )(?=[A-ZÄÖÜ])", "", text)
    for ask in forms_of(text):
        asked = set(content_words(ask.topic))
        fresh = [word for word in content_words(sentence) if word not in asked]
        if POINTING.search(re.sub(r"\bSie\b|\bIhr\w*\b", "", re.sub(r"`[^`]*`", "x", ask.topic))):
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
    if match and not re.search(r"beschrieben|erläutert|erklärt|gezeigt", match["main"]):
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
    if PLACE.fullmatch(before) and re.search(r" [A-ZÄÖÜ„`]", before) and len(before.split()) <= 12 and "," not in before:
        phrase = before[0].lower() + before[1:]
        yield Ask("case", phrase)
        return
    if "," in before or not is_noun_phrase(before):
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
    """(what stands before the finite verb, the verb, the rest) of a main clause."""
    words = text.split()
    for place, word in enumerate(words[1:14], 1):
        if words[place - 1][-1:] in ",;:":
            return None
        if word in FINITE and words[place - 1].lower() not in ARTICLES:
            return " ".join(words[:place]), word, " ".join(words[place + 1 :])
    return None


ADVERBS = frozenset(
    "stattdessen anders andernfalls dagegen hierbei hierzu hierfür genaueres "
    "leider natürlich vielleicht eventuell meist meistens oft häufig manchmal immer zuerst zunächst schließlich "
    "abschließend gegebenenfalls idealerweise normalerweise standardmäßig derzeit aktuell momentan bisher bislang "
    "letztlich insgesamt allerdings ebenso ebenfalls weiterhin darüber gleichzeitig zusätzlich optional alternativ "
    "wichtig generell prinzipiell eigentlich nachdem bevor sobald falls ist sind hat wird kann muss soll "
    "lange weitere weiter heute später früher vorher nachher jetzt überhaupt sonstige".split()
)
NOT_ADJECTIVES = STOP_WORDS | ADVERBS | ARTICLES | frozenset(
    "dein deine deiner deinem deinen mein meine seine seiner seinen seinem ihres ihrem unser unsere eure ohne gegen "
    "zwischen neben hinter seit statt trotz wegen während innerhalb außerhalb laut gemäß einige mehrere viele alle "
    "allen beiden diese dieser diesem diesen dieses jene solche welche anderen andere anderer sowie sowohl gar sehr "
    "dass weil damit dessen deren einiger vieler".split()
)


def is_noun_phrase(text: str) -> bool:
    words = text.split()
    if words[0].lower() in ADVERBS or (len(words) == 1 and words[0].lower() in NOT_ADJECTIVES):
        return False
    if (
        POINTING.match(text)
        or POINTING.match(text.lower())
        or text.lower() in ("man", "sie", "es", "wer", "was", "das", "wir", "du", "ich")
    ):
        return False
    if words[0].lower() in (
        "auch",
        "nur",
        "dann",
        "damit",
        "so",
        "hier",
        "dort",
        "da",
        "weil",
        "dass",
        "und",
        "oder",
        "aber",
        "zudem",
        "außerdem",
        "danach",
        "anschließend",
        "bitte",
        "daher",
        "deshalb",
        "jedoch",
        "wie",
        "wenn",
        "je",
        "sowohl",
        "zwar",
        "nun",
        "grundsätzlich",
    ):
        return False
    return any(word.strip('„`"')[:1].isupper() for word in words[1:] or words)
