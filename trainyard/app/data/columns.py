"""The columns of files of rows, whatever they are called: what a form offers for `columns` of a data set."""

from __future__ import annotations

from trainyard.app.context import Context
from trainyard.app.data.tenancy import settings_of
from trainyard.app.responses import Response
from trainyard.data.limited.requests import ColumnsRequest
from trainyard.data.limited.service import kept_service
from trainyard.data.paths import data_roots, resolve_inside
from trainyard.operations.data import ColumnsInput
from trainyard.spec.axes.data import COLUMN_FIELDS


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
    with kept_service() as service:
        result = service.read_columns(ColumnsRequest(place, roots))
    columns = tuple(DataColumn(name=name, example=text) for name, text in result.columns.items())
    return DataColumns(path=request.path, columns=columns, fields=tuple(COLUMN_FIELDS))
