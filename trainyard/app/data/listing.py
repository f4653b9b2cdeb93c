"""Choices of a form: the files of the data roots, and the base models of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

from trainyard.app.context import Context, get_settings
from trainyard.app.data.uploads import FOLDER, count_bytes, name_for_chains
from trainyard.app.responses import Response
from trainyard.data.limited.requests import ColumnsRequest
from trainyard.data.limited.service import keep_service
from trainyard.data.paths import data_roots, is_inside, resolve_inside
from trainyard.operations.base import Nothing
from trainyard.operations.data import ColumnsInput, FolderInput
from trainyard.settings import Settings
from trainyard.spec.axes.data import COLUMN_FIELDS
from trainyard.spec.training import STARTER

MOST_SCANNED = 10_000
"""Entries of a folder that are looked at."""


class DataEntry(Response):
    """A file or a folder that a path may name."""

    path: str
    """As a chain names it: relative to the first root that has it, else whole."""
    kind: Literal["file", "folder"]
    bytes: int | None = None
    uploaded: str = ""
    """Name of the upload that it is, as `data delete` takes it."""
    modified: float | None = None
    """Of an upload, in seconds since 1970."""


class DataList(Response):
    folder: str
    start: Path
    """Where relative paths start."""
    roots: tuple[Path, ...]
    entries: tuple[DataEntry, ...]
    complete: bool
    """Whether these are all."""
    upload_bytes: int
    """Bytes that one uploaded file may have."""


class ModelEntry(Response):
    """A base model whose files are on this machine."""

    name: str
    place: Literal["shipped", "setting", "cache", "folder"]
    bytes: int | None = None


class ModelList(Response):
    default: str
    models: tuple[ModelEntry, ...]


def list_data(request: FolderInput, context: Context) -> DataList:
    """Show the files and folders of a folder inside the data roots, hidden ones left out.

    Raises `Refused` (`R-PATH-ROOT`) and `NotFound` (`E-DATA-NOT-FOUND`) for the folder.
    """
    settings = get_settings(context)
    roots = data_roots(settings)
    folders = [resolve_inside(request.folder, roots, field="folder")] if request.folder else list(roots)
    entries_by_path: dict[str, DataEntry] = {}
    complete = True
    for folder in folders:
        scanned = list(islice(scan(folder, request.folder, roots, settings), MOST_SCANNED))
        complete = complete and len(scanned) < MOST_SCANNED
        for entry in scanned:
            entries_by_path.setdefault(entry.path, entry)
    if not request.folder:
        entries_by_path |= {entry.path: entry for entry in scan_uploads(settings)}
    entries = sorted(
        entries_by_path.values(), key=lambda entry: (not entry.uploaded, entry.kind == "file", entry.path.lower())
    )
    return DataList(
        folder=request.folder, start=settings.working_folder, roots=roots, entries=tuple(entries[: request.limit]),
        complete=complete and len(entries) <= request.limit, upload_bytes=settings.upload_mb << 20,
    )  # fmt: skip


def scan(folder: Path, named: str, roots: tuple[Path, ...], settings: Settings) -> Iterator[DataEntry]:
    """Yield the entries of one folder that a chain may read."""
    is_relative = bool(named) or folder in (settings.working_folder, settings.tenant_folder(settings.tenant))
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                entry_path = Path(entry.path)
                if entry.name.startswith(".") or not is_inside(entry_path.resolve(), roots):
                    continue
                path = f"{named.rstrip('/')}/{entry.name}" if named else entry.name if is_relative else entry.path
                if entry.is_dir():
                    yield DataEntry(path=path, kind="folder")
                elif entry.is_file():
                    yield DataEntry(path=path, kind="file", bytes=entry.stat().st_size)
    except OSError:  # a root that is not there yet, or was taken away
        return


def scan_uploads(settings: Settings) -> Iterator[DataEntry]:
    """Yield the files and folders that users of the tenant have uploaded."""
    folder = settings.tenant_folder(settings.tenant).resolve() / FOLDER
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in islice(entries, MOST_SCANNED):
            if not entry.name.startswith(".") and not entry.is_symlink():
                is_folder = entry.is_dir()
                yield DataEntry(
                    path=name_for_chains(Path(entry.path), settings), kind="folder" if is_folder else "file",
                    bytes=count_bytes(Path(entry.path)), uploaded=entry.name, modified=entry.stat().st_mtime,
                )  # fmt: skip


def list_models(request: Nothing, context: Context) -> ModelList:
    """Show the base models that are on this machine: the starter, the default, what is served, folders, Hub cache."""
    settings = get_settings(context)
    models = {STARTER: ModelEntry(name=STARTER, place="shipped")}
    for name in (settings.default_base_model, *settings.served_models):
        models.setdefault(name, ModelEntry(name=name, place="setting"))
    for model in (*list_model_folders(settings), *list_cached_models()):
        models.setdefault(model.name, model)
    return ModelList(default=settings.default_base_model, models=tuple(models.values()))


def list_model_folders(settings: Settings) -> Iterator[ModelEntry]:
    """Folders with a config.json in the working folder and in its folder `models`."""
    start = settings.working_folder
    for parent in (start, start / "models"):
        if not parent.is_dir():
            continue
        for config in sorted(islice(parent.glob("*/config.json"), MOST_SCANNED)):
            folder = config.parent
            if any(folder.glob("*.safetensors")):
                yield ModelEntry(
                    name=str(folder.relative_to(start)), place="folder",
                    bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
                )  # fmt: skip


def list_cached_models() -> Iterator[ModelEntry]:
    """Yield the models of the Hub's cache that have weights."""
    # Imported here: it takes 0.3 s, and only this list needs it.
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        if repository.repo_type == "model" and any(
            file.file_name.endswith(".safetensors") for revision in repository.revisions for file in revision.files
        ):
            yield ModelEntry(name=repository.repo_id, place="cache", bytes=repository.size_on_disk)


class DataColumn(Response):
    name: str
    example: str
    """The beginning of its first value that is not empty; other values than texts as JSON."""


class DataColumns(Response):
    path: str
    columns: tuple[DataColumn, ...]
    """In the order of the file, at most 200; none for documents and lines of text."""
    fields: tuple[str, ...]
    """The fields that columns can be mapped to."""


def show_columns(request: ColumnsInput, context: Context) -> DataColumns:
    """Return the columns of the first rows of a file, or of the first such file of a folder.

    Raises `Refused` (`R-PATH-ROOT`), `NotFound` (`E-DATA-NOT-FOUND`), and what the readers raise.
    """
    roots = data_roots(get_settings(context))
    path = resolve_inside(request.path, roots, field="path")
    with keep_service() as service:
        result = service.read_columns(ColumnsRequest(path, roots))
    columns = tuple(DataColumn(name=name, example=text) for name, text in result.columns.items())
    return DataColumns(path=request.path, columns=columns, fields=tuple(COLUMN_FIELDS))
