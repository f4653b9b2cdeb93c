"""Signatures of adapter versions: verify and sign a version; list, trust and revoke keys."""

from __future__ import annotations

from pathlib import Path

from trainyard.app.adapters.registry import open_registry
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.errors import InvalidInput, NotFound
from trainyard.operations.adapters import KeysInput, RevokeKeyInput, TrustKeyInput, VersionInput
from trainyard.serve.signatures import check_signature, find_signer, sign_with_own_key
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.files import DISK, translate_os_errors
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.recording import PUBLISHED
from trainyard.stores.signing.keys import MAX_PEM_BYTES, SigningKeys, TrustedKey
from trainyard.stores.whole import create_whole


class VerifiedVersion(Response):
    """A version whose files are what its manifest, and its signature, say."""

    version: str
    files: int
    policy: str
    """The setting `signatures`."""
    signed_by: str = ""
    """Id of the key; empty without a verified signature."""
    key_name: str = ""
    notice: str = ""
    """Why it is loaded without a verified signature."""
    ledger: str = ""
    """What the ledger says of its digest."""


class SignerKey(Response):
    id: str
    name: str
    own: bool
    added: float
    revoked: float = 0.0
    """Unix seconds; 0 for a key that is accepted."""
    because: str = ""


class Keys(Response):
    keys: tuple[SignerKey, ...]
    policy: str
    out: Path | None = None


def verify(request: VersionInput, context: Context) -> VerifiedVersion:
    """Check a version's files, signature and entry in the ledger.

    Raises `NotFound` (`E-ADAPTER-NOT-FOUND`), `Corrupt` (`E-CORRUPT`), and what `check_signature` raises.
    """
    registry = open_registry(context, request.name)
    return describe_verified(registry.verify(registry.show(request.name)), registry, context)


def describe_verified(version: AdapterVersion, registry: AdapterRegistry, context: Context) -> VerifiedVersion:
    settings = context.settings
    notice = check_signature(version, registry, settings)
    key = None if notice else find_signer(version, registry, settings)
    return VerifiedVersion(
        version=version.name, files=len(version.files), policy=settings.signatures, notice=notice,
        signed_by=key.id if key else "", key_name=key.name if key else "", ledger=compare_with_ledger(version, context),
    )  # fmt: skip


def compare_with_ledger(version: AdapterVersion, context: Context) -> str:
    """Return which entry has published a version with this digest. Raises `NotFound` where it has another digest."""
    ledger = Ledger.at_home(context.settings.home)
    try:
        head = ledger.synced()
    except NotFound:
        return ""
    entries = [head.entry(seq) for seq in ledger.index.select(kind=PUBLISHED, limit=head.size, tenant=version.tenant)]
    named = [entry for entry in entries if entry.get("version") == version.name]
    if not named:
        return "The ledger of this home has no entry of its registration."
    same = [
        entry for entry in named if (entry.get("outputs") or {}).get(version.kind, {}).get("sha256") == version.sha256
    ]
    if not same:
        raise InvalidInput(
            f"The ledger has another digest of {version.name}.",
            why=f"Entry {named[0]['seq']} has published it with other files.",
            do="Do not load it: promote another version, and move this one away.", code="E-SIGNATURE",
        )  # fmt: skip
    return f"ledger: entry {same[0]['seq']} has published this digest"


def sign(request: VersionInput, context: Context) -> VerifiedVersion:
    """Sign a version with this home's key, after a check of its digests. Raises `InvalidInput` where nothing is signed.

    A signature of another key is replaced: who calls this vouches for the files.
    """
    if context.settings.signatures == "off":
        raise InvalidInput(
            "Nothing is signed here.", why="The setting signatures is off.",
            do="Set signatures to verify-if-present or require in trainyard.toml.", code="E-PARAMETER",
        )  # fmt: skip
    registry = open_registry(context, request.name)
    version = sign_with_own_key(registry.verify(registry.show(request.name)), registry, context.settings)
    return describe_verified(version, registry, context)


def list_keys(request: KeysInput, context: Context) -> Keys:
    """Return the keys; with `out`, also write this home's public key, which is made where there is none."""
    keys = SigningKeys(context.settings.home)
    if request.out is not None:
        pem = keys.own().pem
        out = request.out.expanduser().absolute()
        with translate_os_errors(f"{out} was not written"):
            create_whole(DISK, out, pem.encode())
        return describe_keys(keys, context, out)
    return describe_keys(keys, context)


def trust_key(request: TrustKeyInput, context: Context) -> Keys:
    """Accept the signatures of a key. Raises `NotFound`, `InvalidInput`, `Conflict`."""
    path, keys = request.file.expanduser(), SigningKeys(context.settings.home)
    try:
        with path.open("rb") as stream:
            pem = stream.read(MAX_PEM_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise NotFound(f"{path} cannot be read.", why=str(error.strerror), do="Name the public key's file.") from error
    keys.trust(pem, request.name)
    return describe_keys(keys, context)


def revoke_key(request: RevokeKeyInput, context: Context) -> Keys:
    """Accept no signature of a key any more. Raises `NotFound`, `Conflict`."""
    keys = SigningKeys(context.settings.home)
    keys.revoke(request.key, request.because)
    return describe_keys(keys, context)


def describe_keys(keys: SigningKeys, context: Context, out: Path | None = None) -> Keys:
    return Keys(keys=tuple(map(describe_key, keys.list())), policy=context.settings.signatures, out=out)


def describe_key(key: TrustedKey) -> SignerKey:
    return SignerKey(id=key.id, name=key.name, own=key.own, added=key.added, revoked=key.revoked, because=key.because)
