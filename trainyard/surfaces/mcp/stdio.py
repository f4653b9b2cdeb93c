"""Answer an agent over MCP, on standard input and output."""

from __future__ import annotations

from dataclasses import replace

from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.operations.serving import McpInput
from trainyard.operations.table import Scope


class McpEnded(Response):
    """The client has closed the input."""

    streamed: bool = True
    """Standard output was the client's: nothing is printed there."""


def serve_mcp(options: McpInput, context: Context) -> McpEnded:
    """Answer until standard input ends."""
    caller = replace(context.caller, name="mcp", scope=Scope(options.scope))
    from trainyard.surfaces.mcp.server import serve_stdio  # imports the MCP package

    serve_stdio(context.settings, caller)
    return McpEnded()
