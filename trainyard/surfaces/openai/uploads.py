"""`/uploads`: a file that arrives in parts, each whole on the disk before it is answered.

A part that comes twice is two parts with two ids; the file is made of those that `complete` names, in that order. What
is not completed within an hour expires, and its parts are removed when uploads are next used.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import Field, StrictInt, StrictStr

from trainyard.errors import TrainyardError
from trainyard.json_types import JsonObject
from trainyard.stores.files import DISK, lacking_space, make_folders, translate_os_errors
from trainyard.stores.openai_records import PartRecord, UploadRecord, draw_id
from trainyard.stores.whole import BLOCK_BYTES, new_file
from trainyard.surfaces.openai.calls import WireBody, WireCall
from trainyard.surfaces.openai.errors import WireError, missing_parameter, translate_error
from trainyard.surfaces.openai.files import (
    ExpiresAfter,
    describe_file,
    keep_file,
    require_filename,
    require_purpose,
)

LIFE_S = 3600.0
"""OpenAI's: an upload expires an hour after it was created."""
MOST_PART_BYTES = 64 << 20
MOST_PARTS = 10_000
MOST_PENDING = 100
"""Uploads of a tenant that are not completed."""
MIB = 1 << 20
PENDING, COMPLETED, CANCELLED, EXPIRED = "pending", "completed", "cancelled", "expired"
MIME_TYPES = ("application/jsonl", "application/json", "text/jsonl", "text/plain", "application/x-ndjson",
              "application/octet-stream")  # fmt: skip


class UploadBody(WireBody):
    """What a file will be."""

    filename: StrictStr
    purpose: StrictStr
    bytes: Annotated[StrictInt, Field(ge=1)]
    mime_type: StrictStr
    expires_after: ExpiresAfter | None = None


class CompleteBody(WireBody):
    """Which parts make the file, in their order."""

    part_ids: Annotated[list[StrictStr], Field(min_length=1, max_length=MOST_PARTS)]
    md5: StrictStr | None = None


def create_upload(call: WireCall) -> JsonObject:
    """Begin an upload. Raises `WireError` 400 for a file that would be refused when it is whole."""
    call.require_scope("data upload")
    body = call.parse_body(UploadBody)
    require_purpose(body.purpose)
    filename = require_filename(body.filename)
    if body.mime_type not in MIME_TYPES:
        text = f"Invalid mime_type '{body.mime_type[:100]}' for the purpose '{body.purpose}'; use {MIME_TYPES[0]}."
        raise WireError(400, text, param="mime_type", code="invalid_value")
    limit = call.settings.upload_mb * MIB
    if body.bytes > limit:
        raise WireError(400, f"A file may have {limit:,} bytes here, and this one has {body.bytes:,}.", param="bytes")
    now = time.time()
    remove_expired(call, now)
    if len(call.uploads.list(lambda record: record.status == PENDING)) >= MOST_PENDING:
        raise WireError(429, f"{MOST_PENDING} uploads are pending; complete or cancel one.", code="rate_limit_exceeded")
    return describe_upload(
        call,
        call.uploads.create(
            UploadRecord(
                id=draw_id("upload_"), created=now, filename=filename, purpose=body.purpose, bytes=body.bytes,
                mime_type=body.mime_type, expires=now + LIFE_S,
                file_expires_s=body.expires_after.seconds if body.expires_after else None,
            )
        ),
    )  # fmt: skip


def remove_expired(call: WireCall, now: float) -> None:
    """Remove the parts of uploads that have expired; their records say so."""
    for record in call.uploads.list(lambda record: record.status == PENDING and record.expires <= now):
        call.uploads.replace(record.model_copy(update={"status": EXPIRED}))
        remove_parts(call, record)


def parts_folder(call: WireCall, record: UploadRecord) -> Path:
    return call.uploads.folder / record.id


def remove_parts(call: WireCall, record: UploadRecord) -> None:
    shutil.rmtree(parts_folder(call, record), ignore_errors=True)


def find_upload(call: WireCall) -> UploadRecord:
    """Return the upload of a path, if it is pending. Raises `WireError` 404, 400."""
    upload_id = call.path["upload_id"]
    remove_expired(call, time.time())
    record = call.uploads.read(upload_id)
    if record is None:
        raise WireError(404, f"No such Upload object: {upload_id[:100]}", param="upload_id")
    return record


def require_pending(record: UploadRecord) -> None:
    if record.status != PENDING:
        text = f"The Upload {record.id} is {record.status}; only a pending one takes this."
        raise WireError(400, text, param="upload_id", code="invalid_upload_state")


def add_part(call: WireCall) -> JsonObject:
    """Keep one part. Parts of one upload may come at the same time."""
    call.require_scope("data upload")
    if call.file is None:
        raise missing_parameter("data")
    part_id, now = draw_id("part_"), time.time()
    record = find_upload(call)
    require_pending(record)
    folder = parts_folder(call, record)
    try:
        make_folders(DISK, folder)
        with translate_os_errors("The part was not kept"), new_file(folder / part_id) as temporary:
            size = copy_part(call, record, call.file, temporary)
    except TrainyardError as error:
        raise translate_error(error) from error
    with DISK.locked(call.uploads.folder / f".{record.id}.lock"):
        newest = call.uploads.read(record.id) or record
        if newest.status != PENDING:
            remove_parts(call, record)
            require_pending(newest)
        parts = (*newest.parts, PartRecord(id=part_id, created=now, bytes=size))
        call.uploads.replace(newest.model_copy(update={"parts": parts}))
    return describe_part(record.id, part_id, now)


def describe_part(upload_id: str, part_id: str, created: float) -> JsonObject:
    return {"id": part_id, "object": "upload.part", "created_at": int(created), "upload_id": upload_id}


def copy_part(call: WireCall, record: UploadRecord, source: BinaryIO, target: Path) -> int:
    """Write a part and return its bytes. Raises `WireError` 400 for one that is empty, too long or too much."""
    source.seek(0, 2)
    size = source.tell()
    source.seek(0)
    together = sum(part.bytes for part in record.parts)
    if not 0 < size <= MOST_PART_BYTES or len(record.parts) >= MOST_PARTS:
        text = f"A part has 1 to {MOST_PART_BYTES:,} bytes, and an upload at most {MOST_PARTS:,} parts."
        raise WireError(400, text, param="data", code="invalid_value")
    if together + size > 2 * record.bytes + MOST_PART_BYTES:
        text = f"The parts have {together + size:,} bytes together, far more than the {record.bytes:,} of the file."
        raise WireError(400, text, param="data", code="invalid_value")
    if (lacking := lacking_space(call.settings.home, (call.settings.min_free_mb * MIB) + size)) is not None:
        raise lacking
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, BLOCK_BYTES)
    return size


def complete_upload(call: WireCall) -> JsonObject:
    """Make the file of the parts that are named, in that order. Raises `WireError` 400 where they are not the file."""
    call.require_scope("data upload")
    body, record = call.parse_body(CompleteBody), find_upload(call)
    with DISK.locked(call.uploads.folder / f".{record.id}.lock"):
        record = call.uploads.read(record.id) or record
        require_pending(record)
        sizes = {part.id: part.bytes for part in record.parts}
        if missing := [part_id for part_id in body.part_ids if part_id not in sizes]:
            raise WireError(400, f"The Upload has no part '{missing[0][:100]}'.", param="part_ids")
        if len(set(body.part_ids)) != len(body.part_ids):
            raise WireError(400, "A part is named twice.", param="part_ids", code="invalid_value")
        total = sum(sizes[part_id] for part_id in body.part_ids)
        if total != record.bytes:
            text = f"The parts have {total:,} bytes together, and the Upload was created for {record.bytes:,}."
            raise WireError(400, text, param="part_ids", code="invalid_value")
        with tempfile.TemporaryFile(dir=call.settings.services) as whole:
            digest = hashlib.md5(usedforsecurity=False)
            for part_id in body.part_ids:
                with (parts_folder(call, record) / part_id).open("rb") as part:
                    while block := part.read(BLOCK_BYTES):
                        digest.update(block)
                        whole.write(block)
            if body.md5 is not None and body.md5.lower() != digest.hexdigest():
                raise WireError(400, f"The file has the MD5 {digest.hexdigest()}, not {body.md5[:64]}.", param="md5")
            file = keep_file(call, whole, record.filename, record.file_expires_s)
        record = call.uploads.replace(record.model_copy(update={"status": COMPLETED, "file": file.id}))
    remove_parts(call, record)
    return describe_upload(call, record)


def cancel_upload(call: WireCall) -> JsonObject:
    call.require_scope("data upload")
    record = find_upload(call)
    with DISK.locked(call.uploads.folder / f".{record.id}.lock"):
        record = call.uploads.read(record.id) or record
        require_pending(record)
        record = call.uploads.replace(record.model_copy(update={"status": CANCELLED}))
    remove_parts(call, record)
    return describe_upload(call, record)


def describe_upload(call: WireCall, record: UploadRecord) -> JsonObject:
    file = call.files.read(record.file) if record.file else None
    return {
        "id": record.id, "object": "upload", "bytes": record.bytes, "created_at": int(record.created),
        "filename": record.filename, "purpose": record.purpose, "status": record.status,
        "expires_at": int(record.expires), "file": describe_file(file) if file is not None else None,
    }  # fmt: skip
