"""A file or a folder exists whole, or does not exist; what was reported to be there survives a power cut.

    write_whole(files, path, data)            replace a small file: a reader sees the old bytes or the new ones
    write_json_durably(path, value)           the same for JSON
    create_whole(files, path, data)           create a file, for exactly one of any number of processes
    with new_file(path) as temporary: …       a file that is large, or that another program writes
    with file_to_create(path) as temporary: … the same for a file that replaces no other
    write_folder(target, write)               a folder with a manifest of the SHA-256 of every file

All of Trainyard writes through these, with two exceptions, each for its reason: `compute/child.write_error` fills
space that it has reserved before, because it reports full disks; the workers (`workers/trainyard_worker/files.py`) run
in interpreters without this package, and a test compares their checkpoints with those of `write_folder`.

The three rules behind it, each of which `testing/store_faults` breaks on purpose and has to notice: names are flushed
like bytes, also those of sub-folders; nothing is renamed before it is flushed; a process that *finds* a result flushes
its name again, because the one that made it may have died before its last flush.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainyard.callbacks import ignore
from trainyard.cancellation import require_caller
from trainyard.errors import Conflict, LimitExceeded
from trainyard.json_types import JsonObject
from trainyard.stores.files import DISK, NO_SPACE, Files, RealFiles, make_folders, translate_os_errors

MANIFEST = "manifest.json"
REPLACED = ".replaced"
BLOCK_BYTES = 1 << 20
NO_SPACE_WORDS = re.compile(
    rf"os error ({'|'.join(map(str, sorted(NO_SPACE)))})\b|No space left|quota exceeded|File too large"
    r"|file write failed|PytorchStreamWriter|unexpected pos",
    re.IGNORECASE,
)
"""What safetensors and torch say of a full disk."""
Described = Mapping[str, Mapping[str, Any]]
"""Relative name -> {sha256, bytes}."""
NO_FACTS: Mapping[str, object] = MappingProxyType({})


# Files


@contextmanager
def new_file(path: Path, files: Files = DISK) -> Iterator[Path]:
    """A name next to `path` to write to; its file replaces `path` durably when the block ends, else it is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        files.fsync(temporary)
        files.replace(temporary, path)
    except Exception:
        discard(files, temporary)
        raise
    files.fsync_folder(path.parent)


def write_whole(files: Files, path: Path, data: bytes) -> None:
    """Replace a file durably: a reader, also after a power cut, sees the old bytes or the new ones, never a half."""
    with new_file(path, files) as temporary:
        files.write(temporary, data)


def write_json_durably(path: Path, value: object, files: Files = DISK) -> None:
    """Write JSON so that a reader sees the old text or the new one, never a half; nothing is left of a failure.

    Raises `LimitExceeded` (`E-DISK-FULL`), `Unavailable` (`E-DISK-READ-ONLY`, `E-DISK-ERROR`).
    """
    with translate_os_errors(f"{path} was not written"):
        write_whole(files, path, json.dumps(value, indent=1, sort_keys=True).encode())


def create_whole(files: Files, path: Path, data: bytes, *, word: str = "") -> None:
    """Create a file durably and whole, for exactly one of any number of processes.

    `word` keeps the temporary names of concurrent creators apart (the process id does by default).
    Raises `Conflict` (`E-FILE-EXISTS`) when the name is taken, and on the disk.
    """
    with file_to_create(path, files, word=word) as temporary:
        files.write(temporary, data)


@contextmanager
def file_to_create(path: Path, files: Files = DISK, *, word: str = "") -> Iterator[Path]:
    """A name next to `path` to write to; its file becomes `path` durably when the block ends, and replaces nothing.

    `word` and errors are those of `create_whole`; a failure leaves nothing behind.
    """
    temporary = path.with_name(f".{path.name}.{word or os.getpid()}.tmp")
    try:
        yield temporary
        files.fsync(temporary)
    except BaseException:
        discard(files, temporary)
        raise
    try:
        files.rename_noreplace(temporary, path)
    except OSError:
        discard(files, temporary)
        raise
    except Conflict:
        files.unlink(temporary)
        files.fsync_folder(path.parent)  # its creator may have failed or died before this
        raise
    files.fsync_folder(path.parent)


def discard(files: Files, temporary: Path) -> None:
    """Remove what a failed write has left, which may be nothing; the error that is raised says more than ours."""
    with suppress(OSError):
        files.unlink(temporary)


# Folders


def write_folder(
    target: Path,
    write: Callable[[Path], Described | None],
    *,
    facts: Mapping[str, object] | None = NO_FACTS,
    at: Callable[[str], None] = ignore,
    files: Files = DISK,
) -> None:
    """Make `target` of what `write(folder)` leaves in an empty folder; a target that is there is exchanged.

    A `write` that hashed what it wrote returns the digests, as `describe_files` does, and nothing is read again.
    `facts` go into the manifest; with None there is no manifest, and `target` may not exist. `at` is called at each
    point that is passed (`written`, `synced`, `manifest`, `replaced` where there was a target, `renamed`): a test
    kills the process there. One process at a time may write a target. Raises `LimitExceeded` (`E-DISK-FULL`); a failure
    leaves nothing behind.
    """
    temporary, replaced = (target.with_name(f".{target.name}{end}") for end in (".tmp", REPLACED))
    with whole_or_nothing(temporary, files):
        digests = write(temporary)
        at("written")
        if facts is None:
            flush_tree(files, temporary)
        else:
            seal(files, temporary, digests or describe(files, temporary), facts, at)
        if facts is not None and files.is_folder(target):
            finish_exchange(files, replaced, target)
            files.rename_noreplace(target, replaced)
            at("replaced")
        move_folder(files, temporary, target)
    finish_exchange(files, replaced, target)
    at("renamed")


@contextmanager
def whole_or_nothing(temporary: Path, files: Files = DISK) -> Iterator[None]:
    """Make the folder, empty; remove it when the block fails. Raises `LimitExceeded` (`E-DISK-FULL`)."""
    make_folders(files, temporary.parent)
    remove_folder(files, temporary)
    files.mkdir(temporary)
    try:
        yield
    except Exception as error:
        left = list_files(files, temporary) if files.is_folder(temporary) else []
        written = sum(files.size(path) for path in left)
        with suppress(OSError):  # the next writer tries again; the error that is raised says more than ours
            remove_folder(files, temporary)
        if is_disk_full(error):
            raise disk_full(temporary.parent, written) from error
        raise


def is_disk_full(error: BaseException) -> bool:
    """Whether an error of the system, of torch or of safetensors means that the disk is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in NO_SPACE
    return NO_SPACE_WORDS.search(str(error)) is not None


def disk_full(folder: Path, needed: int) -> LimitExceeded:
    free = shutil.disk_usage(folder).free
    return LimitExceeded(
        f"The disk that contains {folder} is full: at least {needed:,} bytes are needed, {free:,} are free.",
        why="Nothing half-written was left; the last complete checkpoint is untouched.",
        do="Free space or move TRAINYARD_HOME to a larger disk, then start the run again: it continues.",
        code="E-DISK-FULL",
    )


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file, read in 1 MiB pieces."""
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            require_caller()
            hasher.update(block)
    return hasher.hexdigest()


def list_files(files: Files, folder: Path) -> list[Path]:
    """Return every file below a folder, sorted."""
    paths: list[Path] = []
    for name in files.listdir(folder):
        path = folder / name
        paths += list_files(files, path) if files.is_folder(path) else [path]
    return sorted(paths)


def describe_files(folder: Path) -> dict[str, JsonObject]:
    """Relative name -> {sha256, bytes} of every regular file below `folder`, the manifest excepted."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder) != Path(MANIFEST))
    return {
        path.relative_to(folder).as_posix(): {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        for path in files
    }


def describe(files: Files, folder: Path) -> dict[str, JsonObject]:
    """`describe_files` on any disk: on the machine's own in pieces, since weights are large."""
    if isinstance(files, RealFiles):
        return describe_files(folder)
    paths = [path for path in list_files(files, folder) if path != folder / MANIFEST]
    contents = {path.relative_to(folder).as_posix(): files.read(path) for path in paths}
    return {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in contents.items()}


def flush_tree(files: Files, folder: Path) -> None:
    """Flush every file below a folder, and the names in it and in its sub-folders, the deepest first."""
    if isinstance(files, RealFiles):
        for parent, _, names in os.walk(folder, topdown=False):  # which follows no link
            for path in (Path(parent, name) for name in names):
                if path.is_file():
                    files.fsync(path)
            files.fsync_folder(Path(parent))
        return
    for name in files.listdir(folder):
        path = folder / name
        if files.is_folder(path):
            flush_tree(files, path)
        else:
            files.fsync(path)
    files.fsync_folder(folder)


def seal(
    files: Files,
    folder: Path,
    described: Described,
    facts: Mapping[str, object] = NO_FACTS,
    at: Callable[[str], None] = ignore,
) -> None:
    """Flush all that is in the folder, then write the manifest: who finds it finds everything else."""
    flush_tree(files, folder)
    at("synced")
    write_json_durably(folder / MANIFEST, {**facts, "files": described}, files)
    at("manifest")


def move_folder(files: Files, source: Path, target: Path) -> None:
    """Rename a sealed folder and flush its new name. Raises `Conflict` (`E-FILE-EXISTS`) when the target is there."""
    make_folders(files, target.parent)
    files.rename_noreplace(source, target)
    flush_name(files, target)


def flush_name(files: Files, path: Path) -> None:
    """Flush the name of a file or folder that is there: the process that made it may have died before it did."""
    files.fsync_folder(path.parent)


def finish_exchange(files: Files, replaced: Path, final: Path) -> None:
    """Finish an exchange that was interrupted: keep the new folder if it is there for certain, else the old one."""
    if not files.is_folder(replaced):
        return
    if files.exists(final / MANIFEST):
        flush_name(files, final)
        remove_folder(files, replaced)
    elif files.exists(replaced / MANIFEST):
        if files.is_folder(final):
            remove_folder(files, final)
        move_folder(files, replaced, final)
    else:
        remove_folder(files, replaced)


def remove_folder(files: Files, folder: Path) -> None:
    """Remove a folder, if it exists. The manifest goes first: without it the other files are not a result."""
    if not files.is_folder(folder):
        return
    if files.exists(folder / MANIFEST):
        files.unlink(folder / MANIFEST)
    if isinstance(files, RealFiles):
        shutil.rmtree(folder)  # which follows no link
        return
    for name in files.listdir(folder):
        path = folder / name
        if files.is_folder(path):
            remove_folder(files, path)
        else:
            files.unlink(path)
    files.rmdir(folder)
