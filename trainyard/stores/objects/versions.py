"""Adapter versions in an object store: files first, the manifest last, a pointer to the one that is live.

    adapters/<tenant>/<role>/v<N>/reserved.json   whose number it is (create only)
    adapters/<tenant>/<role>/v<N>/<file>          (create only)
    adapters/<tenant>/<role>/v<N>/manifest.json   last (create only): a version without it does not exist for readers
    adapters/<tenant>/<role>/v<N>/model.sig       the signature over its files, where it has one
    adapters/<tenant>/<role>/live.json            the pointer that a gateway re-reads

Doing it again, after a crash or by another process, finds what is there and adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson

from trainyard.callbacks import ignore
from trainyard.errors import Conflict
from trainyard.spec.chain import canonical_json
from trainyard.stores.adapters import AdapterVersion
from trainyard.stores.files import DISK, Files
from trainyard.stores.objects.store import ObjectStore
from trainyard.stores.signing.bundles import SIGNATURE_FILE
from trainyard.stores.whole import MANIFEST

RESERVED = "reserved.json"
Sure = Callable[[], None]
"""Asked right before an effect: raises `Conflict` (`E-MARKER-LOST`) when another owner has the marker."""


def version_prefix(tenant: str, role: str, number: int) -> str:
    return f"adapters/{tenant}/{role}/v{number}"


def pointer(tenant: str, role: str) -> str:
    return f"adapters/{tenant}/{role}/live.json"


def read_published_number(objects: ObjectStore, tenant: str, role: str) -> int | None:
    """Return the number of the version that is live in the object store; None if none is."""
    name = pointer(tenant, role)
    return int(orjson.loads(objects.get(name))["version"]) if objects.head(name) is not None else None


def create(objects: ObjectStore, name: str, data: bytes) -> bool:
    """Create an object with these bytes, or find it there with them; False when it has others."""
    try:
        objects.put(name, data, if_generation_match=0)
    except Conflict:
        return objects.get(name) == data
    return True


def upload(
    objects: ObjectStore,
    folder: Path,
    version: AdapterVersion,
    *,
    files: Files = DISK,
    sure: Sure = lambda: None,
    at: Callable[[str], None] = ignore,
) -> None:
    """Send a version's files and then its manifest, unless the manifest is there.

    Raises `Conflict` (`E-PUBLISH`) when another adapter has this number there.
    """
    prefix, manifest = version_prefix(version.tenant, version.role, version.version), build_manifest(version)
    if objects.head(f"{prefix}/{MANIFEST}") is None:
        for name in sorted(version.files):
            sure()
            upload_file(files, objects, folder / name, f"{prefix}/{name}", version.files[name]["sha256"])
            at("night.upload.file")
        at("night.upload.before-manifest")
        sure()
        if not create(objects, f"{prefix}/{MANIFEST}", manifest):
            raise make_conflict(version)
    elif objects.get(f"{prefix}/{MANIFEST}") != manifest:
        raise make_conflict(version)
    at("night.upload.manifest")


def upload_file(files: Files, objects: ObjectStore, path: Path, name: str, sha256: str) -> None:
    """Create one object, or accept the one that an earlier attempt left; its digest is in its metadata."""
    try:
        objects.put(name, files.read(path), if_generation_match=0, metadata={"sha256": sha256})
    except Conflict:
        there = objects.head(name)
        if there is None or there.metadata.get("sha256") != sha256:
            raise


def build_manifest(version: AdapterVersion) -> bytes:
    """Return the manifest: the names and digests of the files, and where they came from."""
    return canonical_json(
        {
            "name": version.name,
            "sha256": version.sha256,
            "run_key": version.run_key,
            "files": {
                name: {"sha256": entry["sha256"], "bytes": int(entry["bytes"])} for name, entry in version.files.items()
            },
        }
    )


def make_conflict(version: AdapterVersion) -> Conflict:
    return Conflict(
        f"Another adapter is published as {version.name}.",
        why="A published version is never overwritten.",
        do="Delete the local version, and train it again: it gets the next number.",
        code="E-PUBLISH",
    )


def is_uploaded(objects: ObjectStore, version: AdapterVersion) -> bool:
    """Whether a reader gets what this version is: the manifest, and the size and the digest of each file."""
    prefix = version_prefix(version.tenant, version.role, version.version)
    same = objects.get(f"{prefix}/{MANIFEST}") == build_manifest(version)
    for name, entry in version.files.items():
        there = objects.head(f"{prefix}/{name}")
        facts = (there.size, there.metadata.get("sha256")) if there is not None else None
        same = same and facts == (entry["bytes"], entry["sha256"])
    return same


def upload_signature(objects: ObjectStore, version: AdapterVersion, bundle: bytes | None) -> None:
    """Put the signature of a version next to its files; one by an earlier key is replaced."""
    name = f"{version_prefix(version.tenant, version.role, version.version)}/{SIGNATURE_FILE}"
    if bundle is None or create(objects, name, bundle):
        return
    there = objects.head(name)
    objects.put(name, bundle, if_generation_match=there.generation if there is not None else 0)


def read_signature_there(objects: ObjectStore, prefix: str) -> bytes | None:
    """Return the signature of a published version; None without one."""
    name = f"{prefix}/{SIGNATURE_FILE}"
    return objects.get(name) if objects.head(name) is not None else None


def point_there(objects: ObjectStore, version: AdapterVersion, sure: Sure = lambda: None) -> None:
    """The pointer in the object store moves forward only, and only from the state that was read."""
    name = pointer(version.tenant, version.role)
    content = canonical_json({"version": version.version, "sha256": version.sha256})
    while True:
        there = objects.head(name)
        if there is not None and orjson.loads(objects.get(name))["version"] >= version.version:
            return
        sure()
        try:
            objects.put(name, content, if_generation_match=there.generation if there is not None else 0)
        except Conflict:
            continue
        return
