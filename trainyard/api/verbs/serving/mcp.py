"""Answer an agent over MCP, on standard input and output."""

from __future__ import annotations

from dataclasses import replace

from trainyard.api.context import Context
from trainyard.api.operations import Scope
from trainyard.api.requests.serving import McpInput
from trainyard.api.responses import Response
from trainyard.loading import load


class McpEnded(Response):
    """The client has closed the input."""

    streamed: bool = True
    """Standard output was the client's: nothing is printed there."""


def serve_mcp(given: McpInput, context: Context) -> McpEnded:
    """Answer until standard input ends."""
    caller = replace(context.caller, name="mcp", scope=Scope(given.scope))
    load("trainyard.api.mcp.server:serve_stdio")(context.settings, caller)
    return McpEnded()
