"""Labelled lines of a text as records of (label, value); what is data, `structured.py` reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainyard.json_types import JsonObject

Record = list[tuple[str, str]]
LABELLED = re.compile(
    r"^[\s>*\-]*(?:\*\*)?\"?(?P<label>[A-Za-z][A-Za-z _]{1,24}?)\"?(?:\*\*)?\s*:\s*(?:\*\*)?\s*(?P<value>\S.*)$"
)
BULLET = re.compile(r"^\s*[-*]\s+(?P<value>\S.*)$")
HEADER = re.compile(r"^[\s>*\-#]*(?:\*\*)?(?P<label>[A-Za-z][A-Za-z _]{1,24}?)(?:\*\*)?\s*:?\s*$")
GIVEN = ("first", "first name", "given", "given name", "given names", "forename", "firstname", "givenname")
FAMILY = ("last", "last name", "family", "family name", "surname", "lastname", "familyname")
WHOLE = ("name", "full", "full name", "display", "display name", "fullname", "official full")
PART_OF_NAME = re.compile(
    r"^(?P<indent>[\s\-]*)\"?(?P<key>[A-Za-z][A-Za-z_ ]{1,14})\"?\s*:\s*"
    r"[\"']?(?P<value>[^\n\"'{}\[\]]{1,60}?)[\"']?,?\s*$"
)
IN_BRACES = re.compile(r"\{(?P<inside>[^{}\n]{1,200})\}")
SHARED = 2
"""Lines between a first and a last name, such as a middle one."""


def normalize_label(label: object) -> str:
    return str(label).lower().replace("_", " ").strip()


def first_and_last(value: JsonObject) -> str:
    """`{first: Jane, last: Doe}` -> `Jane Doe`; empty without both."""
    parts = {normalize_label(key): part for key, part in value.items() if isinstance(part, str)}
    first = next((parts[key] for key in GIVEN if key in parts), "").strip()
    last = next((parts[key] for key in FAMILY if key in parts), "").strip()
    return f"{first} {last}" if first and last else ""


def with_whole_names(document: str) -> list[str]:
    """Return the lines of a text with `first:` and `last:` of one person as one line `name: First Last`."""
    lines = [IN_BRACES.sub(braces_to_name, line) for line in document.splitlines()]
    whole_lines: list[str] = []
    index = 0
    while index < len(lines):
        name, after = read_name(lines, index)
        if name:
            indent = re.match(r"[\s\-]*", lines[index])
            whole_lines.append(f"{indent[0] if indent else ''}name: {name}")
            index = after
        else:
            whole_lines.append(lines[index])
            index += 1
    return whole_lines


def read_name(lines: list[str], index: int) -> tuple[str, int]:
    """(first and last name that begin at a line, the line after them), in either order."""
    if not (first := PART_OF_NAME.match(lines[index])) or normalize_label(first["key"]) not in (*GIVEN, *FAMILY):
        return "", index
    other = FAMILY if normalize_label(first["key"]) in GIVEN else GIVEN
    for after in range(index + 1, min(index + 2 + SHARED, len(lines))):
        second = PART_OF_NAME.match(lines[after])
        if not second or len(second["indent"]) != len(first["indent"]):
            return "", index
        if normalize_label(second["key"]) in other:
            parts = (first["value"], second["value"])
            return " ".join(parts if other is FAMILY else reversed(parts)), after + 1
    return "", index


def braces_to_name(match: re.Match[str]) -> str:
    """`name: {first: Jane, last: Doe}` in one line."""
    pairs = (part.partition(":") for part in match["inside"].split(","))
    name = first_and_last({key.strip(" \"'"): value.strip(" \"'") for key, _, value in pairs})
    return name or match[0]


def text_records(lines: list[str]) -> Iterator[Record]:
    """Runs of labelled lines, with the lists under a label; a blank line, a heading or the next item of a list
    that begins with the same label ends a record."""
    record: Record = []
    under = ""
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            yield record
            record, under = [], ""
        elif labelled := LABELLED.match(line):
            under = normalize_label(labelled["label"])
            if record and line.startswith("- ") and under == record[0][0]:
                yield record
                record = []
            record.append((under, labelled["value"]))
        elif under and (bullet := BULLET.match(line)):
            record.append((under, bullet["value"]))
        elif record and line[:1].isspace() and record[-1][1].endswith(","):
            record[-1] = (record[-1][0], f"{record[-1][1]} {line.strip()}")
        elif header := HEADER.match(line):
            under = normalize_label(header["label"])
    yield record
