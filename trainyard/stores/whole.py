"""A folder exists whole and verified, or does not exist; what was said to be there survives a power cut.

    seal(files, temporary, manifest)          flush every file and folder, then the manifest, last
    move_folder(files, temporary, final)      rename, and flush the name
    settle(files, replaced, final)            what a killed process left of an exchange
    remove_folder(files, folder)

The three rules behind it, each of which `testing/store_faults` breaks on purpose and has to notice: names are flushed
like bytes, also those of sub-folders; nothing is renamed before it is flushed; a process that *finds* a result flushes
its name again, because the one that made it may have died before its last flush.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from trainyard.stores.files import Files, RealFiles, make_folders, write_whole

MANIFEST = "manifest.json"
BLOCK_BYTES = 1 << 20


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file, read in 1 MiB pieces."""
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest()


def files_below(files: Files, folder: Path) -> list[Path]:
    """Every file below a folder, sorted."""
    found: list[Path] = []
    for name in files.listdir(folder):
        path = folder / name
        found += files_below(files, path) if files.is_folder(path) else [path]
    return sorted(found)


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Relative name -> {sha256, bytes} of every regular file below `folder`, the manifest excepted."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder) != Path(MANIFEST))
    return {
        path.relative_to(folder).as_posix(): {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        for path in files
    }


def describe(files: Files, folder: Path) -> dict[str, dict[str, Any]]:
    """`describe_files` on any disk: on the machine's own in pieces, since weights are large."""
    if isinstance(files, RealFiles):
        return describe_files(folder)
    own = [path for path in files_below(files, folder) if path != folder / MANIFEST]
    contents = {path.relative_to(folder).as_posix(): files.read(path) for path in own}
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


def seal(files: Files, folder: Path, manifest: bytes) -> None:
    """Flush all that is in the folder, then write the manifest: who finds it finds everything else."""
    flush_tree(files, folder)
    write_whole(files, folder / MANIFEST, manifest)


def move_folder(files: Files, source: Path, target: Path) -> None:
    """Rename a sealed folder and flush its new name. Raises `Conflict` (`E-FILE-EXISTS`) when the target is there."""
    make_folders(files, target.parent)
    files.rename_noreplace(source, target)
    flush_name(files, target)


def flush_name(files: Files, path: Path) -> None:
    """Flush the name of a file or folder that is there: the process that made it may have died before it did."""
    files.fsync_folder(path.parent)


def settle(files: Files, replaced: Path, final: Path) -> None:
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


def fsync_path(path: Path) -> None:
    """Flush a file or a folder entry to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
