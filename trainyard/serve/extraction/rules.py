"""The rule-based extractor: no model, the same prompt and the same answer. The baseline for a model.

It reads four things: labelled fields (`Company: Acme GmbH`, in Markdown, YAML and JSON alike), lists and tables of
those present, a few turns of prose ("Jane Doe of Acme GmbH", "project Blue Harbour", "account 4711"), and the words
that end an organisation's name. A field that joins a person and a company in one record also gives their relation. It
knows no list of names, so it finds no company without a mark in prose and takes little context into account. Cost:
about a millisecond per page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from trainyard.json_types import JsonObject
from trainyard.serve.extraction import attendance, extraction, names
from trainyard.serve.extraction.structured import (
    GIVEN,
    WHOLE,
    Record,
    Vocabulary,
    read_data,
    text_records,
    with_whole_names,
)
from trainyard.stores.graph.facts import ATTRIBUTE_CHARS, NAME_CHARS, RELATION_KINDS, normalise_name

MODEL = extraction.RULES
FIELDS = {
    "person": ("name", "contact", "person", "people", "owner", "author", "lead", "account manager", "speaker",
               "full name", "chair", "facilitator", "moderator", "scribe", "note taker", "host", "contacts"),
    "company": ("company", "organisation", "organization", "employer", "customer", "client", "partner", "vendor"),
    "project": ("project", "projects", "initiative", "programme"),
    "account": ("account", "accounts", "account number", "customer number"),
    "location": ("location", "city", "office", "place", "headquarters", "country", "site", "address"),
}  # fmt: skip
KIND_OF = {label: kind for kind, labels in FIELDS.items() for label in labels}
LISTS = {
    "person": ("persons", "employee", "employees", "staff", "member", "members", "speakers", "authors", "owners",
               "attendees", "participants"),
    "company": ("companies", "organisations", "organizations", "customers", "clients", "partners", "vendors"),
    "project": ("initiatives", "programmes"),
    "location": ("locations", "cities", "offices", "places", "sites"),
}  # fmt: skip
"""Keys of data, and types of its objects, besides the labels of text."""
DATA_KINDS = KIND_OF | {label: kind for kind, labels in LISTS.items() for label in labels}
VOCABULARY = Vocabulary(DATA_KINDS, frozenset({*WHOLE, *GIVEN, *extraction.ATTRIBUTE_NAMES}))
BUSINESS_PARTNERS = frozenset(
    {"customer", "client", "partner", "vendor", "customers", "clients", "partners", "vendors"}
)
"""Labels of companies that are not the employer of a record's people where another label names one."""
OF_ONE = ("name", "full name", "contact", "person")
"""Labels whose record is that person's: its e-mail address and its phone number are theirs."""
BETWEEN, BETWEEN_PLACES = r"\s*[,;]\s+(?![^()]{0,200}\))", r"\s*;\s+"
"""Between the values of a field; an address has commas of its own."""
PROJECT = re.compile(rf"(?<![\w-])(?P<before>{names.W}[ \t]+)?[Pp]roject[ \t]+(?P<name>{names.NAME})")
PROJECT_AFTER = re.compile(rf"\b(?:the[ \t]+)(?P<name>{names.NAME})[ \t]+(?:project|programme|initiative)\b")
ACCOUNT = re.compile(r"\b[Aa]ccount[ \t]+(?:number[ \t]+|no\.[ \t]*|#)?(?P<name>[A-Z]{0,4}-?\d[\w-]{2,})")
OF_COMPANY = re.compile(
    rf"\b(?P<person>{names.PERSON})(?:,[^,.\n]{{1,40}},?)?[ \t]+(?:of|from|at|with|joined|works[ \t]+(?:at|for))[ \t]+"
    rf"(?P<company>{names.W}(?:[ \t]+(?:&|{names.W})){{0,5}}?(?:[ \t]+{names.FORM})?)(?=[\s.,;:)]|$)"
)
IN_BRACKETS = re.compile(rf"(?P<person>{names.PERSON})[ \t]*\((?P<inside>[^()\n]{{2,60}})\)")
ON_PROJECT = re.compile(
    rf"\b(?P<person>{names.PERSON})[ \t]+(?:leads|runs|owns|works[ \t]+on|joined)[ \t]+(?:the[ \t]+)?[Pp]roject[ \t]+"
    rf"(?P<project>{names.NAME})"
)
PLACE = re.compile(
    rf"\b(?:based|located|office|plant|warehouse|headquartered|site|met|meeting)[ \t]+in[ \t]+(?P<name>{names.NAME})"
)
SPEAKER = re.compile(
    rf"^[ \t]*(?:[*\-][ \t]+)?(?:\*\*)?(?P<name>{names.PERSON})(?:\*\*)?[ \t]*(?:\[[\d:]+\][ \t]*)?:", re.MULTILINE
)


SPEAKING = re.compile(r"^[ \t]*(?:[*\-][ \t]+)?(?:\*\*)?([A-Z]{2,4})(?:\*\*)?:", re.MULTILINE)


@dataclass
class Mentions:
    """Entities and relations in the order of their first mention, each once."""

    common: frozenset[str] = frozenset()
    """The words that the document writes in lower case."""
    speakers: frozenset[str] = frozenset()
    """Abbreviations that begin its lines (`JD: …`): people, whatever their parentheses look like."""
    listed: set[str] = field(default_factory=set)
    """Normalised names of its lists of people: what follows them there has been judged."""
    entities: dict[tuple[str, str], JsonObject] = field(default_factory=dict)
    relations: dict[tuple[str, ...], JsonObject] = field(default_factory=dict)

    def add(self, kind: str, name: str, **attributes: str) -> dict[str, str] | None:
        """Return the entity as a relation's end, or None for what is not a name."""
        name = " ".join(name.split()).strip(" ,;:*\"'`()[]")
        name = name.rstrip(".") if not re.search(r"(?:Inc|Ltd|Corp|\b\w\.\w)\.$", name) else name
        plain = normalise_name(kind, name)
        if not plain or names.NO_NAME.match(name) or len(name) > NAME_CHARS or not name.isprintable():
            return None
        if kind == "person" and (names.COMPANY.fullmatch(name) or not names.is_person(name)):
            return None
        entity = self.entities.get((kind, plain))
        if entity is None:
            if len(self.entities) >= extraction.MAX_ENTITIES:
                return None
            entity = self.entities[kind, plain] = {"kind": kind, "name": name, "attributes": {}}
        for key, value in attributes.items():
            entity["attributes"].setdefault(key, value[:ATTRIBUTE_CHARS])
        return {"kind": kind, "name": entity["name"]}

    def whole_name(self, name: str) -> str:
        """Return the name of a person who is known already, also by a part of it; else the name itself."""
        plain = normalise_name("person", name)
        for kind, entity_name in self.entities:
            if kind == "person" and f" {plain} " in f" {entity_name} ":
                return str(self.entities[kind, entity_name]["name"])
        return name

    def add_person_of_text(self, name: str) -> dict[str, str] | None:
        """Add a person of running text, where capitals prove nothing: a known one, or a name that cannot be words."""
        whole = self.whole_name(name)
        is_known = ("person", normalise_name("person", whole)) in self.entities
        return self.add("person", whole) if is_known or names.is_person_in_text(name, self.common) else None

    def add_attendee(self, attendee: attendance.Attendee) -> dict[str, str] | None:
        person = self.add("person", attendee.name)
        if person is not None:
            self.listed.add(normalise_name("person", person["name"]))
        if attendee.company and attendee.company not in self.speakers:
            self.join("works_at", person, self.add("company", attendee.company))
        return person

    def join(self, kind: str, source: dict[str, str] | None, target: dict[str, str] | None) -> None:
        if source is None or target is None or source == target or len(self.relations) >= extraction.MAX_RELATIONS:
            return
        sources, targets = RELATION_KINDS[kind]
        if source["kind"] in sources and target["kind"] in targets:
            key = (kind, *source.values(), *target.values())
            self.relations[key] = {"kind": kind, "source": source, "target": target}

    def answer(self) -> JsonObject:
        return {"entities": list(self.entities.values()), "relations": list(self.relations.values())}


def extract(document: str) -> JsonObject:
    """Return the answer for one document, as `SCHEMA` has it."""
    mentions = Mentions(names.common_words(document), frozenset(SPEAKING.findall(document)))
    records, text = read_data(document, VOCABULARY)
    for record in records or ():
        read_record(record, mentions, DATA_KINDS)
        read_prose("\n".join(value for _, value in record), mentions)
    if text:
        read_lists(text, mentions)
        for record in text_records(with_whole_names(text)):
            read_record(record, mentions, KIND_OF)
        read_prose(text, mentions)
    return mentions.answer()


def read_lists(document: str, mentions: Mentions) -> None:
    """The lists and tables of those present, and tables with a column of people."""
    for lines in attendance.sections(document):
        for attendee in attendance.read_people(lines):
            mentions.add_attendee(attendee)
        read_tables("\n".join(lines), mentions, listed=True)
    read_tables(document, mentions, listed=False)


def read_tables(text: str, mentions: Mentions, *, listed: bool) -> None:
    for table in attendance.tables(text):
        for attendee, row in attendance.people_of_table(table, listed=listed):
            person = mentions.add_attendee(attendee)
            if person is not None:
                attributes = {key: row[key] for key in extraction.ATTRIBUTE_NAMES if row.get(key)}
                mentions.add("person", person["name"], **attributes)


def find_kind(label: str, kinds: Mapping[str, str] = KIND_OF) -> str | None:
    return kinds.get(label) or ("person" if attendance.is_attendance(label) else None)


def read_record(record: Record, mentions: Mentions, kinds: Mapping[str, str]) -> None:
    """Add the entities of labelled values, and what a record joins."""
    attributes = {key: value for key, value in record if key in extraction.ATTRIBUTE_NAMES}
    ends: dict[str, list[dict[str, str]]] = {kind: [] for kind in FIELDS}
    employers: list[dict[str, str]] = []
    for label, same in groupby(record, key=lambda pair: pair[0]):
        kind, values = find_kind(label, kinds), [value.strip("[]") for _, value in same]
        if label == "name" and all(map(names.COMPANY.fullmatch, values)):
            kind = "company"
        if kind == "person":
            ends[kind] += read_people(values, attributes if label in OF_ONE else {}, mentions)
        elif kind is not None:
            between = BETWEEN_PLACES if kind == "location" else BETWEEN
            parts = (part for value in values for part in re.split(between, value))
            fragments = (part for part in parts if not is_sentence(part))
            named = [end for name in fragments if (end := mentions.add(kind, name)) is not None]
            ends[kind] += named
            employers += named if kind == "company" and label not in BUSINESS_PARTNERS else []
    if len(employers) == 1:
        ends["company"] = employers
    join_record(ends, mentions)


def is_sentence(text: str) -> bool:
    """Return whether a field's value is a sentence, not a name: some words, most of them in lower case."""
    words = names.WORD.findall(text)
    return len(words) > 4 and sum(word.islower() for word in words) * 2 > len(words)


def read_people(values: list[str], attributes: dict[str, str], mentions: Mentions) -> list[dict[str, str]]:
    """Return the people of a field's values; returned are those whose organisation only their record may know."""
    ends = []
    for attendee in attendance.read_people(values):
        end = mentions.add_attendee(attendee)
        if end is not None:
            mentions.add("person", end["name"], **attributes)
            ends += [] if attendee.company else [end]
    return ends


def join_record(ends: dict[str, list[dict[str, str]]], mentions: Mentions) -> None:
    """One company in a record is the employer, the holder and the resident of the rest."""
    people, companies = ends["person"], ends["company"]
    if len(companies) == 1:
        for person in people:
            mentions.join("works_at", person, companies[0])
        for account in ends["account"]:
            mentions.join("holds", companies[0], account)
        for location in ends["location"]:
            mentions.join("located_in", companies[0], location)
    if len(ends["project"]) == 1:
        for person in people:
            mentions.join("works_on", person, ends["project"][0])


def read_prose(document: str, mentions: Mentions) -> None:
    for match in SPEAKER.finditer(document):
        if find_kind(match["name"].lower()) is None:
            mentions.add_person_of_text(match["name"])
    for match in IN_BRACKETS.finditer(document):
        read_brackets(match, mentions)
    for match in OF_COMPANY.finditer(document):
        read_affiliation(match, mentions)
    for match in names.COMPANY.finditer(document):
        mentions.add("company", match["name"])
    institutes = {names.institute(match, mentions.common) for match in names.INSTITUTE.finditer(document)} - {""}
    for name in sorted(institutes):
        if not any(name.endswith(f" {other}") for other in institutes):  # `Updated Blue Foundation` is a capital more
            mentions.add("company", name)
    for match in ON_PROJECT.finditer(document):
        person = mentions.add_person_of_text(match["person"])
        mentions.join("works_on", person, mentions.add("project", match["project"]))
    for match in PROJECT.finditer(document):
        if not match["before"] or match["before"].strip().casefold() in mentions.common:
            add_project(match["name"], mentions)
    for match in PROJECT_AFTER.finditer(document):
        add_project(match["name"], mentions)
    for kind, pattern in (("account", ACCOUNT), ("location", PLACE)):
        for match in pattern.finditer(document):
            mentions.add(kind, match["name"])


def read_brackets(match: re.Match[str], mentions: Mentions) -> None:
    """`Jane Doe (Acme)`; an abbreviation of the name is not an organisation, and the name may not be a person's."""
    name, inside = mentions.whole_name(match["person"]), match["inside"].strip()
    if normalise_name("person", name) in mentions.listed or names.is_abbreviation(inside, name):
        return
    if inside.startswith("@") or inside in mentions.speakers:
        mentions.add_person_of_text(name)
        return
    for attendee in attendance.read_entries([f"{name} ({inside})"]):
        person = mentions.add_person_of_text(attendee.name) if attendee.company else None
        mentions.join("works_at", person, mentions.add("company", attendee.company) if person else None)


def read_affiliation(match: re.Match[str], mentions: Mentions) -> None:
    following = names.WORD.match(match.string[match.end() :].lstrip(" \t"))
    if following and names.is_address(f"{match['company']} {following.group()}"):
        return
    company = names.company_name(match["company"])
    if company and not is_common(company, mentions.common) and (person := mentions.add_person_of_text(match["person"])):
        mentions.join("works_at", person, mentions.add("company", company))


def is_common(name: str, common: Iterable[str]) -> bool:
    """Whether a name of running text is made of words of the language: of meetings, groups, roles and the document."""
    ordinary = names.TOPICS | names.GROUPS | names.ROLES
    return all(word.casefold() in ordinary or word.casefold() in common for word in names.WORD.findall(name))


def add_project(name: str, mentions: Mentions) -> None:
    first = names.WORD.findall(name)[:1]
    if first and not is_common(first[0], mentions.common):
        mentions.add("project", name)


def answer(messages: extraction.Messages) -> str:
    """Return the reply of the model `rules` to a prompt of `extraction.prompt`. Raises `InvalidInput` for any other
    prompt.
    """
    document, _stream = extraction.parse_prompt(messages)
    return json.dumps(extract(document), ensure_ascii=False, separators=(",", ":"))
