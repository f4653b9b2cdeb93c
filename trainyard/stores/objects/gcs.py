"""An object store in a Google Cloud Storage bucket.

Only errors that may pass without a change are retried (408, 429, 500, 502, 503, 504, a broken or
silent connection), until one total deadline over all requests of an operation. A write carries a word of its own in
the object's metadata: when a retry is answered by "precondition failed" or "not found", the object is looked up, and if
it carries our word, the first try had arrived and only its acknowledgement was lost.

Credentials are Google's application default ones; with STORAGE_EMULATOR_HOST set, that server is used without any.
Semantics: Cloud Storage JSON API v1, objects: insert, get, list, delete; retry strategy page.
"""

from __future__ import annotations

import os
import re
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from google.api_core import exceptions as api
from google.api_core.retry import Retry
from google.auth import exceptions as auth
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption
from google.cloud.storage.retry import DEFAULT_RETRY
from google.resumable_media import InvalidResponse

from trainyard.errors import TrainyardError, Unavailable
from trainyard.json_types import JsonObject
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.objects import store
from trainyard.stores.objects.store import Metadata, ObjectInfo, ObjectSettings, check_name
from trainyard.stores.whole import new_file

WRITER = "trainyard-write"
"""Metadata key of the word that one write carries."""
CONNECT_TIMEOUT_S = 10.0
DOWNLOAD_TRIES = 3
"""Of bytes that arrive damaged: once may be the way, three times is the object."""
GRANULE = 256 << 10
"""Chunks of a resumable upload are multiples of this."""
NO_BUCKET_LOOKUP = "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"
"""The client's switch for looking up the bucket's location with every call, which only its traces show."""
_MESSAGE = re.compile(r'"message": *"([^"]+)"')


class Patience:
    """The retries of one operation: counts them, and ends them all at one deadline."""

    def __init__(self, settings: ObjectSettings) -> None:
        self.settings = settings
        self.retries = 0
        self._ends = time.monotonic() + settings.deadline_s

    def again(self, error: BaseException) -> bool:
        if isinstance(error, InvalidResponse):
            _ = error.response.content  # of a download: unread, it would keep its connection
        if not is_passing(error) or time.monotonic() >= self._ends:
            return False
        self.retries += 1
        return True

    def arguments(self) -> JsonObject:
        """Return what every call of the client takes."""
        silence = min(self.settings.request_timeout_s, self.settings.deadline_s)
        retry = Retry(
            predicate=self.again,
            initial=self.settings.first_wait_s,
            maximum=self.settings.most_wait_s,
            timeout=self.settings.deadline_s,
        )
        return {"timeout": (min(CONNECT_TIMEOUT_S, silence), silence), "retry": retry}


class GcsStore:
    """`ObjectStore` below one prefix of one bucket."""

    def __init__(self, bucket: str, prefix: str, settings: ObjectSettings) -> None:
        self.prefix, self.settings = f"{prefix}/" if prefix else "", settings
        self.address = f"gs://{bucket}"
        os.environ.setdefault(NO_BUCKET_LOOKUP, "true")
        with self._asking("opened"):
            client = storage.Client(project=None)
        self.bucket = client.bucket(bucket)
        weakref.finalize(self, client.close)

    def put(
        self, name: str, data: bytes | Path, *, if_generation_match: int | None = None, metadata: Metadata = None
    ) -> ObjectInfo:
        word, patience = uuid.uuid4().hex, Patience(self.settings)
        blob = self._blob(name)
        blob.metadata = {**(metadata or {}), WRITER: word}
        with _stream(data) as (stream, size):
            if size > self.settings.chunk_bytes:
                blob.chunk_size = max(GRANULE, self.settings.chunk_bytes // GRANULE * GRANULE)
            try:
                with self._asking("written", name):
                    blob.upload_from_file(
                        stream,
                        size=size,
                        checksum="crc32c",
                        if_generation_match=if_generation_match,
                        **patience.arguments(),
                    )
            except api.PreconditionFailed as error:
                there = self._look(name)
                if there is None or (there.metadata or {}).get(WRITER) != word:
                    raise self._build_failure(name, if_generation_match, there) from error
                blob = there
        return self._info(blob)

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        into = BytesIO()
        self._fetch(name, into, generation)
        return into.getvalue()

    def download(self, name: str, path: Path) -> ObjectInfo:
        blob = self._look(name)
        if blob is None:
            raise store.object_missing(name)
        with translate_os_errors(f"The object {name} was not stored as {path.name}"):
            make_folders(DISK, path.parent)
            with new_file(path) as temporary, temporary.open("wb") as stream:
                self._fetch(name, stream, blob.generation)
        return self._info(blob)

    def head(self, name: str) -> ObjectInfo | None:
        there = self._look(name)
        return self._info(there) if there else None

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        with self._asking("listed", prefix):
            blobs = self.bucket.list_blobs(prefix=self.prefix + prefix, **Patience(self.settings).arguments())
            return sorted((self._info(blob) for blob in blobs), key=lambda info: info.name)

    def delete(self, name: str, *, if_generation_match: int | None = None) -> bool:
        patience = Patience(self.settings)
        try:
            with self._asking("removed", name):
                self._blob(name).delete(if_generation_match=if_generation_match, **patience.arguments())
        except api.PreconditionFailed as error:
            raise self._build_failure(name, if_generation_match, self._look(name)) from error
        except LookupError:
            return patience.retries > 0  # gone at a retry: an earlier try removed it, only its answer was lost
        return True

    def _fetch(self, name: str, into: BinaryIO, generation: int | None) -> None:
        blob = self._blob(name, generation)
        for attempt in range(DOWNLOAD_TRIES):
            into.seek(0)
            into.truncate()
            try:
                with self._asking("read", name):
                    blob.download_to_file(into, checksum="crc32c", **Patience(self.settings).arguments())
            except DataCorruption as error:
                if attempt == DOWNLOAD_TRIES - 1:
                    raise store.object_corrupt(name, blob.crc32c or "unknown", "another one") from error
            else:
                return

    def _look(self, name: str) -> storage.Blob | None:
        with self._asking("looked up", name):
            return self.bucket.get_blob(self._blob(name).name, **Patience(self.settings).arguments())

    def _blob(self, name: str, generation: int | None = None) -> storage.Blob:
        return self.bucket.blob(self.prefix + check_name(name), generation=generation)

    def _info(self, blob: storage.Blob) -> ObjectInfo:
        metadata = {key: value for key, value in (blob.metadata or {}).items() if key != WRITER}
        name = blob.name.removeprefix(self.prefix)
        return ObjectInfo(name, int(blob.generation or 0), int(blob.size or 0), blob.crc32c or "", metadata)

    def _build_failure(self, name: str, generation: int | None, there: storage.Blob | None) -> TrainyardError:
        return store.precondition_failed(name, generation or 0, self._info(there) if there else None)

    @contextmanager
    def _asking(self, done: str, name: str = "") -> Iterator[None]:
        """Give the client's errors their meaning; `PreconditionFailed` and `DataCorruption` are the caller's."""
        subject = f"The object {name} in {self.address}" if name else f"The bucket {self.address}"
        try:
            yield
        except (api.PreconditionFailed, DataCorruption, TrainyardError):
            raise
        except api.NotFound as error:
            if "bucket" in str(error.message).lower() or done == "written":
                raise forbidden(self.address, "The bucket does not exist.") from error
            raise store.object_missing(name) from error
        except (api.Forbidden, api.Unauthorized) as error:
            raise forbidden(self.address, first_line(error)) from error
        except (api.GoogleAPICallError, api.RetryError, InvalidResponse, OSError) as error:
            raise self._unavailable(f"{subject} was not {done}.", error) from error
        except auth.GoogleAuthError as error:
            if is_passing(error):
                raise self._unavailable(f"{subject} was not {done}.", error) from error
            raise forbidden(self.address, first_line(error)) from error

    def _unavailable(self, message: str, error: Exception) -> Unavailable:
        cause = getattr(error, "cause", None) or error
        return Unavailable(
            message,
            why=f"Within {self.settings.deadline_s:g} s the last answer was: {first_line(cause)}",
            do="Run it again when the service answers: what had arrived is recognised and nothing is written twice.",
            code="E-OBJECT-STORE",
        )


def is_passing(error: BaseException) -> bool:
    """Whether trying again can help, as the client itself judges."""
    passing: bool = DEFAULT_RETRY._predicate(error)
    return passing


def forbidden(address: str, why: str) -> Unavailable:
    return Unavailable(
        f"{address} does not let us in.",
        why=why,
        do="Check the bucket's name, the credentials (`gcloud auth application-default login`) and the role Storage "
        "Object Admin on it.",
        code="E-OBJECT-STORE",
    )


def first_line(error: BaseException) -> str:
    text = str(getattr(error, "message", "") or error).strip()
    message = _MESSAGE.search(text)
    if message:
        return message[1][:300]
    return (text.splitlines() or [type(error).__name__])[0][:300]


@contextmanager
def _stream(data: bytes | Path) -> Iterator[tuple[BinaryIO, int]]:
    if isinstance(data, bytes):
        yield BytesIO(data), len(data)
    else:
        with data.open("rb") as stream:
            yield stream, os.fstat(stream.fileno()).st_size
