"""Calls of tools: the arguments as the operation's request, its response or its error as the result.

What an operation reports while it runs comes as progress notifications, if the client has asked for them.

A tool for each operation that a caller may carry out, with the schema of its request.

An agent reads the whole list before it does anything: at most 60 kB. A schema says what JSON cannot guess, so titles,
bounds, nulls, defaults and the schemas of responses are left out; a result names its own fields, and a refusal what is
allowed.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
from mcp import types
from pydantic import BaseModel

from trainyard.app.context import Caller, ConfinedCalls, Context
from trainyard.app.responses import Blob
from trainyard.app.tenant_view import hide_error
from trainyard.compute.events import Event
from trainyard.errors import Denied, LimitExceeded, NotFound, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.operations.table import OPERATIONS, Operation, Scope
from trainyard.settings import Settings
from trainyard.surfaces.invocation import SCOPES, check_request, execute_operation, refuse_early
from trainyard.tracing import new_traceparent, span, trace_id

NULL = {"type": "null"}
LEFT_OUT = frozenset((
    "title", "additionalProperties", "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "pattern", "format", "default",
))  # fmt: skip
"""Keys of a schema that an agent does not need: what they refuse, the operation refuses with a remedy."""


SELF_DESCRIBING = frozenset(("limit", "session", "tenant", "wait", "watch"))
"""Fields of many tools whose names say what they are."""
LONG_DESCRIPTION = 30
"""Characters of a description from which on an agent gets the first sentence; `help` and the manual have all."""


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
    for field_name in SELF_DESCRIBING & schema.get("properties", {}).keys():
        schema["properties"][field_name].pop("description", None)
    if not schema.get("properties"):
        schema.pop("properties", None)
    return types.Tool(
        name=tool_name(name), description=first_sentence(row.summary), input_schema=schema, annotations=hints
    )


def first_sentence(text: str) -> str:
    """Return a short text, or the first sentence of a long one."""
    first = text if len(text) <= LONG_DESCRIPTION else re.split(r"(?<=[.;:]) ", text, maxsplit=1)[0]
    return first.rstrip(".;:")


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
        short.pop("description", None)
    if isinstance(text := short.get("description"), str):
        short["description"] = first_sentence(text)
    choices = short.pop("anyOf", None)
    if choices is None:
        return short
    rest = [choice for choice in choices if choice != NULL]
    return {**rest[0], **short} if len(rest) == 1 else {**short, "anyOf": rest}


LOG = logging.getLogger("trainyard.mcp")
MAX_CALLS = 32
"""Calls that are carried out at a time; further ones wait."""
MAX_BLOB_BYTES = 4 << 20
MAX_PARTS = 2_000
"""Parts of a streamed response that a result contains, the last ones."""


@dataclass
class ProgressSender:
    """Sends what an operation says, from the thread in which it runs, to the client."""

    send: Callable[[float, float | None, str], Any]
    """(progress, total, message), a coroutine function; progress grows with each message."""
    name: str
    sent: int = 0
    parts: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.sent += 1
        anyio.from_thread.run(self.send, float(self.sent), None, text)

    def event(self, event: Event) -> None:
        parts = [str(event[key]) for key in ("node", "event", "text", "message") if event.get(key)]
        step, total = event.get("step"), event.get("total_steps") or event.get("total")
        parts += [f"step {step} of {total}" if total else f"step {step}"] if step is not None else []
        parts += [f"loss {event['loss']:.4g}"] if isinstance(event.get("loss"), float) else []
        self.say(" ".join(parts))

    def part(self, part: BaseModel) -> None:
        format_part = OPERATIONS[self.name].part_text
        text = format_part(part) if format_part else part.model_dump_json()
        self.parts = [*self.parts[-MAX_PARTS + 1 :], text]
        self.say(text)


async def call_tool(
    tool: str,
    arguments: JsonObject,
    *,
    settings: Settings,
    caller: Caller,
    send: Callable[[float, float | None, str], object],
    limiter: anyio.CapacityLimiter,
    traceparent: str = "",
    confined: ConfinedCalls | None = None,
) -> types.CallToolResult:
    """Carry out the operation of a tool for a caller. An error is a result too, with code, what, why and do.

    What the operation starts belongs to the trace of `traceparent`, or to a new one.
    """
    sender = ProgressSender(send, NAMES.get(tool, ""))
    own_trace = new_traceparent(traceparent)
    context = Context(
        settings, sender.say, sender.event, sender.part, caller=caller, trace=trace_id(own_trace), surface="mcp",
        confined=confined,
    )  # fmt: skip
    try:
        work = partial(perform, tool, arguments, context)
        with span(NAMES.get(tool, "mcp"), own_trace):
            try:
                result = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
            except anyio.get_cancelled_exc_class():
                context.departure.note()
                raise
        return build_result(result, sender.parts)
    except TrainyardError as error:
        return build_error_result(hide_error(caller, error, settings))
    except Exception as error:  # boundary: one tool that fails does not end the server
        LOG.exception("the tool %s failed", tool)
        bug = TrainyardError(
            f"{tool} failed: {type(error).__name__}.", do="The log has the traceback.", code="E-BUG"
        )  # fmt: skip
        return build_error_result(bug)


def perform(tool: str, arguments: JsonObject, context: Context) -> BaseModel:
    """Return the operation's response.

    Raises `NotFound` (`E-NOT-FOUND`), `InvalidInput` (`E-PARAMETER`), `Denied`, and what the operation raises.
    """
    name = NAMES.get(tool)
    if name is None:
        raise NotFound(f"There is no tool {tool!r}.", do="List the tools.", code="E-NOT-FOUND")
    model = OPERATIONS[name].request
    refuse_early(name, model, context)
    if OPERATIONS[name].endless:
        raise Denied(
            f"{name} runs until it is stopped, and a call of a tool ends.",
            do=f"Run `trainyard {name}` in a terminal.", code="E-LOCAL",
        )  # fmt: skip
    request = check_request(name, arguments, tool)
    result: BaseModel = execute_operation(name, request, context)
    return result


def build_result(result: BaseModel, parts: list[str]) -> types.CallToolResult:
    text = result.model_dump_json()
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
    if parts:
        content.append(types.TextContent(type="text", text="\n".join(parts)))
    if isinstance(result, Blob):
        content.append(types.EmbeddedResource(type="resource", resource=encode_blob(result)))
    return types.CallToolResult(content=content, structured_content=json.loads(text))


def encode_blob(blob: Blob) -> types.BlobResourceContents:
    """Return the bytes of a file, for a client that may be on another machine.

    Raises `LimitExceeded` (`E-LIMIT`) for one that is too large for a message.
    """
    size = blob.path.stat().st_size
    if size > MAX_BLOB_BYTES:
        raise LimitExceeded(
            f"{blob.name} has {size:,} bytes, and a result of a tool contains at most {MAX_BLOB_BYTES:,}.",
            do="Read it over the REST API.", code="E-LIMIT",
        )  # fmt: skip
    data = base64.b64encode(blob.path.read_bytes()).decode()
    return types.BlobResourceContents(uri=f"trainyard://blob/{blob.sha256}", mime_type=blob.media_type, blob=data)


def build_error_result(error: TrainyardError) -> types.CallToolResult:
    text = types.TextContent(type="text", text=str(error))
    return types.CallToolResult(content=[text], structured_content={"error": error.as_dict()}, is_error=True)
