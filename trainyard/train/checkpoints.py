"""A checkpoint exists whole and verified, or does not exist.

Written to a temporary folder, every file fsynced, `manifest.json` with the SHA-256 of each last, then renamed and the
parent fsynced. A resumed run takes the newest one whose files match their manifest; one that does not match is
quarantined (never deleted, never loaded) and reported.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.stores.artifacts import DISK, write_json_durably
from trainyard.stores.files import Files, make_folders
from trainyard.stores.whole import (
    MANIFEST,
    describe,
    files_below,
    flush_name,
    flush_tree,
    move_folder,
    remove_folder,
    settle,
)

KEPT = 2
NAME = re.compile(r"step-(\d{10})")
QUARANTINE = "quarantine"
REPLACED = ".replaced"
Described = Mapping[str, Mapping[str, Any]]
"""Relative name -> {sha256, bytes}."""
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_SPACE_WORDS = re.compile(
    rf"os error ({'|'.join(map(str, sorted(NO_SPACE)))})\b|No space left|quota exceeded|File too large"
    r"|file write failed|PytorchStreamWriter|unexpected pos",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class FoundCheckpoint:
    """The newest valid checkpoint, and the damaged ones that were quarantined on the way to it."""

    path: Path | None
    step: int
    quarantined: tuple[str, ...] = ()
    """One sentence for each checkpoint that was found damaged."""
    fetched_from: str = ""
    """Address of the mirror that it was brought from; empty if it was here."""


def nothing(_point: str) -> None:
    """Default observer of the points of a commit."""


def commit(
    root: Path,
    step: int,
    write: Callable[[Path], Described | None],
    *,
    at: Callable[[str], None] = nothing,
    keep: int | None = KEPT,
    facts: Mapping[str, Any] = MappingProxyType({}),
    files: Files = DISK,
) -> Path:
    """Write a checkpoint by `write(folder)` and make it exist; keep the newest `keep` (None: prune nothing).

    A `write` that hashed what it wrote returns the digests, as `describe_files` does, and nothing is read again.
    `facts` go into the manifest. `at` gets each point that is passed (`checkpoint.written`, `.synced`, `.manifest`,
    `.replaced` where there was one of that step, `.renamed`): a test kills the process there. Raises `E-DISK-FULL`
    without leaving anything behind.
    """
    final = root / f"step-{step:010d}"
    temporary, replaced = root / f".{final.name}.{os.getpid()}.tmp", root / f".{final.name}{REPLACED}"
    make_folders(files, root)
    remove_folder(files, temporary)
    with whole_or_nothing(temporary, files):
        known = write(temporary)
        at("checkpoint.written")
        seal(temporary, at, known, facts, files)
        if files.is_folder(final):
            settle(files, replaced, final)
            files.rename_noreplace(final, replaced)
            at("checkpoint.replaced")
        move_folder(files, temporary, final)
    settle(files, replaced, final)
    at("checkpoint.renamed")
    if keep is not None:
        for path, _ in checkpoints(root, files)[keep:]:
            drop(path, files)
    return final


def seal(
    folder: Path,
    at: Callable[[str], None] = nothing,
    known: Described | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
    files: Files = DISK,
) -> None:
    """Flush every file and folder, then write the manifest."""
    described = describe(files, folder) if known is None else known
    flush_tree(files, folder)
    at("checkpoint.synced")
    write_json_durably(folder / MANIFEST, {**facts, "files": described}, files)
    at("checkpoint.manifest")


def drop(path: Path, files: Files = DISK) -> None:
    """Remove a checkpoint that is not needed any more: by its name first, so that a half of it is never found."""
    going = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
    files.rename_noreplace(path, going)
    files.fsync_folder(path.parent)
    remove_folder(files, going)


@contextmanager
def whole_or_nothing(temporary: Path, files: Files = DISK) -> Iterator[None]:
    """Create the folder; remove it again when the block fails, and raise `LimitExceeded` for a full disk."""
    make_folders(files, temporary.parent)
    files.mkdir(temporary)
    try:
        yield
    except Exception as error:
        left = files_below(files, temporary) if files.is_folder(temporary) else []
        written = sum(files.size(path) for path in left)
        with suppress(OSError):  # `tidy` tries again; the error that is on its way says more than ours
            remove_folder(files, temporary)
        if is_disk_full(error):
            raise disk_full(temporary.parent, written) from error
        raise


def is_disk_full(error: BaseException) -> bool:
    """Whether an error of the system, of torch or of safetensors means that the disk is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in NO_SPACE
    return NO_SPACE_WORDS.search(str(error)) is not None


def disk_full(folder: Path, needed: int) -> TrainyardError:
    free = shutil.disk_usage(folder).free
    return TrainyardError(
        f"The disk of {folder} is full: at least {needed:,} bytes are needed, {free:,} are free.",
        why="Nothing half-written was left; the last complete checkpoint is untouched.",
        do="Free space or move TRAINYARD_HOME to a larger disk, then start the run again: it continues.",
        code="E-DISK-FULL",
    )


def require_space(folder: Path, needed: int) -> None:
    """Refuse to start what cannot be saved. Raises `E-DISK-FULL`."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < needed:
        raise disk_full(folder, needed)


def checkpoints(root: Path, files: Files = DISK) -> list[tuple[Path, int]]:
    """Committed checkpoints and their steps, newest first."""
    if not files.is_folder(root):
        return []
    found = [(root / name, int(match[1])) for name in files.listdir(root) if (match := NAME.fullmatch(name))]
    return sorted(found, key=lambda pair: pair[1], reverse=True)


def newest_valid(root: Path, files: Files = DISK) -> FoundCheckpoint:
    """The newest checkpoint whose bytes match its manifest. Damaged ones move to `quarantine/`; leftovers go.

    What is found survives a power cut: its name is flushed again, for its writer may have died before it did.
    """
    tidy(root, files)
    aside: list[str] = []
    for path, step in checkpoints(root, files):
        damage = damage_of(path, files)
        if damage is None:
            flush_name(files, path)
            return FoundCheckpoint(path, step, tuple(aside))
        aside.append(f"The checkpoint of step {step} is damaged ({damage}) and was quarantined.")
        quarantine(root, path, files)
    return FoundCheckpoint(None, 0, tuple(aside))


def tidy(root: Path, files: Files = DISK) -> None:
    """Remove what a killed process left half-written; put back what it was about to replace."""
    for name in files.listdir(root) if files.is_folder(root) else ():
        if name.startswith(".step-") and name.endswith(".tmp"):
            remove_folder(files, root / name)
        elif name.startswith(".step-") and name.endswith(REPLACED):
            settle(files, root / name, root / name.removeprefix(".").removesuffix(REPLACED))


def damage_of(folder: Path, files: Files = DISK) -> str | None:
    """What is wrong with a checkpoint; None if every file is as its manifest says."""
    try:
        expected = json.loads(files.read(folder / MANIFEST))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest cannot be read"
    present = describe(files, folder)
    for name in sorted(expected.keys() | present.keys()):
        if name not in present:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is not in its manifest"
        if present[name] != expected[name]:
            return f"{name} has other bytes than when it was written"
    return None


def quarantine(root: Path, path: Path, files: Files = DISK) -> None:
    target = root / QUARANTINE / path.name
    number = 1
    while files.exists(target):
        number += 1
        target = target.with_name(f"{path.name}-{number}")
    move_folder(files, path, target)
