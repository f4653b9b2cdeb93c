"""The language of a document's prose, by script and by a small table of stop words.

Six answers: English, German, French, Spanish, Chinese, Japanese; everything else is `NEUTRAL`, for which the questions
use no words at all. The stop words of other languages are in the table so that Dutch is not taken for German.
"""

from __future__ import annotations

import re
from collections import Counter

ENGLISH, GERMAN, FRENCH, SPANISH, CHINESE, JAPANESE, NEUTRAL = "en", "de", "fr", "es", "zh", "ja", ""
KANA = re.compile("[\u3041-\u30fa\uff66-\uff9d]")
HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
LATIN_WORD = re.compile("[A-Za-z\u00c0-\u024f]+")
LETTER = re.compile(r"[^\W\d_]")
STOP_WORDS = {
    ENGLISH: "the of and to is in that it for with are this be on not from can or an by as you when has was",
    GERMAN: "der die das und ist nicht ein eine zu mit den von auf für sich im dem wird werden oder sie wenn am des",
    FRENCH: "le la les des est et un une dans pour que vous qui sur pas avec du au ou ne cette il de en à",
    SPANISH: "el la los las es y un una en para que con por del se su no al o como si de lo está",
    "it": "il la di che è e un una per non con del della sono gli si al nel le lo da i in",
    "pt": "o a os as é e um uma em para que com não do da se no na ou ao por de",
    "nl": "de het een en van is dat niet met voor op zijn te in of bij door wordt je",
    "sv": "och att är en ett det som för på med av till inte den i om kan",
    "da": "og at er en et det som for på med af til ikke den i om kan",
    "pl": "i w na nie się z do jest to że jak dla o lub po od",
    "cs": "a v na je se s do že pro není jako o nebo po od si",
    "tr": "ve bir bu için ile da de olarak olan en veya",
    "id": "yang dan di untuk dengan dari ini tidak ke atau pada dalam",
}
BY_WORD = {language: frozenset(words.split()) for language, words in STOP_WORDS.items()}
ASIAN_SHARE = 0.15
"""Of all letters: a Chinese manual is full of Latin names, and one of its characters says as much as five letters."""
KANA_SHARE = 0.1
"""Of kana and Han together: Japanese text has a third and more, a Chinese page that quotes a product name has less."""


def detect_language(text: str) -> str:
    """One of the six codes, or `NEUTRAL`. Text without any evidence is English if it is plain ASCII."""
    letters, kana, han = (len(pattern.findall(text)) for pattern in (LETTER, KANA, HAN))
    if kana + han > ASIAN_SHARE * letters:
        return JAPANESE if kana > KANA_SHARE * (kana + han) else CHINESE
    words = Counter(word.lower() for word in LATIN_WORD.findall(text))
    if sum(len(word) * count for word, count in words.items()) < letters / 2:
        return NEUTRAL
    scores = {language: sum(words[word] for word in listed) for language, listed in BY_WORD.items()}
    best = max(scores.values())
    if not best:
        return ENGLISH if text.isascii() else NEUTRAL
    found = [language for language, score in scores.items() if score == best]
    known = (ENGLISH, GERMAN, FRENCH, SPANISH)
    return found[0] if len(found) == 1 and found[0] in known else ENGLISH if ENGLISH in found else NEUTRAL
