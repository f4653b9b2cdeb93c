"""Processing of a marker from claim to completion: train, judge, register, publish, deploy, and only then complete.

Each step checks first whether an earlier attempt has done it, and verifies right before its effect that the claim is
still valid. So the same function serves the night itself, a worker on another machine, and the process that takes over
from either after a crash: a marker gives one version, however often it is tried.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.backends.results import TrainingStopped
from trainyard.data.corpora import CorpusTuple
from trainyard.errors import Conflict, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.night.deps import NightDeps, NightVerdict, Trained, TrainingRequest
from trainyard.night.publish import find_registered, point, publish, register
from trainyard.night.report import Failure, TrainingReport
from trainyard.spec.night import NightConfig, Phase2
from trainyard.stores.adapters import AdapterVersion
from trainyard.stores.files import disk_error
from trainyard.stores.markers.records import Claim, Marker

LOST = "E-MARKER-LOST"
GRACE_SHARE, MOST_GRACE_S = 0.1, 300.0
"""Part of the remaining budget that is kept for saving, judging and publishing."""
RETURN_REASON = re.compile(r"(?P<kind>failed|paused) (?P<failures>\d+) (?P<run>\S+): ")
"""The reason in a marker that was given back: failures are counted, pauses are not."""


@dataclass
class ClaimLease:
    """The claim while its owner is running: renewed in time, verified before every effect."""

    world: NightDeps
    claim: Claim
    renew_every_s: float
    renewed: float = field(init=False)

    def __post_init__(self) -> None:
        self.renewed = self.world.clock.monotonic()

    def renew_if_due(self) -> None:
        """Renew the lease when a third of it is over. Raises `Conflict` (`E-MARKER-LOST`)."""
        if self.world.clock.monotonic() - self.renewed >= self.renew_every_s:
            self.claim = self.world.stores.markers.heartbeat(self.claim)
            self.renewed = self.world.clock.monotonic()

    def assert_held(self) -> None:
        """Raises `Conflict` (`E-MARKER-LOST`) when another process has the marker now."""
        self.claim = self.world.stores.markers.verify(self.claim)
        self.renewed = self.world.clock.monotonic()


def waiting_markers(world: NightDeps, tenant: str) -> list[Marker]:
    """Pending markers of this tenant's buckets, and claims whose owners are gone: SFT first, then by age."""
    store = world.stores.markers
    markers = {marker.name: marker for marker in [*store.pending(), *(claim.marker for claim in store.expired())]}
    tenant_markers = [marker for marker in markers.values() if marker.tenant == tenant]
    return sorted(tenant_markers, key=lambda marker: (marker.method != "sft", marker.created, marker.name))


def claim_and_train(marker: Marker, config: NightConfig, world: NightDeps, deadline: float, run: str) -> TrainingReport:
    """Try to take a marker and bring it to its end before `deadline` (monotonic seconds).

    Any error with this marker is in the report; only a lost process raises.
    """
    started = world.clock.monotonic()
    world.at("night.claim.before")
    try:
        claim = world.stores.markers.claim(marker, world.owner)
    except (TrainyardError, OSError) as error:
        return TrainingReport(marker=marker.name, outcome="failed", failure=describe_failure(error))
    if claim is None:
        return TrainingReport(marker=marker.name, outcome="taken", note="another process has it")
    world.at("night.claim.after")
    lease = ClaimLease(world, claim, config.phase2.lease_s / 3)
    try:
        report = bring_to_end(lease, config, deadline)
    except TrainingStopped as stopped:
        report = give_back(lease, config.phase2, "paused", run, stopped)
    except (TrainyardError, OSError) as error:
        if isinstance(error, Conflict) and error.code == LOST:
            report = TrainingReport(marker=marker.name, outcome="taken", note=str(error))
        else:
            report = give_back(lease, config.phase2, "failed", run, error)
    return report.model_copy(update={"rows": marker.rows, "seconds": world.clock.monotonic() - started})


def bring_to_end(lease: ClaimLease, config: NightConfig, deadline: float) -> TrainingReport:
    """Return the steps of a claimed marker, each skipped when an earlier attempt has done it."""
    world, marker = lease.world, lease.claim.marker
    version = find_registered(world, marker.tenant, marker.role, marker.name)
    if version is None:
        trained, verdict = train_and_judge(lease, config, deadline)
        if not verdict.better:
            return reject(lease, trained, verdict)
        version = keep(lease, trained, verdict)
    publish(world, version, lease.assert_held)
    world.at("night.deploy.before")
    point(world, version, lease.assert_held)
    world.at("night.deploy.after")
    facts = {"version": version.name, "sha256": version.sha256, "published": True}
    world.at("night.complete.before")
    world.stores.markers.complete(lease.claim, facts)
    world.at("night.complete.after")
    return report_outcome(marker, "published", version.facts, version=version.name, gate=describe_passed(version.facts))


def train_and_judge(lease: ClaimLease, config: NightConfig, deadline: float) -> tuple[Trained, NightVerdict]:
    world, marker = lease.world, lease.claim.marker
    remaining = deadline - world.clock.monotonic()
    order = TrainingRequest(
        marker=marker,
        tuples=fetch_tuples(world, marker),
        work=world.root / "training" / marker.name,
        budget_s=max(1.0, remaining - min(MOST_GRACE_S, GRACE_SHARE * remaining)),
        renew_if_due=lease.renew_if_due,
    )
    world.at("night.train.before")
    trained = world.trainer.train(order)
    world.at("night.train.after")
    lease.renew_if_due()
    ungated = config.phase2.gate == "none"
    verdict = NightVerdict(True, facts={"gate": "none"}) if ungated else world.trainer.judge(order, trained)
    world.at("night.judge.after")
    return trained, verdict


def fetch_tuples(world: NightDeps, marker: Marker) -> list[CorpusTuple]:
    """Return the snapshot that the marker names, fetched from the object store where it is not on this machine."""
    corpora, objects = world.stores.corpora, world.stores.objects
    path = corpora.snapshot_file(marker.bucket, marker.corpus_sha256)
    if not world.files.exists(path) and objects is not None:
        corpora.keep(marker.bucket, marker.corpus_sha256, objects.get(marker.corpus))
    return corpora.open(marker.bucket, marker.method, marker.corpus_sha256)


def keep(lease: ClaimLease, trained: Trained, verdict: NightVerdict) -> AdapterVersion:
    """Register the trained adapter, under a number that this marker keeps."""
    world, marker = lease.world, lease.claim.marker
    facts = {
        **trained.facts,
        "gate": verdict.facts,
        "evaluated": verdict.facts.get("gate") != "none",
        "marker": marker.name,
        "corpus_sha256": marker.corpus_sha256,
        "base_model": marker.base_model,
    }
    world.at("night.version.before")
    lease.assert_held()
    version = register(world, marker, trained.folder, facts)
    world.at("night.version.after")
    return version


def reject(lease: ClaimLease, trained: Trained, verdict: NightVerdict) -> TrainingReport:
    """Complete a training that is not better: no version, and its tuples do not cause the same training again."""
    facts = {"published": False, "gate": list(verdict.reasons)}
    lease.world.at("night.complete.before")
    lease.assert_held()
    lease.world.stores.markers.complete(lease.claim, facts)
    lease.world.at("night.complete.after")
    note = "not better than what is live: nothing was published"
    return report_outcome(lease.claim.marker, "rejected", trained.facts, gate=verdict.reasons, note=note)


def describe_passed(facts: JsonObject) -> tuple[str, ...]:
    """Return what a published adapter is better than, and by which metric; or that there was no gate."""
    gate: JsonObject = facts.get("gate") or {}
    if gate.get("gate") == "none":
        return ("not evaluated: phase2.gate is none",)
    against = [f"better than {gate['baseline']}"] if gate.get("baseline") else []
    return (*against, *gate.get("passed", ()))


def report_outcome(marker: Marker, outcome: object, facts: Mapping[str, object], **more: object) -> TrainingReport:
    ends = {"first_loss": "loss_at_start", "final_loss": "loss_at_end"}  # means, where a trainer gave them
    losses = {name: facts.get(mean, facts.get(name)) for name, mean in ends.items()}
    return TrainingReport(marker=marker.name, outcome=outcome, **losses, **more)


def give_back(lease: ClaimLease, phase2: Phase2, kind: str, run: str, error: Exception) -> TrainingReport:
    """Return the marker for the next night, or give it up after too many failures."""
    marker, markers = lease.claim.marker, lease.world.stores.markers
    failure = describe_failure(error)
    try:
        before = RETURN_REASON.match(markers.show(marker.name).reason)
        failures = (int(before["failures"]) if before else 0) + (kind == "failed")
        retry = failures < phase2.attempts
        markers.fail(lease.claim, f"{kind} {failures} {run}: {failure.code} {failure.what} {failure.why}", retry=retry)
    except (TrainyardError, OSError) as second:
        # The claim stays; the next process takes it over when its lease has expired.
        return TrainingReport(marker=marker.name, outcome="failed", failure=failure, note=str(second))
    if kind == "paused":
        note = "its budget ended; it continues from its checkpoint the next night"
        return TrainingReport(marker=marker.name, outcome="checkpointed", note=note)
    note = f"failure {failures} of {phase2.attempts}" + ("" if retry else "; given up")
    return TrainingReport(marker=marker.name, outcome="failed", failure=failure, note=note)


def was_paused(world: NightDeps, marker: Marker, run: str) -> bool:
    """Whether this marker was already worked on in this run, until its budget was spent or it failed."""
    before = RETURN_REASON.match(world.stores.markers.show(marker.name).reason)
    return before is not None and before["run"] == run


def describe_failure(error: Exception) -> Failure:
    """Return an error in the report's words; errors of a disk say what to do, others keep their name."""
    if isinstance(error, OSError) and not isinstance(error, TrainyardError):
        error = disk_error("The night could not write", error) or error
    if isinstance(error, TrainyardError):
        return Failure(code=error.code, what=error.what, why=error.why, do=error.do)
    return Failure(code="E-CRASH", what=f"{type(error).__name__}: {error}")
