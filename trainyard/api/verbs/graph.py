"""The knowledge graph from outside: ask it, count it, write it out, serve it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainyard.api import graph_server
from trainyard.settings import Settings
from trainyard.stores.graph.addresses import open_graph
from trainyard.stores.graph.remote import TOKEN_VARIABLE


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GraphInput(Model):
    graph: str = ""
    """Address of a server or a file:// address; empty for the database of this home."""
    tenant: str | None = None


class QueryInput(Model):
    cypher: str = Field(min_length=1)
    parameters: dict[str, Any] = {}
    graph: str = ""


class QueryRows(Model):
    rows: tuple[dict[str, Any], ...]


class GraphCounts(Model):
    documents: int
    entities: int
    relations: int
    entities_by_kind: dict[str, int]
    relations_by_kind: dict[str, int]


class ExportInput(GraphInput):
    file: Path


class Exported(Model):
    file: str
    lines: int


class ServeInput(Model):
    role: Literal["graph"] = "graph"
    host: str = "127.0.0.1"
    port: int = Field(9081, ge=0, le=65535)
    graph: str = ""


class Served(Model):
    url: str


def query(given: QueryInput, settings: Settings) -> QueryRows:
    with open_graph(given.graph, settings) as graph:
        return QueryRows(rows=tuple(graph.query(given.cypher, given.parameters)))


def stats(given: GraphInput, settings: Settings) -> GraphCounts:
    with open_graph(given.graph, settings) as graph:
        return GraphCounts(**asdict(graph.stats(given.tenant)))


def export(given: ExportInput, settings: Settings) -> Exported:
    with open_graph(given.graph, settings) as graph:
        return Exported(file=str(given.file), lines=graph.export(given.file.absolute(), given.tenant))


def serve(given: ServeInput, settings: Settings, say: Callable[[str], None]) -> Served:
    """Serve until a signal; the database is opened first, so that a taken one is told at once."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    listener = graph_server.listening(given.host, given.port, token)
    port = listener.getsockname()[1]
    url = f"http://{f'[{given.host}]' if ':' in given.host else given.host}:{port}"
    with listener, open_graph(given.graph, settings) as graph:
        counts = graph.stats()
        say(f"the graph answers at {url}: {counts.documents:,} documents, {counts.entities:,} entities")
        graph_server.serve(graph, listener, token)
    return Served(url=url)
