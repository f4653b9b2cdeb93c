"""The audit log: list changes with their callers, and check that no line is missing.

Entries of the audit log: the caller of an operation, through what, with which values, and how it ended.

An operation that changes nothing (scope read, or a GET) has no entry. One that a caller of this machine asks for has
one line, when it has ended. One that comes over a network has a line before it begins, too: without it nothing is done,
and a service that is killed in the middle leaves an entry that is `unfinished`. The last line is written before the
caller gets its answer; that of a verb of a step session, of which a program makes thousands, right after it.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.app.secrets import cut, redact_value
from trainyard.errors import Corrupt, Denied, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.operations.access import AuditInput
from trainyard.operations.base import Nothing
from trainyard.operations.table import OPERATIONS, Scope
from trainyard.settings import Settings
from trainyard.stores.audit import AuditLog, canonical, verify_log
from trainyard.stores.ledger.audit_stream import check_audit, commit_audit, is_due, read_audited
from trainyard.stores.ledger.log import Ledger

REQUEST_TARGETS = ("job", "name", "role", "target", "adapter", "chain", "session", "run", "source")
RESPONSE_TARGETS = ("job", "run_id", "id", "session", "version", "name", "chain")
"""Fields that name what an operation is about, or what it made."""
MAX_FIELDS_BYTES = 8 << 10
LOGS: dict[Path, AuditLog] = {}
"""One for each home of this process, which remembers when it flushed."""


def open_log(home: Path) -> AuditLog:
    if home not in LOGS:
        LOGS.setdefault(home, AuditLog(home / "audit"))
    return LOGS[home]


@dataclass
class AuditEntry:
    """The lines about one call of an operation."""

    operation: str
    request: BaseModel
    context: Context
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    start_time: float = field(default_factory=time.time)

    @cached_property
    def same(self) -> dict[str, object]:
        """Return the fields of both lines: caller, surface, and the request without secrets."""
        caller, fields = self.context.caller, redact_value(self.request)
        text = canonical(fields)
        return {
            "id": self.id,
            "time": round(self.start_time, 3),
            "caller": caller.name,
            "tenant": caller.tenant,
            "surface": self.context.surface,
            "operation": self.operation,
            "request": hashlib.sha256(text).hexdigest()[:16],
            "fields": text if len(text) <= MAX_FIELDS_BYTES else f"{len(text):,} characters",
            "trace": cut(self.context.trace),
        }

    def begin(self) -> None:
        """Say that it begins, for a caller over a network. Raises on the disk: then nothing may be done."""
        if self.context.caller.remote:
            open_log(self.context.settings.home).append(self.line("begun"), flush=self.is_admins)

    def end(self, response: object = None, error: BaseException | None = None, ended: float | None = None) -> None:
        """Say how it ended, and when (default: now). It has happened: a log that cannot be written is reported and
        changes nothing.

        Without a home, as after a `restore` that failed, nothing has happened.
        """
        if not self.context.settings.home.is_dir():
            return
        if error is not None and not has_content(self.context.settings.home):
            return  # a home that is to be restored stays empty
        outcome = "done" if error is None else "denied" if isinstance(error, Denied) else "failed"
        if isinstance(error, KeyboardInterrupt | SystemExit):
            outcome = "stopped"
        more = {
            "outcome": outcome,
            "code": error.code if isinstance(error, TrainyardError) else type(error).__name__ if error else "",
            "seconds": round((time.time() if ended is None else ended) - self.start_time, 3),
            "targets": read_targets(self.request, REQUEST_TARGETS) | read_targets(response, RESPONSE_TARGETS),
        }
        try:
            open_log(self.context.settings.home).append(self.line("ended") | more, flush=self.is_admins)
            if not self.context.caller.remote:
                commit_if_due(self.context.settings.home)
        except (OSError, TrainyardError) as problem:
            logging.getLogger(__name__).error("%s", problem)
            self.context.say(f"{self.operation} is not in the audit log: {problem}")

    def line(self, phase: str) -> JsonObject:
        return {**self.same, "phase": phase}

    @property
    def is_admins(self) -> bool:
        """Return whether its lines go to the disk at once."""
        return OPERATIONS[self.operation].scope is Scope.ADMIN


def record_event(settings: Settings, event: str, caller: str, trace: str, error: TrainyardError | None = None) -> None:
    """A line about a login or a logout, which are not operations."""
    line = {
        "id": secrets.token_hex(8), "phase": "ended", "time": round(time.time(), 3), "caller": caller, "tenant": "",
        "surface": "rest", "operation": event, "request": "", "fields": {}, "trace": cut(trace),
        "outcome": "denied" if error else "done", "code": error.code if error else "", "seconds": 0.0, "targets": {},
    }  # fmt: skip
    open_log(settings.home).append(line)


def has_content(home: Path) -> bool:
    return home.is_dir() and next(home.iterdir(), None) is not None


def read_targets(value: object, names: tuple[str, ...]) -> dict[str, str]:
    kind: object = type(value)
    targets = {name: getattr(value, name, None) for name in select_attributes(kind, names)}
    return {name: cut(str(value)) for name, value in targets.items() if isinstance(value, str | Path) and value != ""}


@cache
def select_attributes(kind: type, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the names that objects of a class have: pydantic takes long to say that it has none of a name."""
    fields = kind.model_fields if issubclass(kind, BaseModel) else {}
    return tuple(name for name in names if name in fields or hasattr(kind, name))


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
    committed: int = 0
    """Lines that the ledger covers."""

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
    """Check the lines among themselves, and with the lines that the ledger names."""
    check, ledger = verify_log(context.settings.home / "audit"), Ledger.at_home(context.settings.home)
    numbers = read_audited(ledger)
    problems = [*check.problems, *(check_audit(ledger, ledger.head(), numbers) if numbers else ())]
    return AuditCheck(
        files=check.files, lines=check.lines, first=check.first, last=check.last, problems=tuple(problems[:100]),
        committed=int(ledger.head().entry(numbers[0])["last"]) if numbers else 0,
    )  # fmt: skip


def commit_if_due(home: Path) -> None:
    """Let the ledger name the last line, where it has had no entry for a minute; services do it on a thread."""
    ledger = Ledger.at_home(home)
    if is_due(ledger):
        commit_audit(ledger)
