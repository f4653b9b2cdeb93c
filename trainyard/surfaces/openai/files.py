"""`/files`: a file becomes an upload of the tenant, which chains read, with a record of its purpose."""

from __future__ import annotations

import time
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import Field
from starlette.responses import FileResponse, Response

from trainyard.app.data.uploads import FOLDER as UPLOADS
from trainyard.json_types import JsonObject
from trainyard.operations.data import UploadInput
from trainyard.stores.files import translate_os_errors
from trainyard.stores.openai_records import FOLDER, FileRecord, draw_id
from trainyard.surfaces.openai.calls import WireBody, WireCall, list_of, page_of
from trainyard.surfaces.openai.errors import WireError, missing_parameter
from trainyard.surfaces.openai.training_files import require_jsonl

PURPOSE, RESULTS_PURPOSE = "fine-tune", "fine-tune-results"
PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
"""OpenAI's for files that are sent; only one of them has a use here."""
SUFFIX = ".jsonl"
MOST_LISTED = 10_000
LONGEST_NAME = 512


class ExpiresAfter(WireBody):
    """When a file is removed."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000)


class FileForm(WireBody):
    """The fields of a form with a file."""

    purpose: str
    expires_after: ExpiresAfter | None = None


class FilesQuery(WireBody):
    """Which files are listed."""

    after: str | None = None
    limit: int = Field(MOST_LISTED, ge=1, le=MOST_LISTED)
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


def create_file(call: WireCall) -> JsonObject:
    """Keep a file. Raises `WireError` 400 for a purpose without a use, and for a file that is not JSONL."""
    form = call.parse_body(FileForm)
    require_purpose(form.purpose)
    if call.file is None:
        raise missing_parameter("file")
    expires_s = form.expires_after.seconds if form.expires_after else None
    return describe_file(keep_file(call, call.file, call.filename, expires_s))


def keep_file(call: WireCall, source: BinaryIO, filename: str, expires_s: int | None) -> FileRecord:
    """Keep a file of training rows and write its record. Raises `WireError` 400."""
    name = require_filename(filename)
    call.require_scope("data upload")
    require_jsonl(source)
    file_id, now = draw_id("file-"), time.time()
    upload = UploadInput(name=f"{file_id}{SUFFIX}").with_received(source)
    uploaded = call.run_operation("data upload", "file", upload)
    return call.files.create(
        FileRecord(
            id=file_id,
            created=now,
            filename=name,
            purpose=PURPOSE,
            bytes=uploaded.bytes,
            sha256=uploaded.sha256,
            name=uploaded.name,
            path=uploaded.path,
            expires=now + expires_s if expires_s is not None else None,
        )
    )


def require_purpose(purpose: str) -> None:
    """Raise `WireError` 400 for a purpose that is unknown, or that nothing here has a use for."""
    if purpose not in PURPOSES:
        raise WireError(400, f"'{purpose[:100]}' is not one of {list(PURPOSES)} - 'purpose'", param="purpose")
    if purpose != PURPOSE:
        text = f"Files with the purpose '{purpose}' have no use here: only '{PURPOSE}' is supported."
        raise WireError(400, text, param="purpose", code="unsupported_value")


def require_filename(filename: str) -> str:
    """Return the last part of a file's name. Raises `WireError` 400 for one that is not of JSONL."""
    name = filename.replace("\\", "/").rpartition("/")[2].strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise WireError(400, "The file has no name that can be shown.", param="file", code="invalid_value")
    if not name.lower().endswith(SUFFIX):
        raise WireError(400, f"Invalid file format for Fine-Tuning API. Must be {SUFFIX}", param="file")
    return name


def describe_file(record: FileRecord) -> JsonObject:
    file = {
        "id": record.id, "object": "file", "bytes": record.bytes, "created_at": int(record.created),
        "filename": record.filename, "purpose": record.purpose, "status": "processed",
    }  # fmt: skip
    return file if record.expires is None else {**file, "expires_at": int(record.expires)}


def list_files(call: WireCall) -> JsonObject:
    call.require_scope("data list")
    query, now = call.parse_query(FilesQuery), time.time()
    records = call.files.list(lambda record: is_there(call, record, now) and query.purpose in (None, record.purpose))
    records = records[::-1] if query.order == "asc" else records
    page, has_more = page_of(records, query.after, query.limit, "file")
    return list_of([describe_file(record) for record in page], has_more)


def is_there(call: WireCall, record: FileRecord, now: float) -> bool:
    """Return whether a file has neither expired nor been removed by another surface."""
    return (record.expires is None or record.expires > now) and path_of(call, record).is_file()


def path_of(call: WireCall, record: FileRecord) -> Path:
    """Return where the bytes of a file are: an upload, or the metrics of a job."""
    folder = call.settings.tenant_folder(call.settings.tenant)
    parent = folder / FOLDER / "results" if record.purpose == RESULTS_PURPOSE else folder / UPLOADS
    return parent / record.name


def find_file(call: WireCall, file_id: str, param: str = "id") -> FileRecord:
    """Return the record of a file. Raises `WireError` 404."""
    record = call.files.read(file_id)
    if record is None or not is_there(call, record, time.time()):
        raise WireError(404, f"No such File object: {file_id[:100]}", param=param)
    return record


def find_rows(call: WireCall, file_id: str, param: str) -> FileRecord:
    """Return the record of a file of training rows. Raises `WireError` 404, and 400 for the results of a job."""
    record = find_file(call, file_id, param)
    if record.purpose != PURPOSE:
        text = f"The file {file_id} has the purpose '{record.purpose}'; a job learns from '{PURPOSE}'."
        raise WireError(400, text, param=param, code="invalid_file_purpose")
    return record


def show_file(call: WireCall) -> JsonObject:
    call.require_scope("data list")
    return describe_file(find_file(call, call.path["file_id"]))


def read_file(call: WireCall) -> Response:
    call.require_scope("data list")
    record = find_file(call, call.path["file_id"])
    return FileResponse(path_of(call, record), media_type="application/octet-stream", filename=record.filename)


def delete_file(call: WireCall) -> JsonObject:
    """Remove a file. The record goes last: a deletion that is killed in between can be repeated."""
    call.require_scope("data delete")
    record = find_file(call, call.path["file_id"])
    if record.purpose == RESULTS_PURPOSE:
        with translate_os_errors(f"{record.id} was not deleted"):
            path_of(call, record).unlink(missing_ok=True)
    else:
        call.run_operation("data delete", name=record.name)
    call.files.remove(record.id)
    return {"id": record.id, "object": "file", "deleted": True}
