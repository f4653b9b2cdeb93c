"""The state of the Cloud Storage double: buckets in memory that keep their preconditions.

`testing/object_server.py` serves it over HTTP to the real client. `BucketStore` is the same state as an `ObjectStore`
within the process, for the simulator: what both let through is decided by the same lines.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.json_types import JsonObject
from trainyard.stores.objects.store import (
    Metadata,
    ObjectInfo,
    check_name,
    crc32c,
    object_missing,
    precondition_failed,
)

FIRST_GENERATION = 1_700_000_000_000_000
_MESSAGES = {
    401: "Invalid Credentials: the token has expired.",
    403: "The caller does not have storage.objects.create access to the bucket.",
    404: "The specified bucket does not exist.",
    412: "At least one of the pre-conditions you specified did not hold.",
}


@dataclass
class Stored:
    """An object."""

    name: str
    data: bytes
    generation: int
    crc32c: str
    metadata: dict[str, str] = field(default_factory=dict)

    def resource(self, bucket: str) -> dict[str, object]:
        """Return the API's object resource: numbers are strings there."""
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": self.name,
            "id": f"{bucket}/{self.name}/{self.generation}",
            "generation": str(self.generation),
            "metageneration": "1",
            "size": str(len(self.data)),
            "crc32c": self.crc32c,
            "metadata": self.metadata,
        }


class Answered(Exception):
    """Ends the handling of a request with an error status."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(message or _MESSAGES.get(status, f"scripted {status}"))
        self.status = status


class Buckets:
    """The API's operations, each under the lock and whole."""

    def __init__(self, seed: int = 0) -> None:
        self.objects: dict[tuple[str, str], Stored] = {}
        self.lock = threading.RLock()
        self._random = random.Random(seed)
        self._generation = FIRST_GENERATION

    def store(self, bucket: str, resource: JsonObject, data: bytes, query: Mapping[str, str]) -> JsonObject:
        name = resource.get("name") or query.get("name") or ""
        if not name:
            raise Answered(400, "Required parameter: name")
        checksum = crc32c(data)
        if resource.get("crc32c", checksum) != checksum:
            raise Answered(400, f"Provided CRC32C {resource['crc32c']} doesn't match calculated CRC32C {checksum}.")
        with self.lock:
            self.expect(bucket, name, query.get("ifGenerationMatch"))
            stored = Stored(name, data, self._new_generation(), checksum, dict(resource.get("metadata") or {}))
            self.objects[bucket, name] = stored
            return stored.resource(bucket)

    def find(self, bucket: str, name: str, query: Mapping[str, str]) -> Stored:
        with self.lock:
            stored = self.objects.get((bucket, name))
            generation = query.get("generation")
            if stored is None or generation not in (None, str(stored.generation)):
                raise Answered(404, f"No such object: {bucket}/{name}")
            self.expect(bucket, name, query.get("ifGenerationMatch"))
            return stored

    def remove(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        with self.lock:
            self.find(bucket, name, query)
            del self.objects[bucket, name]

    def listing(self, bucket: str, query: Mapping[str, str]) -> dict[str, object]:
        """Return one page, of `maxResults` (1,000 by default) at most; the page token is the last name."""
        with self.lock:
            after, prefix = query.get("pageToken", ""), query.get("prefix", "")
            names = sorted(name for owner, name in self.objects if owner == bucket and name.startswith(prefix))
            left = [name for name in names if name > after]
            page = left[: int(query.get("maxResults", 1000))]
            items = [self.objects[bucket, name].resource(bucket) for name in page]
        more = {"nextPageToken": page[-1]} if len(left) > len(page) else {}
        return {"kind": "storage#objects", "items": items, **more}

    def expect(self, bucket: str, name: str, generation: str | None) -> None:
        stored = self.objects.get((bucket, name))
        if generation is not None and int(generation) != (stored.generation if stored else 0):
            raise Answered(412)

    def _new_generation(self) -> int:
        self._generation += self._random.randint(1, 1000)
        return self._generation


class BucketStore:
    """`ObjectStore` over one bucket of `Buckets`, without a connection."""

    def __init__(self, buckets: Buckets, bucket: str = "weights") -> None:
        self.buckets, self.bucket = buckets, bucket

    def put(
        self, name: str, data: bytes | Path, *, if_generation_match: int | None = None, metadata: Metadata = None
    ) -> ObjectInfo:
        content = data if isinstance(data, bytes) else data.read_bytes()
        resource = {"name": check_name(name), "metadata": dict(metadata or {})}
        with self.buckets.lock:
            try:
                self.buckets.store(self.bucket, resource, content, matching("ifGenerationMatch", if_generation_match))
            except Answered as error:
                raise self._refused(error, name, if_generation_match) from error
            return self._info(name)

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        try:
            return self.buckets.find(self.bucket, check_name(name), matching("generation", generation)).data
        except Answered as error:
            raise object_missing(name, generation) from error

    def download(self, name: str, path: Path) -> ObjectInfo:
        path.write_bytes(self.get(name))
        return self._info(name)

    def head(self, name: str) -> ObjectInfo | None:
        stored = self.buckets.objects.get((self.bucket, check_name(name)))
        return build_info(stored) if stored is not None else None

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        with self.buckets.lock:
            objects = [entry for (bucket, _), entry in self.buckets.objects.items() if bucket == self.bucket]
        return [
            build_info(entry)
            for entry in sorted(objects, key=lambda entry: entry.name)
            if entry.name.startswith(prefix)
        ]

    def delete(self, name: str, *, if_generation_match: int | None = None) -> bool:
        with self.buckets.lock:
            if self.head(name) is None:
                return False
            try:
                self.buckets.remove(self.bucket, name, matching("ifGenerationMatch", if_generation_match))
            except Answered as error:
                raise self._refused(error, name, if_generation_match) from error
            return True

    def _info(self, name: str) -> ObjectInfo:
        return build_info(self.buckets.objects[self.bucket, name])

    def _refused(self, error: Answered, name: str, generation: int | None) -> Exception:
        return precondition_failed(name, generation or 0, self.head(name)) if error.status == 412 else error


def build_info(stored: Stored) -> ObjectInfo:
    return ObjectInfo(stored.name, stored.generation, len(stored.data), stored.crc32c, dict(stored.metadata))


def matching(word: str, generation: int | None) -> dict[str, str]:
    return {} if generation is None else {word: str(generation)}
