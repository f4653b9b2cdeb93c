"""`trainyard gc`: what of a home is not needed any more, why, and how much space it takes; removed unless `--dry-run`.

`Collection.look` decides, for the dry run and for the removal. Nothing younger than `--days` goes. What the watchdog
removes every ten seconds (temporary folders of dead processes) is decided by `compute/leftovers` for both.

    goes after --days                              stays
    ------------------------------------------------------------------------------------------------------------------
    folder of a run that has ended                 it waits, runs or is paused, or nobody knows how it ended
    work folder of a training                      a run or a job that stays names it, or it is unfinished and belongs
                                                   to no ended run: a night continues it
    artifact, by its last use                      a run, a training, an adapter version, a service or an artifact that
                                                   stays names its key
    folder of a step session                       a process runs it, or a call has saved something in it
    curve of a training, by its last use           –  (the events of its training make it again)
    quarantine, rotated log, log of an install     –
    environment that `envs/NAME` does not mean     a live process uses it

A folder is renamed into `.removing` next to it, then deleted: it is whole, or it is not there. What a killed collection
leaves there is removed by the next one. What killed uploads and deletions have left goes at once: a file or folder of
theirs that no process has locked (`stores/processes.py`).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import orjson

from trainyard.app.context import Context
from trainyard.app.data.uploads import FOLDER as UPLOADS
from trainyard.app.data.uploads import list_unfinished
from trainyard.app.responses import Response
from trainyard.app.run_records import read_result
from trainyard.app.runs import connect_runs
from trainyard.backends.results import CHECKPOINT_FOLDER
from trainyard.backends.sessions.records import SAVED_FOLDER, is_running, lock_of_session, sessions_folder
from trainyard.compute.child import SPEC_FILE, faultpoint
from trainyard.compute.lease import device_lock, holder, turn_lock
from trainyard.compute.leftovers import find_unused_folders, list_used_paths, sweep_leftovers
from trainyard.errors import Conflict, TrainyardError
from trainyard.operations.stack import GcInput
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores.artifacts import ArtifactStore, move_unused, sweep_work_folders
from trainyard.stores.files import DISK, translate_os_errors
from trainyard.stores.jobs import JobStore
from trainyard.stores.processes import remove_abandoned
from trainyard.stores.whole import MANIFEST

DAY_S = 86_400.0
REMOVING = ".removing"
TRAINING = "training"
DIGESTS = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9a-f])")
"""Keys of artifacts (64) and names of work folders (32), wherever a record names them."""
RECORDS = ("*.json", "*.jsonl")
LIVE_JOBS = frozenset({JobState.PENDING, JobState.RUNNING, JobState.PAUSED})


class LeftoverKind(StrEnum):
    """Kind of removable data, in the order of removal."""

    RUN = "run"
    TRAINING = "training"
    ARTIFACT = "artifact"
    SESSION = "session"
    CURVE = "curve"
    QUARANTINE = "quarantine"
    LOG = "log"
    ENVIRONMENT = "environment"
    TEMPORARY = "temporary"
    UNFINISHED = "unfinished removal"
    UPLOAD = "unfinished upload"


class Leftover(Response):
    """A file or folder that is not needed."""

    kind: LeftoverKind
    path: Path
    bytes: int
    age_days: float
    """Days since it was last used or written."""
    because: str


class Collected(Response):
    """Removed files, or those that would be."""

    dry_run: bool
    days: int
    items: tuple[Leftover, ...]
    bytes: int
    open_runs: tuple[str, ...] = ()
    """Old runs that stay: they wait, run or are paused, or there is no server to ask how they ended."""


def collect(request: GcInput, context: Context) -> Collected:
    """Find unused files, and remove them. Raises `Unavailable` (`E-DISK-READ-ONLY`, `E-DISK-ERROR`)."""
    collection = Collection(context.settings, request.days)
    items = tuple(collection.look())
    staying = tuple(path.name for path in collection.old_open_runs)
    if not request.dry_run:
        with translate_os_errors(f"{context.settings.home} was not cleaned completely"):
            items = tuple(item for item in items if collection.remove(item))
            for line in sweep_leftovers(context.settings.home):
                context.say(line)
    size = sum(item.bytes for item in items)
    return Collected(dry_run=request.dry_run, days=request.days, items=items, bytes=size, open_runs=staying)


@dataclass
class Collection:
    """Garbage collection of a home: the search, and the removal of its findings."""

    settings: Settings
    days: int
    ended: Callable[[Iterable[str]], set[str]] | None = None
    """Run ids -> those that have ended; by default the running server's answer."""
    now: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if self.ended is None:
            self.ended = server_answer(self.settings)

    @property
    def before(self) -> float:
        """Return the cutoff in seconds of the epoch: files that were used later stay."""
        return self.now - self.days * DAY_S

    # Candidates

    def look(self) -> Iterator[Leftover]:
        """Yield everything that is not needed, in the order of its removal."""
        home = self.settings.home
        for kind, paths, because in (
            (LeftoverKind.RUN, self.old_runs, "the run has ended"),
            (LeftoverKind.TRAINING, self.old_trainings, "no run that is kept names it"),
            (LeftoverKind.ARTIFACT, self.old_artifacts(), "nothing that is kept names it"),
            (LeftoverKind.SESSION, self.old_sessions, "it has ended, and nothing was saved in it"),
            (LeftoverKind.CURVE, self.old_files("live/curves/*"), "its training's events make it again"),
            (LeftoverKind.QUARANTINE, self.old_files("quarantine/*.jsonl"), "rows of a run that failed then"),
            (LeftoverKind.LOG, self.old_files("services/*.log.[0-9]*"), "an earlier start has written it"),
            (LeftoverKind.LOG, self.old_files("envs/*.install.log"), "an installation failed then"),
            (LeftoverKind.ENVIRONMENT, self.old_environments(), "another one replaced it"),
        ):
            yield from (self.leftover(kind, path, because) for path in paths)
        for path in find_unused_folders(home) if home.is_dir() else ():
            yield self.leftover(LeftoverKind.TEMPORARY, path, "its process is gone")
        for root in (self.settings.runs, self.settings.artifacts, home / "envs", sessions_folder(self.settings)):
            for path in sorted((root / REMOVING).glob("*")):
                yield self.leftover(LeftoverKind.UNFINISHED, path, "a removal that was killed")
        for folder in sorted(home.glob(f"tenants/*/{UPLOADS}")):
            for path in list_unfinished(folder) if not folder.is_symlink() else ():
                yield self.leftover(LeftoverKind.UPLOAD, path, "an upload or a deletion that was killed")

    def leftover(self, kind: LeftoverKind, path: Path, because: str) -> Leftover:
        age = (self.now - last_write(path)) / DAY_S
        return Leftover(kind=kind, path=path, bytes=measure_size(path), age_days=round(age, 1), because=because)

    def is_old(self, path: Path) -> bool:
        return last_write(path) < self.before

    def old_files(self, pattern: str) -> list[Path]:
        return sorted(path for path in self.settings.home.glob(pattern) if path.is_file() and self.is_old(path))

    @cached_property
    def run_folders(self) -> list[Path]:
        names = self.settings.runs.iterdir() if self.settings.runs.is_dir() else ()
        return sorted(path for path in names if path.is_dir() and path.name not in (TRAINING, REMOVING))

    @cached_property
    def ended_runs(self) -> set[str]:
        """Runs that have ended: as the server says, or by their own result, which says that they completed."""
        assert self.ended is not None
        run_names = self.ended([path.name for path in self.run_folders])
        return run_names | {path.name for path in self.run_folders if is_completed(path)}

    @cached_property
    def old_runs(self) -> list[Path]:
        return [path for path in self.run_folders if self.is_old(path) and path.name in self.ended_runs]

    @cached_property
    def old_open_runs(self) -> list[Path]:
        return [path for path in self.run_folders if self.is_old(path) and path.name not in self.ended_runs]

    @cached_property
    def named_by_runs(self) -> set[str]:
        """Digests that the runs which stay name, and the jobs that have not ended."""
        going = set(self.old_runs)
        digests = find_digests(file for run in self.run_folders if run not in going for file in find_records(run))
        jobs = JobStore(self.settings.home / "jobs")
        live = [Path(job.work).name for job in jobs.records() if job.state in LIVE_JOBS or job.updated >= self.before]
        return digests | set(live)

    @cached_property
    def trainings(self) -> list[Path]:
        folder = self.settings.runs / TRAINING
        return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []

    @cached_property
    def old_trainings(self) -> list[Path]:
        """Work folders without a user. A training names the one in which it continues (`oom.py`): both stay."""
        staying = {work for work in self.trainings if not self.is_old(work) or work.name in self.named_by_runs}
        while True:
            named = find_digests(file for work in staying for file in work.glob("*.json"))
            more = {work for work in self.trainings if work.name in named or not self.may_go(work)} - staying
            if not more:
                return [work for work in self.trainings if work not in staying]
            staying |= more

    def may_go(self, work: Path) -> bool:
        """Return a finished training has no checkpoints; an unfinished one may go with the ended run or job that began
        it.
        """
        if not any((work / CHECKPOINT_FOLDER).glob("*")):
            return True
        jobs = {Path(job.work).name for job in JobStore(self.settings.home / "jobs").records()}
        return self.find_run(work) in self.ended_runs or work.name in jobs

    def find_run(self, work: Path) -> str:
        try:
            return str(orjson.loads((work / SPEC_FILE).read_bytes()).get("run", ""))
        except (OSError, ValueError, AttributeError):
            return ""

    def old_artifacts(self) -> list[Path]:
        """Results that nothing which stays names, by their last use."""
        every = {
            path.name: path for path in sorted(self.settings.artifacts.glob("[0-9a-f][0-9a-f]/*")) if path.is_dir()
        }
        going = set(self.old_trainings)
        records = [file for work in self.trainings if work not in going for file in work.glob("*.json")]
        records += [*self.settings.adapters.glob(f"*/*/*/{MANIFEST}"), *self.settings.services.glob("*.json")]
        records += [*self.settings.home.glob("tenants/**/*.json"), *self.settings.home.glob("jobs/*.json")]
        named = self.named_by_runs | find_digests(records)
        staying = {key for key, path in every.items() if key in named or path.stat().st_mtime >= self.before}
        fresh = staying
        while fresh:
            below = find_digests(every[key] / MANIFEST for key in fresh if (every[key] / MANIFEST).is_file())
            fresh = {key for key in below & every.keys() if key not in staying}
            staying |= fresh
        return [path for key, path in every.items() if key not in staying]

    @property
    def old_sessions(self) -> list[Path]:
        folders = sessions_folder(self.settings).glob("session-*")
        return sorted(folder for folder in folders if self.is_old(folder) and not self.keeps_session(folder))

    def keeps_session(self, folder: Path) -> bool:
        return any((folder / SAVED_FOLDER).glob("*")) or is_running(self.settings, folder.name)

    def old_environments(self) -> list[Path]:
        folder = self.settings.home / "envs"
        meant = {path.resolve() for path in folder.glob("*") if path.is_symlink()}
        old = [path for path in folder.glob(".*-*") if path.is_dir() and not path.is_symlink()]
        old = [path for path in old if path.resolve() not in meant and path.stat().st_mtime < self.before]
        used = list_used_paths() if old else []
        return sorted(path for path in old if not any(str(path) in text for text in used))

    # Removal

    def remove(self, leftover: Leftover) -> bool:
        """Remove it; False if it is in use again, or gone."""
        locked = {
            LeftoverKind.TRAINING: self.remove_training,
            LeftoverKind.SESSION: self.remove_session,
            LeftoverKind.UPLOAD: remove_abandoned,
        }
        if leftover.kind in locked:
            return locked[leftover.kind](leftover.path)
        if leftover.path.is_file():
            leftover.path.unlink()
            return True
        if leftover.kind is LeftoverKind.RUN:
            assert self.ended is not None
            again = self.is_old(leftover.path) and (
                is_completed(leftover.path) or bool(self.ended([leftover.path.name]))
            )
            return again and discard(leftover.path, self.settings.runs)
        if leftover.kind is LeftoverKind.ARTIFACT:
            store = ArtifactStore(self.settings.artifacts)
            sweep_work_folders(store)
            return discard(
                leftover.path, store.root, lambda target: move_unused(store, leftover.path, self.before, target)
            )
        if leftover.kind is LeftoverKind.ENVIRONMENT:
            return discard(leftover.path, self.settings.home / "envs")
        if leftover.kind is LeftoverKind.UNFINISHED:
            shutil.rmtree(leftover.path)
        return True  # temporary folders go with `sweep_leftovers`

    def remove_training(self, work: Path) -> bool:
        """Remove a work folder under the lock that a training takes before it looks there (`compute/lease`)."""
        if holder(turn_lock(work)) is not None:
            return False
        try:
            with device_lock(self.settings.services / "works" / f"{work.name}.lock"):
                return work.is_dir() and self.is_old(work) and discard(work, self.settings.runs)
        except Conflict:
            return False

    def remove_session(self, folder: Path) -> bool:
        """Remove a session's folder under the lock of the process that would run it."""
        try:
            with device_lock(lock_of_session(self.settings, folder.name)):
                removable = self.is_old(folder) and not any((folder / SAVED_FOLDER).glob("*"))
                return removable and discard(folder, sessions_folder(self.settings))
        except Conflict:
            return False


def discard(path: Path, root: Path, take: Callable[[Path], bool] | None = None) -> bool:
    """Rename a folder into `root/.removing`, then delete it."""
    (root / REMOVING).mkdir(mode=0o700, exist_ok=True)
    target = root / REMOVING / path.name
    if target.exists():
        shutil.rmtree(target)
    if take is None:
        path.rename(target)
    elif not take(target):
        return False
    DISK.fsync_folder(path.parent)
    faultpoint("gc.renamed")
    shutil.rmtree(target)
    faultpoint("gc.removed")
    return True


def server_answer(settings: Settings) -> Callable[[Iterable[str]], set[str]]:
    """Ask the running server; without one no run is known to have ended."""
    try:
        return connect_runs(settings).select_ended
    except TrainyardError:
        return lambda _ids: set()


def is_completed(run: Path) -> bool:
    """Return whether the run's own record says that it completed: nothing can continue it."""
    try:
        result = read_result(run)
    except (TrainyardError, ValueError, OSError):
        return False
    return result is not None and result.succeeded


def walk_stats(path: Path) -> Iterator[os.stat_result]:
    """Of a file, or of a folder and all below it; what is removed meanwhile is left out."""
    for entry in (path, *(path.rglob("*") if path.is_dir() else ())):
        with suppress(FileNotFoundError):
            yield entry.lstat()


def last_write(path: Path) -> float:
    """Return when a file, or anything in a folder, was last written."""
    return max((status.st_mtime for status in walk_stats(path)), default=0.0)


def measure_size(path: Path) -> int:
    """Return bytes on the disk; a file with other names elsewhere (an adapter's) frees nothing and does not count."""
    return sum(status.st_size for status in walk_stats(path) if stat.S_ISREG(status.st_mode) and status.st_nlink == 1)


def find_records(run: Path) -> list[Path]:
    return [path for pattern in RECORDS for path in run.rglob(pattern)]


def find_digests(files: Iterable[Path]) -> set[str]:
    """Return every digest that these files name."""
    digests: set[str] = set()
    for path in files:
        with suppress(FileNotFoundError), path.open("rb") as stream:
            for line in stream:
                digests |= {digest.decode() for digest in DIGESTS.findall(line)}
    return digests
