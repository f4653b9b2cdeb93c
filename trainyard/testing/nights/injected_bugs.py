"""Bugs that are injected on purpose: each is a plausible mistake, and the simulator has to find it.

    trainyard nightly simulate --nights 2000 --inject ledger-before-graph        ends with exit code 1

`injected_bug` replaces one function of the night or of a store by a wrong one while it is entered.

Thousands of nights in minutes: the product's own functions on a clock, disks and connections that misbehave.

    outcome = simulate(nights=10_000, seed=1)          the same seed gives the same nights, on any number of processes

A campaign of `DATES` dates is one seed; campaigns are spread over the cores. `inject` names a mistake of
`injected_bugs.py` that is put into the night; then a violation has to be found. `campaign` replays a single one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainyard.data.corpora import BucketReading, Corpora, CorpusTuple
from trainyard.night import claim, extracting, phases, publish, report
from trainyard.night.deps import NightDeps
from trainyard.stores import adapters
from trainyard.stores.documents import Entry
from trainyard.stores.markers import records, remote
from trainyard.stores.objects import versions as uploads
from trainyard.testing.nights import doubles, invariants
from trainyard.testing.nights.campaign import MOST_ATTEMPTS, NightCampaign
from trainyard.testing.simulated_files import SimulatedFiles
from trainyard.testing.simulation import Simulator, Swap, always


def ledger_first(self: extracting.Writer) -> None:
    if not self.pending:
        return
    batch, self.pending = self.pending, []
    self.world.stores.ledger.record_many(self.entry(*item) for item in batch)
    self.world.at("night.graph.before")
    self.graph.mutate(
        [self.mutation(content, extraction) for content, extraction, _ in batch if extraction is not None]
    )
    self.world.at("night.graph.after")
    self.world.at("night.ledger.after")


def nonsense_is_done(self: extracting.Writer, content: Any, extraction: Any, reason: str) -> Entry:
    return Entry(key=content.key, name=content.document.name, status="done", night=self.run)


def complete_first(lease: claim.ClaimLease, config: Any, deadline: float) -> object:
    world, marker = lease.world, lease.claim.marker
    version = publish.find_registered(world, marker.tenant, marker.role, marker.name)
    if version is None:
        trained, verdict = claim.train_and_judge(lease, config, deadline)
        if not verdict.better:
            return claim.reject(lease, trained, verdict)
        version = claim.keep(lease, trained, verdict)
    world.stores.markers.complete(lease.claim, {"version": version.name, "published": True})
    world.at("night.complete.after")
    publish.publish(world, version, lambda: None)
    publish.point(world, version, lambda: None)
    return claim.report_outcome(marker, "published", version.facts, version=version.name)


def manifest_first(world: NightDeps, objects: Any, version: Any, sure: Callable[[], None]) -> None:
    folder, prefix = (
        world.stores.versions.path(version),
        uploads.version_prefix(version.tenant, version.role, version.version),
    )
    uploads.create(objects, f"{prefix}/manifest.json", uploads.build_manifest(version))
    for name in sorted(version.files):
        world.at("night.upload.file")
        uploads.upload_file(world.files, objects, folder / name, f"{prefix}/{name}", version.files[name]["sha256"])
    world.at("night.upload.manifest")


def highest_plus_one(files: Any, folder: Path) -> int:
    complete = [n for n in adapters.list_numbers(files, folder) if files.exists(folder / f"v{n}" / "manifest.json")]
    number = max(complete, default=0) + 1
    files.mkdir(folder / f"v{number}")
    return number


def skip_reservation(_objects: object, versions: Any, tenant: str, role: str, _key: str) -> int:
    """The local disk alone decides about numbers."""
    return max((version.version for version in versions.list(tenant, role)), default=0) + 1


def keep_fencing(record: records.MarkerRecord, clock: Any, lease_s: float) -> records.MarkerRecord:
    """The fencing number stays 1, so that a claim of yesterday looks like today's."""
    return replace(RENEWED(record, clock, lease_s), fence=1)


RENEWED = records.renew_claim


def put_anyway(self: remote.ObjectMarkers, name: str, state: object, record: object, _generation: int) -> Any:
    """Write without the expected generation: the last of two writers wins."""
    return PUT(self, name, state, record, None)  # type: ignore[arg-type]


PUT = remote.ObjectMarkers._put


def today(world: NightDeps, marker: Any) -> list[CorpusTuple]:
    """Return the bucket as it is now, not the snapshot."""
    return list(world.stores.corpora.read(marker.bucket, marker.method).tuples)


def counts_lines(self: Corpora, bucket: str, method: str) -> BucketReading:
    reading = READ(self, bucket, method)
    spelt = {"diff": "?", "message": "?"} if method == "sft" else {"prompt": "?", "shadow": "?", "verdict": "!"}
    more = [CorpusTuple(f"line-{entry.line}", spelt) for entry in reading.invalid]
    return BucketReading((*reading.tuples, *more))


READ = Corpora.read


def backwards(world: NightDeps, version: Any, sure: Callable[[], None]) -> None:
    world.trainer.deploy(version)


def overwrites(files: Any, objects: Any, path: Path, name: str, _sha256: str) -> None:
    objects.put(name, files.read(path), metadata={"sha256": _sha256})


def keep_old_facts(self: Any, mutations: Any) -> Any:
    """Return an edited document adds to what its earlier content stated."""
    renamed = [
        extracting.Mutation(**{**vars(mutation), "name": f"{mutation.name}#{mutation.content_sha256}"})
        for mutation in mutations
    ]
    return MUTATE(self, renamed)


MUTATE = doubles.FlakyGraph.mutate


def build_swaps() -> dict[str, tuple[Swap, ...]]:
    """Name -> replaced attributes."""
    return {
        "no-fsync": ((SimulatedFiles, "fsync", always()),),
        "no-folder-fsync": ((SimulatedFiles, "fsync_folder", always()),),
        "ledger-before-graph": ((extracting.Writer, "flush", ledger_first),),
        "quarantine-as-done": ((extracting.Writer, "entry", nonsense_is_done),),
        "edited-adds": ((doubles.FlakyGraph, "mutate", keep_old_facts),),
        "keeps-parts-that-are-gone": ((extracting, "find_gone_parts", always({})),),
        "no-lease-check": tuple((claim.ClaimLease, look, always()) for look in ("assert_held", "renew_if_due")),
        "claim-without-fencing": (
            (records, "renew_claim", keep_fencing),
            (records.MarkerRecord, "belongs_to", always(True)),
        ),
        "steals-live-claims": ((records, "is_stale", always(True)),),
        "claims-without-precondition": ((remote.ObjectMarkers, "_put", put_anyway),),
        "complete-before-publish": ((claim, "bring_to_end", complete_first),),
        "manifest-first": ((publish, "upload", manifest_first),),
        "max-plus-one-version": ((adapters, "reserve", highest_plus_one), (publish, "reserve", skip_reservation)),
        "trains-again": (
            (claim, "find_registered", always()),
            (adapters.AdapterRegistry, "_with_key", always()),
            (publish, "reserve", skip_reservation),
        ),
        "overwrites-versions": ((uploads, "upload_file", overwrites),),
        "live-goes-backwards": ((claim, "point", backwards),),
        "device-not-measured": ((doubles.SimulatedServer, "prove_free", always()),),
        "trains-without-proof": ((phases, "explain_no_training", always("")),),
        "trains-on-live-corpus": ((claim, "fetch_tuples", today),),
        "counts-invalid-lines": ((Corpora, "read", counts_lines),),
        "forgets-what-was-trained": ((phases, "last_trained", always(frozenset())),),
        "same-night-twice": ((report, "read_report", always()),),
        "two-nights-at-once": ((doubles.Lease, "alone", always(nullcontext())),),
    }


INJECTED_BUGS = tuple(build_swaps())


DATES, QUIET_DATES = 6, 3
"""Dates with faults, and those without at the end, of one campaign."""


def run_campaign(seed: int) -> NightCampaign:
    """Return one campaign, carried out."""
    campaign = NightCampaign(seed)
    for date in range(DATES + QUIET_DATES):
        quiet = campaign.quiet = date >= DATES
        campaign.heal()
        campaign.day() if not quiet else None
        for attempt in range(MOST_ATTEMPTS):
            run_attempt(campaign, quiet or attempt == MOST_ATTEMPTS - 1)
            if campaign.violations or (campaign.reports and campaign.reports[-1].state == "completed"):
                break
        campaign.next_date()
    if not campaign.violations:
        invariants.check_end(campaign)
    return campaign


def run_attempt(campaign: NightCampaign, quiet: bool) -> None:
    campaign.heal_connections()
    trouble: set[str] = set()
    if not quiet:
        campaign.faults, trouble = campaign.draw_faults()
    count = len(campaign.reports)
    campaign.attempts += 1
    campaign.run_night(campaign.spawn(), trouble)
    campaign.settle()
    invariants.check(campaign)
    for night_report in campaign.reports[count:]:
        invariants.report(campaign, night_report)


simulate = Simulator(run_campaign, build_swaps, DATES + QUIET_DATES).run
