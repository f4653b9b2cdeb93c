"""Storage of repositories in a bucket of S3, Google Cloud Storage or Azure, through `obstore` (the extra `buckets`).

A write is conditional on the service itself (`If-None-Match`, `If-Match`, a generation at Cloud Storage), so that
several data workers may share a bucket. `obstore` is the client because `stores/objects` speaks to Cloud Storage alone
and reads whole objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from trainyard.errors import InvalidInput, Unavailable
from trainyard.stores.repositories.storage import Record, StoredFile, ThreadLocks

BLOCK_BYTES = 8 << 20
SCHEMES = ("s3", "gs", "az", "azure", "abfs", "abfss")


def open_bucket(address: str, **options: Any) -> BucketStorage:
    """Return the storage at an address such as `s3://bucket/prefix`; credentials are those of the environment.

    Raises `InvalidInput` (`E-OBJECT-STORE`), `Unavailable` (`E-PACKAGE-MISSING`).
    """
    try:
        import obstore.store  # an extra
    except ModuleNotFoundError as error:
        raise Unavailable(
            "The client for buckets is not installed.", why=f"There is no module {error.name}.",
            do="pip install 'trainyard[buckets]', or use a folder.", code="E-PACKAGE-MISSING",
        ) from error  # fmt: skip
    try:
        return BucketStorage(obstore.store.from_url(address, **options))
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise InvalidInput(
            f"{address!r} cannot be used as storage.", why=str(error).splitlines()[0],
            do="Use a folder, or an address such as s3://bucket/prefix.", code="E-OBJECT-STORE",
        ) from error  # fmt: skip


class BucketStorage:
    """`Storage` in a bucket."""

    def __init__(self, bucket: Any) -> None:
        from obstore.store import GCSStore  # an extra

        self.bucket, self.locks = bucket, ThreadLocks()
        self.condition = "version" if isinstance(bucket, GCSStore) else "e_tag"
        """What a conditional write compares: Cloud Storage has generations."""

    def read(self, name: str) -> Record | None:
        with bucket_errors(f"The record {name} was not read."):
            try:
                result = self.bucket.get(name)
            except FileNotFoundError:
                return None
            return Record(bytes(result.bytes()), str(result.meta[self.condition]))

    def write(self, name: str, data: bytes, version: str | None) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError  # an extra

        mode = "create" if version is None else {self.condition: version}
        with bucket_errors(f"The record {name} was not written."):
            try:
                self.bucket.put(name, data, mode=mode)
            except (AlreadyExistsError, PreconditionError):
                current = self.read(name)  # the acknowledgement of an own write may have been lost
                return current is not None and current.data == data
            except FileNotFoundError as error:
                if version is None:  # a new name is refused so where there is no bucket
                    raise Unavailable(
                        f"The record {name} was not written.", why="The bucket does not exist.",
                        do="Create it, or correct data_storage.", code="E-OBJECT-STORE",
                    ) from error  # fmt: skip
                return False  # removed meanwhile
        return True

    def store_file(self, name: str, path: Path) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError  # an extra

        try:
            if self.size(name) is not None:
                return False
            with bucket_errors(f"The content {name} was not stored."):
                if path.stat().st_size <= BLOCK_BYTES:
                    self.bucket.put(name, path.read_bytes(), mode="create")
                else:  # a multipart upload appears whole at its end; equal names have equal content
                    self.bucket.put(name, path, use_multipart=True)
        except (AlreadyExistsError, PreconditionError):
            return False
        finally:
            path.unlink(missing_ok=True)
        return True

    def size(self, name: str) -> int | None:
        with bucket_errors(f"The size of {name} was not read."):
            try:
                return int(self.bucket.head(name)["size"])
            except FileNotFoundError:
                return None

    def read_range(self, name: str, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            with bucket_errors(f"The content {name} was not read."):
                block = bytes(self.bucket.get_range(name, start=start, end=min(end, start + BLOCK_BYTES)))
            start += len(block)
            yield block

    def list(self, prefix: str) -> Iterator[StoredFile]:
        with bucket_errors(f"The names below {prefix} were not listed."):
            for page in self.bucket.list(prefix):
                for meta in page:
                    yield StoredFile(meta["path"], meta["size"], meta["last_modified"].timestamp())

    def delete(self, name: str) -> None:
        with bucket_errors(f"The content {name} was not removed."):
            try:
                self.bucket.delete(name)
            except FileNotFoundError:
                return

    def locked(self, name: str) -> AbstractContextManager[Any]:
        return self.locks.find(name)


@contextmanager
def bucket_errors(message: str) -> Iterator[None]:
    """Raise `Unavailable` (`E-OBJECT-STORE`) for errors of the client, but for conditions that are not met."""
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError  # an extra

    try:
        yield
    except (AlreadyExistsError, PreconditionError):
        raise
    except BaseError as error:
        raise Unavailable(
            message, why=str(error).splitlines()[0][:300],
            do="Check data_storage, the credentials of the environment and the rights of them in the bucket.",
            code="E-OBJECT-STORE",
        ) from error  # fmt: skip
