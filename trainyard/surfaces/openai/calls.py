"""A request of the wire: its caller, its body and the operations that it calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from trainyard.app.context import Context, get_settings
from trainyard.errors import TrainyardError
from trainyard.operations.table import OPERATIONS
from trainyard.settings import Settings
from trainyard.stores.openai_records import FOLDER, FileRecord, FineTuningRecord, UploadRecord, WireRecords
from trainyard.surfaces.invocation import execute_operation, refuse_early
from trainyard.surfaces.openai.errors import WireError, translate_error, translate_validation

Body = TypeVar("Body", bound=BaseModel)
Record = TypeVar("Record", FileRecord, FineTuningRecord, UploadRecord)


class WireBody(BaseModel):
    """Base class of bodies and queries: another field than OpenAI's is refused by its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class WireCall:
    """What a route works with. It runs on a thread."""

    context: Context
    path: Mapping[str, str]
    """The parameters of its path."""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, object] = field(default_factory=dict)
    file: BinaryIO | None = None
    """The file of a form."""
    filename: str = ""

    @property
    def settings(self) -> Settings:
        """Return the settings of the caller's tenant."""
        return get_settings(self.context)

    def parse_body(self, kind: type[Body]) -> Body:
        """Return the body. Raises `WireError` 400 naming the field."""
        try:
            return kind.model_validate(self.body)
        except ValidationError as error:
            raise translate_validation(error) from error

    def parse_query(self, kind: type[Body]) -> Body:
        """Return the query. Raises `WireError` 400 naming the parameter."""
        try:
            return kind.model_validate_strings(dict(self.query))
        except ValidationError as error:
            raise translate_validation(error) from error

    def run_operation(self, name: str, param: str | None = None, request: Any = None, /, **fields: object) -> Any:
        """Return the response of an operation, which checks scope and tenant. Raises `WireError`.

        `param` is the field of the body that an error is about.
        """
        try:
            return run_operation(name, self.context, request, **fields)
        except TrainyardError as error:
            raise translate_error(error, param) from error

    def require_scope(self, name: str) -> None:
        """Refuse a caller who may not ask for an operation. Raises `Denied` (`E-SCOPE`)."""
        refuse_early(name, OPERATIONS[name].request, self.context)

    @property
    def files(self) -> WireRecords[FileRecord]:
        return self.records("files", FileRecord)

    @property
    def uploads(self) -> WireRecords[UploadRecord]:
        return self.records("uploads", UploadRecord)

    @property
    def jobs(self) -> WireRecords[FineTuningRecord]:
        return self.records("jobs", FineTuningRecord)

    def records(self, name: str, kind: type[Record]) -> WireRecords[Record]:
        settings = self.settings
        return WireRecords(settings.tenant_folder(settings.tenant) / FOLDER / name, kind)


def run_operation(name: str, context: Context, request: Any = None, /, **fields: object) -> Any:
    """Return the response of an operation. Raises what it raises."""
    model = OPERATIONS[name].request
    refuse_early(name, model, context)
    return execute_operation(name, request if request is not None else model(**fields), context)


def page_of(records: list[Any], after: str | None, limit: int, name: str) -> tuple[list[Any], bool]:
    """Return the records after the one with an id, and whether more follow. Raises `WireError` 400 for an unknown id.

    Each record has an `id`.
    """
    start = 0
    if after is not None:
        positions = [index for index, record in enumerate(records) if record.id == after]
        if not positions:
            raise WireError(400, f"There is no {name} '{after[:100]}' to continue after.", param="after")
        start = positions[0] + 1
    return records[start : start + limit], len(records) > start + limit


def list_of(objects: list[dict[str, object]], has_more: bool = False) -> dict[str, object]:
    """Return a page as OpenAI writes it."""
    ids = [str(entry["id"]) for entry in objects]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return {"object": "list", "data": objects, **ends, "has_more": has_more}
