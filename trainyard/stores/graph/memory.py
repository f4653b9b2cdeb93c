"""A graph in memory: the rules without a database, for tests and for the simulation of nights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.stores.graph.contract import Graph, GraphStats, count_lines, document_line, entity_line, relation_line
from trainyard.stores.graph.facts import Edge, MutateResult, Mutation, check_mutation
from trainyard.stores.graph.state import State


class MemoryGraph(Graph):
    """Graph in memory, without queries; every mutation is durable as long as the process."""

    def __init__(self) -> None:
        self.state = State()

    def mutate(self, mutations: Sequence[Mutation]) -> list[MutateResult]:
        batch, results = [check_mutation(mutation) for mutation in mutations], list[MutateResult]()
        for part in self.state.runs(batch):
            results += self.state.apply(part)[0]
        return results

    def has(self, documents: Collection[str]) -> set[str]:
        return {key for key in documents if key in self.state.documents}

    def query(self, cypher: str, parameters: JsonMapping | None = None) -> list[JsonObject]:
        raise InvalidInput(
            "A graph in memory has no query language.", do="Use a database file or a server.", code="E-GRAPH-QUERY"
        )

    def stats(self, tenant: str | None = None) -> GraphStats:
        return count_lines(self.dump(tenant))

    def dump(self, tenant: str | None = None) -> Iterator[str]:
        state, lines = self.state, list[str]()
        mentions: dict[str, list[str]] = {key: [] for key in state.entities}
        statements: dict[str, list[str]] = {key: [] for key in state.relations}
        edges: dict[str, Edge] = {}
        for key, contents in state.contents.items():
            for entity in contents.mentions:
                mentions[entity].append(key)
            for relation in contents.relations:
                statements[relation].append(key)
            edges |= contents.relations
        for key, document in state.documents.items():
            if tenant in (None, document.tenant):
                lines.append(document_line(key, document))
        for key, tally in state.tallies.items():
            if tenant in (None, tally.tenant) and (entity_now := tally.entity()) is not None:
                lines.append(entity_line(key, tally.tenant, entity_now, mentions[key]))
        for key, supporters in statements.items():
            if tenant in (None, edges[key].tenant):
                lines.append(relation_line(key, edges[key], supporters))
        return iter(sorted(lines))

    def close(self) -> None:
        """Nothing is open."""
