"""Command line, Python, REST, MCP and the docs have the same operations with the same fields and the same answers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click
import pytest

from tools.docs.pages import pages
from trainyard import aio, connect, here
from trainyard.app.context import OWNER
from trainyard.operations.table import OPERATIONS, find_route
from trainyard.surfaces.cli.main import app
from trainyard.surfaces.mcp.calls import NAMES, list_tools, tool_name
from trainyard.surfaces.rest.openapi import SERVICE_ROUTES, openapi_document
from trainyard.surfaces.rest.routes import operation_id
from trainyard.surfaces.sdk.surface import Surface, attribute_name, list_words

OF_EVERY_COMMAND = {"as_json"}
HEADERS = {"If-Match": "if_match", "Idempotency-Key": None}
Json = dict[str, Any]


def commands(group: click.Group, context: click.Context, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """(operation, its command) of the command line."""
    for word in group.list_commands(context):
        command, name = group.get_command(context, word), f"{before} {word}".strip()
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, context, name)
        if name in OPERATIONS:
            yield name, command


def methods(surface: Surface, word: str = "") -> Iterator[tuple[str, Surface]]:
    """(operation, its method) of a surface."""
    for next_word in list_words(word):
        name = f"{word} {next_word}".strip()
        below = getattr(surface, attribute_name(next_word))
        if name in OPERATIONS:
            yield name, below
        yield from methods(below, name)


@pytest.fixture(scope="module")
def document() -> Json:
    return openapi_document()


def list_operations(document: Json) -> dict[str, Json]:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    service_ids = {route.id for route in SERVICE_ROUTES.values()}
    return {
        operation["operationId"]: operation for operation in operations if operation["operationId"] not in service_ids
    }


def resolve_schema(schema: Json, document: Json) -> Json:
    name = schema.get("$ref", "").rpartition("/")[2]
    target: Json = document["components"]["schemas"][name] if name else schema
    return target


def list_fields(name: str) -> set[str]:
    return set(OPERATIONS[name].request.model_fields)


def test_all_surfaces_and_the_docs_have_the_same_operations(document: Json) -> None:
    names = set(OPERATIONS)
    remote = connect("http://127.0.0.1:1")
    assert {name for name, _ in commands(app, click.Context(app))} == names
    assert set(list_operations(document)) == {operation_id(name) for name in names}
    assert {tool.name for tool in list_tools(OWNER)} == {
        tool_name(name) for name in names if not OPERATIONS[name].endless
    }
    assert {operation_id(name): name for name in OPERATIONS} == NAMES
    for surface in (here, aio, remote):
        assert {name for name, _ in methods(surface)} == names
    remote.close()
    text = pages()["commands.md"]
    routes = pages()["routes.md"]
    for name in names:
        assert f"trainyard {name}" in text, name
        method, path = find_route(name)
        assert path in routes, (method, path)


def test_all_surfaces_take_the_fields_of_the_request(document: Json) -> None:
    tools = {NAMES[tool.name]: tool for tool in list_tools(OWNER)}
    sdk, sent = dict(methods(here)), list_operations(document)
    for name, command in commands(app, click.Context(app)):
        fields, row = list_fields(name), OPERATIONS[name]
        context = click.Context(command, help_option_names=[])
        parameters = {str(parameter.name) for parameter in command.get_params(context)} - OF_EVERY_COMMAND
        assert parameters == fields, name
        assert set(inspect.signature(sdk[name]).parameters) == fields, name
        if not row.endless:
            assert set(tools[name].input_schema.get("properties", {})) == fields, name
        operation = sent[operation_id(name)]
        sent_fields = {HEADERS.get(each["name"], each["name"]) for each in operation["parameters"]} - {None}
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        sent_fields |= {row.body} if row.body else set(resolve_schema(body, document).get("properties", {}))
        assert sent_fields == fields, name
