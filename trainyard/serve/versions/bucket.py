"""Adapter versions in an object store: send one, and bring one to another machine.

The layout is that of the night (`stores/objects/versions.py`), so what a night publishes can be pulled, and a gateway
reads what is pushed by hand: `gs://bucket/prefix/adapters/<tenant>/<role>/live.json` names the live version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import Corrupt, InvalidInput, NotFound
from trainyard.serve.publication import Destination, new_version, read_publication, register_pulled
from trainyard.settings import Settings
from trainyard.spec.chain import canonical_json
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion, check_name
from trainyard.stores.objects.addresses import open_store
from trainyard.stores.objects.store import ObjectStore
from trainyard.stores.objects.versions import (
    RESERVED,
    create,
    is_uploaded,
    make_conflict,
    point_there,
    read_published_number,
    read_signature_there,
    upload,
    upload_signature,
    version_prefix,
)
from trainyard.stores.whole import MANIFEST

SOURCE = re.compile(
    r"(?P<store>(?:gs|file)://.+?)/adapters/(?P<tenant>[^/]+)/(?P<role>[^/]+?)(?:/(?P<end>v\d+|live\.json))?/?"
)


@dataclass(frozen=True)
class Sent:
    """Result of a push."""

    where: str
    revision: str
    changed: bool
    live: bool = False
    """Whether the pointer of the store means this version now."""


def is_address(text: str) -> bool:
    return "://" in text


def push_to_store(version: AdapterVersion, registry: AdapterRegistry, address: str, cards: Mapping[str, str]) -> Sent:
    """Send a version under its own number; the store's pointer follows to a live version that is newer than its own.

    `cards` are name -> text; one that is there stays as it is.

    Raises `Conflict` (`E-PUBLISH`) when the number belongs to another adapter there, `Corrupt` (`E-PUBLISH`) when a
    reader would get something else.
    """
    objects, prefix = open_store(address), version_prefix(version.tenant, version.role, version.version)
    registry.verify(version)
    there = objects.head(f"{prefix}/{MANIFEST}") is not None
    if not create(objects, f"{prefix}/{RESERVED}", canonical_json({"run_key": version.run_key or version.sha256})):
        raise make_conflict(version)
    upload(objects, registry.path(version), version)
    if not is_uploaded(objects, version):
        raise Corrupt(
            f"What is published as {version.name} is not this version.",
            why="A file is missing there, or has another size or digest.",
            do="Look at the object store, and push again.",
            code="E-PUBLISH",
        )
    for name, text in cards.items():
        create(objects, f"{prefix}/{name}", text.encode())
    upload_signature(objects, version, registry.read_signature(version))
    is_live = registry.live(version.tenant, version.role).version == version.version
    if is_live:
        point_there(objects, version)
    means = read_published_number(objects, version.tenant, version.role)
    return Sent(f"{address.rstrip('/')}/{prefix}", version.sha256, not there, live=means == version.version)


def pull_from_store(address: str, settings: Settings, alias: str | None = None) -> AdapterVersion:
    """Register what is published at `STORE/adapters/TENANT/ROLE[/vN | /live.json]`; without a number, the live one.

    Raises `InvalidInput` (`E-OBJECT-STORE`) for another address, `NotFound` (`E-ADAPTER-NOT-FOUND`) for a version
    that is not there or not complete, and what `register_pulled` raises.
    """
    match = SOURCE.fullmatch(address)
    if not match:
        raise InvalidInput(
            f"{address!r} names no published adapter.",
            why="It has to be STORE/adapters/TENANT/ROLE, with /vN for one version or /live.json for the live one.",
            do="Write it like gs://our-weights/trainyard/adapters/acme/assistant.",
            code="E-OBJECT-STORE",
        )
    objects, tenant, role = open_store(match["store"]), check_name(match["tenant"]), check_name(match["role"])
    end = match["end"]
    number = int(end[1:]) if end and end.startswith("v") else read_published_number(objects, tenant, role)
    if number is None:
        raise NotFound(
            f"No version of {tenant}/{role} is live in {match['store']}.",
            do="Name a version: add /v1.",
            code="E-ADAPTER-NOT-FOUND",
        )
    to = new_version(settings, alias)
    return fetch_published(objects, f"{tenant}/{role}", number, to=to, source=match["store"])


def fetch_published(
    objects: ObjectStore, alias: str, number: int, *, to: Destination, source: str = "the object store"
) -> AdapterVersion:
    """Register a published version: found where it has its number and is here, or fetched file by file and compared.

    Raises `NotFound` (`E-ADAPTER-NOT-FOUND`) for one that is not complete, `Conflict` (`E-PUBLISH`) where another
    adapter has this number here, and what `register_pulled` raises.
    """
    tenant, role = alias.split("/")
    prefix = version_prefix(tenant, role, number)
    where = f"{source}/{prefix}"
    if objects.head(f"{prefix}/{MANIFEST}") is None:
        raise NotFound(
            f"There is no complete version at {where}.",
            why=f"It has no {MANIFEST}, which is written last: its publication has not ended, or never began.",
            do="Publish it again, or name another version.",
            code="E-ADAPTER-NOT-FOUND",
        )
    publication = read_publication(objects.get(f"{prefix}/{MANIFEST}"), where)
    here = find_registered(to.registry, f"{alias}/v{number}") if to.number is not None else None
    if here is not None and here.sha256 == publication.sha256:
        return here

    def fetch(name: str, target: Path) -> None:
        try:
            objects.download(f"{prefix}/{name}", target)
        except NotFound as error:
            raise Corrupt(
                f"{name} of {where} is missing.",
                why="Its manifest lists it; nothing was registered.",
                do="Publish the version again.",
                code="E-CORRUPT",
            ) from error

    signature = read_signature_there(objects, prefix)
    return register_pulled(publication, fetch, source=where, origin={}, to=to, signature=signature)


def find_registered(registry: AdapterRegistry, name: str) -> AdapterVersion | None:
    """Return the version of that name in a registry; None if it is not there."""
    try:
        return registry.show(name)
    except NotFound:
        return None
