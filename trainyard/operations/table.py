"""Every verb of the product, once. The command line is a loop over this table, and so is every other surface.

A row is an `Operation` next to its request and its text, in the module of its resource; `run` is the path of the
function that does it, `do(request, context) -> response`, in `app/` (or in `surfaces/`, where it becomes a server). It
raises `TrainyardError` and prints nothing: progress goes through `Context.say`.

A resource's module is imported when one of its words is used: importing this one imports no other module of Trainyard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.operations.words import WORDS

if TYPE_CHECKING:
    from pydantic import BaseModel

API = "/api/v1"
NAMES_FILE = Path(__file__).with_name("names.json")
MODULES: dict[str, str] = {
    "up": "stack", "down": "stack", "demo": "stack", "dashboard": "stack", "env": "stack", "settings": "stack",
    "doctor": "stack", "migrate": "stack", "gc": "stack", "backup": "stack", "restore": "stack", "check": "chains",
    "plan": "chains", "run": "chains", "sweep": "sweeps", "compare": "jobs", "templates": "chains",
    "chains": "chains", "schema": "chains", "prove-resume": "stack", "serve": "serving", "mcp": "serving",
    "chat": "serving", "eject": "chains", "import": "chains", "export": "chains", "adapters": "adapters",
    "backends": "backends", "scripts": "backends", "jobs": "jobs", "sessions": "sessions", "gpus": "gpus",
    "models": "data", "data": "data", "artifacts": "artifacts", "evaluations": "artifacts", "graph": "graph",
    "nightly": "nights", "corpus": "nights", "renderers": "data", "starter": "stack", "tokens": "access",
    "audit": "access", "ledger": "ledger", "reproduce": "ledger", "report": "ledger", "lineage": "ledger",
    "limits": "limits", "diloco": "diloco",
}  # fmt: skip
"""First word of operations -> the module of this folder with their rows, in the order of the manual."""


class Scope(StrEnum):
    """Permission that an operation requires: the scope that a token of the API needs. Each contains those before it."""

    READ = "read"
    """Look at something; nothing is started or changed."""
    RUN = "run"
    """Start work, or change what a tenant has: runs, jobs, adapters, corpora, nights, files that are written."""
    ADMIN = "admin"
    """Change the machine: its services, its trainers and its base models; or see the string that opens its server."""


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """Route of an operation over a network, and the scope that it requires."""

    route: str = ""
    """`METHOD /path/{field}` of the REST API; default: POST on the operation's words below /api/v1."""
    body: str = ""
    """The field of the request that is the whole body in REST; its other fields are in the query then."""
    body_schema: str = ""
    """`module:model` of what that field contains, for the OpenAPI document."""
    status: int = 200
    """HTTP status of the answer."""
    stream: str = ""
    """Path of the async generator that answers a REST client which accepts text/event-stream."""
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
    """Operation of the product, a row of the table."""

    summary: str
    """One sentence: the help of the command, and the line in the manual."""
    request: type[BaseModel]
    run: str
    """Path below `trainyard` of the function (request, context) -> response."""
    text: Callable[..., str]
    """Format the response for people."""
    scope: Scope
    part_text: Callable[..., str] | None = None
    """Format one part of a response that is streamed part by part (`Context.on_part`)."""
    read_input: str = ""
    """Path of the function that reads the next question from a user; None at the end (`Context.next_input`)."""
    example: str = ""
    """An example for the shell, where the command alone does not show the usage."""
    endless: bool = False
    """Whether it runs until it is stopped: a call of a tool ends, so that MCP refuses it."""


@cache
def list_rows(word: str) -> Mapping[str, Operation]:
    """Return the rows whose first word is `word`; none for a word that no operation has."""
    if word not in MODULES:
        return {}
    rows: dict[str, Operation] = import_module(f"trainyard.operations.{MODULES[word]}").ROWS
    return {name: row for name, row in rows.items() if name.split()[0] == word}


@cache
def read_summaries() -> dict[str, str]:
    """Return name -> summary of every operation, in the order of the manual, without importing any of them.

    `python -m tools.docs` writes the file from the rows.
    """
    return dict(json.loads(NAMES_FILE.read_text(encoding="utf-8")))


class OperationTable(Mapping[str, Operation]):
    """Name -> row of every operation; names are known without their rows, and a row imports its resource."""

    def __getitem__(self, name: str) -> Operation:
        return list_rows(name.partition(" ")[0])[name]

    def __contains__(self, name: object) -> bool:
        return name in read_summaries()

    def __iter__(self) -> Iterator[str]:
        return iter(read_summaries())

    def __len__(self) -> int:
        return len(read_summaries())


OPERATIONS = OperationTable()


@cache
def group_lines() -> dict[str, str]:
    """Return first word -> one line about its operations, for words that are not an operation themselves."""
    return {word: entry.line for word, entry in WORDS.items() if word not in OPERATIONS}


def find_route(name: str) -> tuple[str, str]:
    """Return the method and the path of an operation in REST, such as `("GET", "/api/v1/jobs/{job}")`."""
    method, _, path = (OPERATIONS[name].route or f"POST {API}/{name.replace(' ', '/')}").partition(" ")
    return method, path
