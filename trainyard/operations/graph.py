"""The knowledge graph: queries and entities. Requests, texts and rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trainyard.operations.base import TENANT, Parameters, Request, Tenant
from trainyard.operations.chains import PARAMETERS
from trainyard.operations.data import counts_text, exported_text, query_text
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table

if TYPE_CHECKING:
    from trainyard.app.graph import EntityList, Neighbors

ADDRESS = "A graph server or file:// address; default: this home's."


class GraphInput(Request):
    tenant: str | None = Field(None, description="Only this tenant.")
    graph: Annotated[str, Option(local=True)] = Field("", description=ADDRESS)


class QueryInput(Request):
    cypher: Annotated[str, Argument("CYPHER")] = Field(min_length=1)
    parameters: Parameters = Field({}, description=PARAMETERS)
    graph: Annotated[str, Option(local=True)] = Field("", description=ADDRESS)


class ExportInput(GraphInput):
    file: Annotated[Path, Argument("FILE")]


class EntitiesInput(Request):
    text: Annotated[str, Argument("TEXT")] = Field("", max_length=200, description="Only names that contain this.")
    kind: str = Field("", max_length=40, description="Only this kind: person, company, project, account, location.")
    tenant: Tenant = Field(None, description=TENANT)
    limit: int = Field(50, ge=1, le=200, description="Maximum number of results.")
    offset: int = Field(0, ge=0, le=1_000_000_000, description="So many are left out at the beginning.")
    graph: Annotated[str, Option(local=True)] = Field("", description=ADDRESS)


class NeighborsInput(Request):
    key: Annotated[str, Argument("KEY")] = Field(pattern=r"^[0-9a-f]{32}$", description="Key of an entity.")
    tenant: Tenant = Field(None, description=TENANT)
    limit: int = Field(100, ge=1, le=500, description="Maximum number of relations, and of documents.")
    graph: Annotated[str, Option(local=True)] = Field("", description=ADDRESS)


def entities_text(result: EntityList) -> str:
    if not result.entities:
        return "no such entity"
    rows = [(entity.kind, entity.name, entity.tenant, entity.key) for entity in result.entities]
    more = "" if result.next_offset is None else f"\nmore: --offset {result.next_offset}"
    return format_table(rows, ("kind", "name", "tenant", "key")) + more


def neighbors_text(result: Neighbors) -> str:
    """Return the entity, its relations as arrows, and the documents that name it."""
    entity = result.entity
    facts = "".join(f"\n  {name}: {value}" for name, value in entity.attributes.items())
    arrows = {"out": "-{}->", "in": "<-{}-"}
    lines = [
        f"  {arrows[each.direction].format(each.kind)} {each.entity.name} ({each.entity.kind}, {each.entity.key})"
        for each in result.relations
    ]
    lines += [f"  in {each.stream}: {', '.join(each.names)}" for each in result.documents]
    return "\n".join([f"{entity.name} ({entity.kind}){facts}", *lines, *(["  …"] if result.more else [])])


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "graph query": Operation(
        "Rows of one reading Cypher statement; values are given as parameters.",
        request=QueryInput, run="app.graph:query_graph", text=query_text, scope=READ,
        route="POST /api/v1/graph/query", heavy=True,
    ),
    "graph stats": Operation(
        "Count the documents, entities and relations of the knowledge graph.",
        request=GraphInput, run="app.graph:count_graph", text=counts_text, scope=READ,
        route="GET /api/v1/graph/stats", tenants=True,
    ),
    "graph entities": Operation(
        "Entities of the knowledge graph, by a part of their names.",
        request=EntitiesInput, run="app.graph:list_entities", text=entities_text, scope=READ,
        example="trainyard graph entities acme",
        route="GET /api/v1/graph/entities", tenants=True, heavy=True,
    ),
    "graph neighbors": Operation(
        "An entity, its relations, and the documents that name it.",
        request=NeighborsInput, run="app.graph:show_neighbors", text=neighbors_text, scope=READ,
        route="GET /api/v1/graph/entities/{key}", tenants=True, heavy=True,
    ),
    "graph export": Operation(
        "Write the knowledge graph as JSON lines, in the same order every time.",
        request=ExportInput, run="app.graph:export_graph", text=exported_text, scope=RUN,
        local="It writes a file anywhere on this machine.",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
