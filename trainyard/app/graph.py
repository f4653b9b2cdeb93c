"""The knowledge graph from outside: ask it, count it, write it out, serve it.

The knowledge graph for a browser: entities by name, and their neighbors.

Every statement is one that reads, with values as parameters; a tenant sees nothing of another's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Literal

import orjson

from trainyard.app import graph_server
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.app.run_folders import resolve_tenant
from trainyard.cancellation import require_caller
from trainyard.errors import InvalidInput, NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations.graph import EntitiesInput, ExportInput, GraphInput, NeighborsInput, QueryInput
from trainyard.serve.listening import build_url
from trainyard.settings import Settings
from trainyard.stores.graph.contract import Graph, GraphStats
from trainyard.stores.graph.facts import ENTITY_KINDS
from trainyard.stores.graph.local import LadybugGraph
from trainyard.stores.graph.remote import TOKEN_VARIABLE, graph_file, open_graph

OF_TENANT = "($tenant = '' OR {0}.tenant = $tenant)"
FIELDS = "{0}.key AS {0}_key, {0}.tenant AS {0}_tenant, {0}.kind AS {0}_kind, {0}.name AS {0}_name"
FIELDS += ", {0}.attributes AS {0}_attributes"


class GraphEntity(Response):
    key: str
    tenant: str
    kind: str
    name: str
    attributes: dict[str, str]


class EntityList(Response):
    entities: tuple[GraphEntity, ...]
    next_offset: int | None = None
    """Where the next page begins; None at the end."""


class GraphRelation(Response):
    """A relation of an entity, by its other end."""

    kind: str
    direction: Literal["out", "in"]
    """Whether it leads from the entity, or to it."""
    entity: GraphEntity


class StatingDocument(Response):
    """A document that names the entity."""

    key: str
    stream: str
    names: tuple[str, ...]


class Neighbors(Response):
    entity: GraphEntity
    relations: tuple[GraphRelation, ...]
    documents: tuple[StatingDocument, ...]
    more: bool = False
    """Whether there are more relations or documents than `limit`."""


def list_entities(request: EntitiesInput, context: Context) -> EntityList:
    """Return a page of entities by name. Raises `InvalidInput` (`E-PARAMETER`), and what the graph raises."""
    tenant = resolve_tenant(request.tenant, context)
    if request.kind and request.kind not in ENTITY_KINDS:
        raise InvalidInput(
            f"There are no entities of kind {request.kind!r}.", why=f"There are {', '.join(ENTITY_KINDS)}.",
            do="Name one of them.", code="E-PARAMETER",
        )  # fmt: skip
    if tenant is None or is_unwritten(request.graph, context):
        return EntityList(entities=())
    cypher = (
        f"MATCH (e:Entity) WHERE {OF_TENANT.format('e')} AND ($kind = '' OR e.kind = $kind) AND ($text = '' OR "
        f"contains(lower(e.name), $text)) RETURN {FIELDS.format('e')} ORDER BY e.name, e.key SKIP {request.offset} "
        f"LIMIT {request.limit + 1}"
    )
    values = {"tenant": tenant, "kind": request.kind, "text": request.text.lower().replace("\0", "")}
    with graph_in_turn(request.graph, context.settings) as graph:
        rows = graph.query(cypher, values)
    more = request.offset + request.limit if len(rows) > request.limit else None
    return EntityList(entities=tuple(build_entity(row, "e") for row in rows[: request.limit]), next_offset=more)


def show_neighbors(request: NeighborsInput, context: Context) -> Neighbors:
    """Return an entity with its relations and documents. Raises `NotFound` (`E-NOT-FOUND`), and what the graph
    raises.
    """
    tenant = resolve_tenant(request.tenant, context)
    if tenant is None or is_unwritten(request.graph, context):
        raise no_entity_error(request.key)
    values, most = {"key": request.key, "tenant": tenant}, request.limit + 1
    with graph_in_turn(request.graph, context.settings) as graph:
        of_tenant = OF_TENANT.format("e")
        itself = graph.query(f"MATCH (e:Entity) WHERE e.key = $key AND {of_tenant} RETURN {FIELDS.format('e')}", values)
        if not itself:
            raise no_entity_error(request.key)
        end = f"RETURN r.kind AS kind, {FIELDS.format('o')} ORDER BY r.kind, o.name, o.key LIMIT {most}"
        out, into = (
            graph.query(f"MATCH {pattern} WHERE e.key = $key AND {of_tenant} {end}", values)
            for pattern in ("(e:Entity)-[r:RELATES]->(o:Entity)", "(o:Entity)-[r:RELATES]->(e:Entity)")
        )
        documents = graph.query(
            f"MATCH (d:Document)-[:MENTIONS]->(e:Entity) WHERE e.key = $key AND {of_tenant} RETURN d.key AS key, "
            f"d.stream AS stream, d.names AS names ORDER BY d.stream, d.key LIMIT {most}",
            values,
        )
    relations = [*build_relations(out, "out"), *build_relations(into, "in")]
    return Neighbors(
        entity=build_entity(itself[0], "e"), relations=tuple(relations[: request.limit]),
        documents=tuple(
            StatingDocument(key=row["key"], stream=row["stream"], names=tuple(orjson.loads(row["names"])))
            for row in documents[: request.limit]
        ),
        more=len(relations) > request.limit or len(documents) > request.limit,
    )  # fmt: skip


def is_unwritten(address: str, context: Context) -> bool:
    """Return whether this home has no graph: looking for something does not make one."""
    return not address and not graph_file(context.settings).exists()


def build_relations(rows: Iterable[Mapping[str, object]], direction: Literal["out", "in"]) -> list[GraphRelation]:
    return [GraphRelation(kind=row["kind"], direction=direction, entity=build_entity(row, "o")) for row in rows]


def build_entity(row: JsonMapping, name: str) -> GraphEntity:
    """Return the entity that a row has under the name of a variable."""
    values = {key: row[f"{name}_{key}"] for key in ("key", "tenant", "kind", "name")}
    return GraphEntity(**values, attributes=orjson.loads(row[f"{name}_attributes"] or "{}"))


def no_entity_error(key: str) -> NotFound:
    return NotFound(
        f"There is no entity {key!r} in the graph.",
        why="No document states it, or not any more.",
        do="Look for it by its name: trainyard graph entities NAME.",
        code="E-NOT-FOUND",
    )


TURN = threading.Lock()
"""Of this process: a database belongs to the process that has opened it, and each request opens it in its own child."""


@contextmanager
def graph_in_turn(address: str, settings: Settings) -> Iterator[Graph]:
    """The graph at an address; a file after the requests of this process that came first. Raises as `open_graph`."""
    graph = open_graph(address, settings)
    with TURN if isinstance(graph, LadybugGraph) else nullcontext():
        require_caller()  # who may have left while others had their turn
        with graph:
            yield graph


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
