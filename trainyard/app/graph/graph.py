"""The knowledge graph from outside: ask it, count it, write it out, serve it."""

from __future__ import annotations

import os
from dataclasses import asdict

from trainyard.app.context import Context
from trainyard.app.graph import server as graph_server
from trainyard.app.graph.neighbors import graph_in_turn, is_unwritten
from trainyard.app.responses import Response
from trainyard.app.run_folders import resolve_tenant
from trainyard.json_types import JsonObject
from trainyard.operations.graph import ExportInput, GraphInput, QueryInput
from trainyard.serve.listening import build_url
from trainyard.stores.graph.addresses import open_graph
from trainyard.stores.graph.contract import GraphStats
from trainyard.stores.graph.remote import TOKEN_VARIABLE


class QueryRows(Response):
    rows: tuple[JsonObject, ...]


class GraphCounts(Response):
    documents: int
    entities: int
    relations: int
    entities_by_kind: dict[str, int]
    relations_by_kind: dict[str, int]


class Exported(Response):
    file: str
    lines: int


def query_graph(request: QueryInput, context: Context) -> QueryRows:
    with graph_in_turn(request.graph, context.settings) as graph:
        return QueryRows(rows=tuple(graph.query(request.cypher, request.parameters)))


def count_graph(request: GraphInput, context: Context) -> GraphCounts:
    tenant = resolve_tenant(request.tenant, context)
    if tenant is None or is_unwritten(request.graph, context):
        return GraphCounts(**asdict(GraphStats()))
    with graph_in_turn(request.graph, context.settings) as graph:
        return GraphCounts(**asdict(graph.stats(tenant or None)))


def export_graph(request: ExportInput, context: Context) -> Exported:
    with graph_in_turn(request.graph, context.settings) as graph:
        return Exported(file=str(request.file), lines=graph.export(request.file.absolute(), request.tenant))


def serve_graph(address: str, host: str, port: int, context: Context) -> str:
    """Serve until a signal; the database is opened first, so that a taken one is reported at once."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    listener = graph_server.bind_socket(host, port, token)
    url = build_url(listener)
    with listener, open_graph(address, context.settings) as graph:
        counts = graph.stats()
        context.say(f"the graph answers at {url}: {counts.documents:,} documents, {counts.entities:,} entities")
        graph_server.serve(graph, listener, token)
    return url
