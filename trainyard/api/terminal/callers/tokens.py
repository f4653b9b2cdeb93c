"""Tokens of the API and the audit log as text."""

from __future__ import annotations

from datetime import UTC, datetime

from trainyard.api.terminal.tables import table
from trainyard.api.verbs.callers.audit import AuditCheck, AuditRow, AuditRows
from trainyard.api.verbs.callers.tokens import NewToken, Token, TokenList

HEADER = ("name", "scope", "tenant", "expires", "")


def shown_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def token_row(one: Token) -> tuple[str, ...]:
    return (one.name, one.scope.value, one.tenant or "all", shown_time(one.expires), "" if one.valid else "not valid")


def new_token_text(found: NewToken) -> str:
    return f"{table([token_row(found)], HEADER)}\n\n{found.token}\n\nKeep it now: it is not shown again."


def tokens_text(found: TokenList) -> str:
    return table([token_row(one) for one in found.tokens], HEADER) if found.tokens else "There is no token."


def revoked_text(found: Token) -> str:
    return f"{found.name} opens nothing any more."


def audit_text(found: AuditRows) -> str:
    rows = [
        (shown_time(one.time), one.caller, one.tenant or "-", one.surface, one.operation, outcome_of(one), aim_of(one))
        for one in found.entries
    ]
    return table(rows, ("time (UTC)", "caller", "tenant", "surface", "operation", "outcome", "about"))


def outcome_of(one: AuditRow) -> str:
    return f"{one.outcome} {one.code}".strip()


def aim_of(one: AuditRow) -> str:
    return " ".join(f"{name}={value}" for name, value in one.targets.items())


def audit_check_text(found: AuditCheck) -> str:
    head = f"{found.lines:,} lines in {found.files:,} files"
    if not found.problems:
        return f"{head}: complete and unchanged"
    return "\n".join([f"{head}: {len(found.problems):,} problems", *found.problems])
