"""Which numbers a page shows, and whether an answer of the API explains each of them.

Small whole numbers are in every answer by chance. So each number of an answer is first replaced by one that is nowhere
else (`renumber`): what a page then shows and no answer contains was made up by the page.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from playwright.sync_api import Page, Route

from tests.browser.dashboard import SLOW_MS

DIGITS = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"
NUMBER = re.compile(rf"(?<![\w.,#:/-]){DIGITS}(?![\w:/-]|[.,]\w)")
"""A number that stands alone; parts of names, versions, times and addresses are not read."""
FIRST, STEP = 20_011, 37
"""Whole numbers of renumbered answers: five digits, none a multiple of another's step."""
AS_THEY_ARE = frozenset({"as_of", "time", "created", "started", "ended", "submitted", "updated", "expires", "status",
                         "revision"})  # fmt: skip
"""Fields with times, which a page compares with the clock, and with what a page asks further."""

PLACES = ("first_offset", "next_offset")
"""Places in a log, from which a page reads further."""
LIMITED = ("eval", "quotes")
"""Settings that a page sends back with a draft, and that the service refuses above a limit."""


@dataclass
class Answers:
    """The answers that a page got, with other numbers than the service gave."""

    bodies: list[Any] = field(default_factory=list)
    next: int = 0

    def give(self, route: Route) -> None:
        """Answer a request of a page with a renumbered answer."""
        answer = route.fetch(timeout=SLOW_MS)
        if "event-stream" in (answer.headers.get("content-type") or ""):
            return route.fulfill(response=answer, body=self.renumber_stream(answer.text()))
        if "application/json" not in (answer.headers.get("content-type") or ""):
            return route.fulfill(response=answer)
        value = self.renumber(answer.json())
        self.bodies.append(value)
        return route.fulfill(response=answer, body=json.dumps(value))

    def renumber_stream(self, text: str) -> str:
        """The events of a stream that has ended, with other numbers."""
        lines = text.splitlines()
        for at, line in enumerate(lines):
            if line.startswith("data: "):
                value = self.renumber(json.loads(line.removeprefix("data: ")))
                self.bodies.append(value)
                lines[at] = f"data: {json.dumps(value)}"
        return "\n".join([*lines, ""])

    def renumber(self, value: Any, key: str = "") -> Any:
        """The answer with a number of its own in place of each of its numbers."""
        if key in (*PLACES, *LIMITED):
            return value
        if isinstance(value, dict):
            return {name: self.renumber(entry, name) for name, entry in value.items()}
        if isinstance(value, list):
            return [self.renumber(entry, key) for entry in value]
        if isinstance(value, bool) or not isinstance(value, int | float) or key in AS_THEY_ARE:
            return value
        self.next += 1
        if isinstance(value, int):
            return FIRST + STEP * self.next
        return math.copysign(value // 1 + (FIRST + STEP * self.next) / 1e6, value)


def leaves(value: Any) -> Iterator[Any]:
    """Every number and every text of an answer, and how many there are in each of its lists."""
    if isinstance(value, dict):
        yield len(value)
        for name, child in value.items():
            yield name
            yield from leaves(child)
    elif isinstance(value, list):
        yield len(value)
        for child in value:
            yield from leaves(child)
    elif value is not None and not isinstance(value, bool):
        yield value


def sums(value: Any) -> Iterator[float]:
    """The sum of each field over the things of a list or of a dict, such as the bytes of all files."""
    things = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    alike = [row for row in things if isinstance(row, dict)]
    for name in {name for row in alike for name in row}:
        numbers = [row[name] for row in alike if isinstance(row.get(name), int | float)]
        yield float(sum(numbers))
    for thing in things:
        yield from sums(thing)


def forms(value: float) -> Iterator[float]:
    """What `web/src/components/format.ts` makes of a number: digits, a share, bytes, a duration, a time."""
    yield value
    for digits in (2, 3, 4, 5, 6):
        yield float(f"{value:.{digits}g}")
    for decimals in range(4):
        yield round(value, decimals)
    yield round(value * 100, 1)
    yield float(math.floor(value * 100 + 0.5))
    for power in range(5):
        yield round(value / 1024**power, 1)
        yield float(math.floor(value / 1024**power + 0.5))
    yield from (value // 3600, value // 60, value // 60 % 60, math.floor(value % 60 + 0.5))
    if 1e9 < value < 4e9:
        when = datetime.fromtimestamp(value)
        yield from (when.year, when.day, when.hour, when.hour % 12 or 12, when.minute, when.second)


def explain_numbers(answers: Iterable[Any]) -> set[float]:
    """Every number that a page with these answers may show."""
    numbers: set[float] = set()
    for value in answers:
        numbers |= {form for total in sums(value) for form in forms(total)}
        for leaf in leaves(value):
            if isinstance(leaf, str):
                numbers |= {read(text) for text in re.findall(DIGITS, leaf)}
            elif math.isfinite(leaf):
                numbers |= {abs(form) for form in forms(leaf)}
    return numbers


def read(text: str) -> float:
    return float(text.replace(",", ""))


NOT_TEXT = "input, select, textarea, option, pre, code, .uplot, time"
"""What somebody may type or copy, and axes of curves."""


def list_numbers(page: Page) -> list[str]:
    """The numbers in the text of a page's main part."""
    text = page.locator("main").evaluate(
        "(main, hidden) => { const copy = main.cloneNode(true);"
        " copy.querySelectorAll(hidden).forEach((one) => one.remove());"
        " document.body.append(copy); const text = copy.innerText; copy.remove(); return text }",
        NOT_TEXT,
    )
    return NUMBER.findall(text)


def list_made_up(page: Page, answers: Answers) -> list[str]:
    """The numbers on the page that no answer explains.

    They are read first: a page asks again every few seconds, also while the answers are gone through.
    """
    page_numbers = list_numbers(page)
    allowed = explain_numbers(answers.bodies)
    return [text for text in page_numbers if read(text) not in allowed]
