"""Tables in the code page of Windows: recognised where the text can be nothing else, refused where it may be another.

Excel writes CSV in the code page of its machine. Western Europe and America have Windows-1252 (Latin-1 is the part of
it that has no typographic signs). A wrong code page trains wrong letters, so that a text is read only if none of its
words looks like one of another page: runs of letters outside of ASCII (Cyrillic, Greek, Chinese, Japanese), signs and
capitals inside of words (Polish, Mac), letters that no Western language has together (Czech, Hungarian, Turkish).
"""

from __future__ import annotations

import re

WINDOWS_1252 = "windows-1252"
ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
WORD_SIGN = re.compile(r"[^\W\d_][\xa1-\xb3\xb5\xb6\xb8-\xbf\x80-\x90][^\W\d_]")
"""A sign between two letters; the acute accent and the middle dot occur there in Western texts."""
INNER_CAPITAL = re.compile(r"[a-z][À-ÖØ-ÞŠŒŽŸ][a-z]")
LONG_RUN = re.compile(r"[^\x00-\x7f]{3,}")
SEPARATE = ("šžŠŽ", "èæðìùÈÆÐÌÙ"), ("õÕ", "ûÛ"), ("þÞ", "ýÝ"), ("ð", "ý"), ("ø", "ìù")
"""Letters of which a Western text has those of one group only."""
MOST_IN_RUNS = 0.3


def windows_encoding(head: bytes) -> str:
    """`windows-1252` for the beginning of a text in it, and an empty text for UTF-8, and for what is not recognised.

    A text with valid letters in UTF-8 is in UTF-8, however many of its bytes are broken: those rows are bad.
    """
    text = head.decode("utf-8", "surrogateescape")
    broken = len(ESCAPED_BYTE.findall(text[:-4]))  # a letter may be cut at the end
    whole = sum(not letter.isascii() for letter in text[:-4]) - broken if broken else 0
    if not broken or 10 * whole > broken:
        return ""
    try:
        decoded = head.decode("cp1252")
    except UnicodeDecodeError:
        return ""
    return WINDOWS_1252 if is_western(decoded) else ""


def is_western(text: str) -> bool:
    """Whether a text decoded as Windows-1252 has no sign of another code page."""
    outside = sum(not letter.isascii() for letter in text)
    in_runs = sum(map(len, LONG_RUN.findall(text)))
    if in_runs > MOST_IN_RUNS * outside or WORD_SIGN.search(text) or INNER_CAPITAL.search(text):
        return False
    return not any(any(map(text.__contains__, left)) and any(map(text.__contains__, right)) for left, right in SEPARATE)
