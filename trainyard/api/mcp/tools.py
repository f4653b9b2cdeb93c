"""A tool for each operation of the table, with the schemas of its request and its response."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_type_hints

from mcp import types
from pydantic import TypeAdapter

from trainyard.api.invocation import implementation_of
from trainyard.api.operations import OPERATIONS, REQUESTS, Operation, Scope, route_of
from trainyard.loading import load

REPEATABLE = ("GET", "PUT", "DELETE")
"""Methods of HTTP that do twice what they do once (RFC 9110, 9.2.2)."""


def tool_name(operation: str) -> str:
    """`adapters delete-version` is `adapters_delete_version`."""
    return operation.replace(" ", "_").replace("-", "_")


NAMES = {tool_name(one): one for one in OPERATIONS}
"""Tool -> its operation."""


@lru_cache(1)
def list_tools() -> tuple[types.Tool, ...]:
    """Every tool. The implementations are imported for what they return: a second, the first time."""
    return tuple(tool_of(name, row) for name, row in OPERATIONS.items())


def tool_of(name: str, row: Operation) -> types.Tool:
    notes = [row.summary]
    notes += [f"Only on the machine itself: {row.local}"] if row.local else []
    notes += ["It runs until it is stopped, so that it is refused here."] if row.endless else []
    reads = row.scope is Scope.READ
    return types.Tool(
        name=tool_name(name),
        title=name,
        description=" ".join(notes),
        input_schema=load(REQUESTS + row.request).model_json_schema(),
        output_schema=response_schema(name),
        annotations=types.ToolAnnotations(
            read_only_hint=reads, destructive_hint=not reads, idempotent_hint=route_of(name)[0] in REPEATABLE
        ),
    )


def response_schema(name: str) -> dict[str, Any]:
    """The schema of what an operation returns; an object at its root, as clients of earlier versions need it."""
    schema = TypeAdapter(get_type_hints(implementation_of(name))["return"]).json_schema(mode="serialization")
    return schema if schema.get("type") == "object" else {"type": "object", **schema}
