"""Records of markers, claims and owners: the same for folders and object stores."""

from __future__ import annotations

import json
import os
import re
import socket
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Literal, Protocol

from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound
from trainyard.json_types import JsonObject
from trainyard.stores.clock import Clock, RealClock
from trainyard.stores.processes import Start, boot_id, find_process, process_start
from trainyard.stores.schema import add_version, read_versioned

LEASE_S = 300.0
"""A claim lives so long without a heartbeat: ten polls of a worker, and more than a slow checkpoint write."""
POINTS = (
    "marker.publishing", "marker.published", "marker.claim-written", "marker.claimed", "marker.renewed",
    "marker.end-written", "marker.ended",
)  # fmt: skip
"""Where `at` is called: after each step that a crash could fall behind."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9T:._-]{0,62}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class MarkerState(StrEnum):
    PENDING = "pending"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def suffix(self) -> str:
        return ".json" if self is MarkerState.PENDING else f".json.{self.value}"


@dataclass(frozen=True)
class Marker:
    """A bucket that is ready, and the immutable snapshot that it means. Raises `InvalidInput` (`E-NAME`)."""

    run: str
    """What found it ready, such as `20270114T2300`."""
    tenant: str
    role: str
    bucket: str
    method: Literal["sft", "dpo"]
    rows: int
    corpus_sha256: str
    corpus: str
    """Folder or address of the snapshot."""
    base_model: str
    created: float
    """Unix seconds."""

    def __post_init__(self) -> None:
        check_name("run", self.run, _RUN)
        for word in ("tenant", "role", "bucket"):
            check_name(word, getattr(self, word), _NAME)
        check_name("corpus_sha256", self.corpus_sha256, _SHA256)

    @property
    def name(self) -> str:
        return f"{self.run}-{self.tenant}-{self.role}-{self.bucket}"


@dataclass(frozen=True)
class Owner:
    """A process on one machine since one boot: a pid alone comes back after a while."""

    host: str
    pid: int
    create_time: Start
    boot_id: str


NOBODY = Owner("", 0, 0.0, "")
"""The owner of a marker that somebody renamed to `.claimed` by hand: it is gone, so that others take over."""


@dataclass(frozen=True)
class Claim:
    """The right to train a marker until `expires`, unless it is renewed."""

    marker: Marker
    owner: Owner
    fence: int
    """Grows with every owner of this marker."""
    expires: float
    """Unix seconds."""
    generation: int = 0
    """Of the claim's object, where an object store keeps it."""


@dataclass(frozen=True)
class MarkerRecord:
    """All that is known about a marker: the content of its file, and the state that the file's name says."""

    marker: Marker
    state: MarkerState = MarkerState.PENDING
    fence: int = 0
    attempts: int = 0
    """Claims that ended in a failure that may be tried again."""
    owner: Owner | None = None
    expires: float = 0.0
    expires_monotonic: float = 0.0
    """The same moment on the monotonic clock of the owner's boot."""
    reason: str = ""
    facts: JsonObject = field(default_factory=dict)
    generation: int = 0

    def claim(self) -> Claim:
        return Claim(self.marker, self.owner or NOBODY, self.fence, self.expires, self.generation)

    def belongs_to(self, claim: Claim) -> bool:
        return self.state is MarkerState.CLAIMED and self.owner == claim.owner and self.fence == claim.fence

    def to_json(self) -> bytes:
        body = {name: value for name, value in asdict(self).items() if name != "generation"}
        return json.dumps(add_version("marker", body), indent=1, sort_keys=True).encode()

    @staticmethod
    def from_json(name: str, content: bytes, *, generation: int = 0) -> MarkerRecord:
        """Raises `Corrupt` (`E-CORRUPT`)."""
        try:
            body = read_versioned("marker", content, f"The marker {name}")
            owner = Owner(**body.pop("owner")) if body["owner"] else body.pop("owner")
            marker, state = Marker(**body.pop("marker")), MarkerState(body.pop("state"))
            return MarkerRecord(marker=marker, state=state, owner=owner, generation=generation, **body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Corrupt(
                f"The marker {name} cannot be read.",
                why=f"{type(error).__name__}: {error}",
                do="Move this file away; the next night publishes its bucket again if it is still ready.",
                code="E-CORRUPT",
            ) from error


Alive = Callable[[Owner], bool | None]
"""Whether an owner still runs; None when this machine cannot know."""


class MarkerStore(Protocol):
    """Store of markers. Every method is safe for any number of processes."""

    def publish(self, marker: Marker) -> bool:
        """Make it pending; False when a marker of this name is there already, whatever its state."""

    def pending(self) -> list[Marker]:
        """Return the unclaimed, unfinished markers, oldest name first."""

    def expired(self) -> list[Claim]:
        """Return the claims whose owner is gone or silent: `claim` of such a marker takes it over."""

    def claim(self, marker: Marker, owner: Owner) -> Claim | None:
        """Claim a pending or expired marker; None if another owner has it or it is finished."""

    def heartbeat(self, claim: Claim) -> Claim:
        """Renew the lease. Raises `Conflict` (`E-MARKER-LOST`) when another owner has it."""

    def verify(self, claim: Claim) -> Claim:
        """What publication asks right before its effect: still ours, and renewed, so that nobody takes it meanwhile.

        Raises `Conflict` (`E-MARKER-LOST`).
        """

    def complete(self, claim: Claim, facts: JsonObject) -> None:
        """Finish it. Doing it twice adds nothing. Raises `Conflict` (`E-MARKER-LOST`)."""

    def fail(self, claim: Claim, reason: str, *, retry: bool) -> None:
        """Give it back as pending (`retry`), or give it up. Raises `Conflict` (`E-MARKER-LOST`)."""

    def states(self) -> dict[str, MarkerState]:
        """Name -> state of every marker."""

    def show(self, name: str) -> MarkerRecord:
        """Raises `NotFound` (`E-NOT-FOUND`), `Corrupt` (`E-CORRUPT`)."""


class LeasedMarkers(MarkerStore):
    """Base class of both stores: leases by a clock, and the ways in which a claim ends."""

    def __init__(
        self, clock: Clock | None, lease_s: float, alive: Alive, at: Callable[[str], None], skew_s: float = 0.0
    ) -> None:
        self.clock: Clock = clock or RealClock()
        self.lease_s, self.alive, self.at, self.skew_s = lease_s, alive, at, skew_s

    def verify(self, claim: Claim) -> Claim:
        return self.heartbeat(claim)

    def complete(self, claim: Claim, facts: JsonObject) -> None:
        self._end(claim, MarkerState.COMPLETED, facts=facts)

    def fail(self, claim: Claim, reason: str, *, retry: bool) -> None:
        self._end(claim, MarkerState.PENDING if retry else MarkerState.FAILED, reason=reason)

    @abstractmethod
    def _end(self, claim: Claim, state: MarkerState, *, reason: str = "", facts: JsonObject | None = None) -> None:
        """Move a claim that is still ours to a state; doing it twice adds nothing."""

    def _renew(self, record: MarkerRecord) -> MarkerRecord:
        return renew_claim(record, self.clock, self.lease_s)

    def _stale(self, record: MarkerRecord) -> bool:
        return is_stale(record, self.clock, self.alive, skew_s=self.skew_s)


def check_name(word: str, value: str, pattern: re.Pattern[str]) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value) or ".." in value:
        raise InvalidInput(
            f"{value!r} is not a valid {word} of a marker.",
            why="It becomes a part of a file name: letters, digits and hyphens only, 63 at most."
            if word != "corpus_sha256"
            else "It has to be 64 hexadecimal digits.",
            do=f"Rename the {word}.",
            code="E-NAME",
        )


def check_same(there: Marker, marker: Marker) -> None:
    """Raise if two different markers meet in one file name; they can, because names may contain hyphens."""
    if any(getattr(there, word) != getattr(marker, word) for word in ("run", "tenant", "role", "bucket")):
        raise Conflict(
            f"The marker name {marker.name} is taken by role {there.role} of tenant {there.tenant}.",
            why="Run, tenant, role and bucket are joined by hyphens, and these two come out the same.",
            do="Rename one of the roles or buckets.",
            code="E-NAME",
        )


def renew_claim(record: MarkerRecord, clock: Clock, lease_s: float) -> MarkerRecord:
    """Return the same claim with a whole lease before it."""
    return replace(
        record,
        state=MarkerState.CLAIMED,
        expires=clock.now() + lease_s,
        expires_monotonic=clock.monotonic() + lease_s,
    )


def is_stale(record: MarkerRecord, clock: Clock, alive: Alive, *, skew_s: float = 0.0) -> bool:
    """Whether the owner is gone for certain, or its lease has run out.

    On the owner's own machine the monotonic clock decides, which no clock change touches. On another machine the wall
    clock decides, `skew_s` later.
    """
    is_alive = alive(record.owner) if record.owner else False
    if is_alive is None:
        return clock.now() > record.expires + skew_s
    return not is_alive or clock.monotonic() > record.expires_monotonic


def owner_alive(owner: Owner) -> bool | None:
    """Whether this very process still runs; None when it is (or was) on another machine, where we cannot look.

    Another boot id on this machine means that the owner died with that boot.
    """
    if owner.host != socket.gethostname():
        return None
    if owner.boot_id != boot_id():
        return False
    return find_process(owner.pid, owner.create_time) is not None


def find_owner() -> Owner:
    """Return the calling process."""
    return Owner(socket.gethostname(), os.getpid(), process_start(), boot_id())


def make_lost_error(claim: Claim, record: MarkerRecord | None) -> Conflict:
    now = "It is gone." if record is None else f"It is {record.state.value} now, with fencing number {record.fence}."
    return Conflict(
        f"The marker {claim.marker.name} is no longer claimed with fencing number {claim.fence}.",
        why=now,
        do="Stop, and leave the work to the present owner; nothing of it may be published any more.",
        code="E-MARKER-LOST",
    )


def make_missing_error(name: str) -> NotFound:
    return NotFound(f"There is no marker {name}.", do="List them with `trainyard nightly status`.", code="E-NOT-FOUND")
