"""Entries of the audit log: the caller of an operation, through what, with which values, and how it ended.

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
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from pydantic import BaseModel

from trainyard.app.context import Context
from trainyard.app.secrets import cut, redact_value
from trainyard.errors import Denied, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.operations.table import OPERATIONS, Scope
from trainyard.settings import Settings
from trainyard.stores.access.audit import AuditLog, canonical

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
        """Return what both lines have: who asked for it, through what, and the request as it may be written down."""
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
