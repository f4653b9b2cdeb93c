"""Paths that stay inside their roots: resolve first, then ask whether the result is contained, never filter text.

A chain may name any path; at run it has to resolve, symbolic links included, into one of the data roots. Spellings
that mean something else on another layer (percent escapes, backslashes, drive letters, `//host`, NUL) are refused too.

TRAINYARD_HOME often lies in the working folder, and contains the folders of all tenants, tokens and runs. A root opens
what is in it, except for the home; a root in the home, as a tenant's is, opens what is in that root.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from trainyard.errors import InvalidInput, NotFound, Reason, Refused
from trainyard.locations import home_from_environment
from trainyard.spec.load.spellings import did_you_mean, nearest_paths

if TYPE_CHECKING:
    from trainyard.settings import Settings

ODD_SPELLING = re.compile(r"\x00|%(?:00|2e|2f|5c)|\\|^//|^[a-z]:|^[a-z][a-z0-9+.-]*://|^file:", re.IGNORECASE)

ROW_SUFFIXES = {".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".csv", ".tsv"}
PROTECTED_LINKS = Path("/proc/sys/fs/protected_hardlinks")
"""Linux: 1 where only who may read and write a file, or owns it, can give it another name."""
UNFOLLOWED = (OSError, RuntimeError, ValueError)
"""What following a path raises if it is too long, a circle of links, or not a valid file name."""
SHOWN_CHARS = 200

WHERE_RELATIVE = (
    "A relative path starts where the command is called; in a form, over REST and in `prefect deployment run` "
    "it starts where `trainyard up` was called."
)


def find_suffix(name: str) -> str:
    """Return the extension that says the type, looking through `.gz`."""
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix == ".gz" else path.suffix


@lru_cache(64)
def real_root(root: Path) -> Path:
    """Return a data root without links; the same for every file of a set."""
    return root.resolve()


def data_roots(settings: Settings, tenant: str | None = None) -> tuple[Path, ...]:
    """Where chains may read: the working folder, the tenant's root, then the operator's `data_roots`.

    For another tenant than that of the settings the working folder is the tenant's root.
    """
    tenant_settings = settings.for_tenant(tenant or "")
    return tuple(
        dict.fromkeys(
            (
                tenant_settings.working_folder,
                tenant_settings.tenant_folder(tenant_settings.tenant),
                *tenant_settings.data_roots,
            )
        )
    )


def is_inside(path: Path, roots: Iterable[Path]) -> bool:
    """Whether a path without links lies in one of the roots, and in the home only where the root does, too."""
    containing = [root for root in map(real_root, roots) if path.is_relative_to(root)]
    home = real_root(home_from_environment())
    return any(root.is_relative_to(home) for root in containing) or bool(containing and not path.is_relative_to(home))


def explain_closed(path: Path) -> str:
    """Why `is_inside` says no."""
    if path.is_relative_to(real_root(home_from_environment())):
        return "in TRAINYARD_HOME, of which a chain reads the folder of its tenant alone"
    return "outside of the data roots"


def resolve_inside(path: str | Path, roots: Sequence[Path], *, field: str = "config.path") -> Path:
    """Return the real path of `path`, which lies inside one of `roots`.

    A relative path is looked up in each root in turn; the first that exists wins. Raises `Refused` (`R-PATH-ROOT`)
    for a path that leaves its root, whether or not it exists there, and `NotFound` (`E-DATA-NOT-FOUND`).
    """
    text = os.fspath(path)
    if ODD_SPELLING.search(text):
        raise refuse_path(
            text, roots, field, "is not a plain path (escapes, drives, hosts and backslashes are not read)"
        )
    real_roots = [root.expanduser().resolve() for root in roots]
    try:
        candidates = [(root / text).resolve() for root in real_roots]
        contained = [candidate for candidate in candidates if is_inside(candidate, real_roots)]
        existing = next((candidate for candidate in contained if candidate.exists()), None)
    except UNFOLLOWED as error:
        raise refuse_path(text, roots, field, f"cannot be followed: {explain_error(error)}") from error
    if not contained:
        raise refuse_path(
            text, roots, field, f"leads to {candidates[0]}, {explain_closed(candidates[0])}", candidates[0]
        )
    if existing is None:
        for root, candidate in zip(real_roots, candidates, strict=True):
            if candidate not in contained and Path(os.path.normpath(root / text)).is_relative_to(root):
                because = f"leads to {candidate}, {explain_closed(candidate)}"
                raise refuse_path(text, roots, field, because, candidate)
        raise NotFound(
            f"There is no file or folder {quote_path(text)}.",
            why=f"It was looked for in {', '.join(map(str, real_roots))}.",
            do=did_you_mean(
                nearest_paths(text, real_roots), f"Correct the path, or write the whole path. {WHERE_RELATIVE}"
            ),
            code="E-DATA-NOT-FOUND",
        )
    return existing


def quote_path(text: str) -> str:
    """Return a path for a message, no longer than a line."""
    return repr(text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…")


def explain_error(error: Exception) -> str:
    """Why the system does not follow a path."""
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return "its links lead round in a circle" if isinstance(error, RuntimeError) else "it has no name in a file system"


def refuse_path(text: str, roots: Sequence[Path], field: str, because: str, target: Path | None = None) -> Refused:
    """The refusal of a path; `target` is where it leads, if that is a folder or a file that an operator may allow."""
    instead = f"Use a path inside {', '.join(map(str, roots))}"
    folder = target if target is None or target.is_dir() else target.parent
    if folder is not None and folder != Path(folder.anchor):
        # Only this refusal reads the settings; a reading process starts twice as fast without them.
        from trainyard.settings import settings, settings_file  # see above

        line, file = settings().data_roots_line(folder), settings_file()
        instead += f", or write the line `{line}` into {file}"
    return Refused([Reason("R-PATH-ROOT", None, field, f"The path {quote_path(text)} {because}.", f"{instead}.")])


def open_inside(path: Path, roots: Sequence[Path]) -> BinaryIO:
    """Open a regular file that `resolve_inside` returned, or one in a folder that it returned.

    A link in such a folder is followed if it stays inside. What was put in the file's place meanwhile is refused: the
    last part is opened without following a link, and the opened file's own path is checked once more, so that a
    folder swapped for a link between the two calls does not lead out. A hard link leads nowhere: it is the file. It is
    refused where another user could have made it to a file that only we may read.
    """
    try:
        real = path.resolve() if path.is_symlink() else path
    except UNFOLLOWED as error:
        raise refuse_path(str(path), roots, "config.path", f"cannot be followed: {explain_error(error)}") from error
    if not is_inside(real, roots):
        raise refuse_path(str(path), roots, "config.path", f"is a link to {real}, {explain_closed(real)}", real)
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInput(
            f"{path.name} cannot be opened: {os.strerror(error.errno or 0)}.",
            do="Give a readable regular file.",
            code="E-DATA-NOT-FOUND",
        ) from error
    there = os.fstat(descriptor)
    if there.st_nlink > 1 and may_have_been_linked_by_others(real.parent):
        os.close(descriptor)
        because = "has a second name (a hard link), and others may write in its folder"
        raise refuse_path(str(path), roots, "config.path", because)
    if not stat.S_ISREG(there.st_mode):
        os.close(descriptor)
        raise InvalidInput(
            f"{path.name} is not a regular file.", why="Pipes and devices never end.", do="Give a file.",
            code="E-DATA-NOT-FOUND",
        )  # fmt: skip
    opened = None
    with contextlib.suppress(OSError):  # a system that does not say
        opened = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    if opened is not None and not is_inside(opened, roots):
        os.close(descriptor)
        raise refuse_path(str(path), roots, "config.path", "was replaced by a link that leaves the data roots")
    return os.fdopen(descriptor, "rb")


def may_have_been_linked_by_others(folder: Path) -> bool:
    """Whether somebody else could have given a file that only we may read a name in this folder."""
    with contextlib.suppress(OSError):  # a system without the switch protects nothing
        if PROTECTED_LINKS.read_text(encoding="ascii").strip() == "1":
            return False
    status = folder.stat()
    return status.st_uid != os.geteuid() or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
