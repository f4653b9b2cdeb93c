"""Files of a session outside of its process: `TRAINYARD_HOME/sessions/<id>/`, 0700.

session.json    the record: owner, settings, limits; written once
status.json     what its process is doing, or how it ended; of the process that started it last
socket.json     where it answers while it is open
spec.json, events.jsonl, child.log, error.json    of its supervised child
checkpoints/    its own, by the number of operations;  saved/    those that calls asked for;  outputs/
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import orjson
from pydantic import BaseModel, ConfigDict

from trainyard.compute.lease import holder
from trainyard.errors import NotFound
from trainyard.json_types import JsonObject
from trainyard.settings import Settings
from trainyard.spec.training import TrainerConfig
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.live.job_ids import SESSION_ID
from trainyard.stores.schema import add_version, read_versioned, strip_version
from trainyard.stores.whole import write_json_durably

RECORD_FILE, STATUS_FILE, SOCKET_FILE = "session.json", "status.json", "socket.json"
MAX_CACHED = 256
"""Files whose content a process keeps."""
SAVED_FOLDER = "saved"


class SessionState(StrEnum):
    """Status of a session."""

    PENDING = "pending"
    """Waits for a worker or for a device, or loads its model."""
    OPEN = "open"
    """Takes calls."""
    ENDED = "ended"
    """Has saved and ended: closed, idle, canceled or out of its budget. It can be resumed."""
    FAILED = "failed"
    """Ended by an error; it can be resumed from its newest checkpoint."""
    LOST = "lost"
    """Its process was killed; it can be resumed from its newest checkpoint."""


class SessionRecord(BaseModel):
    """A session as it was created."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    name: str
    tenant: str
    created: float
    config: TrainerConfig
    """Resolved."""
    idle_s: int
    autosave_s: int
    budget_s: int | None = None
    trace: str = ""


class SessionStatus(BaseModel):
    """State of the process that was started last."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    state: SessionState = SessionState.PENDING
    detail: str = ""
    run: str = ""
    """Its flow run."""
    begun: bool = True
    """Whether a process has taken it."""
    last: JsonObject = {}
    """How far it was when its process was last heard of."""
    updated: float = 0.0


def new_session_id(key: str = "") -> str:
    """Return a new id; with the same key, the same one."""
    return f"session-{hashlib.sha256(key.encode()).hexdigest()[:12] if key else secrets.token_hex(6)}"


def sessions_folder(settings: Settings) -> Path:
    return settings.home / "sessions"


def folder_of_session(settings: Settings, session: str) -> Path:
    """Return the folder of a session. Raises `NotFound` (`E-NOT-FOUND`) for what is not an id."""
    if not SESSION_ID.fullmatch(session):
        raise no_session_error(session)
    return sessions_folder(settings) / session


def no_session_error(session: str) -> NotFound:
    return NotFound(
        f"There is no session {session[:64]!r}.", do="List the sessions by `trainyard sessions list`.",
        code="E-NOT-FOUND",
    )  # fmt: skip


def write_record(settings: Settings, record: SessionRecord) -> Path:
    folder = folder_of_session(settings, record.id)
    make_folders(DISK, folder)
    folder.chmod(0o700)
    write_json_durably(folder / RECORD_FILE, add_version("session", record.model_dump(mode="json")))
    return folder


def read_record(settings: Settings, session: str, tenant: str = "") -> SessionRecord:
    """Return the record of a session; of another tenant's it is as if there were none.

    Raises `NotFound` (`E-NOT-FOUND`), `Conflict` (`E-SCHEMA`).
    """
    path = folder_of_session(settings, session) / RECORD_FILE
    if not path.is_file():
        raise no_session_error(session)
    record = SessionRecord.model_validate(read_versioned("session", path.read_bytes(), path))
    if tenant and record.tenant != tenant:
        raise no_session_error(session)
    return record


def list_records(settings: Settings, tenant: str = "") -> Iterator[SessionRecord]:
    """Return every session of a tenant, or of all; the newest first."""
    names = [path.parent.name for path in sessions_folder(settings).glob(f"session-*/{RECORD_FILE}")]
    records = [read_record(settings, name) for name in names]
    selection = [record for record in records if not tenant or record.tenant == tenant]
    return iter(sorted(selection, key=lambda record: record.created, reverse=True))


# What its process is doing


def lock_of_session(settings: Settings, session: str) -> Path:
    """Return the lock of the process that runs a session: one at a time."""
    return settings.services / "works" / f"{session}.lock"


def is_running(settings: Settings, session: str) -> bool:
    return holder(lock_of_session(settings, session)) is not None


def write_status(
    folder: Path,
    state: SessionState,
    detail: str = "",
    run: str = "",
    *,
    started: bool = True,
    last: Mapping[str, object] = MappingProxyType({}),
) -> None:
    status = SessionStatus(state=state, detail=detail, run=run, begun=started, last=dict(last), updated=time.time())
    write_json_durably(folder / STATUS_FILE, add_version("session", status.model_dump(mode="json")))


def read_status(settings: Settings, session: str) -> SessionStatus:
    """Return what a session is doing; `lost` where its status says that it runs, and no process has its lock."""
    folder = folder_of_session(settings, session)
    value = read_json(folder / STATUS_FILE)
    status = (
        SessionStatus.model_validate(strip_version("session", value, folder / STATUS_FILE))
        if value
        else SessionStatus()
    )
    alive = status.state in (SessionState.PENDING, SessionState.OPEN)
    if value and status.begun and alive and not is_running(settings, session):
        return status.model_copy(update={"state": SessionState.LOST, "detail": "its process was killed"})
    return status


def find_socket(folder: Path) -> str | None:
    """Where a session answers; None while it does not."""
    address = read_unchanged(f"{folder}/{SOCKET_FILE}")
    return str(address["path"]) if address else None


def remove_socket(folder: Path) -> None:
    """Remove the socket of a process that has ended, or was killed."""
    address = read_json(folder / SOCKET_FILE)
    if address is not None:
        shutil.rmtree(Path(address["path"]).parent, ignore_errors=True)
        (folder / SOCKET_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder / "socket", ignore_errors=True)


def read_json(path: Path) -> JsonObject | None:
    """Return a JSON file that another process replaces and removes; None where it is not."""
    try:
        value: dict[str, object] = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return value


def read_unchanged(path: str) -> dict[str, object] | None:
    """`read_json` for a file that is requested with every call, and is read again when it was replaced. Not to change.

    A writer replaces the file whole, so a file with the same number and time is the same.
    """
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    return read_version(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@lru_cache(MAX_CACHED)
def read_version(path: str, *_: int) -> dict[str, object] | None:
    return read_json(Path(path))
