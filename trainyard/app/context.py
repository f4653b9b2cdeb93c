"""Context of an operation: the settings, and where its progress goes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel

from trainyard.callbacks import call_now, ignore
from trainyard.cancellation import Departure
from trainyard.compute.events import Event
from trainyard.operations.table import Scope
from trainyard.settings import Settings


@dataclass(frozen=True)
class Caller:
    """The authenticated caller and its permissions."""

    name: str
    """Of the token, or of the owner of this home; it is in the audit log."""
    scope: Scope = Scope.ADMIN
    tenant: str = ""
    """Empty: every tenant."""
    remote: bool = False
    """Whether the request came over a network: local operations and fields are refused then."""
    token_id: str = ""
    """Of the token that authenticated it; empty for the owner. A name may be another token's later."""

    @property
    def identity(self) -> str:
        """Return the key of values that belong to this caller alone, such as an idempotency key."""
        return f"{self.name} {self.token_id}".strip()


OWNER = Caller("owner")
"""The user of this home: the command line, and Python on this machine."""


@dataclass(frozen=True)
class Context:
    """Context of an operation: the caller, its settings, and where progress goes."""

    settings: Settings
    say: Callable[[str], None] = field(default=print)
    on_progress: Callable[[Event], None] = ignore
    on_part: Callable[[BaseModel], None] = ignore
    """Receives the parts of a result that are reported one by one (`jobs logs --follow`)."""
    next_input: Callable[[], str | None] | None = None
    """Returns what a user types next, None at the end (`chat`); without a user there is none."""
    caller: Caller = OWNER
    """The caller; an operation with `tenants` shows and changes what belongs to that tenant."""
    idempotency_key: str = ""
    """With the same key, an operation that starts something starts it once."""
    surface: str = "python"
    """Surface of the call: cli, python, rest or mcp."""
    trace: str = ""
    """Correlation id of the request, passed on to every run and process that it starts."""
    request_bytes: int | None = None
    """Length of the request's body; None where it is not known."""
    confined: ConfinedCalls | None = None
    """Runs confined operations of callers over a network; None: this process runs them."""
    departure: Departure = field(default_factory=Departure)
    """Whether the caller has left."""
    afterwards: Callable[[Callable[[], None]], None] = call_now
    """Receives what can be done once the caller has the response of an operation that has succeeded."""


def make_run_key(context: Context, purpose: str = "") -> str:
    """Return the idempotency key for Prefect's server; two callers may choose the same one. Empty without a key.

    Operations that start runs of one flow for different purposes name theirs.
    """
    if not context.idempotency_key:
        return ""
    parts = (context.caller.tenant, context.caller.token_id, context.idempotency_key, *([purpose] if purpose else []))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def get_settings(context: Context) -> Settings:
    """Return the settings of the caller's tenant, whose folder is one of the data roots.

    A token of a tenant reads that tenant's folder, not the one in which the operator works.
    """
    caller, settings = context.caller, context.settings
    if not (caller.remote and caller.tenant):
        return settings.for_tenant(caller.tenant)
    update = {"tenant": caller.tenant, "working_folder": settings.tenant_folder(caller.tenant)}
    return settings.model_copy(update=update)


class ConfinedCalls(Protocol):
    """Carries out operations in child processes with limits."""

    def run_operation(self, name: str, request: Any, context: Any) -> Any:
        """Return the response of an operation. Raises what it raises, `LimitExceeded`, and `CallerLeft`."""
