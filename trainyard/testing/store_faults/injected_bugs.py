"""Bugs that are injected into the stores on purpose: each is a mistake that somebody could make, and is found.

python -m trainyard.testing.store_faults.simulate --campaigns 2000 --inject found-not-flushed    ends with exit code 1
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from trainyard.stores import adapters, artifacts, files, whole
from trainyard.testing.simulated_files import SimulatedFiles
from trainyard.testing.store_faults.swaps import Swap, swapped
from trainyard.train import checkpoints


def no_flush(self: SimulatedFiles, path: Path) -> None:
    """Nothing is flushed."""


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
    for path in whole.files_below(disk, folder):
        disk.fsync(path)
    disk.fsync_folder(folder)


def manifest_before_flush(disk: files.Files, folder: Path, manifest: bytes) -> None:
    files.write_whole(disk, folder / whole.MANIFEST, manifest)


def not_sealed(folder: Path, at: Any, known: Any, facts: Any, disk: files.Files) -> None:
    described = whole.describe(disk, folder) if known is None else known
    artifacts.write_json_durably(folder / whole.MANIFEST, {**facts, "files": described}, disk)


def believes_the_name(disk: files.Files, path: Path) -> None:
    """What is found counts as flushed, although its maker may have died before it did."""


def believes_the_version(_self: Any, version: Any) -> Any:
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


def table() -> dict[str, tuple[Swap, ...]]:
    """Name -> what is replaced."""
    writers = (files, artifacts, whole, adapters)
    return {
        "no-fsync": ((SimulatedFiles, "fsync", no_flush),),
        "no-folder-fsync": ((SimulatedFiles, "fsync_folder", no_flush),),
        "moved-not-flushed": tuple((one, "move_folder", moves_without_flush) for one in (artifacts, checkpoints)),
        "new-folder-not-flushed": ((artifacts, "move_folder", moves_into_an_unflushed_folder),),
        "sub-folders-not-flushed": tuple((one, "flush_tree", flushes_files_only) for one in (whole, checkpoints)),
        "rename-before-fsync": ((artifacts, "seal", manifest_before_flush), (checkpoints, "seal", not_sealed)),
        "found-not-flushed": ((artifacts, "flush_name", believes_the_name),),
        "found-checkpoint-not-flushed": ((checkpoints, "flush_name", believes_the_name),),
        "found-version-not-flushed": ((adapters.AdapterRegistry, "flushed", believes_the_version),),
        "old-removed-first": ((artifacts, "settle", removes_first), (checkpoints, "settle", removes_first)),
        "written-in-place": tuple((one, "write_whole", writes_in_place) for one in writers),
        "file-renamed-before-fsync": tuple((one, "write_whole", renames_unflushed) for one in writers),
    }  # fmt: skip


INJECTED_BUGS = tuple(table())


def injected_bug(name: str | None) -> AbstractContextManager[None]:
    """The stores with this mistake in them; None changes nothing."""
    return swapped(table()[name] if name else ())
