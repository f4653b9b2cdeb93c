"""Every pattern of `trainyard/data` takes time that grows with the text: twice the text is never four times the time.

An attack on a pattern is a text that it matches with one part of it repeated many times. They are made from the pattern
itself, so a new pattern is attacked too. Time is that of the CPU, the best of three.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import re
import time
from collections.abc import Iterator
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import trainyard.data

SHORT = 4000
MOST_RATIO = 3.0
LEAST_S = 0.004
"""Below it a ratio says nothing."""
TAILS = ("", "!", "\x01", "\n!")
"""What follows the repetition, so that a match that went well so far fails at its end."""


def sample(tree: Any, chance: random.Random) -> str:
    """A text that a parsed pattern matches, or nearly: look-arounds are passed over."""
    parts = []
    for kind, value in tree:
        if kind is code.LITERAL:
            parts.append(chr(value))
        elif kind is code.NOT_LITERAL:
            parts.append("a" if value != ord("a") else "b")
        elif kind is code.ANY:
            parts.append("a")
        elif kind is code.IN:
            parts.append(choose_character(value, chance))
        elif kind is code.BRANCH:
            parts.append(sample(chance.choice(value[1]), chance))
        elif kind is code.SUBPATTERN:
            parts.append(sample(value[3], chance))
        elif kind in (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT):
            parts.append(sample(value[2], chance) * max(value[0], min(2, value[1])))
    return "".join(parts)


def choose_character(choices: Any, chance: random.Random) -> str:
    """A character of a set such as `[a-z\\s]`, or `a` for the complement of one."""
    if choices[0][0] is code.NEGATE:
        return "a"
    kind, value = chance.choice(choices)
    if kind is code.LITERAL:
        return chr(value)
    if kind is code.RANGE:
        return chr(value[0])
    return {code.CATEGORY_SPACE: " ", code.CATEGORY_DIGIT: "1"}.get(value, "a")


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Every pattern that a module of `trainyard.data` keeps by a name."""
    for module in pkgutil.walk_packages(trainyard.data.__path__, "trainyard.data."):
        if module.name.endswith(".server"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            values = (
                value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else [value]
            )
            for number, item in enumerate(values):
                if isinstance(item, re.Pattern):
                    yield f"{module.name}.{name}[{number}]", item


def attacks(pattern: re.Pattern[Any], length: int) -> Iterator[str]:
    """Texts of about `length` characters; the same ones, longer, for a greater length."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(text, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags)
    chance = random.Random(text)
    for _ in range(3):
        good = sample(tree, chance)[:60]
        for at in range(len(good) + 1):
            for unit in dict.fromkeys((good[at - 1 : at], good[at - 1 : at + 1], " ", "\n", good)):
                if unit:
                    for tail in TAILS:
                        yield good[:at] + unit * (length // len(unit)) + tail + good[at:]
                    yield good[:at] + unit * (length // len(unit)) + "\x01"


def seconds(pattern: re.Pattern[Any], text: str) -> float:
    subject = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    began = time.thread_time()
    pattern.search(subject)
    return time.thread_time() - began


def slow_attack(pattern: re.Pattern[Any], length: int = SHORT) -> str:
    """The first attack whose time more than triples when its length doubles, or an empty string."""
    for short, long in zip(attacks(pattern, length), attacks(pattern, 2 * length), strict=True):
        if seconds(pattern, short) < LEAST_S:
            continue
        pairs = [(seconds(pattern, short), seconds(pattern, long)) for _ in range(3)]
        ratio = min(twice for _, twice in pairs) / min(once for once, _ in pairs)
        if ratio > MOST_RATIO:
            return f"{ratio:.1f} times as long: {short[:30]!r}…{short[-30:]!r}"
    return ""


@pytest.mark.slow
def test_no_pattern_is_slower_than_its_text_is_long() -> None:
    slow = {name: attack for name, pattern in patterns() if (attack := slow_attack(pattern))}
    assert not slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "length"),
    [(r"^#{1,6}\s+(.+?)\s*#*\s*$", 250), (r"^title:\s*(.+?)\s*$", SHORT), (r"[ \t]*\n[ \t]*(?:\n[ \t]*)+", SHORT)],
    ids=["cubic", "quadratic", "found again at each space"],
)
@pytest.mark.slow
def test_a_planted_pattern_is_found(planted: str, length: int) -> None:
    assert slow_attack(re.compile(planted, re.MULTILINE), length)
