"""Some nights of one tenant, one after another, with everything that goes wrong between and within them.

A campaign is a pure function of its seed. Each date brings documents, edits, bad files and corpus tuples, then a night
whose faults are drawn at random: crashes at named points and between any two file-system calls (with or without a power
cut), full disks, lost connections, servers that hang or do not end, strangers on the device, a second night at the same
time, a worker that takes a claim over while its owner sleeps, jumps of the wall clock. After a few attempts a night is
left alone; the last dates have no faults, and by then everything has to be right.
"""

from __future__ import annotations

import errno
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.callbacks import ignore
from trainyard.data.corpora import Corpora
from trainyard.data.readers.parts import split_document
from trainyard.errors import TrainyardError
from trainyard.night.deps import POINTS, NightDeps, Stores
from trainyard.night.extracting import Intents
from trainyard.night.phases import run_night
from trainyard.night.report import NightReport
from trainyard.night.streams import GONE, RememberedParse, choose_overlap, split_part_name
from trainyard.night.worker import poll
from trainyard.serve.extraction.extraction import MAX_DOCUMENT_CHARS
from trainyard.spec.night import BucketSpec, NightConfig, Phase2, Serving, StreamSpec, Window
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.documents import DocumentKey, DocumentLedger, Entry, content_sha256
from trainyard.stores.markers.records import POINTS as MARKER_POINTS
from trainyard.stores.markers.records import Owner
from trainyard.testing.nights import doubles
from trainyard.testing.simulated_files import SimulatedFiles

HOME, DOCUMENTS = Path("/home"), Path("/documents")
NAMES = ("Ada", "Bo", "Cy", "Di", "Eve", "Flo", "Gus", "Hal")
KINDS = ("person", "company", "project", "account", "location")
DAY_S = 86_400.0
LONG_SHARE = 0.12
"""Of the new Markdown documents: they are read in one to three parts."""
PADDING = ("-" * 6_999 + "\n") * 4
"""Of a section: no line of it names anything, and two sections fit into one part."""
MOST_ATTEMPTS = 4
VERSION = re.compile(r"v[0-9]+")
FAULT_POINTS = (*sorted(POINTS), *MARKER_POINTS)
FLUSH, FLUSH_FOLDER = SimulatedFiles.fsync, SimulatedFiles.fsync_folder
"""What people write is on the disk, also when an injected bug makes the night forget to flush."""
CONFIG = NightConfig(
    tenant="acme",
    streams=(StreamSpec(name="notes", globs=("*.md",)), StreamSpec(name="records", globs=("*.json",))),
    buckets=(
        BucketSpec(name="engineering", method="sft", threshold=6),
        BucketSpec(name="apprenticeship", method="dpo", threshold=4),
    ),
    window=Window(window_s=14_400, boot_s=5_400, phase1_s=600, phase2_s=2_400),
    serving=Serving(concurrency=3, seconds_per_document=5.0, max_document_bytes=400_000),
    phase2=Phase2(lease_s=60, attempts=3),
)


@dataclass
class Fault:
    """A fault in one attempt."""

    kind: str
    at: str = ""
    """The named point, or the number of the file-system call."""
    passes: int = 1
    """At which passing of the point."""


class WatchedDisk(SimulatedFiles):
    """Notes who took an adapter's number first, and who wrote its manifest."""

    def __init__(self, campaign: NightCampaign) -> None:
        super().__init__(campaign.seed, before=campaign.before_call)
        self.campaign = campaign
        self.makers: dict[Path, doubles.Process] = {}

    def mkdir(self, path: Path) -> bool:
        is_new = super().mkdir(path)
        if is_new and VERSION.fullmatch(path.name) and self.campaign.acting:
            self.makers[path] = self.campaign.acting[-1]
        return is_new

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        first = self.makers.get(target.parent)
        other = target.name == "manifest.json" and first not in (None, self.campaign.acting[-1])
        if other and self.campaign.cloud is None:  # with a cloud, any process may finish its marker
            self.campaign.violated(f"{target.parent} was taken by a process that died, and used again")


@dataclass
class NightCampaign:
    """The state that outlives processes, and what the invariants have to know about the past."""

    seed: int
    config: NightConfig = CONFIG
    clock: doubles.SimulatedClock = field(default_factory=doubles.SimulatedClock)
    violations: list[str] = field(default_factory=list)
    checked: int = 0
    reports: list[NightReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.disk = WatchedDisk(self)
        self.graph = doubles.FlakyGraph()
        self.cloud = doubles.choose_store(self.random, self.seed)
        if self.cloud is not None and self.random.random() < doubles.MARKERS_SHARE:
            remote = self.config.phase2.model_copy(update={"mode": "remote"})
            self.config = self.config.model_copy(update={"phase2": remote})
        self.device, self.lease = doubles.SimulatedDevice(), dict[str, doubles.Process]()
        self.processes: dict[int, doubles.Process] = {}
        self.acting: list[doubles.Process] = []
        """The processes in the middle of something, the innermost last."""
        self.inside: list[doubles.Process] = []
        """Processes within a night."""
        self.contents: dict[str, str] = {}
        self.texts: dict[str, str] = {GONE: ""}
        """SHA-256 of every content that a document, or a part of one, ever had -> its text."""
        self.faults: list[Fault] = []
        self.calls = 0
        self.trained: list[tuple[str, str]] = []
        self.numbers: dict[str, str] = {}
        self.finished: set[str] = set()
        self.ended_markers: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self.claims: set[tuple[str, int]] = set()
        """(marker, fencing number) of every claim that was taken."""
        self.seen_markers: set[str] = set()
        self.recorded: set[DocumentKey] = set()
        self.last_done: dict[tuple[str, str], Entry] = {}
        self.attempts, self.slept, self.quiet = 0, 0.0, False
        self.corpora = {bucket.name: 0 for bucket in self.config.buckets}
        for folder in (HOME, DOCUMENTS):
            self.disk.mkdir(folder)
        FLUSH_FOLDER(self.disk, HOME.parent)
        if self.cloud is not None:
            self.cloud.watch = self.before_put

    @property
    def remote(self) -> bool:
        """Whether markers lie in the object store and workers elsewhere train."""
        return self.config.phase2.mode == "remote"

    # What a process finds.

    def spawn(self, *, elsewhere: bool = False) -> doubles.Process:
        process = doubles.Process(len(self.processes) + 1, elsewhere)
        self.processes[process.number] = process
        return process

    def alive(self, owner: Owner) -> bool | None:
        process = self.processes[owner.pid]
        return None if process.elsewhere else not process.dead

    def world(self, process: doubles.Process, trouble: set[str] | None = None, *, worker: bool = False) -> NightDeps:
        """A process's own view: fresh stores over the disks that everybody shares. A worker has its own device."""
        trouble, device = trouble or set(), doubles.SimulatedDevice() if worker else self.device
        versions = AdapterRegistry(HOME / "adapters", self.disk, self.clock.now)
        trainer = doubles.SimulatedTrainer(
            self.clock, self.disk, device, versions, process, self.training_seconds(), trouble, self.trained,
        )  # fmt: skip
        trainer.deployed = lambda version: self.effect("deploy", version.facts.get("marker", ""), version)
        trainer.begins = lambda: self.training_begins(device)
        return NightDeps(
            root=HOME / "acme",
            documents=DOCUMENTS,
            files=self.disk,
            clock=doubles.WaitingClock(self.clock, self.while_waiting) if self.remote and not worker else self.clock,
            stores=Stores(
                ledger=DocumentLedger(HOME / "acme" / "ledger.jsonl", self.disk, self.clock, at=self.at(process)),
                graph=self.graph.opened,
                markers=self.markers(self.at(process)),
                corpora=Corpora(HOME / "acme" / "corpora", self.disk, doubles.parse_in_process),
                versions=versions,
                check_pulled=lambda _folder, _signature, _source: "",  # simulated versions are not signed
                objects=self.cloud,
            ),
            server=doubles.SimulatedServer(self.clock, device, process, self.random, trouble),
            trainer=trainer,
            owner=process.owner,
            boot_id="boot",
            base_model="base",
            alone=doubles.Lease({} if worker else self.lease, process).alone,
            parse=RememberedParse(doubles.parse_in_process),
            at=self.at(process),
            loop=doubles.make_runner(self.clock),
        )

    def training_seconds(self) -> float:
        return 120.0 if self.quiet else self.random.choice([120.0, 600.0, 4_000.0])

    def markers(self, at: Callable[[str], None] = ignore) -> doubles.WatchedMarkers:
        lease_s = float(self.config.phase2.lease_s)
        store: doubles.WatchedMarkers
        if self.remote and self.cloud is not None:
            store = doubles.WatchedObjects(
                self.cloud, "markers/acme", self.clock, lease_s=lease_s, alive=self.alive, at=at
            )
        else:
            folder = HOME / "acme" / "markers"
            store = doubles.WatchedFolder(folder, self.disk, self.clock, lease_s=lease_s, alive=self.alive, at=at)
        store.watcher = self
        return store

    # What happens to it.

    def at(self, process: doubles.Process) -> Callable[[str], None]:
        def passed(point: str) -> None:
            if process.dead:
                raise doubles.Crash
            if point == "night.begun":
                self.enters(process)
            for fault in self.faults:
                if fault.at == point:
                    fault.passes -= 1
                    if fault.passes == 0:
                        self.inject_fault(fault, process)

        return passed

    def before_call(self, _call: str) -> None:
        """Ahead of every changing file-system call of the disk."""
        self.calls += 1
        if self.acting and self.acting[-1].dead:
            raise doubles.Crash
        for fault in self.faults:
            if fault.kind in ("call", "power-call") and fault.passes == self.calls:
                fault.passes = -1
                self.die(fault.kind == "power-call")

    def inject_fault(self, fault: Fault, process: doubles.Process) -> None:
        if fault.kind in ("crash", "power"):
            self.die(fault.kind == "power")
        elif fault.kind == "second-night":
            self.aside(lambda: self.run_night(self.spawn()))
        elif fault.kind == "worker":
            self.aside(self.work_aside)
        elif fault.kind == "asleep":
            self.clock.sleep(self.config.phase2.lease_s * 3)
            self.slept += self.config.phase2.lease_s * 3  # the time of a suspended machine counts for no budget
            self.aside(self.work_aside)
        elif fault.kind == "clock":
            self.clock.wall += self.random.choice([-7_200, 3_600, 40_000, -90_000])
        elif fault.kind == "grows":
            self.fill_corpora(3)

    def die(self, power: bool) -> None:
        """The acting process ends; with a power cut all do, and the disk forgets."""
        for process in self.processes.values() if power else self.acting[-1:]:
            process.dead = True
        if power:
            self.disk.crash()
            self.device.holders.clear()
            self.device.stuck = False
        elif self.random.random() < 0.5:
            self.device.holders.pop("server", None)
        raise doubles.Crash

    def aside(self, act: Callable[[], object], most: int = 2) -> None:
        """Let another process act while this one is paused; at most `most` processes are in the middle of something."""
        if len(self.acting) < most:
            before = self.clock.monotonic()
            act()
            self.slept += self.clock.monotonic() - before  # two processes share one clock here, but not one budget
            if self.acting[-1].dead:
                raise doubles.Crash

    def work_aside(self) -> None:
        """One poll of a worker: take what is free or abandoned."""
        process = self.spawn(elsewhere=self.random.random() < 0.3)
        self.acting.append(process)
        try:
            poll(self.config, self.world(process, worker=True))
        except doubles.Crash:
            process.dead = True
        except TrainyardError:
            process.dead = True  # the worker could not even look at the markers; it ends and says why
        finally:
            self.acting.remove(process)

    def while_waiting(self) -> None:
        """A night waits for its markers: often enough a worker looks."""
        if self.quiet or self.random.random() < doubles.LOOKS_SHARE:
            self.aside(self.work_aside)

    def before_put(self, name: str) -> None:
        """Ahead of every write to the object store: another worker may come between a look and the write."""
        if self.acting and self.acting[-1].dead:
            raise doubles.Crash
        if name.startswith("markers/"):
            for fault in self.faults:
                fault.passes -= fault.kind == "race"
                if fault.kind == "race" and fault.passes == 0:
                    self.aside(self.work_aside, most=3)
        self.watch_upload(name)

    # What the world does between nights.

    def day(self) -> None:
        """People work: documents come and change, corpora grow."""
        chance = self.random
        for _ in range(chance.randint(0, 7)):
            name = f"note-{chance.randint(0, 25)}.{'md' if chance.random() < 0.8 else 'json'}"
            self.write_document(name, self.some_text(name))
        self.fill_corpora(6)

    def some_text(self, name: str) -> str:
        chance = self.random
        if name.endswith("md") and chance.random() < LONG_SHARE:
            return "".join(f"# {number}\n{self.few_lines()}\n{PADDING}" for number in range(chance.randint(3, 5)))
        if chance.random() < 0.08:
            return "nonsense"
        twins = sorted(text for other, text in self.contents.items() if other[-2:] == name[-2:])
        if twins and chance.random() < 0.15:
            return chance.choice(twins)  # the same content under a second name
        return json.dumps(self.few_lines()) if name.endswith("json") else self.few_lines()

    def few_lines(self) -> str:
        chance = self.random
        return "\n".join(f"{chance.choice(KINDS)} {chance.choice(NAMES)}" for _ in range(chance.randint(1, 3)))

    def write_document(self, name: str, text: str) -> None:
        self.disk.write(DOCUMENTS / name, text.encode())
        FLUSH(self.disk, DOCUMENTS / name)
        FLUSH_FOLDER(self.disk, DOCUMENTS)
        self.contents[name] = text
        self.texts |= {content_sha256(part.encode()): part for part in split_text(text)}

    def fill_corpora(self, most: int) -> None:
        corpora = Corpora(HOME / "acme" / "corpora", self.disk, doubles.parse_in_process)
        for bucket in self.config.buckets:
            count = self.random.randint(0, most)
            start = self.corpora[bucket.name]
            self.corpora[bucket.name] += count
            values = [tuple_value(bucket.method, number) for number in range(start, start + count)]
            corpora.add(bucket.name, bucket.method, values)
            if self.random.random() < 0.3:
                path = corpora.file(bucket.name)
                corpora.end_torn_line(bucket.name)
                self.disk.append(path, b'{"broken": true}\n' * self.random.randint(1, 4))
                self.disk.fsync(path)

    def draw_faults(self) -> tuple[list[Fault], set[str]]:
        """Return what goes wrong in the next attempt."""
        chance, faults = self.random, list[Fault]()
        trouble: set[str] = set()
        point = chance.choice(FAULT_POINTS)
        kind = chance.choice(
            ["crash", "crash", "crash", "power", "power", "call", "power-call", "second-night", "worker", "asleep",
             "asleep", "clock", "grows", "disk", "none", "race" if self.remote else "none"]
        )  # fmt: skip
        if kind in ("call", "power-call"):
            faults.append(Fault(kind, passes=self.calls + chance.randint(1, 250)))
        elif kind == "disk":
            self.disk.fail_at(chance.randint(1, 200), chance.choice([errno.ENOSPC, errno.EIO, errno.EROFS]))
        elif kind == "race":
            faults.append(Fault(kind, passes=chance.randint(1, 12)))
        elif kind != "none":
            if kind not in ("crash", "power") and point in MARKER_POINTS:  # its lock is taken there: nobody else acts
                point = chance.choice(sorted(POINTS))
            faults.append(Fault(kind, point, chance.choice([1, 1, 1, 2, 3])))
        for word in ("never-ready", "stuck", "external", "refuses", "slow", "dies", "worse"):
            if chance.random() < 0.06:
                trouble.add(word)
        if chance.random() < 0.15:
            self.graph.lose = [chance.choice(["before", "after"])]
        if self.cloud is not None and chance.random() < 0.2:
            self.cloud.lose = [chance.choice(["before", "after", "after"]) for _ in range(chance.randint(1, 4))]
        return faults, trouble

    def heal(self) -> None:
        """End all faults: other programs leave, the disk is sound, connections stay up."""
        self.heal_connections()
        self.device.holders.clear()
        self.device.stuck = False

    def heal_connections(self) -> None:
        self.faults, self.slept = [], 0.0
        self.disk.heal()
        self.graph.lose = []
        if self.cloud is not None:
            self.cloud.lose = []

    def settle(self) -> None:
        """After an attempt, before anybody looks: its faults are over, and what it left running ends in time."""
        slept = self.slept
        self.heal_connections()
        self.slept = slept
        self.inside.clear()

    def doubtful(self) -> dict[tuple[str, str], str]:
        """Documents whose write to the graph was begun and never recorded, as the next night will find them."""
        return Intents(self.world(doubles.Process(0))).list_unsettled()

    def digests(self, file: str) -> list[str]:
        """Return the current contents of a document's parts."""
        return [content_sha256(part.encode()) for part in split_text(self.contents[file])]

    def digest(self, name: str) -> str:
        """Return what a document, or a part of one, contains now."""
        file, part = split_part_name(name)
        digests = self.digests(file)
        return digests[part - 1] if part <= len(digests) else GONE

    def run_night(self, process: doubles.Process, trouble: set[str] | None = None) -> NightReport | None:
        """Return one attempt by one process; None if it died."""
        self.acting.append(process)
        try:
            report = run_night(self.config, self.world(process, trouble))
        except doubles.Crash:
            process.dead = True
            return None
        except TrainyardError:
            process.dead = True  # the disk took not even the report; the error says so
            return None
        except Exception as error:  # anything but a TrainyardError is a bug of Trainyard
            process.dead = True
            self.violated(f"the night broke: {type(error).__name__}: {error}")
            return None
        finally:
            self.acting.remove(process)
            if process in self.inside:
                self.inside.remove(process)
        process.dead = True
        self.reports.append(report)
        return report

    def next_date(self) -> None:
        """To the same time of the next day, however long the night took, and however the wall clock jumped."""
        self.clock.sleep(DAY_S / 2)
        target = (self.clock.wall // DAY_S + 1) * DAY_S + 7_200
        self.clock.sleep(target - self.clock.wall)

    # Notes for the invariants.

    def violated(self, message: str) -> None:
        self.violations.append(f"seed {self.seed}: {message}")

    def expect(self, passed: bool, otherwise: str) -> None:
        """Check one invariant."""
        self.checked += 1
        if not passed:
            self.violated(otherwise)

    def enters(self, process: doubles.Process) -> None:
        nights = [other for other in self.inside if not other.dead and other is not process]
        self.expect(not nights, "two nights at once")
        self.inside.append(process)

    def training_begins(self, device: doubles.SimulatedDevice) -> None:
        present = device.present(self.clock.monotonic())
        self.expect(not present, f"a training began while the device was in use by {', '.join(sorted(present))}")

    def effect(self, action: str, marker: str, version: AdapterVersion | None = None) -> None:
        """Something that others can see happens for a marker: its owner has to be the one who acts."""
        if not marker or not self.acting:
            return
        self.checked += 1
        record = self.markers().show(marker)
        if record.owner != self.acting[-1].owner:
            self.violated(f"{action} for {marker} by a process that has not claimed it")
        if version is not None:
            live = AdapterRegistry(HOME / "adapters", self.disk).live(version.tenant, version.role).version or 0
            if version.version < live:
                self.violated(f"{version.name} became live after v{live}")

    def watch_upload(self, name: str) -> None:
        """Each object of a version is put by the owner of the version's marker."""
        if not name.startswith("adapters/") or name.endswith(("reserved.json", "live.json")):
            return
        _, tenant, role, number, *_ = name.split("/")
        versions = AdapterRegistry(HOME / "adapters", self.disk).list(tenant, role)
        matches = [version for version in versions if f"v{version.version}" == number]
        if matches:
            self.effect(f"upload of {name}", matches[0].run_key)


def split_text(text: str) -> tuple[str, ...]:
    """Return the parts in which a night reads a document."""
    return split_document(text, MAX_DOCUMENT_CHARS, choose_overlap(MAX_DOCUMENT_CHARS))


def tuple_value(method: str, number: int) -> dict[str, str]:
    if method == "sft":
        return {"diff": f"+{number}", "message": f"Change {number}"}
    return {"prompt": f"Question {number}", "shadow": "maybe", "verdict": f"yes, {number}"}
