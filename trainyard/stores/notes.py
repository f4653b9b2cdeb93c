"""Notes that people write about runs: one small JSON file each, under `TRAINYARD_HOME/notes`.

A run's folder may be removed, and its note stays as long as the run is listed.
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trainyard.errors import InvalidInput
from trainyard.stores.files import DISK, Files, make_folders
from trainyard.stores.jobs import RECORD_ID
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably


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
