"""Markers in a folder of one machine: renames that cannot overwrite, ordered by a lock that dies with its holder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from trainyard.callbacks import ignore
from trainyard.json_types import JsonObject
from trainyard.stores.clock import Clock
from trainyard.stores.files import DISK, Files, make_folders, translate_os_errors
from trainyard.stores.markers import records
from trainyard.stores.markers.records import Claim, Marker, MarkerRecord, MarkerState, Owner
from trainyard.stores.whole import create_whole, write_whole

LOCK_FILE = ".lock"


class LocalMarkers(records.LeasedMarkers):
    """Markers in one folder of one machine.

    A marker has exactly one name at any moment: its content is replaced first, then it is renamed, and a rename never
    overwrites. A lock that the kernel gives back when its holder dies orders those two steps.
    """

    def __init__(
        self,
        folder: Path,
        files: Files = DISK,
        clock: Clock | None = None,
        *,
        lease_s: float = records.LEASE_S,
        alive: records.Alive = records.owner_alive,
        at: Callable[[str], None] = ignore,
    ) -> None:
        super().__init__(clock, lease_s, alive, at)
        self.folder, self.files = folder, files

    def publish(self, marker: Marker) -> bool:
        with translate_os_errors("The marker was not published"), self._locked():
            there = self._state(marker.name)
            if there is not None:
                records.check_same(self._read(marker.name, there).marker, marker)
                return False
            self.at("marker.publishing")
            create_whole(self.files, self._path(marker.name), MarkerRecord(marker).to_json())
            self.at("marker.published")
            return True

    def pending(self) -> list[Marker]:
        names = [name for name, state in self.states().items() if state is MarkerState.PENDING]
        return [record.marker for record in self._records(names, MarkerState.PENDING)]

    def expired(self) -> list[Claim]:
        names = [name for name, state in self.states().items() if state is MarkerState.CLAIMED]
        return [record.claim() for record in self._records(names, MarkerState.CLAIMED) if self._stale(record)]

    def claim(self, marker: Marker, owner: Owner) -> Claim | None:
        with translate_os_errors("The marker was not claimed"), self._locked():
            state = self._settle_state(marker.name)
            if state not in (MarkerState.PENDING, MarkerState.CLAIMED):
                return None
            record = self._read(marker.name, state)
            if state is MarkerState.CLAIMED and not self._stale(record):
                return None
            claimed = self._renew(replace(record, owner=owner, fence=record.fence + 1))
            self._write(marker.name, state, claimed)
            self.at("marker.claim-written")
            if state is MarkerState.PENDING:
                self._rename(marker.name, state, MarkerState.CLAIMED)
            self.at("marker.claimed")
            return claimed.claim()

    def heartbeat(self, claim: Claim) -> Claim:
        with translate_os_errors("The claim was not renewed"), self._locked():
            renewed = self._renew(self._require_claimed(claim))
            self._write(claim.marker.name, MarkerState.CLAIMED, renewed)
            self.at("marker.renewed")
            return renewed.claim()

    def states(self) -> dict[str, MarkerState]:
        if not self.files.is_folder(self.folder):
            return {}
        states: dict[str, MarkerState] = {}
        listed = set(self.files.listdir(self.folder))
        for state in MarkerState:
            for file in sorted(listed):
                if not file.startswith(".") and file.endswith(state.suffix):
                    states[file.removesuffix(state.suffix)] = state
        return dict(sorted(states.items()))

    def show(self, name: str) -> MarkerRecord:
        state = self._state(name)
        if state is None:
            raise records.make_missing_error(name)
        return self._read(name, state)

    def _end(self, claim: Claim, state: MarkerState, *, reason: str = "", facts: JsonObject | None = None) -> None:
        name = claim.marker.name
        with translate_os_errors("The marker was not finished"), self._locked():
            if self._settle_state(name) is state and self._read(name, state).fence == claim.fence:
                return
            record = self._require_claimed(claim)
            attempts = record.attempts + (state is MarkerState.PENDING)
            ended = replace(record, attempts=attempts, reason=reason, facts=facts or record.facts)
            self._write(name, MarkerState.CLAIMED, ended)
            self.at("marker.end-written")
            self._rename(name, MarkerState.CLAIMED, state)
            self.at("marker.ended")

    def _require_claimed(self, claim: Claim) -> MarkerRecord:
        state = self._settle_state(claim.marker.name)
        record = self._read(claim.marker.name, state) if state else None
        if record is None or not record.belongs_to(claim):
            raise records.make_lost_error(claim, record)
        return record

    def _records(self, names: list[str], state: MarkerState) -> Iterator[MarkerRecord]:
        """Yield what could be read in this state: another worker may have moved some on since they were listed."""
        for name in names:
            try:
                yield self._read(name, state)
            except FileNotFoundError:
                continue

    def _read(self, name: str, state: MarkerState) -> MarkerRecord:
        path = self._path(name, state)
        return replace(MarkerRecord.from_json(path.name, self.files.read(path)), state=state)

    def _write(self, name: str, state: MarkerState, record: MarkerRecord) -> None:
        write_whole(self.files, self._path(name, state), replace(record, state=state).to_json())

    def _rename(self, name: str, source: MarkerState, target: MarkerState) -> None:
        self.files.rename_noreplace(self._path(name, source), self._path(name, target))
        self.files.fsync_folder(self.folder)

    def _state(self, name: str) -> MarkerState | None:
        states = [state for state in MarkerState if self.files.exists(self._path(name, state))]
        return states[-1] if states else None

    def _settle_state(self, name: str) -> MarkerState | None:
        """The state, after removing the old name that a crash amid link and unlink leaves (no RENAME_NOREPLACE)."""
        states = [state for state in MarkerState if self.files.exists(self._path(name, state))]
        for state in states[:-1]:
            self.files.unlink(self._path(name, state))
        return states[-1] if states else None

    def _path(self, name: str, state: MarkerState = MarkerState.PENDING) -> Path:
        return self.folder / f"{name}{state.suffix}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_folders(self.files, self.folder)
        with self.files.locked(self.folder / LOCK_FILE):
            yield
