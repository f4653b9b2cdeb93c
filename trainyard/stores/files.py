"""The few file-system calls that durable stores make, as one object that can be handed in.

    store = DocumentLedger(path)                       RealFiles: the kernel's calls
    store = DocumentLedger(path, files=simulated)      testing.simulated_files: in memory, loses what was not fsynced

A store that writes only through `Files` can be killed after every single call in a test, on a disk that forgets. The
calls are the kernel's own, and they raise the kernel's own `OSError`; `translate_os_errors` turns the ones with a
remedy (disk full, read-only, input/output error) into errors with an answer. What survives a power cut:
bytes after `fsync` of their file, names (created, renamed, removed) after `fsync_folder` of their folder.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

from trainyard.errors import Conflict, InvalidInput, LimitExceeded, TrainyardError, Unavailable

RENAME_NOREPLACE = 1
"""Flag of renameat2(2): fail with EEXIST instead of overwriting the target."""
AT_FDCWD = -100
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NO_FLAG = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})
"""What a kernel or a file system without RENAME_NOREPLACE answers (older kernels, NFS, some FUSE)."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_RENAMEAT2 = getattr(_LIBC, "renameat2", None)


_FLUSHED: WeakKeyDictionary[Files, set[Path]] = WeakKeyDictionary()
"""The folders whose names are on the disk for certain, by the disk that was asked."""


class Files(Protocol):
    """File-system calls. Paths are absolute or relative `Path`s; every method raises `OSError` as the kernel does."""

    def read(self, path: Path) -> bytes:
        """Return the whole file; `FileNotFoundError` if there is none."""

    def write(self, path: Path, data: bytes) -> None:
        """Create or overwrite, not atomically: write to a temporary name and rename for that."""

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end, creating the file if need be; one write call for one reader-visible line."""

    def fsync(self, path: Path) -> None:
        """Flush the bytes of a file to the disk."""

    def fsync_folder(self, path: Path) -> None:
        """Flush the names in a folder to the disk: files that were created, renamed or removed there."""

    def rename_noreplace(self, source: Path, target: Path) -> None:
        """Rename (file or folder) for exactly one of any number of processes.

        Raises `Conflict` (`E-FILE-EXISTS`) when the target is there; `FileNotFoundError` when the source is gone.
        """

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file over whatever is there, atomically."""

    def mkdir(self, path: Path) -> bool:
        """Make one folder; False if the name is taken: exactly one of any number of processes gets True."""

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted; `FileNotFoundError` if there is none."""

    def exists(self, path: Path) -> bool: ...

    def is_folder(self, path: Path) -> bool: ...

    def unlink(self, path: Path) -> None:
        """Remove a file; `FileNotFoundError` if it is gone already."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""

    def size(self, path: Path) -> int:
        """Bytes of a file."""

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file to its first `size` bytes."""

    def locked(self, path: Path) -> AbstractContextManager[None]:
        """Exclusive between processes and threads while entered; the kernel lets go when the holder dies."""


class RealFiles:
    """The kernel's calls."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, data: bytes) -> None:
        with _open_fd(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            _write_all(descriptor, data)

    def append(self, path: Path, data: bytes) -> None:
        with _open_fd(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            _write_all(descriptor, data)

    def fsync(self, path: Path) -> None:
        with _open_fd(path, os.O_RDONLY) as descriptor:  # which a file that nobody may write allows, too
            os.fsync(descriptor)

    def fsync_folder(self, path: Path) -> None:
        with _open_fd(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            os.fsync(descriptor)

    def rename_noreplace(self, source: Path, target: Path) -> None:
        arguments = (AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), RENAME_NOREPLACE)
        problem = errno.ENOSYS
        if _RENAMEAT2 is not None:
            problem = 0 if _RENAMEAT2(*arguments) == 0 else ctypes.get_errno()
        if problem in _NO_FLAG:
            problem = _link_and_unlink(source, target)
        if problem == errno.EEXIST:
            raise file_exists(target)
        if problem:
            raise OSError(problem, os.strerror(problem), str(source), None, str(target))

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def mkdir(self, path: Path) -> bool:
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        return True

    def listdir(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def size(self, path: Path) -> int:
        return os.stat(path).st_size

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        while True:
            with _open_fd(path, os.O_RDWR | os.O_CREAT) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if not is_open(path, descriptor):  # the process that sweeps lock files removed it meanwhile
                    continue
                yield
                return


DISK = RealFiles()
"""The disk of this machine."""


def make_folders(files: Files, path: Path) -> None:
    """Make a folder and those above it, each name flushed to the disk. `NotADirectoryError` if one is a file.

    A folder that is there and empty may be one whose maker failed or died before its name was flushed: it is flushed
    again. Nothing is written to a folder before that, so a folder with content needs no second flush.
    """
    flushed = _FLUSHED.setdefault(files, set())
    if files.is_folder(path):
        if path not in flushed and path.parent != path:
            with suppress(PermissionError):  # what we may not list, or flush, was not made by us
                if not files.listdir(path):
                    files.fsync_folder(path.parent)
            flushed.add(path)
        return
    if path.parent != path:
        make_folders(files, path.parent)
    if not files.mkdir(path) and not files.is_folder(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    files.fsync_folder(path.parent)
    flushed.add(path)


@contextmanager
def translate_os_errors(message: str, only: frozenset[int] = frozenset()) -> Iterator[None]:
    """Turn a disk that is full, read-only or broken into an error that says what to do; others pass unchanged.

    `message` is a sentence without its full stop, such as "The ledger was not written". A block that reads other
    folders, too, names the error numbers that `only` are translated, such as `NO_SPACE`.
    Raises `LimitExceeded` (`E-DISK-FULL`), `Unavailable` (`E-DISK-READ-ONLY`, `E-DISK-ERROR`).
    """
    try:
        yield
    except OSError as error:
        problem = disk_error(message, error) if error.errno in only or not only else None
        if problem is None:
            raise
        raise problem from error


def disk_error(message: str, error: OSError) -> TrainyardError | None:
    """Return the error with an answer for a kernel error; None for one that says nothing about the disk."""
    why = f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}."
    if error.errno in NO_SPACE:
        do = "Free some space on that disk and run it again; a training continues from its last checkpoint."
        return LimitExceeded(f"{message}: the disk is full.", why=why, do=do, code="E-DISK-FULL")
    if error.errno in _NOT_WRITABLE:
        do = "Mount it writable, or give this user the right to write there, and run it again."
        return Unavailable(f"{message}: the folder cannot be written.", why=why, do=do, code="E-DISK-READ-ONLY")
    if error.errno == errno.EIO:
        do = "Look at the kernel log; move TRAINYARD_HOME to a sound disk and run it again."
        return Unavailable(f"{message}: the disk reports an error.", why=why, do=do, code="E-DISK-ERROR")
    return None


def free_bytes(folder: Path) -> int:
    """Free space for this user on the disk of a folder that need not be there yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def lacking_space(folder: Path, least_bytes: int) -> LimitExceeded | None:
    """Return the error (`E-DISK-FULL`) of a disk with less free space than that; None if there is enough."""
    free = free_bytes(folder)
    if free >= least_bytes:
        return None
    return LimitExceeded(
        f"The disk of {folder} has {free / (1 << 20):,.0f} MiB free, less than {least_bytes / (1 << 20):,.0f} MiB.",
        why="What is started now would fail in the middle, when the disk is full.",
        do="Free space there, point TRAINYARD_HOME at a larger disk, or lower TRAINYARD_MIN_FREE_MB.",
        code="E-DISK-FULL",
    )


def require_inside(root: Path, path: Path, subject: str, root_name: str) -> Path:
    """Return the path, after a check that no link leads out of the root. Raises `InvalidInput` (`E-NAME`)."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise InvalidInput(
            f"{subject} lies outside {root_name}.",
            why="A part of its path is a symbolic link.",
            do="Remove the link.",
            code="E-NAME",
        )
    return path


def file_exists(target: Path) -> Conflict:
    return Conflict(
        f"{target.name} is there already.",
        why="Another process made it first, or an earlier run did.",
        do="Read it instead of making it again.",
        code="E-FILE-EXISTS",
    )


@contextmanager
def _open_fd(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_open(path: Path, descriptor: int) -> bool:
    """Whether the name still means the file that is open."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`: a write may be short (a signal, a nearly full disk), so repeat until done or an error."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _link_and_unlink(source: Path, target: Path) -> int:
    """Return the same for files where the flag is not known: link(2) never overwrites. 0, or the error number.

    Between the two calls both names exist; a crash there leaves the source too, which its owner removes.
    """
    try:
        if source.is_dir():  # rename(2) fails where the target is a folder with something in it
            os.rename(source, target)
            return 0
        os.link(source, target)
        os.unlink(source)
    except OSError as error:
        return errno.EEXIST if error.errno == errno.ENOTEMPTY else error.errno or errno.EIO
    return 0
