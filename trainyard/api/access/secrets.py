"""Secrets in what a caller sent: found, to refuse them, and replaced, before anything is written down.

A request names a secret, as an environment variable or an endpoint of trainyard.toml, and never contains it: what it
contains ends in Prefect's database, in records and in logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from trainyard.errors import InvalidInput
from trainyard.loading import load

REDACTED = "[redacted]"
NAMED_SECRET = re.compile(
    r"(?:^|[_-])(?:token|secret|passw(?:or)?d|passphrase|pwd|api_?key|access_?key|private_?key|auth|authorization"
    r"|credentials?|jwt|cookie)$",
    re.IGNORECASE,
)
"""Names of fields whose texts are replaced whatever they are; `token_env` names a variable and `max_tokens` counts."""
USER_INFO = re.compile(r"(?<=://)[^\s/?#@]{1,512}(?=@)")
"""What is before the host in a URL: a password, or a token in place of a name."""
MAY_HAVE_KEY = re.compile(r"[A-Za-z0-9_./+-]{16}|PRIVATE KEY|://")
"""What a text with a key has; the table of keys is imported for these only."""
NUMBERS = {int, float, bool, type(None)}
DETECTORS = "trainyard.data.quality.detectors:"
CUT_CHARS, MAX_ITEMS, MAX_DEPTH = 200, 40, 6


def find_secrets(text: str) -> list[tuple[int, int]]:
    """The places of keys, tokens and private keys, and of logins in URLs, in order and apart from each other."""
    if not MAY_HAVE_KEY.search(text):
        return []
    places = [found.span() for found in USER_INFO.finditer(text)] if "://" in text else []
    if load(DETECTORS + "may_have_key")(text):
        places += load(DETECTORS + "find_keys")(text)
    places += load(DETECTORS + "find_private_keys")(text)
    apart: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if apart and start < apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((start, end))
    return apart


def redact_text(text: str) -> str:
    """The text with its secrets replaced."""
    for start, end in reversed(find_secrets(text)):
        text = f"{text[:start]}{REDACTED}{text[end:]}"
    return text


def redact_value(value: Any, name: str = "", depth: int = 0) -> Any:
    """A value as it may be written down: secrets replaced, long texts and lists cut, bytes counted."""
    if type(value) in NUMBERS or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, BaseModel):
        value = {key: getattr(value, key) for key in sorted(value.model_fields_set)}
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return redact_items(value, name, depth) if depth < MAX_DEPTH else "…"
    text = str(value.value if isinstance(value, Enum) else value)
    return REDACTED if text and NAMED_SECRET.search(name) else cut(text)


def redact_items(value: Any, name: str, depth: int) -> Any:
    """The first items of a mapping or a list."""
    if is_numbers(value):
        kept_numbers = list(value)[:MAX_ITEMS]
        return kept_numbers + ([f"… {len(value) - MAX_ITEMS:,} more"] if len(value) > MAX_ITEMS else [])
    items = list(value.items() if isinstance(value, Mapping) else value)
    kept, left = items[:MAX_ITEMS], len(items) - MAX_ITEMS
    if isinstance(value, Mapping):
        shown = {cut(str(key)): redact_value(one, str(key), depth + 1) for key, one in kept}
        return shown | ({"…": f"{left:,} more"} if left > 0 else {})
    return [*(redact_value(one, name, depth + 1) for one in kept), *([f"… {left:,} more"] if left > 0 else [])]


def is_numbers(value: Any) -> bool:
    """Whether all items of a list are numbers, such as the tokens of a batch: those are not looked at one by one."""
    return isinstance(value, list | tuple) and set(map(type, value)) <= NUMBERS


def cut(text: str) -> str:
    """A text without secrets, of at most one line."""
    text = redact_text(text)
    return text if len(text) <= CUT_CHARS else f"{text[:CUT_CHARS]}…"


def refuse_secrets(texts: Iterable[tuple[str, str]]) -> None:
    """Refuse texts with a secret, given with their places. Raises `InvalidInput` (`E-PARAMETER`) without the secret."""
    for place, text in texts:
        if find_secrets(text):
            raise InvalidInput(
                f"{place} contains what looks like a key, a token or a password.",
                why="What a request contains is written to records, logs and Prefect's database.",
                do="Put it into an environment variable of the service or into an endpoint of trainyard.toml, "
                "and give the name.",
                code="E-PARAMETER",
            )  # fmt: skip


def texts_of_request(request: BaseModel) -> list[tuple[str, str]]:
    """(place, text) of every text that a caller gave."""
    return list(texts_of({name: getattr(request, name) for name in request.model_fields_set}))


def texts_of(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """(place, text) of every text below a value, names of keys included. Does not call itself: values may be deep."""
    waiting = [(place, value)]
    while waiting:
        where, one = waiting.pop()
        if isinstance(one, str):
            yield where or "the request", one
        elif type(one) in NUMBERS:
            continue
        elif isinstance(one, list | tuple):
            waiting += () if is_numbers(one) else [(where, each) for each in one]
        elif isinstance(one, PurePath):
            yield where, str(one)
        elif isinstance(one, BaseModel):
            waiting += [(f"{where}.{key}".strip("."), getattr(one, key)) for key in one.model_fields_set]
        elif isinstance(one, Mapping):
            waiting += [(f"{where}.{cut(str(key))}".strip("."), each) for key, each in one.items()]
            waiting += [(f"a key of {where}", key) for key in one if isinstance(key, str)]
        elif isinstance(one, set | frozenset):
            waiting += [(where, each) for each in one]
