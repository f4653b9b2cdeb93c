"""Markers for tests, and a worker process that claims all it can (`python -m tests.unit.stores.marking …`)."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

from trainyard.callbacks import ignore
from trainyard.compute.child import faultpoint
from trainyard.errors import Conflict
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.markers.records import Marker, MarkerState, MarkerStore, Owner, find_owner
from trainyard.stores.markers.remote import ObjectMarkers
from trainyard.stores.objects.addresses import open_store
from trainyard.stores.objects.store import ObjectSettings

QUICK = ObjectSettings(deadline_s=60, request_timeout_s=30, first_wait_s=0.01, most_wait_s=0.2)


def marker(number: int = 0, *, role: str = "coder", bucket: str = "engineering") -> Marker:
    return Marker(
        run=f"run{number:04}",
        tenant="acme",
        role=role,
        bucket=bucket,
        method="sft",
        rows=50,
        corpus_sha256="ab" * 32,
        corpus="corpora/acme/engineering/ab",
        base_model="starter",
        created=1.0e9 + number,
    )


def owner(number: int, *, host: str = "elsewhere") -> Owner:
    return Owner(host, number, 1000.0, "boot-1")


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: float = 1.0e9) -> None:
        self.time, self.since_boot = now, 100.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.since_boot

    def sleep(self, seconds: float) -> None:
        self.pass_by(seconds)

    def pass_by(self, seconds: float) -> None:
        self.time += seconds
        self.since_boot += seconds


def open_markers(address: str, at: Callable[[str], None] = ignore) -> MarkerStore:
    """`folder:PATH`, or the address of an object store."""
    kind, _, path = address.partition(":")
    if kind == "folder":
        return LocalMarkers(Path(path), at=at)
    return ObjectMarkers(open_store(address, QUICK), "markers", at=at)


def work(address: str, seed: int, record: Path) -> None:
    """Claim, verify and complete until nothing is left; write what was won, and what was lost afterwards."""
    markers, chance = open_markers(address, faultpoint), random.Random(seed)
    while True:
        left = markers.pending() + [claim.marker for claim in markers.expired()]
        if not left and all(state is MarkerState.COMPLETED for state in markers.states().values()):
            return
        chance.shuffle(left)
        for marker in left[:50]:
            claim = markers.claim(marker, find_owner())
            if claim is None:
                continue
            try:
                markers.complete(markers.verify(claim), {"worker": seed})
            except Conflict as error:
                note(record, {"lost": marker.name, "code": error.code})
            else:
                note(record, {"won": marker.name, "fence": claim.fence})


def note(record: Path, line: dict[str, object]) -> None:
    with record.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def notes(records: list[Path]) -> list[dict[str, object]]:
    return [json.loads(line) for record in records if record.exists() for line in record.read_text().splitlines()]


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
