"""Data sets on a data worker: files or folders of its repositories, pinned by their commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.data.remote.fetching import FetchJob, LocalSet, Pin, RemoteFile, fetch_folder
from trainyard.errors import InvalidInput, NotFound, Reason, Refused
from trainyard.settings import Settings
from trainyard.spec.nodes import SourceSet
from trainyard.spec.repositories import WorkerPlace, parse_place
from trainyard.stores.repositories.client import DataWorkers, open_data_workers

SHA256_DIGITS = 64


def is_worker_set(source: SourceSet) -> bool:
    """Return whether a set is on a data worker."""
    return source.data_worker is not None


def open_place(source: SourceSet, settings: Settings) -> RepositoryPlace:
    """Return the file or folder that a set names. Raises `InvalidInput` (`E-DATA-NOT-FOUND`) for another path."""
    assert source.data_worker is not None
    place = parse_place(source.path or "")
    if place is None:
        raise InvalidInput(
            f"{source.path!r} is not a place on a data worker.",
            do="Write /datasets/NAME/FILE, or /datasets/NAME@REVISION/FILE.", code="E-DATA-NOT-FOUND",
        )  # fmt: skip
    return RepositoryPlace(source.data_worker, settings.tenant, place, open_data_workers(settings, source.data_worker))


def fetch_set(job: FetchJob) -> Iterator[LocalSet]:
    """Download the files of the set; workers that did not answer are in its facts. Raises as `RepositoryPlace`."""
    place = open_place(job.source, job.settings)
    place.workers.say = lambda line: job.report(0.0, line)
    for local_set in fetch_folder(place, job):
        fetched = local_set
        if place.workers.down:
            fetched = replace(fetched, facts={**fetched.facts, "unreachable": dict(place.workers.down)})
        yield fetched


@dataclass(frozen=True)
class RepositoryPlace:
    """A file, or all files below a folder, of a repository at a revision."""

    url: str
    tenant: str
    place: WorkerPlace
    workers: DataWorkers = field(compare=False)
    lasting: bool = True

    @property
    def repository(self) -> str:
        return f"{self.tenant}/{self.place.name}"

    @property
    def address(self) -> str:
        kind, _, revision, path = self.place
        return f"{self.url.rstrip('/')}/{kind}/{self.repository}@{revision}/{path}".rstrip("/")

    def require_access(self, settings: Settings) -> None:
        """Raise `Refused` (`R-DATA-WORKER`) for a worker that is not listed."""
        if self.url.rstrip("/") not in settings.listed_data_workers:
            because = f"{self.url} is not a data worker of this home, which has its token."
            instead = "Let the operator add it to data_workers in trainyard.toml."
            raise Refused([Reason("R-DATA-WORKER", None, "config.data_worker", because, instead)])

    def look_up(self) -> tuple[str, Sequence[RemoteFile]]:
        """Return the commit and its files. Raises `NotFound` (`E-DATA-NOT-FOUND`), and as `DataWorkers.request`."""
        kind, _, revision, path = self.place
        commit = self.workers.find_commit(kind, self.repository, revision)
        entries = self.workers.list_files(kind, self.repository, commit)
        names = [
            entry for entry in entries if not path or entry["path"] == path or entry["path"].startswith(f"{path}/")
        ]
        if not names:
            raise NotFound(
                f"{self.repository} has no file or folder {path!r} at {revision}.",
                do="Correct `path`: /datasets/NAME[@REVISION]/FILE.", code="E-DATA-NOT-FOUND",
            )  # fmt: skip
        return commit, [RemoteFile(entry["path"], entry["size"], (entry.get("lfs") or entry)["oid"]) for entry in names]

    def fetch(self, pin: Pin, file: RemoteFile, folder: Path) -> tuple[Path, Path]:
        """Download a file of the pinned commit."""
        root = folder.absolute() / "fetched"
        lfs = {"oid": file.version} if len(file.version) == SHA256_DIGITS else None
        entry = {"path": file.name, "size": file.size, "oid": file.version, "lfs": lfs}
        path = root / file.name
        self.workers.download(self.place.kind, self.repository, pin.revision, entry, path)
        return path, root
