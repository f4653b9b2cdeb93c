"""A checkpoint exists whole and verified, or does not exist.

Written to a temporary folder, every file fsynced, `manifest.json` with the SHA-256 of each last, then renamed and the
parent fsynced. Whoever resumes takes the newest one whose files match their manifest; one that does not match is put
aside (never deleted, never loaded) and told.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.stores.artifacts import MANIFEST, describe_files, fsync_path, write_json_durably

KEPT = 2
NAME = re.compile(r"step-(\d{10})")
QUARANTINE = "quarantine"
REPLACED = ".replaced"
Files = Mapping[str, Mapping[str, Any]]
"""Relative name -> {sha256, bytes}."""
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_SPACE_WORDS = re.compile(
    rf"os error ({'|'.join(map(str, sorted(NO_SPACE)))})\b|No space left|quota exceeded|File too large"
    r"|file write failed|PytorchStreamWriter|unexpected pos",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Found:
    """The newest valid checkpoint, and what was put aside on the way to it."""

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
    write: Callable[[Path], Files | None],
    *,
    at: Callable[[str], None] = nothing,
    keep: int | None = KEPT,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write a checkpoint by `write(folder)` and make it exist; keep the newest `keep` (None: prune nothing).

    A `write` that hashed what it wrote returns the digests, as `describe_files` does, and nothing is read again.
    `facts` go into the manifest. `at` is told each point that is passed (`checkpoint.written`, `.synced`, `.manifest`,
    `.replaced` where there was one of that step, `.renamed`): a test kills the process there. Raises `E-DISK-FULL`
    without leaving anything behind.
    """
    final = root / f"step-{step:010d}"
    temporary, replaced = root / f".{final.name}.{os.getpid()}.tmp", root / f".{final.name}{REPLACED}"
    root.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    with whole_or_nothing(temporary):
        known = write(temporary)
        at("checkpoint.written")
        seal(temporary, at, known, facts)
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
            at("checkpoint.replaced")
        temporary.rename(final)
    fsync_path(root)
    shutil.rmtree(replaced, ignore_errors=True)
    at("checkpoint.renamed")
    if keep is not None:
        for path, _ in checkpoints(root)[keep:]:
            shutil.rmtree(path)
    return final


def seal(
    folder: Path,
    at: Callable[[str], None] = nothing,
    known: Files | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """fsync every file, then write the manifest."""
    files = describe_files(folder) if known is None else known
    for name in files:
        fsync_path(folder / name)
    at("checkpoint.synced")
    write_json_durably(folder / MANIFEST, {**facts, "files": files})
    at("checkpoint.manifest")


@contextmanager
def whole_or_nothing(temporary: Path) -> Iterator[None]:
    """Create the folder; remove it again when the block fails, and tell a full disk from other errors."""
    temporary.mkdir(parents=True)
    try:
        yield
    except Exception as error:
        written = sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file())
        shutil.rmtree(temporary, ignore_errors=True)
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
        f"The disk that holds {folder} is full: at least {needed:,} bytes are needed, {free:,} are free.",
        why="Nothing half-written was left; the last complete checkpoint is untouched.",
        do="Free space or move TRAINYARD_HOME to a larger disk, then start the run again: it continues.",
        code="E-DISK-FULL",
    )


def require_space(folder: Path, needed: int) -> None:
    """Refuse to start what cannot be saved. Raises `E-DISK-FULL`."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < needed:
        raise disk_full(folder, needed)


def checkpoints(root: Path) -> list[tuple[Path, int]]:
    """Committed checkpoints and their steps, newest first."""
    if not root.is_dir():
        return []
    found = [(path, int(match[1])) for path in root.iterdir() if (match := NAME.fullmatch(path.name))]
    return sorted(found, key=lambda pair: pair[1], reverse=True)


def newest_valid(root: Path) -> Found:
    """The newest checkpoint whose bytes match its manifest. Damaged ones move to `quarantine/`; leftovers go."""
    tidy(root)
    aside: list[str] = []
    for path, step in checkpoints(root):
        damage = damage_of(path)
        if damage is None:
            return Found(path, step, tuple(aside))
        aside.append(f"The checkpoint of step {step} is damaged ({damage}) and was put aside.")
        put_aside(root, path)
    return Found(None, 0, tuple(aside))


def tidy(root: Path) -> None:
    """Remove what a killed process left half-written; put back what it was about to replace."""
    for leftover in root.glob(".step-*.tmp"):
        shutil.rmtree(leftover)
    for replaced in root.glob(f".step-*{REPLACED}"):
        final = root / replaced.name.removeprefix(".").removesuffix(REPLACED)
        if final.exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(final)


def damage_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint; None if every file is as its manifest says."""
    try:
        expected = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest cannot be read"
    present = describe_files(folder)
    for name in sorted(expected.keys() | present.keys()):
        if name not in present:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is not in its manifest"
        if present[name] != expected[name]:
            return f"{name} has other bytes than when it was written"
    return None


def put_aside(root: Path, path: Path) -> None:
    target = root / QUARANTINE / path.name
    target.parent.mkdir(exist_ok=True)
    number = 1
    while target.exists():
        number += 1
        target = target.with_name(f"{path.name}-{number}")
    path.rename(target)
