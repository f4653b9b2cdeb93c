"""`trainyard backup FILE` and `trainyard restore FILE`: a home in one file, while it is used.

    manifest.json     last member: version, time, the home's path, {name: {sha256, bytes}} of every other member
    home/…            the files of the home; `prefect/prefect.db` is a copy by SQLite's online backup

Prefect's database is copied first: what the files say later than it is settled by `trainyard up`, as after a crash. The
graph's files are copied while its writer belongs to the backup, so that nothing is written to them meanwhile.

Paths in records are absolute, so a home is restored where it was. A restore unpacks into a folder next to the home,
compares every digest and renames it: the home is whole, or it is not there.

The adapters of a restored home: their bytes are those of the backup, and here none of them was ever run.

The live version of each role is run once on its base, where that is here; every other one is marked, and is run before
it is made live. A home is restored in both cases: what is in it is what was backed up.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import orjson
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

import trainyard
from trainyard.app.access.database import read_database
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.app.stack.gc import REMOVING
from trainyard.compute.child import faultpoint
from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.operations.stack import BackupInput, RestoreInput
from trainyard.serve.trial import TrialRun, try_version
from trainyard.settings import Settings
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.graph.local import LadybugGraph
from trainyard.stores.graph.remote import graph_file
from trainyard.stores.secret_files import TokenFile
from trainyard.stores.whole import BLOCK_BYTES, MANIFEST, disk_full, flush_tree, new_file, remove_folder


def run_restored(settings: Settings) -> tuple[str, ...]:
    """Run the live adapters of a restored home and keep the outcome with each version; returns a line for each."""
    registry, lines = AdapterRegistry(settings.adapters), []
    for version in registry.list():
        if version.kind != "adapter":
            continue
        restored = TrialRun("it was restored from a backup, and is run before it is made live")
        version = registry.record_run(version, restored.facts)
        if registry.live(version.tenant, version.role).version == version.version:
            lines.append(run_live(version, registry, settings))
    return tuple(lines)


def run_live(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> str:
    """Run one version, and say what became of it."""
    try:
        facts = try_version(version, registry, settings).facts
    except TrainyardError as error:
        registry.record_run(version, TrialRun(f"{error.code}: {error.what} {error.why}".strip()).facts)
        return f"{version.name} is live and cannot be run: {error.code}: {error.what}"
    if facts["adapter_run"]:
        return f"{version.name} was run once on its base"
    return f"{version.name} was not run: {facts['adapter_run_because']}"


VERSION = 1
PREFIX = "home/"
DATABASE = "prefect/prefect.db"
LEFT_OUT = frozenset({"envs", "services", "tmp", "live", "models", "prefect-auth-string", REMOVING})
"""Top-level names that a backup does not contain: they are made again, belong to processes, or are a secret."""
DATABASE_FILES = frozenset({DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal"})
DATABASE_WAIT_S = 60.0
SMALL_BYTES = 64 << 20
"""Up to this size a file is read at once: an event file may grow meanwhile, but not change under the archive."""
EMPTY_FOLDER = {"sha256": "", "bytes": 0}
LEVEL = 3
"""Of gzip: weights hardly shrink at any level, records do at this one."""


MOST_MANIFEST_BYTES = 128 << 20
"""Of the list of a home's files: about a million of them."""
MOST_HEADER_BYTES = 1 << 20
"""Of a member's own header, such as a long name; `tarfile` reads it at once."""
HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
OF_THE_ARCHIVE = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP})
"""Errors of the disk that a member's name causes: two of one name, a file that is a folder, a name that is too long."""
SETTINGS = "trainyard.toml"


class MemberFacts(BaseModel):
    """Manifest entry of one member."""

    model_config = ConfigDict(extra="forbid")

    sha256: str
    bytes: NonNegativeInt


class BackupManifest(BaseModel):
    """The last member of a backup."""

    model_config = ConfigDict(extra="forbid")

    backup: int
    trainyard: str
    made: float
    home: str
    files: dict[str, MemberFacts]


class BoundedMember(tarfile.TarInfo):
    """A member whose header cannot fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in HEADERS and member.size > MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {member.size:,} bytes")
        return member


class BackedUp(Response):
    """Contents of a backup."""

    file: Path
    files: int
    bytes: int
    """Of the contents."""
    archive_bytes: int
    left_out: tuple[str, ...]
    database: bool
    """Whether it contains Prefect's database, with jobs, schedules and history."""


class Restored(Response):
    home: Path
    files: int
    bytes: int
    made: float
    """When the backup was made, in seconds of the epoch."""
    version: str
    """Of the Trainyard that made it."""
    tokens: int = 0
    """Access tokens of the backup, which are valid here now."""
    settings: bool = False
    """Whether it brought a trainyard.toml, which may name programs that a run starts."""
    adapters: tuple[str, ...] = ()
    """For each live adapter, whether it was run once on its base here."""


# Backup


def back_up(request: BackupInput, context: Context) -> BackedUp:
    """Write a home into one file, whole or not at all.

    Raises `NotFound` (`E-BACKUP`), `Conflict` (`E-FILE-EXISTS`, `E-GRAPH-BUSY`), `LimitExceeded` (`E-DISK-FULL`).
    """
    home, target = context.settings.home, request.file.absolute()
    require_source(home, target)
    if elsewhere := read_database(context.settings):
        context.say(f"without Prefect's runs, which are in the database {elsewhere}: back it up by pg_dump")
    with translate_os_errors(f"The backup {target} was not written"), new_file(target) as temporary:
        with gzip_archive(temporary) as archive:
            writer = Archive(archive)
            database = add_database(writer, home, target.parent)
            add_files(writer, home, models=request.with_models, say=context.say)
            add_graph(writer, context.settings)
            writer.finish(home)
        faultpoint("backup.written")
    skipped = sorted(
        name for name in LEFT_OUT - ({"models"} if request.with_models else set()) if (home / name).exists()
    )
    size = sum(int(member["bytes"]) for member in writer.described.values())
    return BackedUp(
        file=target, files=len(writer.described), bytes=size, archive_bytes=target.stat().st_size,
        left_out=tuple(skipped), database=database,
    )  # fmt: skip


def require_source(home: Path, target: Path) -> None:
    if not home.is_dir() or not any(home.iterdir()):
        raise NotFound(f"There is no home {home}.", do="Set TRAINYARD_HOME to the one to back up.", code="E-BACKUP")
    if target.exists():
        raise Conflict(f"{target} is there already.", do="Give another name, or remove it.", code="E-FILE-EXISTS")
    if not target.parent.is_dir():
        raise NotFound(f"There is no folder {target.parent}.", do="Make it, or correct the path.", code="E-BACKUP")
    if target.resolve().is_relative_to(home.resolve()):
        do = "Give a path outside, best on another disk."
        raise InvalidInput(f"{target} lies inside the home that it would contain.", do=do, code="E-BACKUP")


def gzip_archive(path: Path) -> tarfile.TarFile:
    return tarfile.open(path, "w:gz", compresslevel=LEVEL, format=tarfile.PAX_FORMAT)


@dataclass
class Archive:
    """The members of a backup and their digests."""

    archive: tarfile.TarFile
    described: dict[str, JsonObject] = field(default_factory=dict)

    def add(self, name: str, path: Path) -> None:
        """Add a file or an empty folder; one that has just been removed is left out."""
        if path.is_dir():
            member = tarfile.TarInfo(PREFIX + name)
            member.type, member.mode = tarfile.DIRTYPE, 0o700
            self.archive.addfile(member)
            self.described[PREFIX + name] = EMPTY_FOLDER
            return
        with suppress(FileNotFoundError), path.open("rb") as stream:
            facts = os.fstat(stream.fileno())
            if facts.st_size <= SMALL_BYTES:
                data = stream.read()
                self.write(PREFIX + name, io.BytesIO(data), len(data), facts)
            else:
                self.write(PREFIX + name, stream, facts.st_size, facts)

    def write(self, name: str, stream: IO[bytes], size: int, facts: os.stat_result) -> None:
        member, reader = tarfile.TarInfo(name), Hashing(stream)
        member.size, member.mode, member.mtime = size, facts.st_mode & 0o777, int(facts.st_mtime)
        self.archive.addfile(member, reader)
        self.described[name] = {"sha256": reader.hasher.hexdigest(), "bytes": size}

    def finish(self, home: Path) -> None:
        value = {
            "backup": VERSION,
            "trainyard": trainyard.__version__,
            "made": time.time(),
            "home": str(home),
            "files": self.described,
        }
        data = orjson.dumps(value)
        member = tarfile.TarInfo(MANIFEST)
        member.size, member.mode = len(data), 0o600
        self.archive.addfile(member, io.BytesIO(data))


class Hashing:
    """A stream whose SHA-256 is taken while it is read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.hasher = stream, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self.stream.read(size)
        self.hasher.update(block)
        return block


def add_database(writer: Archive, home: Path, parent: Path) -> bool:
    """Add a copy of Prefect's database as of one moment; the server may write to it meanwhile."""
    if not (home / DATABASE).is_file():
        return False
    with tempfile.TemporaryDirectory(prefix=".trainyard-backup-", dir=parent) as folder:
        copy = Path(folder) / "prefect.db"
        try:
            with (
                closing(sqlite3.connect(home / DATABASE, timeout=DATABASE_WAIT_S)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise disk_full(parent, copy.stat().st_size) from error
            raise TrainyardError(
                f"Prefect's database {home / DATABASE} was not copied to {parent}.",
                why=f"SQLite: {error}.",
                do="Free space there, or look at the database with `trainyard doctor`.",
                code="E-BACKUP",
            ) from error
        writer.add(DATABASE, copy)
    return True


def add_files(writer: Archive, home: Path, *, models: bool, say: Callable[[str], None]) -> None:
    left_out = LEFT_OUT - ({"models"} if models else set())
    for name in sorted(os.listdir(home)):
        path = home / name
        if name in left_out or name == "graph":
            continue
        for file in [path] if path.is_file() else list_files(path, say):
            relative = file.relative_to(home).as_posix()
            if relative not in DATABASE_FILES:
                writer.add(relative, file)


def list_files(folder: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Yield every file and every empty folder below a folder of the home, without unfinished ones."""
    for parent, folders, names in os.walk(folder):
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        for name in linked:
            say(f"left out the folder {Path(parent, name)}: it is a link")
        if not folders and not names:
            yield Path(parent)
        passing = {name for name in folders if name == REMOVING or is_passing(name)}
        if Path(parent) == folder:
            passing |= {name for name in folders if name.startswith(".")}
        folders[:] = sorted(name for name in folders if name not in passing and name not in linked)
        yield from (
            Path(parent, name) for name in sorted(names) if Path(parent, name).is_file() and not is_passing(name)
        )


def is_passing(name: str) -> bool:
    """Return whether a name is that of a file or folder that is being written or removed, or of a lock."""
    return name.startswith(".") and name.endswith((".tmp", ".removed", ".lock"))


def add_graph(writer: Archive, settings: Settings) -> None:
    """Add the graph's files while no other process can write to them. Raises `Conflict` (`E-GRAPH-BUSY`)."""
    path = graph_file(settings)
    if not path.exists():
        return
    with ExitStack() as opened:
        graph = LadybugGraph(path)
        opened.callback(graph.close)
        graph.has(())  # opens it: from here on it has the database alone
        for file in sorted(path.parent.rglob("*")):
            if file.is_file() and not file.name.endswith((".lock", ".log")):
                writer.add(file.relative_to(settings.home).as_posix(), file)


# Restore


def restore(request: RestoreInput, context: Context) -> Restored:
    """Make a home of a backup, whole or not at all.

    Raises `NotFound`, `InvalidInput`, `Conflict`, `Corrupt` (`E-BACKUP`), `LimitExceeded` (`E-DISK-FULL`).
    """
    home = context.settings.home
    if not request.file.is_file():
        raise NotFound(f"There is no file {request.file}.", do="Correct the path.", code="E-BACKUP")
    require_empty(home)
    target = home.resolve()
    temporary = target.with_name(f".{target.name}.restoring")
    try:
        with translate_os_errors(f"The home {home} was not restored"):
            make_folders(DISK, target.parent)
            remove_folder(DISK, temporary)
            temporary.mkdir(mode=0o700)
            manifest = unpack(request.file, temporary)
            faultpoint("restore.unpacked")
            require_same_home(manifest, home)
            tokens = len(TokenFile(temporary).list())
            mark_restored(temporary, request.file)
            flush_tree(DISK, temporary)
            faultpoint("restore.verified")
            rename_to_home(temporary, target)
            DISK.fsync_folder(target.parent)
    except BaseException:
        with suppress(OSError):  # the error that is raised says more
            remove_folder(DISK, temporary)
        raise
    return Restored(
        home=home, files=len(manifest.files), bytes=sum(facts.bytes for facts in manifest.files.values()),
        made=manifest.made, version=manifest.trainyard, tokens=tokens,
        settings=PREFIX + SETTINGS in manifest.files, adapters=run_restored(context.settings),
    )  # fmt: skip


def rename_to_home(temporary: Path, home: Path) -> None:
    """Rename the folder to the home: an empty one is replaced, any other is refused by the kernel."""
    try:
        temporary.rename(home)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EXDEV, errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise Conflict(
            f"The home {home} could not get its name.",
            why=f"{error.strerror}: it is a mount point, or something was written there meanwhile.",
            do="Unmount it, restore, and copy the home to the mounted disk; or make it a folder of that disk.",
            code="E-BACKUP",
        ) from error


def require_empty(home: Path) -> None:
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise Conflict(
            f"The home {home} is not empty.", why="A restore makes a home and changes none.",
            do="Move it away first, or set TRAINYARD_HOME to the place of the backup's home.", code="E-BACKUP",
        )  # fmt: skip


def require_same_home(manifest: BackupManifest, home: Path) -> None:
    if manifest.home != str(home):
        raise InvalidInput(
            f"The backup is of the home {manifest.home}, and this one is {home}.",
            why="Records of runs, jobs and results contain absolute paths.",
            do=f"Set TRAINYARD_HOME={manifest.home}; that may be a link to an empty folder's place.",
            code="E-BACKUP",
        )


def unpack(file: Path, folder: Path) -> BackupManifest:
    """Unpack every member and compare its digest with the manifest's, which is the last one."""
    members: dict[str, dict[str, object]] = {}
    manifest: BackupManifest | None = None
    try:
        with tarfile.open(file, "r|gz", tarinfo=BoundedMember) as archive:
            for member in archive:
                if member.isdir() and manifest is None:
                    resolve_member(member.name, folder, file).mkdir(mode=0o700, parents=True)
                    members[member.name] = EMPTY_FOLDER
                    continue
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is None or manifest is not None:
                    raise not_a_backup_error(file, f"{member.name!r} is not a file, or comes after the manifest.")
                if member.name == MANIFEST:
                    manifest = read_manifest(file, stream, member.size)
                else:
                    members[member.name] = write_member(resolve_member(member.name, folder, file), stream, member)
    except (tarfile.TarError, EOFError) as error:
        raise not_a_backup_error(file, f"{type(error).__name__}: {error}.") from error
    except OSError as error:
        if error.errno is not None and error.errno not in OF_THE_ARCHIVE:
            raise
        raise not_a_backup_error(file, f"{error.strerror or error}.") from error  # of the archive: it has no number
    if manifest is None or manifest.backup != VERSION:
        raise not_a_backup_error(file, f"Its manifest is missing, or is not of version {VERSION}.")
    described = {name: facts.model_dump() for name, facts in manifest.files.items()}
    if members != described:
        names = sorted(name for name in {*members, *described} if members.get(name) != described.get(name))
        raise Corrupt(
            f"{len(names)} files of {file.name} are not what its manifest says: {', '.join(names[:3])}.",
            why="The file was changed or damaged after it was written.",
            do="Restore another backup.",
            code="E-BACKUP",
        )
    return manifest


def read_manifest(file: Path, stream: IO[bytes], size: int) -> BackupManifest:
    """Read the manifest. Raises `Corrupt` (`E-BACKUP`) for one that `backup` does not write."""
    if size > MOST_MANIFEST_BYTES:
        raise not_a_backup_error(
            file, f"Its manifest has {size:,} bytes, and at most {MOST_MANIFEST_BYTES:,} are read."
        )
    try:
        return BackupManifest.model_validate_json(stream.read())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise not_a_backup_error(file, f"Its manifest is wrong at {where[:200]}: {first['msg']}.") from error


def resolve_member(name: str, folder: Path, file: Path) -> Path:
    """Return where a member belongs.

    Raises `Corrupt` (`E-BACKUP`) for a name that leads out of the home, and for one that no backup contains: a login
    text, environments with programs, records of processes.
    """
    path = Path(name.removeprefix(PREFIX))
    if not name.startswith(PREFIX) or path.is_absolute() or ".." in path.parts or not path.parts:
        raise not_a_backup_error(file, f"It has a member {name[:200]!r}.")
    if path.parts[0] in LEFT_OUT - {"models"}:
        raise not_a_backup_error(file, f"It has a member {name[:200]!r}, and a backup contains no {path.parts[0]}.")
    return folder / path


def write_member(path: Path, stream: IO[bytes], member: tarfile.TarInfo) -> dict[str, object]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader = Hashing(stream)
    with path.open("xb") as target:
        while block := reader.read(BLOCK_BYTES):
            target.write(block)
    path.chmod(member.mode & 0o700)
    os.utime(path, (member.mtime, member.mtime))
    return {"sha256": reader.hasher.hexdigest(), "bytes": member.size}


def mark_restored(folder: Path, file: Path) -> None:
    """Leave a worker's log: with it `up` settles the runs that were running when the backup was made."""
    (folder / "services").mkdir(mode=0o700)
    (folder / "services" / "worker.log").write_text(f"restored from {file.absolute()}\n", encoding="utf-8")


def not_a_backup_error(file: Path, why: str) -> Corrupt:
    do = "Give a file that `trainyard backup` wrote, complete and unchanged."
    return Corrupt(f"{file.name} is not a valid backup.", why=why, do=do, code="E-BACKUP")
