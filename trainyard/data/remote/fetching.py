"""Remote sets: the contract of a kind, the pin of a set, and its files on this machine.

A pin is the revision and the files of a set when it was first listed, so that the next run reads the same:

    TRAINYARD_HOME/pins/<digest of the address>.json     {address, revision, files, run}

A pin is made before a node's result gets its key, so that the key names the rows to read. `check` and `plan` only read
pins: they ask no server. A data set of the Hub keeps its pin until a run with `--refresh`; every run lists a bucket.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trainyard.data.readers.selection import FileSelection, empty_set_error, is_selected
from trainyard.json_types import JsonMapping
from trainyard.settings import Settings
from trainyard.spec.nodes import SourceSet
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

if TYPE_CHECKING:
    from trainyard.data.readers.streams import Limits


@dataclass(frozen=True)
class RemoteFile:
    """A file of a set."""

    name: str
    size: int | None = None
    version: str = ""
    """What changes with its bytes: an ETag or a generation; empty where the revision of the set says it."""


@dataclass(frozen=True)
class Pin:
    """A set elsewhere as it was listed."""

    address: str
    revision: str
    """Commit of a data set, or the digest of a listing."""
    files: tuple[RemoteFile, ...]
    run: str = ""
    """The run that listed it."""

    @property
    def digest(self) -> str:
        value = [self.address, self.revision, [asdict(file) for file in self.files]]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()


class RemotePlace(Protocol):
    """A place with files."""

    @property
    def address(self) -> str:
        """Return what a person calls it; has no secrets."""

    @property
    def lasting(self) -> bool:
        """Whether a pin stays right: the files of a commit do not change, those of a bucket may."""

    def require_access(self, settings: Settings) -> None:
        """Raise `Refused` for a place that the operator does not let chains read."""

    def look_up(self) -> tuple[str, Sequence[RemoteFile]]:
        """(revision, files in the order of reading). Asks the network."""

    def fetch(self, pin: Pin, file: RemoteFile, folder: Path) -> tuple[Path, Path]:
        """(local path, folder in which it and the target of its link are). `folder` is for what is not cached."""


def pin_file(address: str, settings: Settings) -> Path:
    return settings.home / "pins" / f"{hashlib.sha256(address.encode()).hexdigest()[:32]}.json"


def read_pin(remote: RemotePlace, settings: Settings) -> Pin | None:
    """Return what a place was when it was last listed; None if that has not happened."""
    path = pin_file(remote.address, settings)
    if not path.is_file():
        return None
    value = read_versioned("pin", path.read_bytes(), path)
    files = tuple(RemoteFile(**file) for file in value["files"])
    return Pin(value["address"], value["revision"], files, value["run"])


def pin_place(remote: RemotePlace, settings: Settings, *, run: str = "", refresh: bool = False) -> Pin:
    """Return the place's pin, made now if there is none, or if the place may have changed.

    A run lists a place at most once. Raises what listing raises, and `Refused` for a place that chains may not read.
    """
    remote.require_access(settings)
    pin = read_pin(remote, settings)
    again = refresh or not remote.lasting
    if pin is not None and (not again or (run and pin.run == run)):
        return pin
    revision, files = remote.look_up()
    pin = Pin(remote.address, revision, tuple(files), run)
    path = pin_file(remote.address, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_durably(path, add_version("pin", asdict(pin)))
    return pin


Report = Callable[[float, str], None]


@dataclass(frozen=True)
class FetchJob:
    """A remote set that is to be fetched. `folder` is empty, and removed when the set has been read."""

    source: SourceSet
    settings: Settings
    folder: Path
    limits: Limits
    report: Report
    """Gets the fraction of the whole set that has been fetched, and a line of text."""

    @property
    def selection(self) -> FileSelection:
        """Return the files and rows of the set that the config selects."""
        return FileSelection(self.source.include, self.source.exclude, self.source.max_rows)


@dataclass(frozen=True)
class LocalSet:
    """The files of a set on this machine, or the first files of one that is being fetched."""

    path: Path
    """A file or a folder; with `files` the folder above them."""
    roots: tuple[Path, ...]
    """Folders in which every file and the target of every link has to be."""
    name: str
    selection: FileSelection
    """What of the files is read."""
    files: tuple[Path, ...] = ()
    """The files in the order of reading, where that is not the order of a folder."""
    query: str = ""
    """SQL over `tables`, whose rows are the set."""
    tables: Mapping[str, Path] = field(default_factory=dict)
    facts: JsonMapping = field(default_factory=dict)
    """The fetched files, for the report of the set."""
    complete: bool = True


class PinnedFiles:
    """The files of one pinned set, fetched in their order."""

    def __init__(self, remote: RemotePlace, job: FetchJob) -> None:
        """Raises what `pin_place` raises, and `InvalidInput` (`E-DATA-EMPTY`) where the globs leave no file."""
        self.remote, self.job = remote, job
        self.pin = read_pin(remote, job.settings) or pin_place(remote, job.settings)
        include, exclude = job.source.include, job.source.exclude
        self.files = [file for file in self.pin.files if is_selected(file.name, include, exclude)]
        if not self.files:
            raise empty_set_error(self.pin.address, "It has no files, or the globs leave none.")
        self.fetched: list[tuple[Path, Path]] = []

    def fetch(self, count: int) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """Return (paths of the first files, the folders in which they have to be)."""
        for number in range(len(self.fetched), count):
            self.job.report(number / len(self.files), f"fetching {self.files[number].name}")
            self.fetched.append(self.remote.fetch(self.pin, self.files[number], self.job.folder))
        return tuple(path for path, _ in self.fetched), tuple(dict.fromkeys(root for _, root in self.fetched))

    def describe(self, path: Path, roots: tuple[Path, ...], files: tuple[Path, ...] = ()) -> LocalSet:
        """Return the set as far as it has been fetched."""
        fetched = self.files[: len(self.fetched)]
        versions = {file.name: file.version for file in fetched if file.version}
        facts: dict[str, object] = {"address": self.pin.address, "revision": self.pin.revision}
        return LocalSet(
            path, roots, self.pin.address, FileSelection(max_rows=self.job.source.max_rows), files,
            facts=facts | ({"versions": versions} if versions else {}), complete=len(fetched) == len(self.files),
        )  # fmt: skip


def fetch_in_order(remote: RemotePlace, job: FetchJob) -> Iterator[LocalSet]:
    """Fetch all files of a pinned set; with `max_rows` one at first, and each time twice as many."""
    pinned = PinnedFiles(remote, job)
    count = 1 if job.source.max_rows else len(pinned.files)
    while True:
        paths, roots = pinned.fetch(count)
        fetched = pinned.describe(paths[0].parent, roots, paths)
        yield fetched
        if fetched.complete:
            return
        count = min(len(pinned.files), 2 * count)


def fetch_folder(remote: RemotePlace, job: FetchJob) -> Iterator[LocalSet]:
    """Fetch all files of a pinned set, which are then read as a file or a folder of this machine."""
    pinned = PinnedFiles(remote, job)
    paths, roots = pinned.fetch(len(pinned.files))
    listed = pinned.pin.files
    is_file = len(listed) == 1 and remote.address.endswith(listed[0].name)
    yield pinned.describe(paths[0] if is_file else job.folder.absolute() / "fetched", roots)
