"""Anchors in a folder of another machine, such as a mount, and in a bucket: a file for each checkpoint, never replaced.

<SHA-256 of the origin>/000000200.checkpoint
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.anchor_settings import BucketAnchor, FolderAnchor
from trainyard.errors import Conflict, Corrupt
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.ledger.anchors.contract import (
    AnchorRecord,
    PlacedCheckpoint,
    SeenCheckpoint,
    build_unreachable,
)
from trainyard.stores.ledger.log import Head
from trainyard.stores.ledger.notes import hash_origin, parse_checkpoint, parse_note
from trainyard.stores.repositories.bucket import BucketStorage, open_bucket
from trainyard.stores.whole import create_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

END = ".checkpoint"


def name_checkpoint(size: int) -> str:
    return f"{size:09d}{END}"


def read_seen(data: bytes, origin: str, where: str, time: float | None) -> SeenCheckpoint:
    """Return a stored checkpoint. Raises `Corrupt` for one that cannot be read, or is of another log."""
    checkpoint = parse_checkpoint(parse_note(data).text)
    if checkpoint.origin != origin:
        raise Corrupt(f"{where} is a checkpoint of {checkpoint.origin}, not of this log.")
    return SeenCheckpoint(checkpoint.size, checkpoint.root, where, time)


# A folder


def find_folder(setting: FolderAnchor, origin: str) -> Path:
    if not setting.folder.is_dir():
        raise build_unreachable(f"The folder {setting.folder} is not there.", "Its machine or mount is away.")
    return setting.folder / hash_origin(origin)


def place_in_folder(setting: FolderAnchor, head: Head, _records: Sequence[AnchorRecord]) -> PlacedCheckpoint:
    """Write the checkpoint into a file of its own."""
    assert head.note is not None
    folder = find_folder(setting, head.checkpoint.origin)
    path = folder / name_checkpoint(head.size)
    with translate_os_errors(f"The anchor {setting.folder} was not written"):
        make_folders(DISK, folder)
        try:
            create_whole(DISK, path, head.note.data)
        except Conflict:
            if path.read_bytes() != head.note.data:
                raise
    return PlacedCheckpoint(str(path))


def look_in_folder(setting: FolderAnchor, origin: str, _records: Sequence[AnchorRecord]) -> list[SeenCheckpoint]:
    folder = find_folder(setting, origin)
    with translate_os_errors(f"The anchor {setting.folder} was not read"):
        paths = sorted(folder.glob(f"*{END}")) if folder.is_dir() else []
        return [read_seen(path.read_bytes(), origin, str(path), path.stat().st_mtime) for path in paths]


# A bucket


def open_archive(setting: BucketAnchor) -> BucketStorage:
    """Open the bucket. S3 takes no object into a bucket with retention whose checksum is not sent along."""
    options = {"checksum_algorithm": "SHA256"} if setting.address.startswith("s3://") else {}
    return open_bucket(setting.address, **options)


@contextmanager
def translate_bucket_errors(address: str) -> Iterator[None]:
    """Raise `Unavailable` for what the client of buckets raises."""
    from obstore.exceptions import BaseError  # an extra, which `open_bucket` has imported

    try:
        yield
    except (BaseError, OSError) as error:
        raise build_unreachable(f"The bucket {address} does not answer.", type(error).__name__) from error


def place_in_bucket(setting: BucketAnchor, head: Head, _records: Sequence[AnchorRecord]) -> PlacedCheckpoint:
    """Create the checkpoint's object; the bucket's retention is what keeps it."""
    assert head.note is not None
    bucket = open_archive(setting)
    name = f"{hash_origin(head.checkpoint.origin)}/{name_checkpoint(head.size)}"
    where = f"{setting.address.rstrip('/')}/{name}"
    with translate_bucket_errors(setting.address):
        if not bucket.write(name, head.note.data, None):
            raise Corrupt(f"{where} is there already, with another checkpoint.")
    return PlacedCheckpoint(where)


def look_in_bucket(setting: BucketAnchor, origin: str, _records: Sequence[AnchorRecord]) -> list[SeenCheckpoint]:
    bucket = open_archive(setting)
    seen = []
    with translate_bucket_errors(setting.address):
        for item in bucket.list(f"{hash_origin(origin)}/"):
            record = bucket.read(item.name)
            if record is not None and item.name.endswith(END):
                seen.append(read_seen(record.data, origin, f"{setting.address.rstrip('/')}/{item.name}", item.modified))
    return seen
