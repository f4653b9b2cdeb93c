"""Signatures over the files of a folder, in the format of OpenSSF model-signing: a Sigstore bundle with an in-toto
statement that has the digest of every file. `model_signing verify key` of the library checks them, too.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard.errors import Corrupt, Denied, NotFound
from trainyard.json_types import JsonMapping
from trainyard.stores.files import DISK
from trainyard.stores.signing.keys import SigningKeys, TrustedKey
from trainyard.stores.whole import describe_files, list_files

SIGNATURE_FILE = "model.sig"
"""Its name in a published folder."""
CODE = "E-SIGNATURE"
MAX_BUNDLE_BYTES = 4 << 20


def sign_folder(folder: Path, files: Mapping[str, JsonMapping], keys: SigningKeys) -> bytes:
    """Return the signature of this home's key over `files` (name -> {sha256, …}) of a folder.

    Raises `Corrupt` where a file is not what it should be, or for a private key that cannot be read.
    """
    from model_signing import hashing, signing  # 0.5 s: it imports sigstore and OpenSSL

    keys.own()
    with TemporaryDirectory(prefix="trainyard-sign-") as work:
        target = Path(work) / SIGNATURE_FILE
        config = signing.Config().use_elliptic_key_signer(private_key=keys.private_file)
        config.set_hashing_config(
            hashing.Config().set_ignored_paths(paths=list_unsigned(folder, files), ignore_git_paths=False)
        )
        config.sign(folder, target)
        bundle = target.read_bytes()
    signed = read_signed_files(bundle)
    if signed != {name: entry["sha256"] for name, entry in files.items()}:
        changed = sorted(name for name, entry in files.items() if signed.get(name) != entry["sha256"])
        raise Corrupt(
            f"{', '.join(changed[:3]) or 'A file'} of {folder.name} changed before it was signed.",
            do="Promote another version, and move this one away.", code="E-CORRUPT",
        )  # fmt: skip
    return bundle


def list_unsigned(folder: Path, files: Mapping[str, JsonMapping]) -> list[Path]:
    """Return what is in a folder besides its signed files: its manifest and its card."""
    paths = (path.relative_to(folder) for path in list_files(DISK, folder))
    return [path for path in paths if path.as_posix() not in files]


def read_key_id(bundle: bytes, name: str) -> str:
    """Return the id of the key that a signature says it is by. Raises `Corrupt`."""
    try:
        if len(bundle) > MAX_BUNDLE_BYTES:
            raise ValueError("it is too long")
        hint = json.loads(bundle)["verificationMaterial"]["publicKey"]["hint"]
        if not isinstance(hint, str) or not re.fullmatch(r"[0-9a-f]{64}", hint):
            raise ValueError("it names no key")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(
            f"The signature of {name} cannot be read.", why=f"{type(error).__name__}: {error}"[:200],
            do="Fetch the version again, or ask its publisher.", code=CODE,
        ) from error  # fmt: skip
    return hint


def read_signed_files(bundle: bytes) -> dict[str, str]:
    """Return name -> SHA-256 of the files in the statement of a signature, which is not checked here."""
    try:
        statement = json.loads(base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"], validate=True))
        resources = statement["predicate"]["resources"]
        return {str(part["name"]): str(part["digest"]) for part in resources}
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError) as error:
        raise Corrupt("The signature has no statement of files.", why=str(error)[:200], code=CODE) from error


def verify_folder(
    folder: Path, files: Mapping[str, JsonMapping], bundle: bytes | None, keys: SigningKeys, name: str
) -> TrustedKey:
    """Return the key that has signed every file of a folder, hashed again now.

    Raises `NotFound` without a signature, `Denied` for one by a key that is unknown here or revoked, and `Corrupt` for
    a file or a signature that was altered: all with `E-SIGNATURE`, and the file named.
    """
    if bundle is None:
        raise NotFound(
            f"{name} has no signature.", why=f"There is no {SIGNATURE_FILE} of it.",
            do="Ask its publisher to sign it; or sign it after a look at it: `trainyard adapters sign`.", code=CODE,
        )  # fmt: skip
    key = require_trusted(read_key_id(bundle, name), keys, name)
    signed = read_signed_files(bundle)
    if missing := sorted(files.keys() - signed.keys()):
        raise altered(name, missing[0], "the signature does not cover it")
    check_bundle(folder, files, bundle, key, name)
    return key


def require_trusted(key_id: str, keys: SigningKeys, name: str) -> TrustedKey:
    """Return a key that is accepted here. Raises `Denied`."""
    key = keys.find(key_id)
    if key is None:
        raise Denied(
            f"{name} is signed by the key {key_id[:16]}, which this home does not trust.",
            why="A key is accepted only if it is in the list of `trainyard adapters keys`.",
            do="Compare the id with the publisher's, then: `trainyard adapters trust-key FILE --name NAME`.", code=CODE,
        )  # fmt: skip
    if key.revoked:
        raise Denied(
            f"{name} is signed by the key {key.label}, which is revoked.", why=key.because,
            do="Use a version that another key has signed, or sign this one after a look at it.", code=CODE,
        )  # fmt: skip
    return key


def check_bundle(folder: Path, files: Mapping[str, JsonMapping], bundle: bytes, key: TrustedKey, name: str) -> None:
    """Check a signature by the library, which hashes the files. Raises `Corrupt`."""
    from cryptography.exceptions import InvalidSignature
    from model_signing import hashing, verifying  # 0.5 s: it imports sigstore

    with TemporaryDirectory(prefix="trainyard-verify-") as work:
        signature, public = Path(work) / SIGNATURE_FILE, Path(work) / "key.pem"
        signature.write_bytes(bundle)
        public.write_text(key.pem, encoding="utf-8")
        config = verifying.Config().use_elliptic_key_verifier(public_key=public)
        config.set_hashing_config(
            hashing.Config().set_ignored_paths(paths=list_unsigned(folder, files), ignore_git_paths=False)
        )
        try:
            config.verify(folder, signature)
        except InvalidSignature as error:
            raise altered(name, SIGNATURE_FILE, f"it is not by the key {key.label}") from error
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise altered(name, find_altered(folder, bundle), str(error)[:300]) from error


def find_altered(folder: Path, bundle: bytes) -> str:
    """Return the name of the first file that is not what a signature says; of the signature itself otherwise."""
    signed = read_signed_files(bundle)
    there = {name: str(entry["sha256"]) for name, entry in describe_files(folder).items()}
    return next((name for name in sorted(signed) if signed[name] != there.get(name)), SIGNATURE_FILE)


def altered(name: str, file: str, why: str) -> Corrupt:
    return Corrupt(
        f"{file} of {name} is not what was signed.", why=why,
        do="Do not load it: use another version, or fetch it again from its publisher.", code=CODE,
    )  # fmt: skip
