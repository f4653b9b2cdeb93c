"""The dependencies of a night, as small objects that are passed in.

`night/wiring.py` builds the real ones from the settings; `testing/nights` builds ones that lose data that was not
flushed, break connections, crash at any point and let other processes act. The functions of a night are the same.
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
    objects: ObjectStore | None = None
    """None: nothing is sent anywhere."""


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
