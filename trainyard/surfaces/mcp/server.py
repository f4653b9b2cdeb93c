"""The MCP server: tools and resources for one connection, over the streams of a process or over HTTP.

Over HTTP every request is complete in itself (stateless): it carries its token, and no session is kept between two.

Resources: the pages of the documentation that are on this machine, and the schemas of what users write.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

import trainyard
from trainyard.app.chains.describe import SCHEMAS
from trainyard.app.context import Caller, ConfinedCalls
from trainyard.errors import NotFound, TrainyardError
from trainyard.locations import project_folder
from trainyard.settings import Settings
from trainyard.surfaces.access.entrance import whole_body
from trainyard.surfaces.bodies import USUAL, require_structure
from trainyard.surfaces.mcp.calls import MAX_CALLS, call_tool, list_tools
from trainyard.surfaces.problems import answer_problem
from trainyard.surfaces.spool import receive_body
from trainyard.tracing import is_traceparent

DOCS, SCHEMA = "trainyard://docs/", "trainyard://schema/"
MARKDOWN, JSON = "text/markdown", "application/schema+json"


def pages() -> dict[str, Path]:
    """Address -> file of every page; a wheel contains none."""
    folder = project_folder() / "docs"
    paths = [*folder.glob("*.md"), *folder.glob("reference/*.md"), *folder.glob("guides/*.md")]
    return {DOCS + path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(paths)}


def list_resources() -> list[types.Resource]:
    schemas = [
        types.Resource(uri=SCHEMA + name, name=f"schema {name}", mime_type=JSON, description=f"JSON Schema of {name}.")
        for name in SCHEMAS
    ]
    written = [
        types.Resource(uri=uri, name=uri.removeprefix(DOCS), mime_type=MARKDOWN, description=read_title(path))
        for uri, path in pages().items()
    ]
    return [*schemas, *written]


def read_title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), path.stem)


def read_resource(uri: str) -> types.TextResourceContents:
    """Return the text of a page or a schema. Raises `NotFound` (`E-NOT-FOUND`)."""
    model, page = SCHEMAS.get(uri.removeprefix(SCHEMA)) if uri.startswith(SCHEMA) else None, pages().get(uri)
    if model is not None:
        return types.TextResourceContents(uri=uri, mime_type=JSON, text=json.dumps(model.model_json_schema()))
    if page is not None:
        return types.TextResourceContents(uri=uri, mime_type=MARKDOWN, text=page.read_text(encoding="utf-8"))
    raise NotFound(f"There is no resource {uri!r}.", do="List the resources.", code="E-NOT-FOUND")


INSTRUCTIONS = """Trainyard trains, evaluates and serves language models as chains of nodes on Prefect.
Start with `doctor` and `backends`; read trainyard://schema/chain and trainyard://docs/chains before you write a chain.
`check` and `plan` start nothing. `chains_create` stores a chain, `chains_run` or `run` starts one,
`jobs_show` is its state.
An error says what to do: code, what, why, do."""
CALLER = "trainyard.caller"
"""Key of a request's scope: who has authenticated."""
TRACEPARENT = "traceparent"
MAX_MESSAGE_BYTES = 2 << 20
Handling = ServerRequestContext[Any, Any]


def build_server(
    settings: Settings, owner: Caller | None = None, confined: ConfinedCalls | None = None
) -> Server[object]:
    """Return the server. `owner` is the caller of every request; without one, it is who has authenticated the
    request.
    """
    limiter = anyio.CapacityLimiter(MAX_CALLS)

    async def on_list_tools(handling: Handling, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        caller = owner or authenticate_caller(handling)
        return types.ListToolsResult(tools=list(await anyio.to_thread.run_sync(list_tools, caller)))

    async def on_call_tool(handling: Handling, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await call_tool(
            params.name, params.arguments or {}, settings=settings, caller=owner or authenticate_caller(handling),
            send=handling.session.report_progress, limiter=limiter, traceparent=read_traceparent(handling, params),
            confined=confined,
        )  # fmt: skip

    async def on_list_resources(_: Handling, __: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=await anyio.to_thread.run_sync(list_resources))

    async def on_read_resource(_: Handling, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            return types.ReadResourceResult(contents=[read_resource(str(params.uri))])
        except NotFound as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error

    return Server(
        "trainyard", version=trainyard.__version__, instructions=INSTRUCTIONS, on_list_tools=on_list_tools,
        on_call_tool=on_call_tool, on_list_resources=on_list_resources, on_read_resource=on_read_resource,
    )  # fmt: skip


def authenticate_caller(handling: Handling) -> Caller:
    assert handling.request is not None, "a request over HTTP has one"
    caller: Caller = handling.request.scope[CALLER]
    return caller


def read_traceparent(handling: Handling, params: types.CallToolRequestParams) -> str:
    """Return the trace context (W3C) of a call: in its `_meta`, or as a header of the request that brought it."""
    headers = (params.meta or {}).get(TRACEPARENT)
    if isinstance(headers, str) and is_traceparent(headers):
        return headers
    return "" if handling.request is None else str(handling.request.headers.get(TRACEPARENT, ""))


def serve_stdio(settings: Settings, caller: Caller) -> None:
    """Answer on standard input and output until the input ends. What else this process prints goes to stderr."""
    server = build_server(settings, caller)

    async def answer() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(answer)


class HttpApp:
    """The application at /mcp (streamable HTTP). `authenticate` returns the caller of a request, or raises `Denied`."""

    def __init__(
        self, settings: Settings, authenticate: Callable[[Request], Caller], confined: ConfinedCalls | None = None
    ) -> None:
        self.server, self.authenticate = build_server(settings, confined=confined), authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope[CALLER] = self.authenticate(Request(scope, receive))
            receive = await check_message(Request(scope, receive))
        except TrainyardError as error:
            await answer_problem(error)(scope, receive, send)
            return
        manager = StreamableHTTPSessionManager(app=self.server, stateless=True)
        async with manager.run():  # one for each request: it needs no lifespan of the service
            await manager.handle_request(scope, receive, send)


async def check_message(request: Request) -> Receive:
    """Receive a message and check what it contains before it is decoded. Raises `LimitExceeded`, `InvalidInput`."""
    async with receive_body(request, MAX_MESSAGE_BYTES) as body:
        message = await anyio.to_thread.run_sync(body.read)
        await anyio.to_thread.run_sync(require_structure, message, USUAL)
    return whole_body(message, request.receive)
