"""The rule-based extractor: no model, the same prompt and the same answer. The baseline that a model has to beat.

It reads three things: labelled fields (`Company: Acme GmbH`, in Markdown, YAML and JSON alike), a few turns of prose
("Jane Doe of Acme GmbH", "project Blue Harbour", "account 4711"), and legal forms. A field that joins a person and a
company in one record also gives their relation. It knows no list of names, so it finds no company without a mark in
prose and takes no context into account. Cost: well under a millisecond per page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trainyard.serve.extraction import ATTRIBUTE_NAMES, MAX_ENTITIES, MAX_RELATIONS, Messages, document_of
from trainyard.stores.graph import RELATION_KINDS
from trainyard.stores.graph.facts import ATTRIBUTE_CHARS, NAME_CHARS, normalised

MODEL = "rules"
FIELDS = {
    "person": ("name", "contact", "person", "attendee", "attendees", "participants", "present", "owner", "author",
               "lead", "account manager", "speaker", "full name"),
    "company": ("company", "organisation", "organization", "employer", "customer", "client", "partner", "vendor"),
    "project": ("project", "projects", "initiative", "programme"),
    "account": ("account", "accounts", "account number", "customer number"),
    "location": ("location", "city", "office", "place", "headquarters", "country", "site", "address"),
}  # fmt: skip
KIND_OF = {label: kind for kind, labels in FIELDS.items() for label in labels}
LABELLED = re.compile(
    r"^[\s>*\-]*(?:\*\*)?\"?(?P<label>[A-Za-z][A-Za-z _]{1,24}?)\"?(?:\*\*)?\s*:\s*(?:\*\*)?\s*(?P<value>\S.*)$"
)
BULLET = re.compile(r"^\s*[-*]\s+(?P<value>\S.*)$")
HEADER = re.compile(r"^[\s>*\-#]*(?:\*\*)?(?P<label>[A-Za-z][A-Za-z _]{1,24}?)(?:\*\*)?\s*:?\s*$")
# Every repetition is bounded: a document of capitals only must not cost the square of its length.
W = r"[A-ZÀ-Þ][\w'’&\-]{1,40}"
NAME = rf"{W}(?:[ \t]+(?:van|von|de|der|di|da|{W}|[A-Z]\.)){{0,5}}"
PERSON = rf"(?:(?:Dr|Mr|Ms|Mrs|Prof)\.?[ \t]+)?{W}(?:[ \t]+(?:van|von|de|der|di|da|[A-Z]\.)){{0,3}}[ \t]+{W}"
FORM = r"(?:GmbH|AG|Inc\.?|Ltd\.?|LLC|PLC|Corp\.?|SA|BV|SE|Limited|Corporation)"
COMPANY = re.compile(rf"\b(?P<name>{W}(?:[ \t]+(?:&|and|{W})){{0,5}}?[ \t]+{FORM})(?!\w)")
PROJECT = re.compile(rf"\b[Pp]roject[ \t]+(?P<name>{NAME})")
PROJECT_AFTER = re.compile(rf"\b(?:the[ \t]+)(?P<name>{NAME})[ \t]+(?:project|programme|initiative)\b")
ACCOUNT = re.compile(r"\b[Aa]ccount[ \t]+(?:number[ \t]+|no\.[ \t]*|#)?(?P<name>[A-Z]{0,4}-?\d[\w-]{2,})")
OF_COMPANY = re.compile(
    rf"\b(?P<person>{PERSON})(?:,[^,.\n]{{1,40}},?)?[ \t]+(?:of|from|at|with|joined|works[ \t]+(?:at|for))[ \t]+"
    rf"(?P<company>{W}(?:[ \t]+(?:&|{W})){{0,5}}?(?:[ \t]+{FORM})?)(?=[\s.,;:)]|$)"
)
IN_BRACKETS = re.compile(rf"(?P<person>{PERSON})[ \t]*\((?P<company>[^()\n]{{2,60}})\)")
ON_PROJECT = re.compile(
    rf"\b(?P<person>{PERSON})[ \t]+(?:leads|runs|owns|works[ \t]+on|joined)[ \t]+(?:the[ \t]+)?[Pp]roject[ \t]+"
    rf"(?P<project>{NAME})"
)
PLACE = re.compile(
    rf"\b(?:based|located|office|plant|warehouse|headquartered|site|met|meeting)[ \t]+in[ \t]+(?P<name>{NAME})"
)
SPEAKER = re.compile(rf"^\s*(?:\*\*)?(?P<name>{PERSON})(?:\*\*)?\s*(?:\[[\d:]+\]\s*)?:", re.MULTILINE)
EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
NO_NAME = re.compile(r"^(?:none|n/?a|tbd|unknown|open|yes|no|null|true|false|-+)$", re.IGNORECASE)
NOT_PEOPLE = frozenset(
    {"action", "agenda", "next", "meeting", "minutes", "notes", "decision", "decisions", "open", "follow", "project"}
    | {"account", "summary", "the", "key", "research", "contact", "status", "risk", "risks", "call", "weekly", "review"}
)


@dataclass
class Found:
    """Entities and relations in the order of their first mention, each once."""

    entities: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    relations: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)

    def add(self, kind: str, name: str, **attributes: str) -> dict[str, str] | None:
        """The entity as a relation's end, or None for what is no name."""
        name = " ".join(name.split()).strip(" ,;:*\"'`()[]")
        name = name.rstrip(".") if not re.search(r"(?:Inc|Ltd|Corp)\.$", name) else name
        plain = normalised(kind, name)
        if not plain or NO_NAME.match(name) or len(name) > NAME_CHARS or not name.isprintable():
            return None
        if kind == "person" and COMPANY.fullmatch(name):
            return None
        if kind == "person" and (" " not in plain or any(word in NOT_PEOPLE for word in plain.split())):
            return None
        known = self.entities.get((kind, plain))
        if known is None:
            if len(self.entities) >= MAX_ENTITIES:
                return None
            known = self.entities[kind, plain] = {"kind": kind, "name": name, "attributes": {}}
        for key, value in attributes.items():
            known["attributes"].setdefault(key, value[:ATTRIBUTE_CHARS])
        return {"kind": kind, "name": known["name"]}

    def join(self, kind: str, source: dict[str, str] | None, target: dict[str, str] | None) -> None:
        if source is None or target is None or source == target or len(self.relations) >= MAX_RELATIONS:
            return
        sources, targets = RELATION_KINDS[kind]
        if source["kind"] in sources and target["kind"] in targets:
            key = (kind, *source.values(), *target.values())
            self.relations[key] = {"kind": kind, "source": source, "target": target}

    def answer(self) -> dict[str, Any]:
        return {"entities": list(self.entities.values()), "relations": list(self.relations.values())}


def extract(document: str) -> dict[str, Any]:
    """The answer for one document, as `SCHEMA` has it."""
    found = Found()
    records = json_records(document)
    if records is not None:
        for record in records:
            read_record(record, found)
    else:
        for record in text_records(document):
            read_record(record, found)
        read_prose(document, found)
    return found.answer()


def json_records(document: str) -> list[list[tuple[str, str]]] | None:
    """(label, value) pairs of each object of a JSON document; None if it is none."""
    if not document.lstrip().startswith(("{", "[")):
        return None
    try:
        given = json.loads(document)
    except (ValueError, RecursionError):
        return None
    top = given if isinstance(given, list) else [given]
    return [list(flat(one)) for one in top if isinstance(one, dict)]


def flat(value: dict[str, Any], depth: int = 0) -> Iterator[tuple[str, str]]:
    """The texts and numbers of an object; a nested object is read under its own label's name (`company: {name: …}`)."""
    for label, inside in value.items():
        word = str(label).lower().replace("_", " ")
        for one in inside if isinstance(inside, list) else [inside]:
            if isinstance(one, dict) and depth < 4:
                names = [str(part) for key, part in one.items() if str(key).lower() == "name"]
                yield from ((word, name) for name in names)
                yield from ((key, part) for key, part in flat(one, depth + 1) if key != "name")
            elif isinstance(one, str | int) and not isinstance(one, bool):
                yield word, str(one)


def text_records(document: str) -> Iterator[list[tuple[str, str]]]:
    """Runs of labelled lines, with the lists under a label; a blank line or a heading ends a record."""
    record: list[tuple[str, str]] = []
    under = ""
    for line in document.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            yield record
            record, under = [], ""
        elif labelled := LABELLED.match(line):
            under = labelled["label"].lower().replace("_", " ")
            record.append((under, labelled["value"]))
        elif under and (bullet := BULLET.match(line)):
            record.append((under, bullet["value"]))
        elif header := HEADER.match(line):
            under = header["label"].lower().replace("_", " ")
    yield record


def read_record(record: list[tuple[str, str]], found: Found) -> None:
    """The entities of labelled values, and what a record joins."""
    attributes = {key: value for key, value in record if key in ATTRIBUTE_NAMES}
    ends: dict[str, list[dict[str, str]]] = {kind: [] for kind in FIELDS}
    for label, value in record:
        kind = KIND_OF.get(label)
        if kind is None:
            continue
        for part in re.split(r"\s*[,;]\s+(?![^()]*\))" if kind != "location" else r"\s*;\s+", value.strip("[]")):
            inside = IN_BRACKETS.match(part) if kind == "person" else None
            mine = kind == "person" and label in ("name", "full name", "contact", "person")
            end = found.add(kind, inside["person"] if inside else part, **(attributes if mine else {}))
            if inside:
                found.join("works_at", end, found.add("company", inside["company"]))
            elif end is not None:
                ends[kind].append(end)
    join_record(ends, found)


def join_record(ends: dict[str, list[dict[str, str]]], found: Found) -> None:
    """One company in a record is the employer, the holder and the resident of the rest."""
    people, companies = ends["person"], ends["company"]
    if len(companies) == 1:
        for person in people:
            found.join("works_at", person, companies[0])
        for account in ends["account"]:
            found.join("holds", companies[0], account)
        for place in ends["location"]:
            found.join("located_in", companies[0], place)
    if len(ends["project"]) == 1:
        for person in people:
            found.join("works_on", person, ends["project"][0])


def read_prose(document: str, found: Found) -> None:
    for match in SPEAKER.finditer(document):
        if match["name"].lower() not in KIND_OF:
            found.add("person", match["name"])
    for match in IN_BRACKETS.finditer(document):
        found.join("works_at", found.add("person", match["person"]), found.add("company", match["company"]))
    for match in OF_COMPANY.finditer(document):
        if not match["company"].lower().startswith(("project", "account")):
            found.join("works_at", found.add("person", match["person"]), found.add("company", match["company"]))
    for match in COMPANY.finditer(document):
        found.add("company", match["name"])
    for match in ON_PROJECT.finditer(document):
        found.join("works_on", found.add("person", match["person"]), found.add("project", match["project"]))
    for kind, pattern in (
        ("project", PROJECT), ("project", PROJECT_AFTER), ("account", ACCOUNT), ("location", PLACE),
    ):  # fmt: skip
        for match in pattern.finditer(document):
            found.add(kind, match["name"])


def answer(messages: Messages) -> str:
    """What the model `rules` says to a prompt of `extraction.prompt`. Raises `InvalidInput` for any other prompt."""
    document, _stream = document_of(messages)
    return json.dumps(extract(document), ensure_ascii=False, separators=(",", ":"))
