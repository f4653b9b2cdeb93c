"""Facts in the knowledge graph: entities, relations, and the document that states them. No database here.

Keys are pure functions of what they name, so that writing twice adds nothing: an entity is its tenant, kind and
normalised name; a document is its tenant, stream, content and the version of prompt and model that read it.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping

ENTITY_KINDS = ("person", "company", "project", "account", "location")
RELATION_KINDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "works_at": (frozenset({"person"}), frozenset({"company"})),
    "works_on": (frozenset({"person", "company"}), frozenset({"project"})),
    "manages": (frozenset({"person", "company"}), frozenset({"account"})),
    "holds": (frozenset({"company", "person"}), frozenset({"account"})),
    "partner_of": (frozenset({"company"}), frozenset({"company"})),
    "located_in": (frozenset({"person", "company", "project", "location"}), frozenset({"location"})),
}
"""Relation -> (kinds it may start from, kinds it may lead to). There are no others, whatever a document says."""

NAME_CHARS, ATTRIBUTE_CHARS, ATTRIBUTES = 200, 500, 8
ENTITIES_PER_DOCUMENT, RELATIONS_PER_DOCUMENT = 200, 400
TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
STREAM = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SHA256 = re.compile(r"[0-9a-f]{64}")
ATTRIBUTE = re.compile(r"[a-z][a-z0-9_]{0,31}")
LEGAL_FORMS = frozenset(
    {"ag", "bv", "co", "corp", "corporation", "gmbh", "inc", "limited", "llc", "ltd", "plc", "sa", "se", "srl"}
)
"""Left out at the end of a company's name: the same company is written with and without."""
TITLES = frozenset({"dr", "mr", "mrs", "ms", "prof"})


@dataclass(frozen=True)
class Named:
    """An entity as a relation refers to it."""

    kind: str
    name: str


@dataclass(frozen=True)
class Entity:
    """Entity that a document names. `attributes` are short texts, such as an e-mail address."""

    kind: str
    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Relation:
    """`source` kind `target`; the kinds that may be joined are in `RELATION_KINDS`."""

    kind: str
    source: Named
    target: Named


@dataclass(frozen=True)
class Edge:
    """A relation by the keys of its ends."""

    tenant: str
    kind: str
    source: str
    target: str


@dataclass
class Contents:
    """Facts of one document, by keys: its mentions by entity, its relations."""

    mentions: dict[str, Entity] = field(default_factory=dict)
    relations: dict[str, Edge] = field(default_factory=dict)


@dataclass(frozen=True)
class Mutation:
    """Mutation with the facts of one document. It replaces those of an earlier content with the same name."""

    tenant: str
    stream: str
    name: str
    """The document's name within its stream, such as a path relative to the stream's folder."""
    content_sha256: str
    version: str
    """Version of prompt and model that read it."""
    entities: tuple[Entity, ...] = ()
    relations: tuple[Relation, ...] = ()

    @cached_property
    def document(self) -> str:
        """Return the idempotency key."""
        return document_key(self.tenant, self.stream, self.content_sha256, self.version)

    @cached_property
    def contents(self) -> Contents:
        """Return the same by keys."""
        tenant = self.tenant
        mentions = {entity_key(tenant, entity.kind, entity.name): entity for entity in self.entities}
        relations = {}
        for relation in self.relations:
            source = entity_key(tenant, relation.source.kind, relation.source.name)
            target = entity_key(tenant, relation.target.kind, relation.target.name)
            relations[digest("relation", relation.kind, source, target)] = Edge(tenant, relation.kind, source, target)
        return Contents(mentions, relations)


@dataclass(frozen=True)
class MutateResult:
    """Effect of one mutation. `already`: the document was known, and at most its name was added."""

    document: str
    new_entities: int = 0
    changed_entities: int = 0
    new_relations: int = 0
    removed_entities: int = 0
    removed_relations: int = 0
    already: bool = False


def document_key(tenant: str, stream: str, content_sha256: str, version: str) -> str:
    return digest("document", tenant, stream, content_sha256, version)


@lru_cache(65_536)
def entity_key(tenant: str, kind: str, name: str) -> str:
    """Return the key of an entity: equal for all spellings of one name (case, spaces, width, titles, legal forms)."""
    return digest("entity", tenant, kind, normalise_name(kind, name))


def digest(*parts: str) -> str:
    """Return 32 hexadecimal digits; parts are joined by NUL, which no part contains."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@lru_cache(65_536)
def normalise_name(kind: str, name: str) -> str:
    """Return a name as it is compared: NFKC, folded case, single spaces, no outer punctuation."""
    words = [word.strip(".,;:!?\"'()[]“”‘’") for word in unicodedata.normalize("NFKC", name).casefold().split()]
    words = [word for word in words if word]
    if kind == "company":
        while len(words) > 1 and words[-1].replace(".", "") in LEGAL_FORMS:
            words.pop()
    if kind == "person":
        while len(words) > 1 and words[0] in TITLES:
            words.pop(0)
    return " ".join(words)


def parse_mutation(fields: Mapping[str, object]) -> Mutation:
    """Return a mutation from JSON, checked. Raises `InvalidInput` (`E-GRAPH-QUERY`) naming the field."""
    return check_mutation(to_mutation(fields))


def to_mutation(fields: JsonMapping) -> Mutation:
    """Return a mutation from JSON that was checked before it became JSON."""
    try:
        entities = tuple(Entity(**entity) for entity in fields.get("entities", ()))
        relations = tuple(
            Relation(relation["kind"], Named(**relation["source"]), Named(**relation["target"]))
            for relation in fields.get("relations", ())
        )
        rest = {key: value for key, value in fields.items() if key not in ("entities", "relations")}
        return Mutation(**rest, entities=entities, relations=relations)
    except (TypeError, KeyError, AttributeError) as error:
        raise wrong(f"its shape is wrong: {error}") from error


def check_mutation(mutation: Mutation) -> Mutation:
    """Return the mutation with cleaned names and each relation's ends among its entities.

    Raises `InvalidInput` (`E-GRAPH-QUERY`) for a kind that does not exist, a relation between kinds that it does not
    join, a name that is empty or too long, or more than the caps allow.
    """
    for value, pattern, label in (
        (mutation.tenant, TENANT, "tenant"),
        (mutation.stream, STREAM, "stream"),
        (mutation.content_sha256, SHA256, "content_sha256"),
    ):
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise wrong(f"{label} is {value!r}, which does not match {pattern.pattern}")
    for value, label in ((mutation.name, "name"), (mutation.version, "version")):
        if not isinstance(value, str) or not value or len(value) > 1024 or "\0" in value:
            raise wrong(f"{label} has to be a text of 1 to 1,024 characters")
    if len(mutation.entities) > ENTITIES_PER_DOCUMENT or len(mutation.relations) > RELATIONS_PER_DOCUMENT:
        raise wrong(
            f"it has {len(mutation.entities)} entities and {len(mutation.relations)} relations; at most "
            f"{ENTITIES_PER_DOCUMENT} and {RELATIONS_PER_DOCUMENT} are allowed"
        )
    relations = tuple(check_relation(relation) for relation in mutation.relations)
    ends = [Entity(end.kind, end.name) for relation in relations for end in (relation.source, relation.target)]
    entities = merge_entities([*(check_entity(entity) for entity in mutation.entities), *ends])
    return replace(mutation, entities=entities, relations=tuple(dict.fromkeys(relations)))


def check_entity(entity: Entity) -> Entity:
    named = check_name(Named(entity.kind, entity.name))
    attributes = entity.attributes
    if not isinstance(attributes, Mapping) or len(attributes) > ATTRIBUTES:
        raise wrong(f"the attributes of {named.name!r} have to be at most {ATTRIBUTES} texts")
    for key, value in attributes.items():
        if not isinstance(key, str) or not ATTRIBUTE.fullmatch(key):
            raise wrong(f"an attribute is named {str(key)[:40]!r}; allowed is {ATTRIBUTE.pattern}")
        if not isinstance(value, str) or len(value) > ATTRIBUTE_CHARS or "\0" in value:
            raise wrong(f"the attribute {key} has to be a text of at most {ATTRIBUTE_CHARS} characters")
    return Entity(named.kind, named.name, dict(sorted(attributes.items())))


@lru_cache(65_536)
def check_name(entity: Named) -> Named:
    if entity.kind not in ENTITY_KINDS:
        raise wrong(f"an entity is of kind {str(entity.kind)[:40]!r}; there are {', '.join(ENTITY_KINDS)}")
    if not isinstance(entity.name, str):
        raise wrong(f"the name of a {entity.kind} is not a string")
    name = " ".join(unicodedata.normalize("NFC", entity.name).split())
    if not normalise_name(entity.kind, name) or len(name) > NAME_CHARS or not name.isprintable():
        raise wrong(f"a {entity.kind} is named {name[:40]!r}; a name has 1 to {NAME_CHARS} printable characters")
    return Named(entity.kind, name)


def check_relation(relation: Relation) -> Relation:
    if relation.kind not in RELATION_KINDS:
        raise wrong(f"a relation is of kind {str(relation.kind)[:40]!r}; there are {', '.join(RELATION_KINDS)}")
    sources, targets = RELATION_KINDS[relation.kind]
    source, target = check_name(relation.source), check_name(relation.target)
    if source.kind not in sources or target.kind not in targets:
        raise wrong(f"{relation.kind} does not lead from a {source.kind} to a {target.kind}")
    return Relation(relation.kind, source, target)


def merge_entities(entities: Sequence[Entity]) -> tuple[Entity, ...]:
    """One entity a key: the first spelling wins, attributes are joined (a relation's end may name it otherwise)."""
    by_name: dict[tuple[str, str], Entity] = {}
    for entity in entities:
        key = (entity.kind, normalise_name(entity.kind, entity.name))
        earlier = by_name.get(key)
        by_name[key] = (
            entity
            if earlier is None
            else Entity(earlier.kind, earlier.name, {**entity.attributes, **earlier.attributes})
        )
    return tuple(by_name.values())


def wrong(why: str) -> InvalidInput:
    return InvalidInput(
        "The graph does not take this mutation.",
        why=f"{why[0].upper()}{why[1:]}.",
        do="See docs/graph.md for the fields of a mutation.",
        code="E-GRAPH-QUERY",
    )
