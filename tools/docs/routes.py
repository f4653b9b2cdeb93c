"""The page of routes, from the table of operations."""

from __future__ import annotations

from itertools import groupby

from tools.docs.markdown import cell, code, page, table
from trainyard.operations.table import OPERATIONS, Operation, find_route
from trainyard.surfaces.problems import STATUS, STATUS_OF_CODE
from trainyard.surfaces.rest.openapi import SERVICE_ROUTES


def routes_page() -> str:
    groups = groupby(OPERATIONS.items(), key=lambda item: item[0].split()[0])
    parts = [
        f"## {word}\n\n{table(['route', 'fields', 'scope', 'what it does'], [row_of(*item) for item in items])}"
        for word, items in groups
    ]
    introduction = (
        "Every route of the REST API, from the table of operations; the document for programs is "
        "`/api/v1/openapi.json`. Fields in braces are part of the path; those of a GET are in the query, those of "
        "other methods in a JSON object. The [REST API](../rest-api.md) page explains tokens, errors and streams."
    )
    return page("Routes", introduction, [*parts, service_routes(), statuses()])


def service_routes() -> str:
    """The routes that are not in the table of operations."""
    rows = [
        [code(f"{method} {path}"), ", ".join(map(code, route.body.model_fields)) if route.body else "none",
         "none" if route.open else "any", cell(route.summary)]
        for (method, path), route in SERVICE_ROUTES.items()
    ]  # fmt: skip
    return "## The service itself\n\n" + table(["route", "fields", "scope", "what it does"], rows)


def row_of(name: str, operation: Operation) -> list[str]:
    method, path = find_route(name)
    fields = [field for field in operation.request.model_fields if f"{{{field}}}" not in path]
    field_texts = [f"the body is {code(field)}" if field == operation.body else code(field) for field in fields]
    scope = operation.scope.value + ("" if operation.tenants else ", all tenants")
    where = f" Only on the machine itself: {operation.local}" if operation.local else ""
    events = " Also as a stream of events." if operation.stream else ""
    return [code(f"{method} {path}"), ", ".join(field_texts) or "none", scope, cell(operation.summary + where + events)]


def statuses() -> str:
    rows = [[str(status), code(kind.__name__)] for kind, status in STATUS.items()]
    rows += [[str(status), code(error_code)] for error_code, status in STATUS_OF_CODE.items()]
    return "## Statuses\n\n" + table(["status", "error or code"], sorted(rows))
