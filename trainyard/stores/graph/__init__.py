"""The knowledge graph: entities and relations, each with the documents that state them.

    with open_graph("file:///data/graph", settings) as graph:      # or http://host:9081
        graph.mutate([Mutation(tenant, stream, name, sha256, version, entities, relations)])

One interface (`contract.Graph`), three places: `MemoryGraph` (tests and the simulation), `LadybugGraph` (a database
file, written by a child process of its own) and `HttpGraph` (`trainyard serve --role graph`).
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainyard.settings import Settings
from trainyard.stores.graph.contract import Graph, GraphStats
from trainyard.stores.graph.facts import (
    ENTITY_KINDS,
    RELATION_KINDS,
    Entity,
    MutateResult,
    Mutation,
    Named,
    Relation,
    checked,
    document_key,
    entity_key,
    mutation,
    relation_key,
)
from trainyard.stores.graph.local import LadybugGraph
from trainyard.stores.graph.memory import MemoryGraph
from trainyard.stores.graph.remote import HttpGraph, check_url

__all__ = [
    "ENTITY_KINDS", "RELATION_KINDS", "Entity", "Graph", "GraphStats", "HttpGraph", "LadybugGraph", "MemoryGraph",
    "MutateResult", "Mutation", "Named", "Relation", "checked", "document_key", "entity_key", "graph_file", "mutation",
    "open_graph", "relation_key",
]  # fmt: skip


def graph_file(settings: Settings) -> Path:
    """The database of this home."""
    return settings.home / "graph" / "knowledge.lbug"


def open_graph(address: str, settings: Settings) -> Graph:
    """The graph at an address: empty for this home's database, `file:///path` for another file, or a server's URL.

    Nothing is started or connected before the first call. Raises `InvalidInput` (`E-GRAPH-ADDRESS`).
    """
    if not address:
        return LadybugGraph(graph_file(settings))
    parts = urlsplit(address)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return LadybugGraph(Path(unquote(parts.path)))
    return HttpGraph(check_url(address))
