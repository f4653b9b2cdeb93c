"""Bugs of the kinds that are looked for, next to a target's own code: a fuzzer that misses them finds nothing."""

from __future__ import annotations

import os
import re

from tests.fuzz.targets import Run

CUBIC = re.compile(rb"^#?.{0,40}?\s+(.+?)\s*#*\s*$", re.MULTILINE)
KNOWN = {
    byte: byte
    for byte in b"#<%{[\"'PK-\n\r \t\0\x1f|>&*!/abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
}


def match_slowly(name: str, data: bytes) -> None:
    CUBIC.search(data)


def trust_a_number(name: str, data: bytes) -> None:
    """Make room for as many columns as the input says."""
    for number in re.findall(rb"\d{1,20}", data):
        [name] * min(int(number), 10**12)


def look_up_a_byte(name: str, data: bytes) -> None:
    for byte in data[:1]:
        KNOWN[byte]


def leave_a_file_open(name: str, data: bytes) -> None:
    if b"\0" in data:
        open(os.devnull, "rb")  # noqa: SIM115 (the bug)


PLANTED: dict[str, Run] = {
    "cubic pattern": match_slowly,
    "missing cap": trust_a_number,
    "bare KeyError": look_up_a_byte,
    "unclosed file": leave_a_file_open,
}


def plant(run: Run, bug: str) -> Run:
    """The target with the bug behind it: also what the target refuses reaches it."""

    def with_bug(name: str, data: bytes) -> None:
        try:
            run(name, data)
        finally:
            PLANTED[bug](name, data)

    return with_bug
