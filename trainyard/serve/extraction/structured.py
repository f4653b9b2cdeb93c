"""Documents that are data: JSON, JSON Lines, YAML, and the front matter of a page, each object as one record.

An object's own fields are its record, so that two people of one list keep their own addresses and employers. Its key,
or a field `type`, says what it is: `companies: [{name: …}]`, `people: {Jane Doe: {employer: …}}`. The object around it
gets its name, unless it names an employer of its own.

Every scalar of YAML is read as text: an account number `0471` stays what it is. Duplicate keys, anchors that expand
beyond `MOST_NODES`, and text that only looks like YAML (`- Jane Doe: Let us begin.`) are read as lines instead.

Labelled lines of a text as records of (label, value); what is data, `structured.py` reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import yaml

from trainyard.json_types import JsonMapping, JsonObject

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


MOST_NODES, MOST_DEPTH = 20_000, 8
TYPES = ("type", "kind", "@type", "entity type", "category")
FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?P<data>.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
YAML_SIGNS = re.compile(r"^\s*(?:-\s+)?[\w \"']{1,40}:\s*(?:$|[\"'|>{\[&*])", re.MULTILINE)
"""A line that only YAML explains: a key of nested lines, a quoted value, a block, a flow."""


class UniqueKeys(yaml.BaseLoader):
    """Reads every scalar as text, and refuses a mapping that has a key twice: the first value would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key occurs twice", node.start_mark)
        return mapping


@dataclass(frozen=True)
class Vocabulary:
    """Meaning of the labels of records: label -> kind, and the labels that a description of a person or company has."""

    kinds: Mapping[str, str]
    described: Set[str]


def read_data(document: str, words: Vocabulary) -> tuple[list[Record] | None, str]:
    """Return the records of a document's data, None where it has none, and the text that is left to read as lines."""
    values = json_values(document)
    if values is not None:
        return build_records(values, words), ""
    if (matter := FRONT_MATTER.match(document)) and (value := yaml_value(matter["data"])):
        return build_records([value], words), document[matter.end() :]
    if YAML_SIGNS.search(document) and (value := yaml_value(document)) and is_described(value, words):
        return build_records([value], words), ""
    return None, document


def json_values(document: str) -> list[object] | None:
    """Return the value of a JSON document, or those of its lines; None if it is neither."""
    if not document.lstrip().startswith(("{", "[")):
        return None
    for texts in ([document], [line for line in document.splitlines() if line.strip()]):
        try:
            return [json.loads(text) for text in texts]
        except (ValueError, RecursionError):
            continue
    return None


def yaml_value(text: str) -> object:
    """Return the mapping or list of a YAML document; None if it is none."""
    try:
        value = yaml.load(text, UniqueKeys)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError):  # TypeError: a key that is a list
        return None
    return value if isinstance(value, dict | list) else None


def is_described(value: object, words: Vocabulary) -> bool:
    """Return whether most objects of a value have a field that this reader knows: minutes as YAML do not."""
    objects = list(iterate_objects(value))
    described = sum(
        any(normalize_label(key) in words.described or normalize_label(key) in words.kinds for key in entry)
        for entry in objects
    )
    return bool(objects) and described * 2 > len(objects)


def iterate_objects(value: object) -> Iterator[dict[object, object]]:
    """Yield the objects of a value, at most `MOST_NODES` values deep and wide."""
    waiting, seen = [value], 0
    while waiting and seen < MOST_NODES:
        node = waiting.pop()
        seen += 1
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def build_records(values: Sequence[object], words: Vocabulary) -> list[Record]:
    """Return one record for each object, in the order in which the document has them."""
    reader = ObjectReader(words)
    for value in values:
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, dict):
                reader.read(entry, "", 0)
    return reader.records


class ObjectReader:
    """Collects the records of nested objects; `left` bounds what an alias of YAML may repeat."""

    def __init__(self, words: Vocabulary) -> None:
        self.words, self.records, self.left = words, list[Record](), MOST_NODES

    def read(self, value: dict[Any, Any], label: str, depth: int) -> tuple[str, str]:
        """Add the record of an object that is below a key; return its label and name for the object around it.

        Both are empty for an object without a name, and for one whose own record says where it belongs.
        """
        self.left -= len(value)
        if depth > MOST_DEPTH or self.left < 0:
            return "", ""
        fields = {normalize_label(key): part for key, part in value.items()}
        name, label = find_name(fields), self.build_label(fields, label)
        record: Record = []
        self.records.append(record)
        if name:
            record.append((label, name))
        for key, part in fields.items():
            if key not in (*TYPES, *WHOLE, *GIVEN, *FAMILY):
                record += self.read_fields(key, part, depth)
        employers = [key for key, _ in record if self.words.kinds.get(key) == "company"]
        belongs = self.words.kinds.get(label) == "person" and employers
        return ("", "") if not name or belongs else (label, name)

    def build_label(self, fields: Mapping[str, object], key: str) -> str:
        """Return the label of an object's name: by its type, by the key that it is below, or `name` where nobody says.

        A `product: {name: …}` keeps its own key, which names no kind: it is not a person.
        """
        kinds = self.words.kinds
        typed = next((normalize_label(fields[word]) for word in TYPES if isinstance(fields.get(word), str)), "")
        label = typed if typed in kinds else key if key in kinds or (key and not is_person_like(fields)) else "name"
        return "name" if kinds.get(label) == "person" else label

    def read_fields(self, key: str, part: object, depth: int) -> Record:
        """Return the fields that a value adds to the record of its object; nested objects get records of their own."""
        if isinstance(part, dict) and key in self.words.kinds and part and all(map(is_object, part.values())):
            part = [{"name": str(name), **(inside or {})} for name, inside in part.items()]
        record: Record = []
        for entry in part if isinstance(part, list) else [part]:
            if isinstance(entry, dict):
                if find_name({normalize_label(word): value for word, value in entry.items()}):
                    below = self.read(entry, key, depth + 1)
                    record += [below] if below[0] else []
                else:  # an address, a section: its fields are this object's
                    self.left -= len(entry)
                    if depth < MOST_DEPTH and self.left >= 0:
                        for word, value in entry.items():
                            record += self.read_fields(normalize_label(word), value, depth + 1)
            elif isinstance(entry, str | int) and not isinstance(entry, bool):
                record.append((key, str(entry)))
        return record


def is_object(value: object) -> bool:
    return isinstance(value, dict) or value in (None, "")


def find_name(fields: JsonMapping) -> str:
    """Return the name of an object by its plain labels: a whole one, or a first and a last one; empty without."""
    inside = next((fields[key] for key in WHOLE if isinstance(fields.get(key), str | dict)), "")
    whole = first_and_last(inside) if isinstance(inside, dict) else inside.strip()
    return first_and_last(dict(fields)) or whole


def is_person_like(fields: Mapping[str, object]) -> bool:
    """Return whether only people have these fields."""
    parts = isinstance(fields.get("name"), dict) or first_and_last(dict(fields))
    return bool(parts or {"employer", "job title", "birthday", "pronouns"} & fields.keys())
