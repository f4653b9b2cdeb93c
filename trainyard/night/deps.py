"""The dependencies of a night, as small objects that are passed in.

`night/wiring.py` builds the real ones from the settings; `testing/nights` builds ones that lose data that was not
flushed, break connections, crash at any point and let other processes act. The functions of a night are the same.

The places at which a night may die without harm: name -> what has happened up to there.

Each is passed by the night through `world.at(name)`. `trainyard.compute.child.faultpoint` ends the process there when
`TRAINYARD_FAULT` names it; the simulator raises a crash there, or lets another process act. A test kills a real night
at each of them and compares what is left after a second run with a night that was not killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainyard.callbacks import ignore
from trainyard.data.corpora import Corpora, CorpusTuple
from trainyard.data.limited.requests import Parse
from trainyard.data.limited.service import parse_limited
from trainyard.night.streams import RememberedParse
from trainyard.serve.extraction.extraction import Complete
from trainyard.spec.night import Window
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.clock import Clock
from trainyard.stores.documents import DocumentLedger
from trainyard.stores.files import Files
from trainyard.stores.graph.contract import Graph
from trainyard.stores.markers.records import Marker, MarkerStore, Owner
from trainyard.stores.objects.store import ObjectStore

Facts = dict[str, Any]


class ModelServer(Protocol):
    """The server that reads documents in phase 1. Times are seconds; each call raises what went wrong."""

    drain_s: float
    """Time for requests in flight to end, from its profile."""
    window_chars: int
    """Longest part of a document that fits the context of its model."""

    def start(self) -> None:
        """Boot the machine if there is a command for it, and start the server."""

    def wait_ready(self, timeout_s: float) -> object:
        """Return when it answers. Raises `Unavailable` after `timeout_s`."""

    def warm(self, schema: Mapping[str, object]) -> object:
        """Let it compile the schema, so that the first document is not delayed by that."""

    def completing(self, concurrency: int, *, timeout_s: float) -> AbstractAsyncContextManager[Complete]:
        """Return a client with one slot per document in flight."""

    def drain(self, timeout_s: float) -> object:
        """Accept no new requests and let those in flight end."""

    def stop(self) -> object:
        """End the process tree that this object started. A server that is not there counts as stopped."""

    def prove_free(self, timeout_s: float) -> object:
        """Return when no process computes on the device, by its measured memory. Raises `Conflict`."""


@dataclass(frozen=True)
class TrainingRequest:
    """The request for one training."""

    marker: Marker
    tuples: Sequence[CorpusTuple]
    """The tuples of the marker's snapshot, verified."""
    work: Path
    """Folder of temporary results; the same marker always gets the same one."""
    budget_s: float
    """After that many seconds it has to have stopped with a checkpoint."""
    renew_if_due: Callable[[], None]
    """Called often while it runs: renews the claim. What it raises ends the training."""


@dataclass(frozen=True)
class Trained:
    """A finished adapter: its folder, and the facts that are reported about it."""

    folder: Path
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class NightVerdict:
    """The gate's verdict; `facts` go into the report."""

    better: bool
    reasons: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)


class CorpusTrainer(Protocol):
    """Trains, evaluates and deploys adapters."""

    def missing(self) -> str:
        """Why no training is possible here; empty if one is."""

    def train(self, order: TrainingRequest) -> Trained:
        """Raises `TrainingStopped` (a checkpoint is kept), or the training's own error."""

    def judge(self, order: TrainingRequest, trained: Trained) -> NightVerdict:
        """Compare the adapter with the one that is live."""

    def deploy(self, version: AdapterVersion) -> None:
        """Make a registered version the live one. Doing it twice changes nothing."""


@dataclass(frozen=True)
class Stores:
    """The stores of a night."""

    ledger: DocumentLedger
    graph: Callable[[], AbstractContextManager[Graph]]
    """Opened for phase 1 only: its writer is a process."""
    markers: MarkerStore
    corpora: Corpora
    versions: AdapterRegistry
    check_pulled: Callable[[Path, bytes | None, str], str]
    """`check_pulled(folder, signature, source)`: verifies a version of another machine before it is registered."""
    objects: ObjectStore | None = None
    """None: nothing is sent anywhere."""
    share: Callable[[AdapterVersion], object] = ignore
    """Uploads a version to the data worker, once. Raises `Unavailable` (`E-URL`) where none answers."""


@dataclass(frozen=True)
class NightDeps:
    """All dependencies together."""

    root: Path
    """The tenant's folder: nights, corpora, markers, ledger."""
    documents: Path
    files: Files
    clock: Clock
    stores: Stores
    server: ModelServer
    trainer: CorpusTrainer
    owner: Owner
    boot_id: str
    base_model: str
    alone: Callable[[str], AbstractContextManager[object]]
    """`alone(run)`: the device's lease for a whole night. Raises `Conflict` when another process has it."""
    parse: Parse = field(default_factory=lambda: RememberedParse(parse_limited))
    """What parses the bytes of documents: limited children, and the simulators' own process for their own bytes."""
    at: Callable[[str], None] = ignore
    say: Callable[[str], None] = ignore
    loop: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
    """Runs phase 1's client to its end."""

    def drain_s(self, window: Window) -> float:
        """Time for requests in flight to end: of the window or the server's profile, the shorter one."""
        return min(float(window.drain_s), self.server.drain_s)


POINTS: dict[str, str] = {
    "night.begun": "the night's record is written",
    "night.server.start": "the model server is about to be started",
    "night.server.started": "the model server was started, it does not answer yet",
    "night.server.ready": "the model server answers",
    "night.server.warm": "the schema is compiled",
    "night.document.read": "a document was read, the model was not asked",
    "night.document.answered": "the model answered, nothing is written",
    "night.graph.before": "a batch of answers is about to be written to the graph",
    "night.graph.after": "the graph has a batch, the ledger does not",
    "night.ledger.after": "graph and ledger have a batch",
    "night.server.drained": "no request is in flight any more",
    "night.server.stopped": "the model server was stopped, the device was not looked at",
    "night.device.free": "the device is proven free",
    "night.corpus.counted": "the tuples of a bucket are counted",
    "night.snapshot.after": "a bucket's snapshot is written",
    "night.snapshot.synced": "the snapshot is in the object store",
    "night.marker.before": "a marker is about to be published",
    "night.marker.after": "a marker exists and is not claimed",
    "night.claim.before": "a marker is about to be claimed",
    "night.claim.after": "a marker is claimed, no training has begun",
    "night.train.before": "the rows are written, the training is about to start",
    "night.train.after": "the adapter is trained and not evaluated",
    "night.judge.after": "the gate has decided",
    "night.version.before": "a version is about to be registered",
    "night.version.after": "the version is registered, it is nowhere else",
    "night.upload.file": "one file of a version is uploaded",
    "night.upload.before-manifest": "all files are uploaded, no reader sees them",
    "night.upload.manifest": "the version is published and not verified",
    "night.publish.verified": "what was published is what was trained",
    "night.deploy.before": "the live pointer is about to be switched",
    "night.deploy.after": "the new version is live, its marker is still claimed",
    "night.complete.before": "the marker is about to be completed",
    "night.complete.after": "the marker is completed, no report is written",
    "night.report.before": "everything is done, the report is not written",
    "night.report.after": "the report is written",
}
