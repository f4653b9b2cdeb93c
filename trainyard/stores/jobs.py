"""Records of training jobs for quick lists: one small JSON file each, under `TRAINYARD_HOME/jobs`.

A projection: the truth about a run is Prefect's, the truth about a training is in its work folder. Deleting this folder
loses a list and nothing else.

Notes that people write about runs: one small JSON file each, under `TRAINYARD_HOME/notes`.

A run's folder may be removed, and its note stays as long as the run is listed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from trainyard.errors import InvalidInput, NotFound
from trainyard.json_types import JsonObject
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage
from trainyard.spec.states import JobState
from trainyard.stores.files import DISK, Files, make_folders
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

RECORD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
JOB_FILE = re.compile(rf"{RECORD_ID.pattern}\.json")


class SubmittingProcess(BaseModel):
    """The process that submitted a job, and steers it while it lives."""

    pid: int
    started: float
    """When it was created (seconds of the epoch): another process may get its number."""


class JobRecord(BaseModel):
    """A job as a list shows it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    name: str = ""
    state: JobState = JobState.PENDING
    detail: str = ""
    """Detail of the state (starting, pausing …), or the reason of its end."""
    stage: Stage
    method: Method
    backend: BackendName
    base_model: str = ""
    work: str = ""
    """Folder of its events, log and checkpoints."""
    result: str = ""
    """Folder of the adapter or model, once it is completed."""
    tenant: str = "default"
    process: SubmittingProcess | None = None
    created: float = 0.0
    updated: float = 0.0
    facts: JsonObject = {}


def new_job_id() -> str:
    return str(uuid4())


class JobStore:
    """The records of a home."""

    def __init__(self, folder: Path, files: Files = DISK, now: Callable[[], float] = time.time) -> None:
        self.folder, self.files, self.now = folder, files, now

    def path(self, job_id: str) -> Path:
        """Where a record is. Raises `InvalidInput` for an id that would leave the folder."""
        if not RECORD_ID.fullmatch(job_id):
            raise InvalidInput(f"{job_id!r} is not the id of a job.", do="Copy the id from the list.", code="E-NAME")
        return self.folder / f"{job_id}.json"

    def put(self, record: JobRecord) -> JobRecord:
        """Write a record, whole; its times are set here."""
        now = self.now()
        record = record.model_copy(update={"created": record.created or now, "updated": now})
        make_folders(self.files, self.folder)
        write_json_durably(self.path(record.id), add_version("job", record.model_dump(mode="json")), self.files)
        return record

    def get(self, job_id: str) -> JobRecord:
        """Return a record by its id. Raises `NotFound` (`E-JOB-NOT-FOUND`)."""
        record = read(self.path(job_id), self.files)
        if record is None:
            raise NotFound(f"There is no job {job_id!r}.", do="Look for its id in the list.", code="E-JOB-NOT-FOUND")
        return record

    def list(self, state: JobState | None = None) -> list[JobRecord]:
        """Return every record, the newest first; a file that cannot be read is left out."""
        records = [record for record in self.records() if state is None or record.state is state]
        return sorted(records, key=lambda record: (record.created, record.id), reverse=True)

    def records(self) -> Iterator[JobRecord]:
        names = self.files.listdir(self.folder) if self.files.is_folder(self.folder) else []
        for name in names:
            if JOB_FILE.fullmatch(name) and (record := read(self.folder / name, self.files)) is not None:
                yield record

    def delete(self, job_id: str) -> None:
        path = self.path(job_id)
        if self.files.exists(path):
            self.files.unlink(path)
            self.files.fsync_folder(self.folder)


def read(path: Path, files: Files = DISK) -> JobRecord | None:
    """Return the record of a file; None if it is not there or not one. Raises `Conflict` (`E-SCHEMA`)."""
    try:
        return JobRecord.model_validate(read_versioned("job", files.read(path), path))
    except (FileNotFoundError, ValueError):
        return None


class RunNote(BaseModel):
    """Note that a user wrote about a run."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str
    author: str = ""
    updated: float = 0.0
    """Seconds of the epoch."""


class NoteStore:
    """The notes of a home."""

    def __init__(self, folder: Path, files: Files = DISK) -> None:
        self.folder, self.files = folder, files

    def path(self, run_id: str) -> Path:
        """Where a note is. Raises `InvalidInput` (`E-NAME`) for an id that would leave the folder."""
        if not RECORD_ID.fullmatch(run_id):
            raise InvalidInput(f"{run_id!r} is not the id of a run.", do="Copy the id from the list.", code="E-NAME")
        return self.folder / f"{run_id}.json"

    def write(self, run_id: str, text: str, author: str = "") -> None:
        """Replace the note of a run; an empty text removes it."""
        path = self.path(run_id)
        if not text.strip():
            if self.files.exists(path):
                self.files.unlink(path)
                self.files.fsync_folder(self.folder)
            return
        make_folders(self.files, self.folder)
        note = RunNote(text=text.strip(), author=author, updated=time.time())
        write_json_durably(path, add_version("note", note.model_dump(mode="json")), self.files)

    def read(self, run_id: str) -> RunNote | None:
        """Return the note of a run; None where there is none, or the file is not one."""
        path = self.path(run_id)
        try:
            return RunNote.model_validate(read_versioned("note", self.files.read(path), path))
        except (FileNotFoundError, ValueError):
            return None
