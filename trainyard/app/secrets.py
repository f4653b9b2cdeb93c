"""Secrets in what a caller sent: found, to refuse them, and replaced, before anything is written down.

A request names a secret, as an environment variable or an endpoint of trainyard.toml, and never contains it: what it
contains ends in Prefect's database, in records and in logs. What a training prints is not ours to choose: its lines are
looked at when they are read, and so is a traceback before the service logs it.
"""

from __future__ import annotations

import logging
import os
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, islice, takewhile
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel

from trainyard.errors import InvalidInput
from trainyard.settings import Settings
from trainyard.stores.auth_string import read_auth

REDACTED = "[redacted]"
NAMED_SECRET = re.compile(
    r"(?:^|[_-])(?:token|secret|passw(?:or)?d|passphrase|pwd|api_?key|access_?key|private_?key|auth|authorization"
    r"|credentials?|jwt|cookie)$",
    re.IGNORECASE,
)
"""Names of fields whose texts are replaced whatever they are; `token_env` names a variable and `max_tokens` counts."""
USER_INFO = re.compile(r"(?<=://)[^\s/?#@]{1,512}(?=@)")
"""Credentials before the host in a URL: a password, or a token in place of a name."""
MAY_HAVE_KEY = re.compile(r"[A-Za-z0-9_./+~-]{16}|PRIVATE KEY|://")
"""What a text with a key has; the table of keys is imported for these only."""
OWN_ID = re.compile(r"(?:session|job)-[0-9a-f]{12}|[0-9a-f]{32}")
"""Ids of sessions, jobs and traces, which every request has several times, and which are not keys."""
NUMBERS = {int, float, bool, type(None)}
PLAIN = {dict, list, tuple}
KNOWN_CHARS = 8
"""A shorter value of an environment variable may be an ordinary word."""
LONG_RUN = re.compile(r"[A-Za-z0-9_+/.~-]{16,}+")
"""The characters of keys."""
BLOCK_MARK = re.compile("PRIVATE KEY|AGE-SECRET-KEY-1")
"""What a key over several lines has, and a key of age."""
KEY_BYTES = 16 << 10
"""A private key over several lines is shorter."""
SERVICE_LOGGERS = ("trainyard.rest", "trainyard.mcp", "uvicorn.error")
CUT_CHARS, MAX_ITEMS, MAX_DEPTH = 200, 40, 6
MAX_NUMBERS = 8
"""Of a list of numbers: the first tokens of a row are enough to recognise it."""

PIECE_CHARS, OVERLAP_CHARS = 64 << 10, 16 << 10
"""Of a long text that is searched for secrets; a private key of RSA has 3,300 characters."""


def find_secrets(text: str) -> list[tuple[int, int]]:
    """Return the places of keys, tokens and private keys, and of logins in URLs, in order and apart from each other."""
    if not MAY_HAVE_KEY.search(text) or OWN_ID.fullmatch(text):
        return []
    from trainyard.data.quality import detectors  # most texts do not come this far, and its patterns take time

    spans = [match.span() for match in USER_INFO.finditer(text)] if "://" in text else []
    if detectors.may_have_key(text):
        spans += detectors.find_keys(text)
    spans += detectors.find_private_keys(text)
    return merge_spans(spans)


def redact_text(text: str) -> str:
    """Return the text with its secrets replaced."""
    for start, end in reversed(find_secrets(text)):
        text = f"{text[:start]}{REDACTED}{text[end:]}"
    return text


def list_secrets(settings: Settings) -> tuple[str, ...]:
    """Return the secrets that this process has: the home's string, and the environment variables named as secrets.

    Those of the settings (`api_key_env` of endpoints, `databases`) are among them whatever their names.
    """
    endpoints = settings.endpoints.values()
    setting_names = {endpoint.api_key_env for endpoint in endpoints if endpoint.api_key_env}
    setting_names |= {*settings.databases.values(), settings.data_worker_key_env}
    named = {name for name in os.environ if NAMED_SECRET.search(name)} - {"PWD"}  # the shell's working folder
    values = [os.environ[name] for name in setting_names | named if name in os.environ]
    text = read_auth(settings) or ""
    secret_values = {value for value in (*values, text, text.partition(":")[2]) if len(value) >= KNOWN_CHARS}
    return tuple(sorted(secret_values))


def read_text_before(path: Path, offset: int) -> str:
    """Return the text before an offset of a log, if a private key may begin there; else an empty one."""
    if not offset:
        return ""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, offset - KEY_BYTES))
            data = stream.read(min(offset, KEY_BYTES))
    except FileNotFoundError:  # it was replaced after its lines were read
        return ""
    return data.decode("utf-8", "replace") if b"PRIVATE KEY" in data else ""


def redact_lines(lines: Sequence[str], secret_values: Collection[str] = (), before: str = "") -> list[str]:
    """Return the lines of a log with their secrets replaced; `secret_values` are replaced whatever they look like.

    A private key that begins in the text `before` the lines is replaced in them, too.
    """
    if before and lines:
        return redact_lines([*before.split("\n"), *lines], secret_values)[-len(lines) :]
    text = "\n".join(lines)
    spans = [match.span() for value in secret_values if value in text for match in re.finditer(re.escape(value), text)]
    if BLOCK_MARK.search(text):
        spans += find_secrets(text)
    else:
        starts = [0, *accumulate(len(line) + 1 for line in lines)]
        for number in dict.fromkeys(bisect_right(starts, position) - 1 for position in find_suspicious_positions(text)):
            spans += [(starts[number] + start, starts[number] + end) for start, end in find_secrets(lines[number])]
    return cut_spans(lines, merge_spans(spans)) if spans else list(lines)


def find_suspicious_positions(text: str) -> Iterator[int]:
    """Yield where a key, a token or a login may be: a sixth of the time of looking at every line, and none is
    missed.
    """
    from trainyard.data.quality.detectors import LEAST_CHANGES, PREFIXES, changes  # its patterns take time

    prefixes = re.compile("|".join(map(re.escape, PREFIXES)))
    for run in LONG_RUN.finditer(text):
        if changes(run[0]) >= LEAST_CHANGES or prefixes.search(run[0]):
            yield run.start()
    yield from (match.start() for match in re.finditer("://", text))


def cut_spans(lines: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[str]:
    """Lines without what is at some places of the text that they make; a place may reach over several lines."""
    redacted_lines, start, first = [], 0, 0
    for line in lines:
        stop, parts, at = start + len(line), [], start
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        for begin, end in takewhile(lambda span: span[0] < stop, islice(spans, first, None)):  # noqa: B023 - used at once
            parts += [line[at - start : max(0, begin - start)], REDACTED]
            at = min(end, stop)
        redacted_lines.append("".join([*parts, line[at - start :]]))
        start = stop + 1
    return redacted_lines


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Places in order and apart from each other."""
    apart: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if apart and start < apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((start, end))
    return apart


@dataclass(frozen=True)
class RedactedRecords:
    """A filter of `logging` that replaces the secrets of messages and tracebacks."""

    secret_values: tuple[str, ...]

    def filter(self, record: logging.LogRecord) -> bool:
        if (text := self.redact(written := record.getMessage())) != written:
            record.msg, record.args = text, ()
        if record.exc_info:
            record.exc_text = self.redact(record.exc_text or logging.Formatter().formatException(record.exc_info))
            record.exc_info = None  # a formatter would write it out again
        if record.stack_info:
            record.stack_info = self.redact(record.stack_info)
        return True

    def redact(self, text: str) -> str:
        return "\n".join(redact_lines(text.split("\n"), self.secret_values))


def redact_logs(settings: Settings) -> None:
    """Replace secrets in all later lines of the service's loggers."""
    for name in SERVICE_LOGGERS:
        logging.getLogger(name).addFilter(RedactedRecords(list_secrets(settings)))


def redact_value(value: object, name: str = "", depth: int = 0) -> object:
    """Return a value as it may be written down: secrets replaced, long texts and lists cut, bytes counted."""
    kind = type(value)
    if kind in NUMBERS or isinstance(value, bool | int | float):
        return value
    if kind in PLAIN:  # most values of most requests; pydantic takes long to say that a list is not a model
        return redact_items(value, name, depth) if depth < MAX_DEPTH else "…"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, BaseModel):
        value = {key: getattr(value, key) for key in sorted(value.model_fields_set)}
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return redact_items(value, name, depth) if depth < MAX_DEPTH else "…"
    text = str(value.value if isinstance(value, Enum) else value)
    return REDACTED if text and NAMED_SECRET.search(name) else cut(text)


def redact_items(value: Any, name: str, depth: int) -> Any:
    """Return the first items of a mapping or a list."""
    if is_numbers(value):
        return first_numbers(value)
    items = list(value.items() if isinstance(value, Mapping) else value)
    first_items, left = items[:MAX_ITEMS], len(items) - MAX_ITEMS
    if isinstance(value, Mapping):
        members = {cut(str(key)): redact_value(item, str(key), depth + 1) for key, item in first_items}
        return members | ({"…": f"{left:,} more"} if left > 0 else {})
    rows = [first_numbers(item) if is_numbers(item) else redact_value(item, name, depth + 1) for item in first_items]
    return [*rows, f"… {left:,} more"] if left > 0 else rows


def first_numbers(value: Sequence[Any]) -> list[Any]:
    more = [f"… {len(value) - MAX_NUMBERS:,} more"] if len(value) > MAX_NUMBERS else []
    return [*value[:MAX_NUMBERS], *more]


def is_numbers(value: object) -> bool:
    """Return whether all items of a list are numbers, such as the tokens of a batch: those are not looked at one by
    one.
    """
    return isinstance(value, (list, tuple)) and NUMBERS.issuperset(map(type, value))


def cut(text: str) -> str:
    """Return a text without secrets, of at most one line."""
    text = redact_text(text)
    return text if len(text) <= CUT_CHARS else f"{text[:CUT_CHARS]}…"


def refuse_secrets(texts: Iterable[tuple[str, str]]) -> None:
    """Refuse texts with a secret, given with their places. Raises `InvalidInput` (`E-PARAMETER`) without the secret."""
    for field, text in texts:
        if any(map(find_secrets, split_text(text))):
            raise InvalidInput(
                f"{field} contains what looks like a key, a token or a password.",
                why="What a request contains is written to records, logs and Prefect's database.",
                do="Put it into an environment variable of the service or into an endpoint of trainyard.toml, "
                "and give the name.",
                code="E-PARAMETER",
            )  # fmt: skip


def split_text(text: str) -> Iterator[str]:
    """Yield a text in pieces that overlap by more than a secret has: other threads get their turn between two."""
    for start in range(0, max(1, len(text) - OVERLAP_CHARS), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS + OVERLAP_CHARS]


def texts_of_request(request: BaseModel) -> list[tuple[str, str]]:
    """(place, text) of every text that a caller gave."""
    return list(walk_texts({name: getattr(request, name) for name in request.model_fields_set}))


def walk_texts(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """(place, text) of every text below a value, names of keys included. Does not call itself: values may be deep."""
    waiting = [(path, value)]
    while waiting:
        where, item = waiting.pop()
        if isinstance(item, str):
            yield where or "the request", item
        elif type(item) in NUMBERS:
            continue
        elif isinstance(item, (list, tuple)):
            waiting += [(where, each) for each in item if type(each) not in NUMBERS and not is_numbers(each)]
        elif isinstance(item, PurePath):
            yield where, str(item)
        elif isinstance(item, BaseModel):
            waiting += [(f"{where}.{key}".strip("."), getattr(item, key)) for key in item.model_fields_set]
        elif isinstance(item, Mapping):
            waiting += [(f"{where}.{cut(str(key))}".strip("."), each) for key, each in item.items()]
            waiting += [(f"a key of {where}", key) for key in item if isinstance(key, str)]
        elif isinstance(item, set | frozenset):
            waiting += [(where, each) for each in item]
