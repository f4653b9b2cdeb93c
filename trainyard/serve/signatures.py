"""The policy of signatures: sign what is registered here, and verify a version before anything loads it.

`signatures` of trainyard.toml:

require             a version without a signature of a trusted key is refused
verify-if-present   the default: a version that has a signature has to verify; one without is loaded, and that is said
off                 nothing is signed and nothing is verified, and that is said

A version that was registered with a signature stays one: when its signature is gone, it is refused under both policies
that verify. Versions of others keep the signature of their publisher; they are not signed with this home's key
automatically, for that would make them ours.
"""

from __future__ import annotations

from pathlib import Path

from trainyard.errors import NotFound
from trainyard.settings import Settings
from trainyard.stores.adapters import SIGNED, AdapterRegistry, AdapterVersion, files_digest
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.signing.bundles import (
    CODE,
    SIGNATURE_FILE,
    read_key_id,
    sign_folder,
    verify_folder,
)
from trainyard.stores.signing.keys import SigningKeys, TrustedKey
from trainyard.stores.whole import describe_files, write_whole

REQUIRE, OFF = "require", "off"
UNSIGNED = "has no signature; the setting signatures = verify-if-present loads it all the same"
UNVERIFIED = "its signature is not verified: the setting signatures is off"


def sign_version(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> AdapterVersion:
    """Sign a version that was trained here, unless it is signed, or nothing is signed here.

    Raises `Corrupt`, `Conflict` for a key of this home that cannot be used: the version stays registered, unsigned.
    """
    if settings.signatures == OFF or "origin" in version.facts or registry.read_signature(version) is not None:
        return version
    return sign_with_own_key(version, registry, settings)


def sign_with_own_key(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> AdapterVersion:
    """Sign a version's files with this home's key, whatever signature it has."""
    keys = SigningKeys(settings.home)
    bundle = sign_folder(registry.path(version), version.files, keys)
    return registry.keep_signature(version, bundle, read_key_id(bundle, version.name))


def verify_version(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> AdapterVersion:
    """Return a version after a check of its digests and, by the policy, of its signature.

    Raises `Corrupt` (`E-CORRUPT`) and what `check_signature` raises.
    """
    registry.verify(version)
    check_signature(version, registry, settings)
    return version


def check_signature(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> str:
    """Return what is to be said of a version that is loaded without a verified signature; empty for a verified one.

    Raises `NotFound`, `Denied`, `Corrupt` (`E-SIGNATURE`) as the policy asks.
    """
    if settings.signatures == OFF:
        return f"{version.name}: {UNVERIFIED}"
    bundle = registry.read_signature(version)
    if bundle is None and settings.signatures != REQUIRE:
        if SIGNED in version.facts:
            raise NotFound(
                f"The signature of {version.name} is gone.",
                why=f"It was registered with one by the key {str(version.facts[SIGNED])[:16]}.",
                do=f"Put {registry.signature_path(version).name} back from a backup, or use another version.",
                code=CODE,
            )  # fmt: skip
        return f"{version.name} {UNSIGNED}"
    find_signer(version, registry, settings)
    return ""


def find_signer(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> TrustedKey:
    """Return the key that has signed a version's files as they are now. Raises as `verify_folder`."""
    bundle = registry.read_signature(version)
    return verify_folder(registry.path(version), version.files, bundle, SigningKeys(settings.home), version.name)


def check_pulled(folder: Path, bundle: bytes | None, source: str, settings: Settings) -> str:
    """Verify what was fetched before it is registered; return what is to be said of it. Raises as `check_signature`."""
    if settings.signatures == OFF:
        return f"{source}: {UNVERIFIED}"
    if bundle is None and settings.signatures != REQUIRE:
        return f"{source} {UNSIGNED}"
    verify_folder(folder, describe_files(folder), bundle, SigningKeys(settings.home), source)
    return ""


def sign_published(folder: Path, settings: Settings) -> None:
    """Sign the files of a publication with this home's key, next to them.

    A signature has a random part; one of the same files by the same key is taken again, so that publishing twice adds
    nothing.
    """
    if settings.signatures == OFF:
        return
    keys, files = SigningKeys(settings.home), describe_files(folder)
    earlier = settings.home / "signatures" / f"{keys.own().id[:16]}-{files_digest(files)}.sig"
    if not earlier.is_file():
        bundle = sign_folder(folder, files, keys)
        make_folders(DISK, earlier.parent)
        write_whole(DISK, earlier, bundle)
    (folder / SIGNATURE_FILE).write_bytes(earlier.read_bytes())
