"""A night, from its first line to its report: `run_night`, and the parts that a flow shows one by one.

    begin       start the night: one at a time on a device, one for each tenant and date
    phase1      serve, read documents into the graph, stop, prove the device free
    thresholds  count the corpora, snapshot the full ones, leave a marker for each
    phase2      take the markers, SFT first: train, judge, publish, deploy, complete
    conclude    the report

Every part can be done again: what is finished is found by its key and not done twice. A part's own failure is a line
of the report, never an exception; phase 2 follows a failed phase 1 as long as the device is proven free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson

from trainyard.data.corpora import BucketReading as CorpusReading
from trainyard.data.corpora import CorpusSnapshot
from trainyard.errors import Conflict, TrainyardError
from trainyard.night import report as reports
from trainyard.night.claim import claim_and_train, describe_failure, fetch_tuples, waiting_markers
from trainyard.night.deps import NightDeps
from trainyard.night.extracting import PhaseReading, Writer, name_again, survey
from trainyard.night.planner import Planner
from trainyard.night.publish import sync_snapshot
from trainyard.night.report import BucketReport, Failure, NightReport, Phase1Report, Phase2Report, TrainingReport
from trainyard.night.streams import StreamDocument
from trainyard.serve.extraction.extraction import SCHEMA
from trainyard.serve.publication import Destination
from trainyard.serve.versions.bucket import fetch_published
from trainyard.spec.night import BucketSpec, NightConfig, check_name
from trainyard.stores.adapters import AdapterVersion
from trainyard.stores.files import Files, make_folders, translate_os_errors
from trainyard.stores.markers.records import Marker, MarkerRecord, MarkerState
from trainyard.stores.objects.versions import read_published_number
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_whole

BEGUN_FILE = "begun.json"
Find = Callable[["Night"], tuple[Phase1Report, list[StreamDocument]]]
Step = Callable[["Night", Phase1Report], Phase1Report]
Read = Callable[["Night", Phase1Report, deque[StreamDocument]], Phase1Report]
BUSY = frozenset({"E-DEVICE-BUSY", "E-NIGHT-BUSY"})


@dataclass(frozen=True)
class Night:
    """An attempt at a night."""

    config: NightConfig
    world: NightDeps
    run: str
    attempt: int
    started: float
    """Unix seconds, for people."""
    window_start: float
    """Monotonic seconds at which the window began, perhaps in an earlier attempt of this boot."""
    entered: float
    """Monotonic seconds at which this attempt began."""

    @property
    def ends(self) -> float:
        """Monotonic seconds at which the window is over."""
        return self.window_start + self.config.window.window_s

    @property
    def folder(self) -> Path:
        return night_folder(self.world, self.run)

    def until(self, budget_s: float) -> float:
        """When a part ends that begins now: after its budget, or with the window."""
        return min(self.world.clock.monotonic() + budget_s, self.ends)


def night_folder(world: NightDeps, run: str) -> Path:
    return world.root / "nights" / check_name(run, "run")


def run_night(config: NightConfig, world: NightDeps, run: str | None = None) -> NightReport:
    """Return one whole night. Raises only what ends the process, and when not even its record can be written.

    A second night at the same time, or for a date that is done, is skipped and says so.
    """
    run = run or config.window.find_date(world.clock.now())
    night_folder(world, run)
    try:
        with world.alone(run):
            night = begin(config, world, run)
            if night is None:
                return skip_night(config, run, "this night is done already")
            first = phase1(night)
            return conclude(night, first, phase2(night, first))
    except Conflict as busy:
        if busy.code not in BUSY:
            raise
        return skip_night(config, run, f"another run has the device: {busy.what}")


def skip_night(config: NightConfig, run: str, why: str) -> NightReport:
    return NightReport(run=run, tenant=config.tenant, state="skipped", skipped=why)


def begin(config: NightConfig, world: NightDeps, run: str, since: float | None = None) -> Night | None:
    """Return the night's record, written before anything else; None if its report says that it succeeded.

    `since`: monotonic second at which its window began, where the device was waited for.
    """
    folder, clock = night_folder(world, run), world.clock
    if is_done(folder, world.files):
        return None
    path = folder / BEGUN_FILE
    before = read_versioned("night", world.files.read(path), path) if world.files.exists(path) else None
    now, monotonic = clock.now(), clock.monotonic()
    start = monotonic if since is None else since
    if before and before["boot_id"] == world.boot_id and 0 <= monotonic - before["begun"] < config.window.window_s:
        start = before["begun"]  # the same night, started again: its window continues
    attempt = before["attempt"] + 1 if before else 1
    started = before["started"] if before else now
    record = {"run": run, "attempt": attempt, "started": started, "begun": start, "boot_id": world.boot_id}
    with translate_os_errors("The night was not begun"):
        make_folders(world.files, folder)
        write_whole(world.files, path, orjson.dumps(add_version("night", record)))
    world.at("night.begun")
    return Night(config, world, run, attempt, started, start, monotonic)


def is_done(folder: Path, files: Files) -> bool:
    """Whether a night's report says that it succeeded."""
    report = reports.read_report(folder, files)
    return report is not None and report.state == "completed"


# Phase 1


def phase1(night: Night) -> Phase1Report:
    """Serve a model, read what waits, and leave the device empty."""
    return documents(night, look, boot, extract, release)


def documents(night: Night, find: Find, serve: Step, read: Read, free: Step) -> Phase1Report:
    """Run phase 1, whose parts a flow shows as tasks: the device is freed after any failure."""
    report = Phase1Report(budget_s=night.config.window.phase1_s)
    try:
        report, waiting = find(night)
        if waiting:
            report = serve(night, report)
            report = read(night, report, deque(waiting))
    except (TrainyardError, OSError) as error:
        report = report.model_copy(update={"failure": describe_failure(error)})
    return free(night, report)


def look(night: Night) -> tuple[Phase1Report, list[StreamDocument]]:
    """Return the documents that wait, and a report of their number. Writes new names of known contents to the graph.

    If the graph accepts no name, it would accept no document: the model is not asked, and the report says why.
    """
    config, world = night.config, night.world
    waiting, same = survey(config, world)
    failure: Failure | None = None
    if same:
        try:
            with world.stores.graph() as graph:
                waiting += name_again(config, world, graph, night.run, same)
        except (TrainyardError, OSError) as error:
            failure = describe_failure(error)
    count = len(waiting)
    report = Phase1Report(budget_s=config.window.phase1_s, waiting=count, left=count, failure=failure)
    return report, waiting if failure is None else []


def boot(night: Night, report: Phase1Report) -> Phase1Report:
    """Start the server and wait until it answers; not part of the phase's budget, but of the night's window."""
    world = night.world
    started = world.clock.monotonic()
    deadline = night.until(night.config.window.boot_s)
    world.at("night.server.start")
    world.server.start()
    world.at("night.server.started")
    world.server.wait_ready(max(0.0, deadline - world.clock.monotonic()))
    world.at("night.server.ready")
    world.server.warm(SCHEMA)
    world.at("night.server.warm")
    return report.model_copy(update={"boot_s": world.clock.monotonic() - started})


def extract(night: Night, report: Phase1Report, waiting: deque[StreamDocument]) -> Phase1Report:
    """Read documents until none waits or the budget ends. Parsed documents count even if the server fails later."""
    world, serving, window = night.world, night.config.serving, night.config.window
    started = world.clock.monotonic()
    reserve = world.drain_s(window) + window.free_s
    # What is in flight at the end, and stopping the server, are inside the window too.
    deadline = min(night.until(window.phase1_s), night.ends - reserve)
    with world.stores.graph() as graph:
        graph.has(())  # opens the graph now: no document waits for it later, and one that is away is reported first
        planner = Planner(world.clock.monotonic(), deadline, serving.concurrency, serving.seconds_per_document)
        predicted = planner.predict(len(waiting))
        writer = Writer(night.config, world, graph, night.run)
        reading = PhaseReading(night.config, world, planner, writer, waiting)
        failure: Failure | None = None
        try:
            world.loop(reading.read_all())
        except (TrainyardError, OSError) as error:
            failure = describe_failure(error)
    tally = writer.tally
    return report.model_copy(
        update={
            **vars(tally),
            "quarantined": tuple(tally.quarantined),
            "left": max(0, report.waiting - tally.done - len(tally.quarantined)),
            "predicted": predicted,
            "predicted_after_20": planner.learnt_predicted,
            "extract_s": world.clock.monotonic() - started,
            "failure": failure,
        }
    )


def release(night: Night, report: Phase1Report) -> Phase1Report:
    """Stop the server, also one that an earlier night left, and prove by measured memory that the device is free."""
    world, window = night.world, night.config.window
    started = world.clock.monotonic()
    failure, free = report.failure, False
    try:
        world.server.drain(world.drain_s(window))
        world.at("night.server.drained")
    except (TrainyardError, OSError) as error:
        failure = failure or describe_failure(error)
    try:
        world.server.stop()
        world.at("night.server.stopped")
        world.server.prove_free(window.free_s)
        world.at("night.device.free")
        free = True
    except (TrainyardError, OSError) as error:
        failure = failure or describe_failure(error)
    spent = world.clock.monotonic() - started
    return report.model_copy(update={"failure": failure, "device_free": free, "release_s": spent})


# Phase 2


def phase2(night: Night, first: Phase1Report) -> Phase2Report:
    """Thresholds, then every marker that waits, inside one budget."""
    return trainings(night, first, tuple(threshold(night, bucket) for bucket in night.config.in_order()))


def trainings(night: Night, first: Phase1Report, buckets: tuple[BucketReport, ...]) -> Phase2Report:
    """Every marker that waits, SFT first, while the budget lasts; then what workers published becomes live here."""
    world, budget_s = night.world, night.config.window.phase2_s
    started, deadline = world.clock.monotonic(), night.until(budget_s)
    done: list[TrainingReport] = []
    failure: Failure | None = None
    note, served = "", list[AdapterVersion]()
    try:
        markers = waiting_markers(night.world, night.config.tenant)
        note = explain_no_training(night, first)
        if note:
            done = [TrainingReport(marker=marker.name, outcome="marker-only", note=note) for marker in markers]
        elif night.config.phase2.mode == "remote":
            done = wait_for_workers(night, markers, deadline)
            served = follow_store(world, night.config.tenant, [bucket.adapter_role for bucket in night.config.buckets])
        else:
            done = train_markers(night, markers, deadline)
    except (TrainyardError, OSError) as error:
        failure = describe_failure(error)
    spent = world.clock.monotonic() - started
    return Phase2Report(
        buckets=buckets,
        trainings=tuple(done),
        fetched=tuple(version.name for version in served),
        seconds=spent,
        budget_s=budget_s,
        note=note,
        failure=failure,
    )


def explain_no_training(night: Night, first: Phase1Report) -> str:
    """Why no training may start on this device; empty if one may. A worker elsewhere has a device of its own."""
    if night.config.phase2.mode == "remote":
        return ""
    if not night.config.phase2.train:
        return "training is switched off: the markers wait"
    if missing := night.world.trainer.missing():
        return missing
    return "" if first.device_free else "the device is not proven free: the markers wait"


def threshold(night: Night, bucket: BucketSpec) -> BucketReport:
    """Count one corpus; if enough of it is new, keep a snapshot and leave a marker that names it."""
    report = BucketReport(bucket=bucket.name, method=bucket.method, threshold=bucket.threshold)
    try:
        reading = night.world.stores.corpora.read(bucket.name, bucket.method)
        records = bucket_markers(night, bucket)
        new = reading.new_since(last_trained(night, records))
        night.world.at("night.corpus.counted")
        report = report.model_copy(
            update={
                "valid": len(reading.tuples),
                "invalid": len(reading.invalid),
                "duplicates": reading.duplicates,
                "new": new,
            }
        )
        waiting = [record for record in records if record.state in (MarkerState.PENDING, MarkerState.CLAIMED)]
        if waiting:
            return report.model_copy(
                update={"marker": waiting[0].marker.name, "note": "it waits since an earlier night"}
            )
        if new < bucket.threshold:
            return report.model_copy(update={"note": f"{bucket.threshold - new} more needed"})
        return report.model_copy(update={"marker": leave_marker(night, bucket, reading)})
    except (TrainyardError, OSError) as error:
        return report.model_copy(update={"failure": describe_failure(error)})


def bucket_markers(night: Night, bucket: BucketSpec) -> list[MarkerRecord]:
    """Every marker of one bucket, in the order of their runs."""
    store, tail = night.world.stores.markers, f"-{night.config.tenant}-{bucket.adapter_role}-{bucket.name}"
    records = [store.show(name) for name in store.states() if name.endswith(tail)]
    bucket_records = [
        record
        for record in records
        if (record.marker.tenant, record.marker.bucket) == (night.config.tenant, bucket.name)
    ]
    return sorted(bucket_records, key=lambda record: (record.marker.created, record.marker.run))


def last_trained(night: Night, records: list[MarkerRecord]) -> frozenset[str]:
    """Digests of the tuples that the last completed training learned from.

    Clocks may jump, so no single one decides which training was the last: the newest by time, the newest by name and
    the largest (corpora grow) are nearly always the same, and the tuples of each of them were trained on.
    """
    completed = [record.marker for record in records if record.state is MarkerState.COMPLETED]
    if not completed:
        return frozenset()
    by_name, largest = max(completed, key=lambda marker: marker.run), max(completed, key=lambda marker: marker.rows)
    snapshots = {marker.corpus_sha256: marker for marker in (completed[-1], by_name, largest)}
    return frozenset(sample.digest for marker in snapshots.values() for sample in fetch_tuples(night.world, marker))


def leave_marker(night: Night, bucket: BucketSpec, reading: CorpusReading) -> str:
    """Snapshot, a copy in the object store if there is one, then the marker; each by its content, again is the same."""
    world = night.world
    snapshot = world.stores.corpora.snapshot(bucket.name, reading)
    world.at("night.snapshot.after")
    marker = Marker(
        run=night.run,
        tenant=night.config.tenant,
        role=bucket.adapter_role,
        bucket=bucket.name,
        method=bucket.method,
        rows=snapshot.rows,
        corpus_sha256=snapshot.sha256,
        corpus=locate_snapshot(night, bucket, snapshot),
        base_model=world.base_model,
        created=world.clock.now(),
    )
    world.at("night.marker.before")
    if not world.stores.markers.publish(marker):
        return f"{marker.name} (ended earlier in this night)"
    world.at("night.marker.after")
    return marker.name


def locate_snapshot(night: Night, bucket: BucketSpec, snapshot: CorpusSnapshot) -> str:
    """Where a trainer finds the snapshot: its place in the object store, or its file."""
    objects = night.world.stores.objects
    if objects is None:
        return str(snapshot.path)
    name = f"corpora/{night.config.tenant}/{bucket.name}/{snapshot.sha256}.jsonl"
    data = night.world.stores.corpora.read_snapshot(bucket.name, snapshot.sha256)
    sync_snapshot(objects, name, data)
    night.world.at("night.snapshot.synced")
    return name


def train_markers(night: Night, markers: list[Marker], deadline: float) -> list[TrainingReport]:
    """Return one after another on this device, while the budget lasts."""
    return [
        claim_and_train(marker, night.config, night.world, deadline, night.run)
        if night.world.clock.monotonic() < deadline
        else TrainingReport(marker=marker.name, outcome="waiting", note="the budget is spent")
        for marker in markers
    ]


def wait_for_workers(night: Night, markers: list[Marker], deadline: float) -> list[TrainingReport]:
    """Wait until workers on other machines have ended the markers, or the budget is over."""
    world, store = night.world, night.world.stores.markers
    open_states = (MarkerState.PENDING, MarkerState.CLAIMED)
    while True:
        states = store.states()
        waiting = any(states.get(marker.name) in open_states for marker in markers)
        if not waiting or world.clock.monotonic() >= deadline:
            break
        world.clock.sleep(min(night.config.phase2.poll_s, max(0.0, deadline - world.clock.monotonic())))
    return [build_worker_report(store.show(marker.name)) for marker in markers]


def follow_store(world: NightDeps, tenant: str, roles: Iterable[str]) -> list[AdapterVersion]:
    """Deploy what the object store says is live, where an older version or none is live here. Returns what changed.

    Raises `Unavailable`, `Corrupt` (`E-CORRUPT`), and what a deployment raises; a later call tries again.
    """
    objects, registry = world.stores.objects, world.stores.versions
    if objects is None:
        return []
    changed = []
    for role in roles:
        number = read_published_number(objects, tenant, role)
        if number is not None and number > (registry.live(tenant, role).version or 0):
            to = Destination(registry, world.root / "fetched", number=number, check_signature=world.stores.check_pulled)
            version = fetch_published(objects, f"{tenant}/{role}", number, to=to)
            world.trainer.deploy(version)
            changed.append(version)
    return changed


def build_worker_report(record: MarkerRecord) -> TrainingReport:
    report = TrainingReport(marker=record.marker.name, rows=record.marker.rows, outcome="waiting")
    if record.state is MarkerState.COMPLETED and record.facts.get("published"):
        return report.model_copy(update={"outcome": "published", "version": str(record.facts.get("version", ""))})
    if record.state is MarkerState.COMPLETED:
        return report.model_copy(update={"outcome": "rejected", "gate": tuple(record.facts.get("gate", ()))})
    if record.state is MarkerState.FAILED:
        failure = Failure(code="E-FAILED", what=f"The worker gave up {report.marker}.", why=record.reason)
        return report.model_copy(update={"outcome": "failed", "failure": failure})
    note = "no worker has taken it" if record.state is MarkerState.PENDING else "a worker is at it"
    return report.model_copy(update={"note": note})


def conclude(night: Night, first: Phase1Report, second: Phase2Report) -> NightReport:
    """Write the report; from then on this night is over, or may be tried again if something failed."""
    world = night.world
    report = NightReport(
        run=night.run,
        tenant=night.config.tenant,
        state="completed",
        attempt=night.attempt,
        started=night.started,
        seconds=world.clock.monotonic() - night.entered,
        window_s=night.config.window.window_s,
        phase1=first,
        phase2=second,
    )
    if report.failures:
        report = report.model_copy(update={"state": "failed"})
    world.at("night.report.before")
    with translate_os_errors("The night's report was not written"):
        reports.write_report(report, night.folder, world.files)
    world.at("night.report.after")
    return report
