"""State of a graph under a batch of mutations: the same rules for every place a graph is kept.

`State` contains what a decision needs; a graph in memory loads all of it, a database the keys (once) and whatever the
documents of a batch touch. `apply` changes the state and returns the net difference, which the database then writes.

An entity's name and attributes are a function of all documents that mention it (the spelling that most of them use,
then the smallest), so that the order in which documents arrive makes no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainyard.stores.graph.facts import Contents, Edge, Entity, MutateResult, Mutation

Slot = tuple[str, str, str]
"""(tenant, stream, name): where a document lies; one content at a time."""


@dataclass(frozen=True)
class GraphDocument:
    """A content of one stream. Any number of names may refer to it; without one it is gone."""

    tenant: str
    stream: str
    content_sha256: str
    version: str
    names: frozenset[str] = frozenset()

    def slots(self) -> list[Slot]:
        return [(self.tenant, self.stream, name) for name in self.names]


@dataclass
class EntityTally:
    """Counts of an entity's spellings and attributes."""

    tenant: str
    kind: str
    spellings: Counter[str] = field(default_factory=Counter)
    values: dict[str, Counter[str]] = field(default_factory=dict)
    entity_cache: Entity | None = None
    """What most mentions say; None when there is none, or until the next look after a change."""

    def add(self, mention: Entity, times: int = 1) -> None:
        """One more mention, or with -1 one less."""
        bump(self.spellings, mention.name, times)
        for name, value in mention.attributes.items():
            bump(self.values.setdefault(name, Counter()), value, times)
        current, attributes = self.entity_cache, mention.attributes.items()
        same = (
            current is not None
            and mention.name == current.name
            and all(current.attributes.get(k) == v for k, v in attributes)
        )
        if times < 0 or not same:
            self.entity_cache = None  # one more voice for the winner changes nothing

    def entity(self) -> Entity | None:
        if self.entity_cache is None and self.spellings:
            attributes = {name: most_common(counts) for name, counts in sorted(self.values.items()) if counts}
            self.entity_cache = Entity(self.kind, most_common(self.spellings), attributes)
        return self.entity_cache


def bump(counts: Counter[str], key: str, times: int) -> None:
    counts[key] += times
    if counts[key] <= 0:
        del counts[key]


def most_common(counts: Counter[str]) -> str:
    return next(iter(counts)) if len(counts) == 1 else min(counts, key=lambda value: (-counts[value], value))


@dataclass
class Changes:
    """The net difference of a batch: what to write, in keys and rows that occur once."""

    new_documents: dict[str, GraphDocument] = field(default_factory=dict)
    renamed_documents: dict[str, GraphDocument] = field(default_factory=dict)
    dead_documents: list[str] = field(default_factory=list)
    new_entities: dict[str, tuple[str, Entity]] = field(default_factory=dict)
    """Key -> (tenant, entity)."""
    changed_entities: dict[str, Entity] = field(default_factory=dict)
    dead_entities: list[str] = field(default_factory=list)
    new_relations: dict[str, Edge] = field(default_factory=dict)
    dead_relations: dict[str, Edge] = field(default_factory=dict)
    mentions: list[tuple[str, str, Entity]] = field(default_factory=list)
    """(document, entity, as it is written there) of the new documents."""
    statements: list[tuple[str, str, Edge]] = field(default_factory=list)
    """(document, relation, its ends) of the new documents."""

    def __bool__(self) -> bool:
        return any(vars(self).values())


class State:
    """The part of a graph that is in memory."""

    def __init__(self) -> None:
        self.documents: dict[str, GraphDocument] = {}
        self.slots: dict[Slot, str] = {}
        self.entities: set[str] = set()
        self.relations: set[str] = set()
        self.tallies: dict[str, EntityTally] = {}
        self.supports: dict[str, int] = {}
        """Relation -> how many documents state it."""
        self.contents: dict[str, Contents] = {}

    def runs(self, batch: Sequence[Mutation]) -> Iterator[list[Mutation]]:
        """The batch in parts, in order, in none of which two mutations concern one slot or a document that another one
        replaces. Take each part in before asking for the next."""
        part: list[Mutation] = []
        slots: set[Slot] = set()
        documents: set[str] = set()
        replaced: set[str] = set()
        for mutation in batch:
            slot = (mutation.tenant, mutation.stream, mutation.name)
            if slot in slots or mutation.document in replaced or self.slots.get(slot) in documents:
                yield part
                part, slots, documents, replaced = [], set(), set(), set()
            part.append(mutation)
            slots.add(slot)
            documents.add(mutation.document)
            replaced |= self.find_replaced([mutation])
        if part:
            yield part

    def find_replaced(self, part: Iterable[Mutation]) -> set[str]:
        """Documents that lose a name to a part of a batch."""
        pairs = [
            (mutation.document, self.slots.get((mutation.tenant, mutation.stream, mutation.name))) for mutation in part
        ]
        return {current for key, current in pairs if current is not None and current != key}

    def apply(self, part: Sequence[Mutation]) -> tuple[list[MutateResult], Changes]:
        """Take checked mutations in, one after the other.

        What they replace (`contents`, `supports`) and the tallies of all that both mention have to be loaded.
        """
        before = Before(self, part)
        results = [self.take(mutation) for mutation in part]
        return results, before.changes()

    def take(self, mutation: Mutation) -> MutateResult:
        key, slot = mutation.document, (mutation.tenant, mutation.stream, mutation.name)
        current = self.slots.get(slot)
        if current == key:
            return MutateResult(key, already=True)
        already, entities, changed, relations = key in self.documents, 0, 0, 0
        if not already:
            self.documents[key] = GraphDocument(
                mutation.tenant, mutation.stream, mutation.content_sha256, mutation.version
            )
            self.contents[key] = mutation.contents
            entities, changed, relations = self.add(mutation.tenant, self.contents[key])
        self.name(key, slot)
        counts = self.release(current, slot) if current is not None else (0, 0, 0)
        return MutateResult(key, entities, changed + counts[1], relations, counts[0], counts[2], already)

    def name(self, key: str, slot: Slot) -> None:
        document = self.documents[key]
        self.documents[key] = replace(document, names=document.names | {slot[2]})
        self.slots[slot] = key

    def add(self, tenant: str, contents: Contents) -> tuple[int, int, int]:
        """(new entities, changed entities, new relations)."""
        new = changed = 0
        for key, mention in contents.mentions.items():
            if key not in self.entities:
                self.tallies[key] = EntityTally(tenant, mention.kind)
                self.tallies[key].add(mention)
                self.entities.add(key)
                new += 1
            else:
                tally = self.tallies[key]
                earlier = tally.entity()
                tally.add(mention)
                changed += tally.entity() != earlier
        fresh = contents.relations.keys() - self.relations
        self.relations |= fresh
        for key in contents.relations:
            if key in fresh or key in self.supports:
                self.supports[key] = self.supports.get(key, 0) + 1
        return new, changed, len(fresh)

    def release(self, key: str, slot: Slot) -> tuple[int, int, int]:
        """Take a name off a document; (removed entities, changed entities, removed relations) if it was the last."""
        document = self.documents[key]
        left = document.names - {slot[2]}
        self.documents[key] = replace(document, names=left)
        if left:
            return 0, 0, 0
        contents, removed, changed, relations = self.contents.pop(key), 0, 0, 0
        del self.documents[key]
        for entity, mention in contents.mentions.items():
            tally = self.tallies[entity]
            earlier = tally.entity()
            tally.add(mention, -1)
            now = tally.entity()
            changed += now is not None and now != earlier
            if now is None:
                removed += 1
                self.entities.discard(entity)
                del self.tallies[entity]
        for relation in contents.relations:
            self.supports[relation] -= 1
            if self.supports[relation] == 0:
                relations += 1
                self.relations.discard(relation)
                del self.supports[relation]
        return removed, changed, relations


class Before:
    """Snapshot of what a batch may touch, before the batch: compared with afterwards, it gives the net difference."""

    def __init__(self, state: State, batch: Sequence[Mutation]) -> None:
        self.state = state
        # Of two with one content the first counts, whatever a model made of the second.
        new_contents = {mutation.document: mutation.contents for mutation in reversed(batch)}
        old = state.find_replaced(batch)
        self.contents = {**{key: state.contents[key] for key in old if key in state.contents}, **new_contents}
        self.documents = {key: state.documents.get(key) for key in self.contents}
        entities = {key for contents in self.contents.values() for key in contents.mentions}
        self.entities = {key: merge_tallies(state.tallies, key) for key in entities}
        self.edges = {key: edge for contents in self.contents.values() for key, edge in contents.relations.items()}
        self.relations = {key for key in self.edges if key in state.relations}

    def changes(self) -> Changes:
        state, changes = self.state, Changes()
        for key, document in self.documents.items():
            now = state.documents.get(key)
            if now is None and document is not None:
                changes.dead_documents.append(key)
            elif now is not None and document is None:
                changes.new_documents[key] = now
                changes.mentions += [(key, entity, mention) for entity, mention in state.contents[key].mentions.items()]
                changes.statements += [
                    (key, relation, edge) for relation, edge in state.contents[key].relations.items()
                ]
            elif now is not None and now != document:
                changes.renamed_documents[key] = now
        for key, entity in self.entities.items():
            after = merge_tallies(state.tallies, key)
            if after is None and entity is not None:
                changes.dead_entities.append(key)
            elif after is not None and entity is None:
                changes.new_entities[key] = (state.tallies[key].tenant, after)
            elif after is not None and after != entity:
                changes.changed_entities[key] = after
        for key, edge in self.edges.items():
            if key in state.relations and key not in self.relations:
                changes.new_relations[key] = edge
            elif key not in state.relations and key in self.relations:
                changes.dead_relations[key] = edge
        return changes


def merge_tallies(tallies: Mapping[str, EntityTally], key: str) -> Entity | None:
    tally = tallies.get(key)
    return tally.entity() if tally is not None else None
