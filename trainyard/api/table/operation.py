"""What a row of the table of operations says: how an operation is reached, by whom, and what carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What a caller has to be allowed to do: the scope that a token of the API needs. Each contains those before it."""

    READ = "read"
    """Look at something; nothing is started or changed."""
    RUN = "run"
    """Start work, or change what a tenant has: runs, jobs, adapters, corpora, nights, files that are written."""
    ADMIN = "admin"
    """Change the machine: its services, its trainers and its base models; or see the string that opens its server."""


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """How an operation is reached over a network, and by whom."""

    route: str = ""
    """`METHOD /path/{field}` of the REST API; default: POST on the operation's words below /api/v1."""
    body: str = ""
    """The field of the request that is the whole body in REST; its other fields are in the query then."""
    body_schema: str = ""
    """`module:model` of what that field contains, for the OpenAPI document."""
    status: int = 200
    """HTTP status of the answer."""
    stream: str = ""
    """What REST answers a client that accepts text/event-stream: an async generator in `api/live`."""
    local: str = ""
    """Why only a caller on this machine may ask for it; empty for what may come over a network, too."""
    heavy: bool = False
    """Whether it takes long or much memory: over a network only some of these run at a time."""
    confined: bool = False
    """Whether its cost depends on what is in the request: for callers over a network a child process works on it,
    with limits of memory and time, and ends when the caller leaves."""
    only_answers: bool = False
    """Whether it leaves nothing behind but its answer, though it needs more than the scope read: it ends when its
    caller leaves."""
    takes_file: bool = False
    """Whether a body of application/octet-stream is a file, which arrives on the disk; its fields are in the query."""
    keeps_replies: bool = False
    """Whether what carries it out keeps the answers to an Idempotency-Key itself; else the service does."""
    tenants: bool = False
    """Whether it keeps to the tenant of its caller; what does not needs a caller who may act for all tenants."""


@dataclass(frozen=True)
class Operation(NetworkFacts):
    """One verb. Everything but the summary is a dotted path, `module:name`, in the folder of its kind."""

    summary: str
    """One sentence: the help of the command, and the line in the manual."""
    request: str
    implementation: str
    renderer: str
    """Response -> text for people."""
    scope: Scope
    part_renderer: str = ""
    """Part -> text, for a response that is streamed part by part (`Context.on_part`)."""
    reader: str = ""
    """What reads the next question from a user; None at the end (`Context.next_input`)."""
    example: str = ""
    """An example for the shell, where the command alone does not show the usage."""
    endless: bool = False
    """Whether it runs until it is stopped: a call of a tool ends, so that MCP refuses it."""
