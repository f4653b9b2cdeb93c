"""Files that users upload: kept whole in their tenant's folder `uploads`, which chains read like any data root.

A name belongs to one content. The same file again is the file that is there; another file with the name gets the first
characters of its SHA-256 into its name. Nothing is overwritten, and nothing that comes in a file is executed or parsed
here: readers do that, in their own processes. An upload or a deletion that is killed leaves a hidden file or folder;
the next upload removes it, and so does `trainyard gc`.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from trainyard.app.context import Context, get_settings
from trainyard.app.responses import Response
from trainyard.compute.child import faultpoint
from trainyard.data.paths import ROW_SUFFIXES, data_roots, find_suffix, refuse_path, resolve_inside
from trainyard.data.readers.documents import TYPES
from trainyard.errors import Conflict, InvalidInput, LimitExceeded, NotFound, TrainyardError
from trainyard.operations.data import UploadInput, UploadNameInput
from trainyard.settings import Settings
from trainyard.stores.files import DISK, lacking_space, make_folders, translate_os_errors
from trainyard.stores.processes import claim_file, claim_folder, is_abandoned, remove_abandoned
from trainyard.stores.whole import BLOCK_BYTES, file_to_create

FOLDER = "uploads"
MOST_NAME_BYTES = 180
"""A file system takes names of 255 bytes; a temporary name is longer than the name itself."""
DIGEST_CHARS = (8, 16, 64)
"""Characters of the SHA-256 by which two files of one name differ."""
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.tmp|\.[0-9a-f]{16}\.removed")
"""Names of what an upload is written to, and of the folder in which an upload is deleted."""
MIB = 1 << 20


class UploadedFile(Response):
    path: str
    """As a chain names it."""
    folder_path: str
    """The same of its folder; empty for a file that is in none."""
    name: str
    bytes: int
    sha256: str
    is_new: bool
    """Whether it was not there before."""


class DeletedUpload(Response):
    name: str
    files: int
    bytes: int


def upload_file(request: UploadInput, context: Context) -> UploadedFile:
    """Keep a file under its name, or under its name and a part of its digest where another file has the name.

    Raises `InvalidInput` (`E-NAME`, `E-DATA-FORMAT`, `E-DATA-EMPTY`, `E-PARAMETER`), `Refused` (`R-PATH-ROOT`),
    `NotFound` (`E-DATA-NOT-FOUND`), `LimitExceeded` (`E-BODY-LENGTH`, `E-DISK-FULL`) and `Conflict` (`E-FILE-EXISTS`).
    """
    settings = get_settings(context)
    name = require_name(request.name or (request.file.name if request.file else ""), "name")
    require_type(name)
    inner = require_name(request.folder, "folder") if request.folder else ""
    with open_content(request) as source, translate_os_errors(f"{name} was not kept"):
        digest, size = hash_file(source, settings.upload_mb * MIB)
        if size == 0:
            raise InvalidInput(f"{name} is empty.", do="Choose a file with rows or text.", code="E-DATA-EMPTY")
        folder = upload_folder(settings, inner)
        for path in candidates(folder, name, digest):
            if is_same(path, digest, size):
                return describe(path, settings, digest, size, is_new=False)
            if os.path.lexists(path):
                continue
            remove_unfinished(settings.tenant_folder(settings.tenant) / FOLDER)
            require_space(settings, size)
            try:
                copy(source, path, digest)
            except Conflict:  # another upload took the name just now
                if not is_same(path, digest, size):
                    continue
                return describe(path, settings, digest, size, is_new=False)
            return describe(path, settings, digest, size, is_new=True)
    raise Conflict(f"There are other files with the name {name}.", do="Choose another name.", code="E-FILE-EXISTS")


def require_name(name: str, field: str) -> str:
    """Return the name of a file or a folder in its usual Unicode form. Raises `InvalidInput` (`E-NAME`), `Refused`."""
    name = unicodedata.normalize("NFC", name)
    if "/" in name or "\\" in name:
        raise refuse_path(name, [Path(FOLDER)], field, "is a path, not the name of one file")
    is_plain = name == name.strip() and not name.startswith(".") and name.isprintable()
    if not name or not is_plain or len(name.encode(errors="replace")) > MOST_NAME_BYTES:
        raise InvalidInput(
            f"{name[:100]!r} is not a name for an upload.",
            why=f"{field} may have up to {MOST_NAME_BYTES} bytes of printable characters; it does not begin with a "
            "dot, and neither begins nor ends with a space.",
            do="Choose another name, such as chats.jsonl.", code="E-NAME",
        )  # fmt: skip
    return name


def require_type(name: str) -> None:
    """Raise `InvalidInput` (`E-DATA-FORMAT`) for a file that no reader is for."""
    suffix = find_suffix(name)
    if suffix not in ROW_SUFFIXES and suffix not in TYPES:
        raise InvalidInput(
            f"{name!r} is not a data set or a document, by its extension.",
            why="Rows are in .jsonl, .json, .csv, .tsv, .parquet or .arrow; documents in .md, .txt, .rst, .html, .pdf, "
            ".docx, .pptx, .xlsx, .epub, .eml, .ipynb or source code.",
            do="Convert it, or correct its extension.", code="E-DATA-FORMAT",
        )  # fmt: skip


@contextmanager
def open_content(request: UploadInput) -> Iterator[BinaryIO]:
    """The content: what came over REST, or a file of this machine.

    Raises `InvalidInput` (`E-PARAMETER`) for none, and `NotFound` (`E-DATA-NOT-FOUND`).
    """
    if request.received is not None:
        yield request.received
    elif request.file is None:
        raise InvalidInput(
            "There is no file to keep.", why="It is a file of this machine, or a body of application/octet-stream.",
            do="Name a file, or send its bytes.", code="E-PARAMETER",
        )  # fmt: skip
    elif not request.file.is_file():
        raise NotFound(
            f"There is no file {str(request.file)[:200]!r}.", do="Correct the path; a folder is uploaded file by file.",
            code="E-DATA-NOT-FOUND",
        )  # fmt: skip
    else:
        with request.file.open("rb") as file:
            yield file


def hash_file(source: BinaryIO, most: int) -> tuple[str, int]:
    """Return the SHA-256 and the length of a file. Raises `LimitExceeded` (`E-BODY-LENGTH`)."""
    digest, size = hashlib.sha256(), 0
    source.seek(0)
    while block := source.read(BLOCK_BYTES):
        digest.update(block)
        size += len(block)
        if size > most:
            raise LimitExceeded(
                f"The file has more than {most // MIB:,} MiB.",
                do="Put it into a folder that `data_roots` names, or let the operator raise `upload_mb`.",
                code="E-BODY-LENGTH",
            )
    return digest.hexdigest(), size


def upload_folder(settings: Settings, inner: str = "") -> Path:
    """Return the folder of a tenant's uploads, or one in it; made if it is not there. No link leads out of it.

    Raises `Refused` (`R-PATH-ROOT`), and `InvalidInput` (`E-NAME`) where a file has the name.
    """
    root = settings.tenant_folder(settings.tenant)
    make_folders(DISK, root / FOLDER)
    folder = resolve_inside(FOLDER, (root,), field="folder")
    if inner:
        resolve_free(folder, inner, "folder")
        if not (folder / inner).is_dir():
            if os.path.lexists(folder / inner):
                raise InvalidInput(f"{inner!r} is a file.", do="Name another folder.", code="E-NAME")
            make_folders(DISK, folder / inner)
        folder = resolve_inside(inner, (folder,), field="folder")
    return folder


def resolve_free(folder: Path, name: str, field: str) -> None:
    """Refuse a name that leads out of its folder, whether or not there is something. Raises `Refused`."""
    try:
        resolve_inside(name, (folder,), field=field)
    except NotFound:
        return


def candidates(folder: Path, name: str, digest: str) -> Iterator[Path]:
    """Yield the name itself, then with more and more of the digest before its extension. Raises `Refused`."""
    stem, dot, suffix = name.partition(".")
    for end in ("", *(f"-{digest[:count]}" for count in DIGEST_CHARS)):
        resolve_free(folder, f"{stem}{end}{dot}{suffix}", "name")
        yield folder / f"{stem}{end}{dot}{suffix}"


def is_same(path: Path, digest: str, size: int) -> bool:
    """Return whether a regular file has this content."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return hash_file(file, size)[0] == digest


def require_space(settings: Settings, size: int) -> None:
    """Raises `LimitExceeded` (`E-DISK-FULL`) for a disk, or a tenant's share of it, that is full."""
    lacking = lacking_space(settings.home, (settings.min_free_mb * MIB) + size)
    if lacking is not None:
        raise lacking
    used = size + sum(count_bytes(entry) for entry in (settings.tenant_folder(settings.tenant) / FOLDER).iterdir())
    if used > settings.uploads_mb * MIB:
        raise LimitExceeded(
            f"The uploads of {settings.tenant} would take {used // MIB:,} MiB, more than {settings.uploads_mb:,} MiB.",
            do="Remove some (`trainyard data delete NAME`), or let the operator raise `uploads_mb`.",
            code="E-DISK-FULL",
        )


def copy(source: BinaryIO, path: Path, digest: str) -> None:
    """Create the file, whole. Raises `Conflict` (`E-FILE-EXISTS`) for a name that is taken, or a changing source."""
    copied = hashlib.sha256()
    with ExitStack() as claimed, file_to_create(path, word=secrets.token_hex(4)) as temporary:
        source.seek(0)
        target = claimed.enter_context(claim_file(temporary))
        while block := source.read(BLOCK_BYTES):
            copied.update(block)
            target.write(block)
            faultpoint("upload.block")
        target.flush()
        if copied.hexdigest() != digest:
            raise InvalidInput(
                f"{path.name} changed while it was read.", do="Upload it when it is whole.", code="E-DATA-FORMAT"
            )


def describe(path: Path, settings: Settings, digest: str, size: int, *, is_new: bool) -> UploadedFile:
    folder = path.parent if path.parent.name != FOLDER else None
    return UploadedFile(
        path=name_for_chains(path, settings), folder_path=name_for_chains(folder, settings) if folder else "",
        name=path.name, bytes=size, sha256=digest, is_new=is_new,
    )  # fmt: skip


def name_for_chains(path: Path, settings: Settings) -> str:
    """Return the path as a chain names it: relative to the tenant's folder, unless another root has the same name
    first.
    """
    relative = path.relative_to(settings.tenant_folder(settings.tenant).resolve())
    try:
        return str(relative) if resolve_inside(relative, data_roots(settings)) == path.resolve() else str(path)
    except TrainyardError:  # a link of another root with this name
        return str(path)


def delete_upload(request: UploadNameInput, context: Context) -> DeletedUpload:
    """Remove an upload; no reader sees a half of it.

    Raises `NotFound` (`E-DATA-NOT-FOUND`), `InvalidInput` (`E-NAME`), `Refused` (`R-PATH-ROOT`).
    """
    settings = get_settings(context)
    name = require_name(request.name.removeprefix(f"{FOLDER}/"), "name")
    folder = upload_folder(settings)
    path = folder / name
    missing = NotFound(
        f"There is no upload {name!r}.", do="`trainyard data list uploads` shows them.", code="E-DATA-NOT-FOUND"
    )
    if not os.path.lexists(path):
        raise missing
    with translate_os_errors(f"{name} was not removed"):
        files, size = (sum(1 for _ in walk(path)), count_bytes(path))
        with claim_folder(folder / f".{secrets.token_hex(8)}.removed") as trash:
            try:
                os.rename(path, trash / name)  # at once, also of a folder with many files
                DISK.fsync_folder(folder)
                faultpoint("delete.renamed")
            except FileNotFoundError:  # another deletion was faster
                raise missing from None
            finally:
                shutil.rmtree(trash)
        DISK.fsync_folder(folder)
    return DeletedUpload(name=name, files=files, bytes=size)


def walk(path: Path) -> Iterator[Path]:
    """Yield the files of an upload; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for parent, _, names in os.walk(path):
        yield from (Path(parent, name) for name in names)


def count_bytes(path: Path) -> int:
    """Return the bytes of an upload; a file that another request has moved or removed meanwhile counts nothing."""
    size = 0
    for file in walk(path):
        with suppress(FileNotFoundError):
            size += file.lstat().st_size
    return size


def list_unfinished(folder: Path) -> Iterator[Path]:
    """Yield the hidden files and folders that killed uploads and deletions have left in a folder of uploads."""
    for path in sorted(list_hidden_entries(folder)):
        if UNFINISHED.fullmatch(path.name) and is_abandoned(path):
            yield path


def list_hidden_entries(folder: Path) -> Iterator[Path]:
    """Yield the hidden entries of a folder of uploads and of the folders in it; links are not followed."""
    with suppress(FileNotFoundError, PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                continue
            if entry.name.startswith("."):
                yield Path(entry.path)
            elif entry.is_dir():
                yield from (Path(entry.path, name) for name in os.listdir(entry.path) if name.startswith("."))


def remove_unfinished(folder: Path) -> None:
    """Remove what killed uploads and deletions have left in a folder of uploads."""
    for path in list_unfinished(folder):
        remove_abandoned(path)
