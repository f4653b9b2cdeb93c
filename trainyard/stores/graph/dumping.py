"""A graph as JSON lines in one order, so that two graphs are compared by comparing text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import orjson

from trainyard.json_types import JsonObject
from trainyard.stores.graph.contract import GraphStats
from trainyard.stores.graph.facts import Edge, Entity
from trainyard.stores.graph.state import GraphDocument


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
