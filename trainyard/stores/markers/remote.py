"""Markers in an object store, for workers on other machines: generation preconditions instead of renames.

    <prefix>/<name>.json            the marker, written once
    <prefix>/<name>.json.claimed    who has it and how it ended; every change names the generation that it replaces
    <prefix>/<name>.json.completed  or .failed: for people and other programs, written after the fact

All decisions fall on the `.claimed` object, so that each of them is one conditional write, which exactly one of any
number of writers wins. Its metadata contains the record: one listing shows the state of all markers. An acknowledgement
that was lost is looked up by the store (`stores/objects`), and a renewal whose answer never came is recognised by
owner and fencing number.

Leases of owners on other machines are judged by the wall clock, `skew_s` later: a clock that is further off may cost
work done twice, never a result published twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from trainyard.callbacks import ignore
from trainyard.errors import Conflict
from trainyard.json_types import JsonObject
from trainyard.stores.clock import Clock
from trainyard.stores.markers import records
from trainyard.stores.markers.records import Claim, Marker, MarkerRecord, MarkerState, Owner
from trainyard.stores.objects.store import ObjectInfo, ObjectStore, check_name

SKEW_S = 30.0
MOST_LOOKS = 10
"""At a claim that changes while it is changed: its owner is one process, so that twice is already rare."""
RECORD = "record"
"""Metadata key of the record without its facts and reason."""
ENDED = (MarkerState.COMPLETED, MarkerState.FAILED)


class ObjectMarkers(records.LeasedMarkers):
    """`MarkerStore` below a prefix of an object store."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str = "markers",
        clock: Clock | None = None,
        *,
        lease_s: float = records.LEASE_S,
        alive: records.Alive = records.owner_alive,
        at: Callable[[str], None] = ignore,
    ) -> None:
        super().__init__(clock, lease_s, alive, at, SKEW_S)
        self.store, self.prefix = store, check_name(prefix)

    def publish(self, marker: Marker) -> bool:
        self.at("marker.publishing")
        try:
            self._put(marker.name, MarkerState.PENDING, MarkerRecord(marker), 0)
        except Conflict:
            there = self._record(self.store.head(self._object(marker.name, MarkerState.PENDING)))
            if there is not None:
                records.check_same(there.marker, marker)
            return False
        self.at("marker.published")
        return True

    def pending(self) -> list[Marker]:
        return [record.marker for record in self._all().values() if record.state is MarkerState.PENDING]

    def expired(self) -> list[Claim]:
        """Return the claims whose owner is gone. Completes on the way what a crash left of an ended marker."""
        claimed = (record for record in self._all(complete=True).values() if record.state is MarkerState.CLAIMED)
        return [record.claim() for record in claimed if self._stale(record)]

    def claim(self, marker: Marker, owner: Owner) -> Claim | None:
        there = self._record(self.store.head(self._object(marker.name, MarkerState.CLAIMED)))
        if there is None:
            there = self._record(self.store.head(self._object(marker.name, MarkerState.PENDING)))
            there = there and replace(there, generation=0)
        if there is None or there.state in ENDED or (there.state is MarkerState.CLAIMED and not self._stale(there)):
            return None
        claimed = self._renew(replace(there, owner=owner, fence=there.fence + 1))
        try:
            info = self._put(marker.name, MarkerState.CLAIMED, claimed, there.generation)
        except Conflict:
            return None
        self.at("marker.claimed")
        return replace(claimed, generation=info.generation).claim()

    def heartbeat(self, claim: Claim) -> Claim:
        record = self._change(claim, self._renew)
        self.at("marker.renewed")
        return record.claim()

    def states(self) -> dict[str, MarkerState]:
        return {name: record.state for name, record in self._all().items()}

    def show(self, name: str) -> MarkerRecord:
        for state in (MarkerState.CLAIMED, MarkerState.PENDING):
            info = self.store.head(self._object(name, state))
            if info is not None:
                content = self.store.get(info.name, generation=info.generation)
                return MarkerRecord.from_json(info.name, content, generation=info.generation)
        raise records.make_missing_error(name)

    def _end(self, claim: Claim, state: MarkerState, *, reason: str = "", facts: JsonObject | None = None) -> None:
        if state is MarkerState.PENDING:
            self._change(
                claim,
                lambda current: replace(current, state=state, owner=None, attempts=current.attempts + 1, reason=reason),
            )
            self.at("marker.ended")
            return
        there = self._record(self.store.head(self._object(claim.marker.name, MarkerState.CLAIMED)))
        if there is not None and there.state is state and there.fence == claim.fence:
            record = there
        else:
            record = self._change(
                claim, lambda current: replace(current, state=state, reason=reason, facts=facts or {})
            )
        self.at("marker.end-written")
        self._write_end(record)
        self.at("marker.ended")

    def _change(self, claim: Claim, change: Callable[[MarkerRecord], MarkerRecord]) -> MarkerRecord:
        """Replace the record of a claim that is still ours; the generation proves that no other writer came between."""
        name = claim.marker.name
        there: MarkerRecord | None = None
        for _ in range(MOST_LOOKS):
            there = self._record(self.store.head(self._object(name, MarkerState.CLAIMED)))
            if there is None or not there.belongs_to(claim):
                raise records.make_lost_error(claim, there)
            changed = change(there)
            try:
                info = self._put(name, MarkerState.CLAIMED, changed, there.generation)
            except Conflict:
                continue  # this process's earlier write, whose answer never came, or another owner: look again
            return replace(changed, generation=info.generation)
        raise records.make_lost_error(claim, there)

    def _write_end(self, record: MarkerRecord) -> None:
        """Write the object whose name shows the end state; no decision depends on it."""
        try:
            self._put(record.marker.name, record.state, record, 0)
        except Conflict as error:
            if error.code != "E-OBJECT-EXISTS":
                raise

    def _put(self, name: str, state: MarkerState, record: MarkerRecord, generation: int) -> ObjectInfo:
        short = replace(record, facts={}, reason="").to_json()
        return self.store.put(
            self._object(name, state),
            record.to_json(),
            if_generation_match=generation,
            metadata={RECORD: json.dumps(json.loads(short), separators=(",", ":"))},
        )

    def _all(self, *, complete: bool = False) -> dict[str, MarkerRecord]:
        """Name -> record of every marker, from one listing."""
        records: dict[str, MarkerRecord] = {}
        ended: set[str] = set()
        infos = self.store.list(f"{self.prefix}/")
        for info in infos:  # sorted: <name>.json comes before <name>.json.claimed
            name, dot, state = info.name.removeprefix(f"{self.prefix}/").partition(".json")
            if state in (".completed", ".failed"):
                ended.add(name)
            elif dot and state in ("", ".claimed"):
                record = self._record(info)
                assert record is not None
                records[name] = record
        for name, record in records.items() if complete else ():
            if record.state in ENDED and name not in ended:
                self._write_end(self.show(name))
        return dict(sorted(records.items()))

    def _record(self, info: ObjectInfo | None) -> MarkerRecord | None:
        """What an object says: by its metadata, or by its bytes where somebody copied it there by hand without any.

        Renaming a pending marker to `.claimed` by hand claims it without an owner: the next worker takes it over.
        """
        if info is None:
            return None
        stored = info.metadata.get(RECORD)
        content = stored.encode() if stored else self.store.get(info.name, generation=info.generation)
        return MarkerRecord.from_json(info.name, content, generation=info.generation)

    def _object(self, name: str, state: MarkerState) -> str:
        return f"{self.prefix}/{name}{state.suffix}"
