"""Bad rows are kept aside and counted, never dropped in silence: `quarantine.jsonl` and the balance of a reading.

One line per bad row: {line, offset, source, reason, detail, row}. `line` counts from 1, `offset` is the first byte of
the row in the UTF-8 text of the file, `row` is at most 2,000 characters of it. After 10,000 bad rows the text is left
out, so that a broken file of any size leaves a small quarantine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

QUARANTINE_FILE, REPORT_FILE = "quarantine.jsonl", "report.json"
FIRST_BAD_ROWS = 3
"""Bad rows that an error names."""
ROW_CHARS = 2000
ROWS_WITH_TEXT = 10_000
MAX_NAMES = 100
"""Distinct unknown keys that are counted by name; a hostile file cannot make the report large."""


class BadRow(Exception):
    """A row that cannot be read; never reaches a user, becomes a line of the quarantine. `reason` is one word."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass
class Balance:
    """Account of every row that was read: read = kept + the sum of dropped."""

    read: int = 0
    kept_rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason -> rows: the quarantined ones by their reason, and `duplicate`."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Items that were not read, such as files of another type; outside of the balance."""
    ignored_keys: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)

    @property
    def bad(self) -> int:
        return sum(self.dropped.values()) - self.dropped["duplicate"]

    def ignore(self, keys: Any, rows: int = 1) -> None:
        for key in keys:
            name = key if key in self.ignored_keys or len(self.ignored_keys) < MAX_NAMES else "(others)"
            self.ignored_keys[name[:100]] += rows

    def as_dict(self) -> dict[str, object]:
        assert self.read == self.kept_rows + sum(self.dropped.values()), "the balance of a reading does not add up"
        return {
            "read": self.read,
            "kept": self.kept_rows,
            "dropped": {reason: count for reason, count in sorted(self.dropped.items()) if count},
            "quarantined": self.bad,
            "duplicates": self.dropped["duplicate"],
            "skipped": dict(sorted(self.skipped.items())),
            "ignored_keys": dict(sorted(self.ignored_keys.items())),
            "shapes": dict(sorted(self.shapes.items())),
        }


def describe_first(path: Path) -> str:
    """Return the first three bad rows of a quarantine file, in words."""
    with path.open("rb") as lines:
        rows = [msgspec.json.decode(line) for line in islice(lines, FIRST_BAD_ROWS)]
    return "; ".join(f"{row['source']} {row['reason']} ({row['detail']})" for row in rows)


class Quarantine:
    """The open quarantine file of one set."""

    def __init__(self, path: Path, balance: Balance) -> None:
        self.path, self.balance = path, balance
        self.first: list[str] = []
        """The first few bad rows in words, for the error message."""
        self._stream = path.open("wb")

    def close(self) -> None:
        self._stream.close()

    def add(self, source: str, line: int, offset: int, bad: BadRow, row: bytes | str = b"") -> None:
        """Write one bad row and count it as read and dropped."""
        self.balance.read += 1
        self.balance.dropped[bad.reason] += 1
        if len(self.first) < FIRST_BAD_ROWS:
            self.first.append(f"{source}:{line} {bad.reason} ({bad.detail})")
        entry: dict[str, object] = {"line": line, "offset": offset, "source": f"{source}:{line}"}
        entry |= {"reason": bad.reason, "detail": make_printable(bad.detail)}
        if self.balance.bad <= ROWS_WITH_TEXT:
            text = row[: 4 * ROW_CHARS].decode("utf-8", "replace") if isinstance(row, bytes) else row
            entry["row"] = make_printable(text[:ROW_CHARS])
        self._stream.write(msgspec.json.encode(entry) + b"\n")


def make_printable(text: str) -> str:
    """Text that can be encoded: lone surrogates are shown as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
