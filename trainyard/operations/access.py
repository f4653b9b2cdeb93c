"""Tokens of the API and the audit log. Requests, texts and rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trainyard.operations.base import Nothing, Request
from trainyard.operations.fields import Argument
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table

if TYPE_CHECKING:
    from trainyard.app.access.audit import AuditCheck, AuditRow, AuditRows
    from trainyard.app.access.tokens import NewToken, Token, TokenList


class AuditInput(Request):
    caller: str | None = Field(None, max_length=100, description="Only of this caller: a token's name, or owner.")
    operation: str | None = Field(None, max_length=100, description="Only this operation, such as `jobs cancel`.")
    tenant: str | None = Field(None, max_length=100, description="Only of callers of this tenant.")
    outcome: str | None = Field(
        None, pattern="^(done|failed|denied|stopped|unfinished)$", description="Only those that ended so."
    )
    hours: float | None = Field(None, gt=0, le=1e6, description="Only entries of the last hours.")
    limit: int = Field(50, ge=1, le=10_000, description="Maximum number of results, newest first.")


NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"


class CreateTokenInput(Request):
    name: str = Field(pattern=NAME, description="Name in the audit log, such as ci.")
    scope: Literal["read", "run", "admin"] = Field(
        "read", description="What it may do; each scope contains those before it."
    )
    tenant: str | None = Field(
        None, pattern=NAME, description="Only what belongs to this tenant; default: every tenant."
    )
    days: int = Field(365, ge=1, le=3650, description="Days until it expires.")


class RevokeTokenInput(Request):
    name: Annotated[str, Argument("NAME")] = Field(pattern=NAME, description="Name of the token.")


HEADER = ("name", "scope", "tenant", "expires", "")


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def token_row(token: Token) -> tuple[str, ...]:
    return (
        token.name,
        token.scope.value,
        token.tenant or "all",
        format_time(token.expires),
        "" if token.valid else "not valid",
    )


def new_token_text(new_token: NewToken) -> str:
    return f"{format_table([token_row(new_token)], HEADER)}\n\n{new_token.token}\n\nKeep it now: it is not shown again."


def tokens_text(token_list: TokenList) -> str:
    return (
        format_table([token_row(token) for token in token_list.tokens], HEADER)
        if token_list.tokens
        else "There is no token."
    )


def revoked_text(token: Token) -> str:
    return f"{token.name} opens nothing any more."


def audit_text(audit_rows: AuditRows) -> str:
    rows = [
        (
            format_time(entry.time),
            entry.caller,
            entry.tenant or "-",
            entry.surface,
            entry.operation,
            format_outcome(entry),
            format_aim(entry),
        )
        for entry in audit_rows.entries
    ]
    return format_table(rows, ("time (UTC)", "caller", "tenant", "surface", "operation", "outcome", "about"))


def format_outcome(audit_row: AuditRow) -> str:
    return f"{audit_row.outcome} {audit_row.code}".strip()


def format_aim(audit_row: AuditRow) -> str:
    return " ".join(f"{name}={value}" for name, value in audit_row.targets.items())


def audit_check_text(audit_check: AuditCheck) -> str:
    covered = f", the first {audit_check.committed:,} covered by the ledger" if audit_check.committed else ""
    head = f"{audit_check.lines:,} lines in {audit_check.files:,} files{covered}"
    if not audit_check.problems:
        return f"{head}: complete and unchanged"
    return "\n".join([f"{head}: {len(audit_check.problems):,} problems", *audit_check.problems])


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "tokens create": Operation(
        "Make a token for the API: what it may do, for one tenant or for all; it is shown once.",
        request=CreateTokenInput, run="app.access.tokens:create_token", text=new_token_text, scope=ADMIN,
        example="trainyard tokens create --name ci --scope run --days 90",
        local="It prints a secret, which is written nowhere.",
    ),
    "tokens list": Operation(
        "The tokens of the API: name, scope, tenant, when they expire.",
        request=Nothing, run="app.access.tokens:list_tokens", text=tokens_text, scope=ADMIN,
        route="GET /api/v1/tokens",
    ),
    "tokens revoke": Operation(
        "Revoke a token, at once, also in a service that is running.",
        request=RevokeTokenInput, run="app.access.tokens:revoke_token", text=revoked_text, scope=ADMIN,
        route="DELETE /api/v1/tokens/{name}",
    ),
    "audit list": Operation(
        "The audit log: changes with caller, surface and result, newest first.",
        request=AuditInput, run="app.access.audit:list_audit", text=audit_text, scope=ADMIN,
        route="GET /api/v1/audit",
    ),
    "audit verify": Operation(
        "Check that no line of the audit log was changed or is missing.",
        request=Nothing, run="app.access.audit:verify_audit", text=audit_check_text, scope=ADMIN,
        route="GET /api/v1/audit/verify",
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
