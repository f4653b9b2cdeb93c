"""Publish a trained adapter as a version: a number, files first, the manifest last, then a check.

`stores/objects/versions.py` has the layout.

Everything is keyed by the marker: doing it again, after a crash or by another process, finds what is there and adds
nothing. With no object store nothing is sent anywhere, and the local registry is the publication.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from trainyard.errors import Corrupt
from trainyard.night.deps import Facts, NightDeps
from trainyard.spec.chain import canonical_json
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.markers.records import Marker
from trainyard.stores.objects import versions
from trainyard.stores.objects.store import ObjectStore
from trainyard.stores.objects.versions import RESERVED, Sure, create, is_uploaded, point_there, version_prefix

MOST_NUMBERS = 100_000


def find_registered(world: NightDeps, tenant: str, role: str, key: str) -> AdapterVersion | None:
    """Return the version that this marker has already, made by any process, on the disk for certain."""
    registry = world.stores.versions
    version = next((version for version in registry.list(tenant, role) if version.run_key == key), None)
    return None if version is None else registry.flushed(version)


def register(world: NightDeps, marker: Marker, folder: Path, facts: Facts) -> AdapterVersion:
    """Store an adapter under the next number of its role; the same marker always gets the same number."""
    registry, objects = world.stores.versions, world.stores.objects
    tenant, role, key = marker.tenant, marker.role, marker.name
    number = None if objects is None else reserve(objects, registry, tenant, role, key)
    return registry.register(tenant, role, folder, facts=facts, run_key=key, number=number)


def reserve(objects: ObjectStore, registry: AdapterRegistry, tenant: str, role: str, key: str) -> int:
    """Reserve a number that is free here and in the object store, by creating a file there that does not exist.

    Machines come and go: the object store, not a disk, knows which numbers were ever taken.
    """
    content = canonical_json({"run_key": key})
    listed = {info.name for info in objects.list(f"adapters/{tenant}/{role}/")}
    parts = (name.split("/")[3].removeprefix("v") for name in listed if name.split("/")[3].startswith("v"))
    numbers = sorted({int(part) for part in parts if part.isdecimal()})
    for number in numbers:
        name = f"{version_prefix(tenant, role, number)}/{RESERVED}"
        if name in listed and objects.get(name) == content:
            return number
    number = max([*numbers, registry.highest(tenant, role)], default=0) + 1
    for candidate in range(number, number + MOST_NUMBERS):
        if create(objects, f"{version_prefix(tenant, role, candidate)}/{RESERVED}", content):
            return candidate
    raise AssertionError("no free number among a hundred thousand")


def publish(world: NightDeps, version: AdapterVersion, sure: Sure) -> None:
    """Upload a registered version, files first, check what a reader gets, and upload it to the data worker.

    Raises `Conflict` (`E-PUBLISH`) when another adapter has this number there, `Corrupt` (`E-PUBLISH`)
    when what is there is not what was trained, and what `Stores.share` raises.
    """
    objects = world.stores.objects
    if objects is not None:
        upload(world, objects, version, sure)
    verify_published(world, version)
    world.stores.share(version)
    world.at("night.publish.verified")


def upload(world: NightDeps, objects: ObjectStore, version: AdapterVersion, sure: Sure) -> None:
    folder = world.stores.versions.path(version)
    versions.upload(objects, folder, version, files=world.files, sure=sure, at=world.at)


def verify_published(world: NightDeps, version: AdapterVersion) -> None:
    """Read back what a reader would: the local files by their digests; in the store the manifest, sizes and digests."""
    world.stores.versions.verify(version)
    objects = world.stores.objects
    if objects is None:
        return
    if not is_uploaded(objects, version):
        raise Corrupt(
            f"What is published as {version.name} is not what was trained.",
            why="A file is missing there, or has another size or digest.",
            do="Look at the object store; the marker stays claimed until it is right.",
            code="E-PUBLISH",
        )


def point(world: NightDeps, version: AdapterVersion, sure: Sure) -> None:
    """Make a version the live one, here and in the object store, unless a newer one is live already."""
    live = world.stores.versions.live(version.tenant, version.role).version or 0
    if version.version > live:
        sure()
        world.trainer.deploy(version)
    objects = world.stores.objects
    if objects is not None:
        if (signature := world.stores.versions.read_signature(version)) is not None:
            sure()
            versions.upload_signature(objects, version, signature)
        point_there(objects, version, sure)


def sync_snapshot(objects: ObjectStore, name: str, data: bytes) -> str:
    """Copy a corpus snapshot to the object store, once; returns its name there."""
    if not create(objects, name, data):
        raise Corrupt(
            f"The object {name} has other bytes than its name says.",
            why=f"Expected SHA-256 {hashlib.sha256(data).hexdigest()[:12]}.",
            do="Move it away; the next night copies the snapshot again.",
            code="E-CORRUPT",
        )
    return name
