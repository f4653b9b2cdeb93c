"""Quotas of tenants: bytes are reserved before an upload is accepted, and counted once they are stored.

The record of a tenant has the bytes of its distinct contents and the reservations of current uploads. Their sum never
exceeds the quota. Two uploads of the same content share one reservation. What a crash left reserved expires.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from trainyard.errors import LimitExceeded
from trainyard.stores.repositories.storage import Storage
from trainyard.stores.schema import add_version, read_versioned

RESERVATION_S = 3600.0
MIB = 1 << 20


@dataclass
class Reservation:
    """Room for one content, and the number of uploads that need it."""

    size: int
    """Bytes; 0 once one of the uploads has stored the content, which is then counted."""
    until: float
    uploads: int = 1

    def enlarge(self, size: int) -> None:
        """Make room for an upload that says another size of the same content: one of them is wrong."""
        self.size = max(self.size, size) if self.size else 0


@dataclass
class Usage:
    """Stored bytes of a tenant, and its reservations by SHA-256."""

    stored: int = 0
    reserved: dict[str, Reservation] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.stored + sum(entry.size for entry in self.reserved.values())


class QuotaReached(LimitExceeded):
    """The contents would take more than the quota of the tenant."""


class Quotas:
    """The usage records of all tenants."""

    def __init__(self, storage: Storage, limit: Callable[[str], int], now: Callable[[], float] = time.time) -> None:
        """`limit` returns the quota of a tenant in bytes."""
        self.storage, self.limit, self.now = storage, limit, now

    def read(self, tenant: str) -> Usage:
        return self.load(tenant)[0]

    def load(self, tenant: str) -> tuple[Usage, str | None]:
        record = self.storage.read(usage_name(tenant))
        if record is None:
            return Usage(stored=sum(file.size for file in self.storage.list(blobs_folder(tenant)))), None
        fields = read_versioned("usage", record.data, f"The usage of {tenant}")
        reserved = {sha256: Reservation(**entry) for sha256, entry in fields["reserved"].items()}
        return Usage(fields["stored"], reserved), record.version

    def change(self, tenant: str, edit: Callable[[Usage], None]) -> None:
        """Apply an edit to the record, again if another process has changed it meanwhile."""
        with self.storage.locked(f"usage {tenant}"):
            while True:
                usage, version = self.load(tenant)
                self.drop_expired(tenant, usage)
                edit(usage)
                data = json.dumps(add_version("usage", asdict(usage)), sort_keys=True).encode()
                if self.storage.write(usage_name(tenant), data, version):
                    return

    def drop_expired(self, tenant: str, usage: Usage) -> None:
        """Count what an upload that died has stored, and give the rest of its reservations back."""
        for sha256 in [sha256 for sha256, entry in usage.reserved.items() if entry.until < self.now()]:
            if usage.reserved.pop(sha256).size:
                usage.stored += self.storage.size(blob_name(tenant, sha256)) or 0

    def reserve(self, tenant: str, contents: Mapping[str, int]) -> list[str]:
        """Reserve room for contents (SHA-256 -> bytes) that are not stored yet; return which were reserved.

        Raises `QuotaReached` (`E-LIMIT`); then nothing is reserved.
        """
        reserved: list[str] = []

        def edit(usage: Usage) -> None:
            reserved.clear()
            until = self.now() + RESERVATION_S
            for sha256, size in contents.items():
                if (entry := usage.reserved.get(sha256)) is not None:
                    entry.uploads, entry.until = entry.uploads + 1, until
                    entry.enlarge(size)
                elif self.storage.size(blob_name(tenant, sha256)) is None:
                    usage.reserved[sha256] = Reservation(size, until)
                else:
                    continue
                reserved.append(sha256)
            if usage.total > self.limit(tenant):
                raise self.quota_error(tenant, sum(contents.values()))

        self.change(tenant, edit)
        return reserved

    def extend(self, tenant: str, sha256: str, size: int) -> None:
        """Extend the reservation of an upload that takes long; reserve again what has expired meanwhile.

        Raises `QuotaReached` (`E-LIMIT`).
        """

        def edit(usage: Usage) -> None:
            entry = usage.reserved.setdefault(sha256, Reservation(size, 0.0))
            entry.until = self.now() + RESERVATION_S
            entry.enlarge(size)
            if usage.total > self.limit(tenant):
                raise self.quota_error(tenant, size)

        self.change(tenant, edit)

    def require_room(self, tenant: str, size: int) -> None:
        """Raises `QuotaReached` (`E-LIMIT`) where so many more bytes do not fit now."""
        if self.read(tenant).total + size > self.limit(tenant):
            raise self.quota_error(tenant, size)

    def settle(self, tenant: str, reserved: Mapping[str, bool]) -> None:
        """End the reservations of an upload: SHA-256 -> whether this upload has stored the content."""

        def edit(usage: Usage) -> None:
            for sha256, is_stored in reserved.items():
                entry = usage.reserved.get(sha256)
                if entry is None:  # expired: counted or given back then
                    continue
                if is_stored:
                    usage.stored += self.storage.size(blob_name(tenant, sha256)) or 0
                    entry.size = 0
                entry.uploads -= 1
                if not entry.uploads:
                    del usage.reserved[sha256]

        if reserved:
            self.change(tenant, edit)

    def recount(self, tenant: str) -> int:
        """Count the stored contents, and return the sum: after a crash, or contents were removed."""

        def edit(usage: Usage) -> None:
            sizes = {file.name.rsplit("/", 1)[1]: file.size for file in self.storage.list(blobs_folder(tenant))}
            usage.stored = sum(
                size for sha256, size in sizes.items()
                if sha256 not in usage.reserved or not usage.reserved[sha256].size
            )  # fmt: skip

        self.change(tenant, edit)
        return self.read(tenant).stored

    def quota_error(self, tenant: str, size: int) -> QuotaReached:
        usage = self.read(tenant)
        return QuotaReached(
            f"The storage quota of {tenant} is reached: {self.limit(tenant):,} bytes.",
            why=f"It has stored {usage.stored:,} bytes and reserved {usage.total - usage.stored:,}; "
            f"{size:,} more do not fit.",
            do="Delete repositories, or let the operator raise data_quota_mb.",
            code="E-LIMIT",
        )


def usage_name(tenant: str) -> str:
    return f"tenants/{tenant}/usage.json"


def blobs_folder(tenant: str) -> str:
    return f"tenants/{tenant}/blobs"


def blob_name(tenant: str, sha256: str) -> str:
    return f"{blobs_folder(tenant)}/{sha256[:2]}/{sha256}"
