"""Records of the OpenAI wire: one small JSON file for each uploaded file, unfinished upload and fine-tuning job.

    tenants/<tenant>/openai/files/<id>.json      name, purpose and time of a file; its bytes are in `uploads`
    tenants/<tenant>/openai/uploads/<id>.json    a file that arrives in parts; the parts are in the folder <id>
    tenants/<tenant>/openai/jobs/<id>.json       the request of a fine-tuning job; its state is the job's own

Files, jobs and adapters themselves are where every other surface keeps them: a record has what only this wire says.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainyard.json_types import JsonObject
from trainyard.stores.files import DISK, Files, make_folders, translate_os_errors
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import create_whole, write_json_durably

FOLDER = "openai"
ID_BYTES = 12
JOB_ID_BYTES = 6
RECORD_ID = re.compile(r"[a-z]+[-_][0-9a-f]{12,32}")


class WireRecord(BaseModel):
    """What every record has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    created: float
    """Seconds of the epoch."""


class FileRecord(WireRecord):
    """A file that was uploaded over the wire."""

    filename: str
    purpose: str
    bytes: int
    sha256: str
    name: str
    """Of the upload, which `trainyard data list uploads` shows."""
    path: str
    """As a chain names it."""
    expires: float | None = None


class PartRecord(BaseModel):
    """A part of an upload, in the order in which the parts came."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    created: float
    bytes: int


class UploadRecord(WireRecord):
    """A file that arrives in parts."""

    filename: str
    purpose: str
    bytes: int
    mime_type: str
    expires: float
    """When the upload is given up."""
    file_expires_s: int | None = None
    """Seconds after which the finished file expires."""
    status: str = "pending"
    parts: tuple[PartRecord, ...] = ()
    file: str = ""
    """Id of the finished file."""


class WireJobError(BaseModel):
    """Why a fine-tuning job failed before it was started."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    code: str
    message: str
    param: str | None = None


class FineTuningRecord(WireRecord):
    """A fine-tuning job that was created over the wire."""

    request: JsonObject
    """The body, with the values that were chosen for `auto`."""
    name: str
    """Of the job; unique, so that the job is found without a record of its id."""
    job: str = ""
    """Id of the job; empty until it is started."""
    model: str
    """Name of the fine-tuned model, once there is one."""
    error: WireJobError | None = None
    is_deleted: bool = Field(False)
    """Whether the fine-tuned model was deleted."""


Record = TypeVar("Record", bound=WireRecord)


class WireRecords(Generic[Record]):
    """The records of one kind of a tenant."""

    def __init__(self, folder: Path, kind: type[Record], files: Files = DISK) -> None:
        self.folder, self.kind, self.files = folder, kind, files

    def path(self, record_id: str) -> Path | None:
        """Return where a record is; None for a text that is not an id."""
        return self.folder / f"{record_id}.json" if RECORD_ID.fullmatch(record_id) else None

    def create(self, record: Record) -> Record:
        """Write a new record. Raises `Conflict` (`E-FILE-EXISTS`) where the id is taken, and on the disk."""
        make_folders(self.files, self.folder)
        data = add_version("openai", record.model_dump(mode="json"))
        with translate_os_errors(f"{record.id} was not written"):
            create_whole(self.files, self.folder / f"{record.id}.json", orjson.dumps(data), word=secrets.token_hex(4))
        return record

    def replace(self, record: Record) -> Record:
        """Write a record again."""
        data = add_version("openai", record.model_dump(mode="json"))
        write_json_durably(self.folder / f"{record.id}.json", data, self.files)
        return record

    def read(self, record_id: str) -> Record | None:
        """Return a record; None where there is none, or its file is not one."""
        path = self.path(record_id)
        if path is None:
            return None
        try:
            return self.kind.model_validate(read_versioned("openai", self.files.read(path), path))
        except (FileNotFoundError, NotADirectoryError, ValueError, ValidationError):
            return None

    def remove(self, record_id: str) -> None:
        path = self.path(record_id)
        if path is not None and self.files.exists(path):
            self.files.unlink(path)
            self.files.fsync_folder(self.folder)

    def list(self, accepts: Callable[[Record], bool] = lambda _: True) -> list[Record]:
        """Return the records, the newest first."""
        if not self.folder.is_dir():
            return []
        records = (self.read(path.stem) for path in self.folder.glob("*.json"))
        return sorted(
            (record for record in records if record is not None and accepts(record)),
            key=lambda record: (-record.created, record.id),
        )


def draw_id(prefix: str, length: int = ID_BYTES) -> str:
    """Return a new id, such as file-3f2a…; `prefix` has its separator."""
    return f"{prefix}{secrets.token_hex(length)}"
