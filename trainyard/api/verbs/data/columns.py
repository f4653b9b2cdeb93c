"""The columns of files of rows, whatever they are called: what a form offers for `columns` of a data set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.api.context import Context
from trainyard.api.requests.data import ColumnsInput
from trainyard.api.responses import Response
from trainyard.api.verbs.data.tenancy import settings_of
from trainyard.data.paths import ROW_SUFFIXES, data_roots, resolve_inside, suffix_of
from trainyard.data.readers.chunks import FileSelection
from trainyard.data.readers.rowfiles import RowFile, no_row, read_first_rows
from trainyard.data.readers.sets import walk
from trainyard.data.readers.streams import Limits
from trainyard.spec.axes.data import COLUMN_FIELDS

MOST_COLUMNS, MOST_NAME_CHARS, EXAMPLE_CHARS = 200, 200, 120


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
    roots = data_roots(settings_of(context))
    place = resolve_inside(request.path, roots, field="path")
    paths = [path for path in files_of(place) if suffix_of(path.name) in ROW_SUFFIXES]
    sample = read_first_rows(RowFile(path, path.name, roots, Limits()) for path in paths)
    if not sample.records and sample.fault is not None:
        raise no_row(sample.fault)
    values: dict[str, str] = {}
    for record in sample.records:
        for name, value in record.items() if isinstance(record, Mapping) else ():
            if len(values) < MOST_COLUMNS or name in values:
                values[name] = values.get(name) or shorten(value)
    columns = tuple(DataColumn(name=name[:MOST_NAME_CHARS], example=text) for name, text in values.items())
    return DataColumns(path=request.path, columns=columns, fields=tuple(COLUMN_FIELDS))


def files_of(place: Path) -> list[Path]:
    return walk(place, FileSelection()) if place.is_dir() else [place]


def shorten(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= EXAMPLE_CHARS else f"{text[:EXAMPLE_CHARS]}…"
