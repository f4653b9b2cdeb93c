"""A tool for each operation that a caller may carry out, with the schema of its request.

An agent reads the whole list before it does anything: at most 60 kB. A schema says what JSON cannot guess, so titles,
bounds, nulls, defaults and the schemas of responses are left out; a result names its own fields, and a refusal what is
allowed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from mcp import types

from trainyard.app.context import Caller
from trainyard.operations.table import OPERATIONS, Operation, Scope
from trainyard.surfaces.invocation import SCOPES

NULL = {"type": "null"}
LEFT_OUT = frozenset((
    "title", "additionalProperties", "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "pattern", "format", "default",
))  # fmt: skip
"""Keys of a schema that an agent does not need: what they refuse, the operation refuses with a remedy."""


def tool_name(operation: str) -> str:
    """`adapters delete-version` is `adapters_delete_version`."""
    return operation.replace(" ", "_").replace("-", "_")


NAMES = {tool_name(operation): operation for operation in OPERATIONS}
"""Tool -> its operation."""


def list_tools(caller: Caller) -> tuple[types.Tool, ...]:
    """Return the tools that a caller may use: those of its scope, its tenant and its place, that come to an end."""
    return tuple(build_tool(name) for name, row in OPERATIONS.items() if may_use(row, caller))


def may_use(row: Operation, caller: Caller) -> bool:
    """Return whether `require_allowed` admits a caller, whatever the request says."""
    in_scope = SCOPES.index(row.scope) <= SCOPES.index(caller.scope)
    return in_scope and not row.endless and (row.tenants or not caller.tenant) and not (caller.remote and row.local)


@cache
def build_tool(name: str) -> types.Tool:
    row = OPERATIONS[name]
    hints = types.ToolAnnotations(read_only_hint=True) if row.scope is Scope.READ else None  # else it may destroy
    schema = shorten(row.request.model_json_schema())
    schema.pop("description", None)  # the summary of the operation says it
    if not schema.get("properties"):
        schema.pop("properties", None)
    return types.Tool(name=tool_name(name), description=row.summary, input_schema=schema, annotations=hints)


def shorten(schema: Any) -> Any:
    """Return a JSON Schema without what an agent does not need; it accepts whatever the whole one accepts, nulls
    excepted.
    """
    if isinstance(schema, list):
        return [shorten(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    short = {
        key: {name: shorten(item) for name, item in value.items()} if key in ("properties", "$defs") else shorten(value)
        for key, value in schema.items()
        if key not in LEFT_OUT and not (key == "propertyNames" and "enum" not in value and "$ref" not in value)
    }
    if "enum" in short:
        short.pop("type", None)
    choices = short.pop("anyOf", None)
    if choices is None:
        return short
    rest = [choice for choice in choices if choice != NULL]
    return {**rest[0], **short} if len(rest) == 1 else {**short, "anyOf": rest}
