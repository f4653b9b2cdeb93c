"""What the graphs share: the export to a file, the end of a `with` block, and the verbs of a graph that is asked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from trainyard.stores.files import Files
from trainyard.stores.graph.contract import Graph, GraphStats
from trainyard.stores.graph.dumping import write_lines
from trainyard.stores.graph.facts import MutateResult, Mutation, check_mutation


class ExportingGraph(Graph):
    """A graph that writes its dump to `files`."""

    files: Files

    def export(self, path: Path, tenant: str | None = None) -> int:
        return write_lines(path, self.dump(tenant), self.files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


class AskedGraph(ExportingGraph):
    """A graph that another process has open: each verb is a question with named fields."""

    @abstractmethod
    def ask(self, verb: str, **fields: Any) -> Any:
        """The answer to a question, as JSON values. Raises what the other process raised."""

    def mutate(self, mutations: Sequence[Mutation]) -> list[MutateResult]:
        given = [check_mutation(one) for one in mutations]
        return [MutateResult(**one) for one in self.ask("mutate", mutations=given)] if given else []

    def has(self, documents: Collection[str]) -> set[str]:
        return set(self.ask("has", documents=sorted(documents)))

    def query(self, cypher: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        return list(self.ask("query", cypher=cypher, parameters=dict(parameters or {})))

    def stats(self, tenant: str | None = None) -> GraphStats:
        return GraphStats(**self.ask("stats", tenant=tenant))

    def dump(self, tenant: str | None = None) -> Iterator[str]:
        return iter(self.ask("dump", tenant=tenant))
