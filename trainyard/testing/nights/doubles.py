"""Doubles of a simulated night: a clock, disks that forget, a device, a model, a trainer, a cloud.

Only these are faked: the clock, file-system calls, HTTP (the model's and the graph server's answers, the object store's
connection), the ends of processes, the trainer's weights, and the children that parse documents. Stores, markers,
ledger, registry and the night's own functions are the product's.

Two weights stores take turns: a folder (`stores/objects/local`), and the object-store double (`testing/buckets`), whose
preconditions are those that the HTTP double serves. Markers lie in the tenant's folder, or in the store; the latter
belongs to `phase2: remote`, where the night waits and workers train.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import selectors
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.backends.results import TrainingStopped
from trainyard.data.limited.jobs import parse_item
from trainyard.data.limited.requests import ParsedItem, ParseItem
from trainyard.errors import Conflict, Unavailable
from trainyard.json_types import JsonMapping
from trainyard.night.deps import NightVerdict, Trained, TrainingRequest
from trainyard.serve.extraction.extraction import MAX_DOCUMENT_CHARS, Complete, Messages, parse_prompt
from trainyard.spec.chain import canonical_json
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.clock import Clock
from trainyard.stores.files import make_folders
from trainyard.stores.graph.facts import MutateResult, Mutation
from trainyard.stores.graph.local import MemoryGraph
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.markers.records import Claim, Marker, MarkerState, Owner
from trainyard.stores.markers.remote import ObjectMarkers
from trainyard.stores.objects.local import FolderStore
from trainyard.stores.objects.store import ObjectInfo
from trainyard.stores.processes import boot_id
from trainyard.stores.whole import write_whole
from trainyard.testing.buckets import Buckets, BucketStore
from trainyard.testing.simulated_files import SimulatedFiles

EPOCH = 1_800_000_000.0
CHUNK_S = 30.0
"""Simulated seconds between two looks of a training at its budget and its claim."""


class Crash(BaseException):
    """A process ended here. Not an `Exception`: nothing of the night may catch it."""


class SimulatedClock:
    """Wall and monotonic time; waiting advances it."""

    def __init__(self) -> None:
        self.wall, self.steady = EPOCH, 1_000.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def sleep(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


class Waiting(selectors.SelectSelector):
    """Instead of waiting for a socket, time passes."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "a simulated night waits for something that never happens"
        if timeout > 0:
            self.clock.sleep(timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """asyncio in simulated time: the order of events depends on nothing but the program."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        super().__init__(Waiting(clock))

    def time(self) -> float:
        return self.clock.monotonic()


def make_runner(clock: SimulatedClock) -> Callable[[Coroutine[object, object, None]], None]:
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        loop = SimulatedLoop(clock)
        try:
            loop.run_until_complete(coroutine)
        finally:
            loop.close()

    return run


@dataclass
class Process:
    """A process that may act: its owner's identity, and whether it lives."""

    number: int
    elsewhere: bool = False
    """On another machine: only its lease says whether it lives."""
    dead: bool = False

    @property
    def owner(self) -> Owner:
        host = "another-machine" if self.elsewhere else socket.gethostname()
        return Owner(host, self.number, float(self.number), boot_id())


@dataclass
class Lease:
    """A process's view of the device's lease; the kernel frees it when its holder dies."""

    shared: dict[str, Process]
    process: Process

    @contextmanager
    def alone(self, run: str) -> Iterator[None]:
        holder = self.shared.get("holder")
        if holder is not None and not holder.dead:
            raise Conflict("The device is in use by another run.", do="Wait for it.", code="E-NIGHT-BUSY")
        self.shared["holder"] = self.process
        try:
            yield
        finally:
            if self.shared.get("holder") is self.process:
                del self.shared["holder"]


@dataclass
class SimulatedDevice:
    """Process that computes on it: `server`, `training`, `external`."""

    holders: dict[str, float] = field(default_factory=dict)
    """Holder -> monotonic second at which it leaves; infinity: never."""
    stuck: bool = False
    """The server does not end when it is asked to."""

    def present(self, now: float) -> set[str]:
        self.holders = {name: until for name, until in self.holders.items() if until > now}
        return set(self.holders)


@dataclass
class SimulatedServer:
    """The model server. What a document says decides the answer: `kind name` lines become entities."""

    clock: SimulatedClock
    device: SimulatedDevice
    process: Process
    chance: random.Random
    trouble: set[str] = field(default_factory=set)
    """never-ready, stuck, external, refuses, slow."""
    answering: bool = False
    drain_s: float = 300.0
    window_chars: int = MAX_DOCUMENT_CHARS

    def start(self) -> None:
        if self.device.present(self.clock.monotonic()) - {"server"}:
            raise Conflict("The device is in use.", do="End that program.", code="E-DEVICE-OCCUPIED")
        self.device.holders["server"] = float("inf")
        if "external" in self.trouble:
            self.device.holders["external"] = self.clock.monotonic() + 50_000

    def wait_ready(self, timeout_s: float) -> None:
        boot_s = 10_000.0 if "never-ready" in self.trouble else self.chance.uniform(20, 400)
        self.clock.sleep(min(boot_s, timeout_s))
        if boot_s > timeout_s:
            raise Unavailable("The model server did not come up.", do="Read its log.", code="E-SERVER-START")
        self.answering = True

    def warm(self, schema: Mapping[str, object]) -> None:
        self.clock.sleep(2)

    @asynccontextmanager
    async def completing(self, concurrency: int, *, timeout_s: float) -> AsyncIterator[Complete]:
        yield self.complete

    async def complete(self, messages: Messages, schema: JsonMapping | None, max_tokens: int) -> str:
        await asyncio.sleep(self.chance.uniform(1, 9) * (40 if "slow" in self.trouble else 1))
        if self.process.dead:
            raise Crash
        if not self.answering or ("refuses" in self.trouble and self.chance.random() < 0.5):
            raise Unavailable("The model server refused.", do="Look at its log.", code="E-SERVER-REFUSED")
        return write_answer(parse_prompt(messages)[0])

    def drain(self, timeout_s: float) -> None:
        self.answering = False

    def stop(self) -> None:
        if "stuck" in self.trouble or self.device.stuck:
            self.device.stuck = True
            return
        self.device.holders.pop("server", None)
        self.clock.sleep(3)

    def prove_free(self, timeout_s: float) -> None:
        if self.device.present(self.clock.monotonic()):
            self.clock.sleep(timeout_s)
        if self.device.present(self.clock.monotonic()):
            raise Conflict("The device is in use.", do="End that program.", code="E-DEVICE-OCCUPIED")


def parse_in_process(items: Sequence[ParseItem]) -> list[ParsedItem]:
    """`requests.Parse` in this process: the bytes are the simulator's own, and a child for each night costs seconds."""
    return list(map(parse_item, items))


def write_answer(text: str) -> str:
    """Return what a model that reads `kind name` lines under headings answers; a line `nonsense` spoils the answer."""
    if "nonsense" in text:
        return "I would rather not."
    text = json.loads(text) if text.startswith('"') else text
    pairs = [line.split(" ", 1) for line in text.splitlines() if " " in line and not line.startswith("#")]
    return json.dumps({"entities": [{"kind": kind, "name": name} for kind, name in pairs], "relations": []})


class FlakyGraph(MemoryGraph):
    """The graph role's server: durable when it answers, but an answer may be lost on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: list[str] = []
        """`before` or `after` the next writes."""

    def mutate(self, mutations: Sequence[Mutation]) -> list[MutateResult]:
        when = self.lose.pop() if self.lose and mutations else ""
        if when == "before":
            raise Unavailable("The graph server does not answer.", do="Start it.", code="E-GRAPH-STORE")
        results = super().mutate(mutations)
        if when == "after":
            raise Unavailable("The graph server broke off.", do="Start it.", code="E-GRAPH-STORE")
        return results

    @contextmanager
    def opened(self) -> Iterator[FlakyGraph]:
        yield self

    def documents(self) -> Collection[str]:
        return self.state.documents.keys()


@dataclass
class SimulatedTrainer:
    """Makes adapters whose weights are the digest of what they learned from; stops and resumes like a real one."""

    clock: SimulatedClock
    disk: SimulatedFiles
    device: SimulatedDevice
    versions: AdapterRegistry
    process: Process
    seconds: float
    """How long one training takes."""
    trouble: set[str] = field(default_factory=set)
    """dies, worse."""
    trained: list[tuple[str, str]] = field(default_factory=list)
    """(marker, digest of the tuples) of every training that ended."""
    deployed: Callable[[AdapterVersion], None] = lambda _version: None
    begins: Callable[[], None] = lambda: None

    def missing(self) -> str:
        return ""

    def train(self, order: TrainingRequest) -> Trained:
        self.begins()
        result, saved = order.work / "adapter", order.work / "checkpoint"
        make_folders(self.disk, order.work)
        if not self.disk.exists(result / "training.json"):
            self.work(order, saved)
            if "dies" in self.trouble:
                raise Unavailable("The training ended unexpectedly.", do="Read its log.", code="E-KILLED")
            self.leave(order, result)
        return Trained(result, json.loads(self.disk.read(result / "training.json")))

    def work(self, order: TrainingRequest, saved: Path) -> None:
        """Train from the last checkpoint until the end, or until the budget is spent."""
        done = float(self.disk.read(saved)) if self.disk.exists(saved) else 0.0
        spent = 0.0
        self.device.holders["training"] = float("inf")
        try:
            while done < self.seconds:
                if spent + CHUNK_S > order.budget_s:
                    write_whole(self.disk, saved, str(done).encode())
                    raise TrainingStopped("The training was stopped.", why="budget", do="Start it again.")
                self.clock.sleep(CHUNK_S)
                done, spent = done + CHUNK_S, spent + CHUNK_S
                order.renew_if_due()
        finally:
            self.device.holders.pop("training", None)

    def leave(self, order: TrainingRequest, result: Path) -> None:
        content = b"".join(canonical_json(example.value) + b"\n" for example in order.tuples)
        digest = hashlib.sha256(content).hexdigest()
        self.trained.append((order.marker.name, digest))
        make_folders(self.disk, result)
        weights = hashlib.sha256(f"{order.marker.base_model}:{digest}".encode()).digest()
        write_whole(self.disk, result / "adapter_model.safetensors", weights)
        write_whole(self.disk, result / "adapter_config.json", b"{}")
        facts = {"first_loss": 2.0, "final_loss": 1.0, "corpus": digest}
        write_whole(self.disk, result / "training.json", json.dumps(facts).encode())

    def judge(self, order: TrainingRequest, trained: Trained) -> NightVerdict:
        self.clock.sleep(20)
        order.renew_if_due()
        return (
            NightVerdict(False, ("worse",)) if "worse" in self.trouble else NightVerdict(True, facts={"better": True})
        )

    def deploy(self, version: AdapterVersion) -> None:
        self.deployed(version)
        self.versions.promote(version.name)


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
