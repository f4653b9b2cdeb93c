"""The invariants after every attempt of a simulated night, whatever happened in it, and at the end.

Each check counts, so that the last line of a simulation says how often something was looked at. What a state promised
once (a completed marker, a version's number, a ledger's entry) is remembered in the campaign: a disk that loses it is
found out.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from trainyard.data.corpora import Corpora
from trainyard.night.extracting import describe_version
from trainyard.night.report import NightReport
from trainyard.night.streams import GONE, part_name
from trainyard.serve.extraction.extraction import parse
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.documents import DocumentLedger, Entry
from trainyard.stores.graph.facts import Mutation, document_key
from trainyard.stores.graph.local import MemoryGraph
from trainyard.stores.markers.records import MarkerRecord, MarkerState
from trainyard.stores.objects.versions import build_manifest, version_prefix
from trainyard.testing.nights.campaign import HOME, NightCampaign
from trainyard.testing.nights.doubles import parse_in_process, write_answer

STREAMS = {"md": "notes", "json": "records"}
SLACK_S = 60.0
"""A training looks at its budget every half minute, and the last look may come late."""


def check(campaign: NightCampaign) -> None:
    """Check after an attempt that no process is running, and all that was acknowledged is there and consistent."""
    for rule in (ledger_and_graph, versions, markers, cloud):
        check_rule(campaign, rule)


def check_rule(campaign: NightCampaign, rule: Callable[[NightCampaign], None]) -> None:
    """A store that cannot be read any more is a violation too."""
    try:
        rule(campaign)
    except Exception as error:
        campaign.violated(f"{rule.__name__}: {type(error).__name__}: {error}")


def open_ledger(campaign: NightCampaign) -> DocumentLedger:
    return DocumentLedger(HOME / "acme" / "ledger.jsonl", campaign.disk, campaign.clock)


def format_key(campaign: NightCampaign, entry: Entry) -> str:
    return document_key(campaign.config.tenant, entry.key.stream, entry.key.content_sha256, entry.key.version)


def ledger_and_graph(campaign: NightCampaign) -> None:
    """A document that is done is in the graph; an unreadable one is not done."""
    documents = campaign.graph.documents()
    entries = open_ledger(campaign).current()
    for entry in entries:
        campaign.checked += 1
        if (
            entry.status == "done"
            and format_key(campaign, entry) not in documents
            and not to_be_redone(campaign, entry)
        ):
            campaign.violated(f"{entry.name} is done in the ledger and not in the graph")
        text = campaign.texts.get(entry.key.content_sha256)
        if entry.status == "done" and text is not None and "nonsense" in text:
            campaign.violated(f"{entry.name} is done although its answer did not conform")
        if entry.status == "done":
            campaign.last_done[entry.key.stream, entry.name] = entry
    keys = {entry.key for entry in open_ledger(campaign).entries()}
    campaign.expect(campaign.recorded <= keys, "the ledger lost an entry that it had acknowledged")
    campaign.recorded |= keys


def to_be_redone(campaign: NightCampaign, entry: Entry) -> bool:
    """Whether the next night reads this document again: its content has changed, or its write was left half done."""
    changed = campaign.digest(entry.name) != entry.key.content_sha256
    return changed or (entry.key.stream, entry.name) in campaign.doubtful()


def versions(campaign: NightCampaign) -> None:
    """Numbers are never used twice, contents never change, a marker has one version."""
    registry = AdapterRegistry(HOME / "adapters", campaign.disk)
    keys: dict[str, str] = {}
    for version in registry.list():
        campaign.checked += 1
        registry.verify(version)
        identity = f"{version.run_key} {version.sha256}"
        if campaign.numbers.setdefault(version.name, identity) != identity:
            campaign.violated(f"{version.name} became another adapter")
        if keys.setdefault(version.run_key, version.name) != version.name:
            campaign.violated(f"{version.run_key} has two versions: {keys[version.run_key]} and {version.name}")
    for name in campaign.numbers:
        campaign.expect(name in keys.values(), f"{name} is gone")
    for role in {bucket.adapter_role for bucket in campaign.config.buckets}:
        live = registry.live("acme", role).version
        if live is not None and f"acme/{role}/v{live}" not in keys.values():
            campaign.violated(f"acme/{role}/v{live} is live and does not exist")


def markers(campaign: NightCampaign) -> None:
    store = campaign.markers()
    records = [store.show(name) for name in store.states()]
    ended = dict(campaign.ended_markers)
    for record in records:
        campaign.checked += 1
        name = record.marker.name
        if record.fence < campaign.fences.get(name, 0):
            campaign.violated(f"the fencing number of {name} went back")
        campaign.fences[name] = record.fence
        before = campaign.ended_markers.get(name)
        if before is not None and before != record.state:
            campaign.violated(f"{name} was {before} and is {record.state}")
        if record.state in (MarkerState.COMPLETED, MarkerState.FAILED):
            campaign.ended_markers[name] = record.state
        if record.state is MarkerState.COMPLETED and record.facts.get("published"):
            is_published(campaign, record)
        if name not in campaign.seen_markers:
            campaign.seen_markers.add(name)
            was_due(
                campaign,
                record,
                [record for record in records if ended.get(record.marker.name) is MarkerState.COMPLETED],
            )
    for name in set(campaign.seen_markers) - {record.marker.name for record in records}:
        campaign.violated(f"{name} is gone")
    for name, digest in campaign.trained:
        campaign.checked += 1
        if name in store.states() and store.show(name).marker.corpus_sha256 != digest:
            campaign.violated(f"{name} was trained on another corpus than its snapshot")


def was_due(campaign: NightCampaign, record: MarkerRecord, completed: list[MarkerRecord]) -> None:
    """A new marker names a whole snapshot in which enough tuples are new since the last completed training."""
    marker = record.marker
    bucket = next(bucket for bucket in campaign.config.buckets if bucket.name == marker.bucket)
    corpora = Corpora(HOME / "acme" / "corpora", campaign.disk, parse_in_process)
    tuples = corpora.open(marker.bucket, marker.method, marker.corpus_sha256)
    earlier = [other.marker for other in completed if other.marker.bucket == marker.bucket]
    digests: set[str] = set()
    if earlier:
        last = max(earlier, key=lambda marker: marker.rows)
        digests = {row.digest for row in corpora.open(last.bucket, last.method, last.corpus_sha256)}
    if marker.method != bucket.method or len([row for row in tuples if row.digest not in digests]) < bucket.threshold:
        campaign.violated(f"{marker.name} was made for too few new tuples, or by the wrong method")


def is_published(campaign: NightCampaign, record: MarkerRecord) -> None:
    """A completed marker's version is there for readers."""
    registry = AdapterRegistry(HOME / "adapters", campaign.disk)
    name = str(record.facts["version"])
    version = next((version for version in registry.list() if version.name == name), None)
    if version is None or version.run_key != record.marker.name:
        campaign.violated(f"{record.marker.name} is completed and its version {name} is not there")
    elif campaign.cloud is not None and not readable(campaign, version):
        campaign.violated(f"{record.marker.name} is completed and {name} is not published")


def readable(campaign: NightCampaign, version: AdapterVersion) -> bool:
    assert campaign.cloud is not None
    prefix = version_prefix(version.tenant, version.role, version.version)
    there = campaign.cloud.head(f"{prefix}/manifest.json")
    return there is not None and campaign.cloud.get(f"{prefix}/manifest.json") == build_manifest(version)


def cloud(campaign: NightCampaign) -> None:
    """Check that a visible manifest has all its files, and that no file of a version is ever written twice."""
    store = campaign.cloud
    if store is None:
        return
    listed = {info.name: info for info in store.list("adapters/")}
    for name in [name for name in listed if name.endswith("/manifest.json")]:
        campaign.checked += 1
        prefix = name.removesuffix("/manifest.json")
        for file, entry in json.loads(store.get(name))["files"].items():
            there = listed.get(f"{prefix}/{file}")
            if there is None or there.metadata.get("sha256") != entry["sha256"]:
                campaign.violated(f"{prefix} is published without {file}")
    for name in store.overwritten:
        if name.startswith("adapters/") and not name.endswith("live.json"):
            campaign.violated(f"{name} was overwritten")
    store.overwritten.clear()


def report(campaign: NightCampaign, night_report: NightReport) -> None:
    """Budgets by the clock that does not jump, and each date once."""
    window = campaign.config.window
    if night_report.state == "skipped":
        return
    campaign.checked += 1
    if night_report.run in campaign.finished:
        campaign.violated(f"the night {night_report.run} was done twice")
    if night_report.state == "completed":
        campaign.finished.add(night_report.run)
    spans = [
        ("phase 1", night_report.phase1.extract_s, window.phase1_s + window.drain_s + campaign.slept),
        ("boot", night_report.phase1.boot_s, window.boot_s + SLACK_S + campaign.slept),
        ("phase 2", night_report.phase2.seconds, window.phase2_s + SLACK_S + campaign.slept),
        ("night", night_report.seconds, window.window_s + SLACK_S + campaign.slept),
    ]
    for phase, spent, budget in spans:
        if not 0 <= spent <= budget:
            campaign.violated(f"{phase} of {night_report.run} took {spent:.0f} s of {budget:.0f}")


def check_end(campaign: NightCampaign) -> None:
    """After nights without faults: nothing waits, the graph is what the documents say, the newest adapter is live."""
    check_rule(campaign, check_everything_read)
    check_rule(campaign, check_everything_trained)
    campaign.checked += 1
    if not campaign.reports or campaign.reports[-1].state == "failed":
        why = campaign.reports[-1].failures if campaign.reports else "no night ended"
        campaign.violated(f"the last night failed without a fault: {why}")


def check_everything_read(campaign: NightCampaign) -> None:
    entries = {(entry.key.stream, entry.name): entry for entry in open_ledger(campaign).current()}
    digests = {entry.key.content_sha256: entry for entry in entries.values()}
    oracle = MemoryGraph()
    stated = {
        (entry.key.stream, entry.name): (entry.key.content_sha256, entry.key.version)
        for entry in campaign.last_done.values()
    }
    stated |= half_written(campaign, entries)
    for (stream, name), (sha256, version) in stated.items():
        extraction = parse(write_answer(campaign.texts[sha256]))
        fields = (campaign.config.tenant, stream, name, sha256, version)
        oracle.mutate([Mutation(*fields, extraction.entities, extraction.relations)])
    same = list(oracle.dump()) == list(campaign.graph.dump())
    campaign.expect(same, "the graph is not what the documents say")
    half = campaign.doubtful()
    campaign.expect(not half, f"writes to the graph were begun and never recorded: {sorted(half)}")
    for file in campaign.contents:
        for number, sha256 in enumerate(campaign.digests(file), 1):
            campaign.checked += 1
            name = part_name(file, number)
            content_entry = digests.get(sha256)
            status = "quarantined" if "nonsense" in campaign.texts[sha256] else "done"
            if content_entry is None or (
                content_entry.status != status
                and content_entry.key.version == describe_version(campaign.config.serving)
            ):
                campaign.violated(f"{name} was never {status}")
            name_entry = entries.get((STREAMS[file.rpartition(".")[2]], name))
            if status == "done" and (name_entry is None or name_entry.key.content_sha256 != sha256):
                campaign.violated(f"{name} is not known to have its present content")
    for entry in entries.values():
        stale = campaign.digest(entry.name) == GONE != entry.key.content_sha256
        campaign.expect(not stale, f"{entry.name} still has facts, and its document has no such part")


def half_written(
    campaign: NightCampaign, entries: dict[tuple[str, str], Entry]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Return what the graph has of documents that nobody can read any more: their last readable content, also when the
    crash came before the ledger knew it. An edit that nobody can read takes nothing away."""
    contents: dict[tuple[str, str], tuple[str, str]] = {}
    for line in map(json.loads, campaign.graph.dump()):
        for name in line["names"] if line["a"] == "document" else ():
            entry = entries.get((line["stream"], name))
            if entry is not None and entry.status == "quarantined":
                contents[line["stream"], name] = (line["content_sha256"], line["version"])
    return contents


def check_everything_trained(campaign: NightCampaign) -> None:
    store = campaign.markers()
    for name, state in store.states().items():
        campaign.checked += 1
        if state in (MarkerState.PENDING, MarkerState.CLAIMED):
            campaign.violated(f"{name} is still {state}: {store.show(name).reason}")
    registry = AdapterRegistry(HOME / "adapters", campaign.disk)
    for bucket in campaign.config.buckets:
        published = [
            version.version
            for version in registry.list("acme", bucket.adapter_role)
            if store.states().get(version.run_key) is MarkerState.COMPLETED
        ]
        live = registry.live("acme", bucket.adapter_role).version
        newest = not published or live == max(published)
        campaign.expect(newest, f"v{live} of {bucket.adapter_role} is live, published are {published}")
