"""Contract of every knowledge graph: in memory, in this machine's database, behind HTTP.

A graph as JSON lines in one order, so that two graphs are compared by comparing text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import orjson

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.graph.facts import Edge, Entity, MutateResult, Mutation, check_mutation
from trainyard.stores.graph.state import GraphDocument
from trainyard.stores.whole import write_whole


@dataclass(frozen=True)
class GraphStats:
    """Counts of documents, entities and relations of the graph, of one tenant or of all."""

    documents: int = 0
    entities: int = 0
    relations: int = 0
    entities_by_kind: Mapping[str, int] = field(default_factory=dict)
    relations_by_kind: Mapping[str, int] = field(default_factory=dict)


class Graph(Protocol):
    """Entities and relations with the documents that state them. A context manager; `close` ends what it started."""

    def mutate(self, mutations: Sequence[Mutation]) -> list[MutateResult]:
        """Write what documents state, all of them or none; one result a mutation, in order.

        Idempotent by `Mutation.document`. A new content of the same tenant, stream and name replaces the old one: what
        no other document states is taken out. When this returns, the change is durable.

        Raises `InvalidInput` (`E-GRAPH-QUERY`), `Conflict` (`E-GRAPH-BUSY`) when another process has the database,
        `Unavailable` (`E-GRAPH-STORE`).
        """
        ...

    def has(self, documents: Collection[str]) -> set[str]:
        """Those of the given document keys that are in the graph."""
        ...

    def query(self, cypher: str, parameters: JsonMapping | None = None) -> list[JsonObject]:
        """Rows of a reading Cypher statement; values only as `$parameters`. Raises `InvalidInput` (`E-GRAPH-QUERY`)."""
        ...

    def stats(self, tenant: str | None = None) -> GraphStats: ...

    def dump(self, tenant: str | None = None) -> Iterator[str]:
        """The whole content as JSON lines in one order: equal graphs give equal lines, however they were written."""
        ...

    def export(self, path: Path, tenant: str | None = None) -> int:
        """Write the dump to a file that replaces the old one at once; returns the number of lines."""
        text = [f"{line}\n" for line in self.dump(tenant)]
        with translate_os_errors("The graph was not exported"):
            make_folders(DISK, path.absolute().parent)
            write_whole(DISK, path.absolute(), "".join(text).encode())
        return len(text)

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


class AskedGraph(Graph):
    """A graph that another process has open: each verb is a question with named fields."""

    @abstractmethod
    def ask(self, verb: str, **fields: Any) -> Any:
        """Return the answer to a question, as JSON values. Raises the error of the other process."""

    def mutate(self, mutations: Sequence[Mutation]) -> list[MutateResult]:
        batch = [check_mutation(mutation) for mutation in mutations]
        return [MutateResult(**fields) for fields in self.ask("mutate", mutations=batch)] if batch else []

    def has(self, documents: Collection[str]) -> set[str]:
        return set(self.ask("has", documents=sorted(documents)))

    def query(self, cypher: str, parameters: JsonMapping | None = None) -> list[JsonObject]:
        return list(self.ask("query", cypher=cypher, parameters=dict(parameters or {})))

    def stats(self, tenant: str | None = None) -> GraphStats:
        return GraphStats(**self.ask("stats", tenant=tenant))

    def dump(self, tenant: str | None = None) -> Iterator[str]:
        return iter(self.ask("dump", tenant=tenant))


def dump_line(kind: str, fields: JsonObject) -> str:
    """Return one line; the kind comes first, so that sorting groups by it."""
    return orjson.dumps({"a": kind, **fields}, option=orjson.OPT_SORT_KEYS).decode()


def document_line(key: str, document: GraphDocument) -> str:
    fields = {"key": key, "tenant": document.tenant, "stream": document.stream, "names": sorted(document.names)}
    return dump_line("document", {**fields, "content_sha256": document.content_sha256, "version": document.version})


def entity_line(key: str, tenant: str, entity: Entity, documents: Iterable[str]) -> str:
    fields = {"key": key, "tenant": tenant, "kind": entity.kind, "name": entity.name}
    return dump_line("entity", {**fields, "attributes": dict(entity.attributes), "documents": sorted(documents)})


def relation_line(key: str, edge: Edge, documents: Iterable[str]) -> str:
    fields = {"key": key, "tenant": edge.tenant, "kind": edge.kind, "source": edge.source, "target": edge.target}
    return dump_line("relation", {**fields, "documents": sorted(documents)})


def count_lines(lines: Iterable[str]) -> GraphStats:
    """The counts of a dump."""
    totals: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {"entity": Counter(), "relation": Counter()}
    for row in map(orjson.loads, lines):
        totals[row["a"]] += 1
        if row["a"] in kinds:
            kinds[row["a"]][row["kind"]] += 1
    entities, relations = dict(sorted(kinds["entity"].items())), dict(sorted(kinds["relation"].items()))
    return GraphStats(totals["document"], totals["entity"], totals["relation"], entities, relations)
