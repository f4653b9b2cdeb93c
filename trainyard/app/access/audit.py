"""The audit log: list what was changed and by whom, and check that no line of it is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from pydantic import Field

from trainyard.app.access.audit_entries import open_log
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.errors import Corrupt
from trainyard.json_types import JsonObject
from trainyard.operations.access import AuditInput
from trainyard.operations.base import Nothing
from trainyard.stores.access.audit import verify_log

Outcome = Literal["done", "failed", "denied", "stopped", "unfinished"]


class AuditRow(Response):
    """A call of an operation that changes something."""

    id: str
    time: float
    caller: str
    tenant: str
    surface: str
    operation: str
    fields: JsonObject | str
    """The request, without secrets, cut to the longest line."""
    request: str
    """Beginning of the SHA-256 of `fields`: equal for calls that asked the same."""
    trace: str
    outcome: Outcome
    code: str = ""
    """Of the error."""
    seconds: float | None = None
    targets: dict[str, str] = Field(default_factory=dict)


class AuditRows(Response):
    entries: tuple[AuditRow, ...]


class AuditCheck(Response):
    files: int
    lines: int
    first: int
    last: int
    problems: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return Corrupt.exit_code if self.problems else 0


def list_audit(request: AuditInput, context: Context) -> AuditRows:
    since = time.time() - request.hours * 3600 if request.hours is not None else 0.0
    fields = {
        "caller": request.caller,
        "operation": request.operation,
        "tenant": request.tenant,
        "outcome": request.outcome,
    }
    filters = {name: value for name, value in fields.items() if value is not None}
    entries = (
        AuditRow.model_validate(row) for row in merge_phases(open_log(context.settings.home).lines(newest_first=True))
        if row["time"] >= since and all(row[name] == value for name, value in filters.items())
    )  # fmt: skip
    return AuditRows(entries=tuple(islice(entries, request.limit)))


def merge_phases(lines: Iterator[JsonObject]) -> Iterator[JsonObject]:
    """Yield one row for each call, from lines that begin with the newest: its last line, or its first if it has no
    last.
    """
    ended: set[str] = set()
    for line in lines:
        if line["phase"] == "begun" and line["id"] in ended:
            ended.discard(line["id"])
            continue
        if line["phase"] == "ended":
            ended.add(line["id"])
        yield {"outcome": "unfinished", **{name: line[name] for name in AuditRow.model_fields if name in line}}


def verify_audit(request: Nothing, context: Context) -> AuditCheck:
    check = verify_log(context.settings.home / "audit")
    return AuditCheck(
        files=check.files, lines=check.lines, first=check.first, last=check.last, problems=check.problems[:100]
    )
