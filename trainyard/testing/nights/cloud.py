"""The weights store of a simulated night, its markers, and the clock of a night that waits for workers elsewhere.

Two stores take turns: a folder (`stores/objects/local`), and the object-store double (`testing/buckets`), whose
preconditions are those that the HTTP double serves. Markers lie in the tenant's folder, or in the store; the latter
belongs to `phase2: remote`, where the night waits and workers train.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard.errors import Unavailable
from trainyard.stores.clock import Clock
from trainyard.stores.files import make_folders
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.markers.records import Claim, Marker, MarkerState, Owner
from trainyard.stores.markers.remote import ObjectMarkers
from trainyard.stores.objects.local import FolderStore
from trainyard.stores.objects.store import ObjectInfo
from trainyard.testing.buckets import Buckets, BucketStore
from trainyard.testing.nights.doubles import SimulatedClock
from trainyard.testing.simulated_files import SimulatedFiles

WITH_STORE, BUCKET_SHARE, MARKERS_SHARE = 0.6, 0.6, 0.5
"""Shares of campaigns: that have a store; of these a bucket; of these markers in the store."""
LOOKS_SHARE = 0.3
"""How many of a night's looks at its markers find that a worker has just looked too."""


class Flaky:
    """A store that never loses what it acknowledged, while a connection may break before or after."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.lose: list[str] = []
        self.overwritten: list[str] = []
        """Objects that were written although they were there, for the invariants."""
        self.watch: Callable[[str], None] = lambda _name: None

    def put(self, name: str, data: bytes | Path, **more: Any) -> ObjectInfo:
        when = self.lose.pop() if self.lose else ""
        if when == "before":
            raise Unavailable("The object store does not answer.", do="Try later.", code="E-OBJECT-STORE")
        self.watch(name)
        there = self.head(name)  # type: ignore[attr-defined]
        info: ObjectInfo = super().put(name, data, **more)  # type: ignore[misc]
        if there is not None:
            self.overwritten.append(name)
        if when == "after":
            raise Unavailable("The object store broke off.", do="Try later.", code="E-OBJECT-STORE")
        return info


class FlakyFolder(Flaky, FolderStore):
    """A folder that is the weights store."""

    def put(self, name: str, data: bytes | Path, **more: Any) -> ObjectInfo:
        return super().put(name, data if isinstance(data, bytes) else self.files.read(data), **more)


class FlakyBucket(Flaky, BucketStore):
    """The object-store double."""


FlakyStore = FlakyFolder | FlakyBucket


def choose_store(chance: random.Random, seed: int) -> FlakyStore | None:
    """No store, a folder or a bucket."""
    if chance.random() >= WITH_STORE:
        return None
    if chance.random() < BUCKET_SHARE:
        return FlakyBucket(Buckets(seed))
    folder = FlakyFolder(Path("/cloud"), SimulatedFiles(seed))
    make_folders(folder.files, Path("/cloud"))
    return folder


class Watched:
    """Notes a claim that was taken from an owner who lives and renews it, and a fencing number given out twice."""

    watcher: Any
    """The campaign: who lives, which claims were taken, what is violated."""
    clock: Clock

    def claim(self, marker: Marker, owner: Owner) -> Claim | None:
        before = self.show(marker.name)  # type: ignore[attr-defined]
        claim: Claim | None = super().claim(marker, owner)  # type: ignore[misc]
        self.watcher.checked += 1
        if claim is None:
            return None
        holder = before.owner if before.state is MarkerState.CLAIMED else None
        valid = holder is not None and self.clock.monotonic() <= before.expires_monotonic
        if holder is not None and valid and self.watcher.alive(holder):
            self.watcher.violated(f"{marker.name} was taken from an owner who lives")
        if (marker.name, claim.fence) in self.watcher.claims:
            self.watcher.violated(f"{marker.name} has two owners with fencing number {claim.fence}")
        self.watcher.claims.add((marker.name, claim.fence))
        return claim


class WatchedFolder(Watched, LocalMarkers):
    """Markers in the tenant's folder."""


class WatchedObjects(Watched, ObjectMarkers):
    """Markers in the store."""


WatchedMarkers = WatchedFolder | WatchedObjects


class WaitingClock:
    """The clock of a night that waits for its workers: while it waits, they look."""

    def __init__(self, clock: SimulatedClock, look: Callable[[], None]) -> None:
        self.clock, self.look = clock, look

    def now(self) -> float:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self.look()
