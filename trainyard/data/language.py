"""The language of a text, by script and by a small table of stop words.

Six languages have a name here: English, German, French, Spanish, Chinese, Japanese; every other one is `NEUTRAL`. The
table has stop words of more languages, so that Dutch is not taken for German.
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
    "cs": "a v na je se s do že pro není jako o nebo po od si z k ve ze když který jsou",
    "hu": "a az és nem egy hogy ha is van meg vagy csak",
    "ro": "și în este cu la nu un o pe de din sau pentru",
    "tr": "ve bir bu için ile da de olarak olan en veya",
    "id": "yang dan di untuk dengan dari ini tidak ke atau pada dalam",
}
BY_WORD = {language: frozenset(words.split()) for language, words in STOP_WORDS.items()}
ASIAN_SHARE = 0.15
"""Of all letters: a Chinese manual is full of Latin names, and one of its characters says as much as five letters."""
KANA_SHARE = 0.1
"""Of kana and Han together: Japanese text has a third and more, a Chinese page that quotes a product name has less."""


def detect_language(text: str) -> str:
    """Return one of the six codes, or `NEUTRAL`. Text without any evidence is English if it is plain ASCII."""
    letters, kana, han = (len(pattern.findall(text)) for pattern in (LETTER, KANA, HAN))
    if kana + han > ASIAN_SHARE * letters:
        return JAPANESE if kana > KANA_SHARE * (kana + han) else CHINESE
    words = Counter(word.lower() for word in LATIN_WORD.findall(text))
    if sum(len(word) * count for word, count in words.items()) < letters / 2:
        return NEUTRAL
    best, score = count_stop_words(words)
    if score:
        return best if best in (ENGLISH, GERMAN, FRENCH, SPANISH) else NEUTRAL
    return ENGLISH if text.isascii() else NEUTRAL


def count_stop_words(words: Counter[str]) -> tuple[str, int]:
    """The language with the most stop words among these words in small letters, and how many; the first of a tie."""
    scores = {language: sum(words[word] for word in listed) for language, listed in BY_WORD.items()}
    best = max(scores, key=scores.__getitem__)
    return best, scores[best]


def match_stop_words(text: str) -> str:
    """Return the key of `STOP_WORDS` that fits a text best, or `NEUTRAL` for one without any stop word."""
    best, score = count_stop_words(Counter(word.lower() for word in LATIN_WORD.findall(text)))
    return best if score else NEUTRAL
