"""Bugs that are injected into the stores on purpose: each is a plausible mistake, and is found.

python -m trainyard.testing.store_faults.simulate --campaigns 2000 --inject found-not-flushed    ends with exit code 1
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainyard.stores import adapters, artifacts, files, whole
from trainyard.testing.simulated_files import SimulatedFiles
from trainyard.testing.simulation import Swap, always
from trainyard.train.checkpoint import checkpoints


def moves_without_flush(disk: files.Files, source: Path, target: Path) -> None:
    files.make_folders(disk, target.parent)
    disk.rename_noreplace(source, target)


def moves_into_an_unflushed_folder(disk: files.Files, source: Path, target: Path) -> None:
    """The folder that it moves to may be new itself."""
    missing = [parent for parent in reversed(target.parents) if not disk.is_folder(parent)]
    for parent in missing:
        disk.mkdir(parent)
    disk.rename_noreplace(source, target)
    disk.fsync_folder(target.parent)


def flushes_files_only(disk: files.Files, folder: Path) -> None:
    for path in whole.list_files(disk, folder):
        disk.fsync(path)
    disk.fsync_folder(folder)


def manifest_before_flush(
    disk: files.Files, folder: Path, described: Any, facts: Any = whole.NO_FACTS, *_: object
) -> None:
    whole.write_json_durably(folder / whole.MANIFEST, {**facts, "files": described}, disk)


def believes_the_version(_self: object, version: object) -> object:
    return version


def removes_first(disk: files.Files, replaced: Path, final: Path) -> None:
    """The old result goes before the new one is there for certain."""
    if disk.is_folder(replaced):
        whole.remove_folder(disk, replaced)


def writes_in_place(disk: files.Files, path: Path, data: bytes) -> None:
    disk.write(path, data)
    disk.fsync(path)
    disk.fsync_folder(path.parent)


def renames_unflushed(disk: files.Files, path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    disk.write(temporary, data)
    disk.replace(temporary, path)
    disk.fsync_folder(path.parent)


def build_swaps() -> dict[str, tuple[Swap, ...]]:
    """Name -> what is replaced."""
    return {
        "no-fsync": ((SimulatedFiles, "fsync", always()),),
        "no-folder-fsync": ((SimulatedFiles, "fsync_folder", always()),),
        "moved-not-flushed": ((whole, "move_folder", moves_without_flush),),
        "new-folder-not-flushed": ((whole, "move_folder", moves_into_an_unflushed_folder),),
        "sub-folders-not-flushed": ((whole, "flush_tree", flushes_files_only),),
        "rename-before-fsync": ((whole, "seal", manifest_before_flush),),
        "found-not-flushed": ((artifacts, "flush_name", always()),),
        "found-checkpoint-not-flushed": ((checkpoints, "flush_name", always()),),
        "found-version-not-flushed": ((adapters.AdapterRegistry, "flushed", believes_the_version),),
        "old-removed-first": ((whole, "finish_exchange", removes_first),),
        "written-in-place": tuple((module, "write_whole", writes_in_place) for module in (adapters, whole)),
        "file-renamed-before-fsync": tuple((module, "write_whole", renames_unflushed) for module in (adapters, whole)),
    }  # fmt: skip


INJECTED_BUGS = tuple(build_swaps())
