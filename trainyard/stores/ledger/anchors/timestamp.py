"""Anchor by a timestamp authority (RFC 3161): its token says that a checkpoint existed at a time.

The token is kept with the log (`anchors/*.tsr`); `openssl ts -verify` checks it, too. `rfc3161-client` parses and
verifies it: by the maker of the certificate verification in `cryptography`, and `sigstore` uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from hashlib import sha256

from trainyard.anchor_settings import TimestampAnchor
from trainyard.errors import Corrupt, InvalidInput, TrainyardError
from trainyard.stores.ledger.anchors.contract import (
    AnchorRecord,
    PlacedCheckpoint,
    SeenCheckpoint,
    build_unreachable,
    request_anchor,
    require_package,
)
from trainyard.stores.ledger.log import Head
from trainyard.stores.ledger.notes import parse_checkpoint, parse_note

QUERY, REPLY = "application/timestamp-query", "application/timestamp-reply"


def place_timestamp(setting: TimestampAnchor, head: Head, _records: Sequence[AnchorRecord]) -> PlacedCheckpoint:
    """Have the checkpoint stamped, and check the token before it counts."""
    assert head.note is not None
    try:
        from rfc3161_client import TimestampRequestBuilder  # an extra
        from rfc3161_client.base import HashAlgorithm
    except ModuleNotFoundError as error:
        raise require_package(error, "anchor") from error
    import httpx  # half a second, and only requests need it

    request = TimestampRequestBuilder().data(head.note.data).hash_algorithm(HashAlgorithm.SHA256).build()
    try:
        answer = request_anchor("POST", setting.url, request.as_bytes(), QUERY)
    except httpx.HTTPError as error:
        raise build_unreachable("The timestamp authority does not answer.", type(error).__name__) from error
    if answer.status != httpx.codes.OK:
        raise build_unreachable(
            f"The timestamp authority answered with status {answer.status}.", code="E-SERVER-REFUSED"
        )
    time, name = verify_token(setting, head.note.data, answer.body, nonce=request.nonce)
    return PlacedCheckpoint(f"timestamp of {name}", {"stamped": time, "authority": name}, answer.body)


def verify_token(setting: TimestampAnchor, note: bytes, token: bytes, nonce: int | None = None) -> tuple[float, str]:
    """Return the time of a token and the name of who signed it.

    Raises `Corrupt` for one that is not about the note, or not signed below the trusted roots.
    """
    try:
        from cryptography.x509 import load_der_x509_certificate, load_pem_x509_certificates  # an extra uses it
        from rfc3161_client import VerificationError, VerifierBuilder, decode_timestamp_response
    except ModuleNotFoundError as error:
        raise require_package(error, "anchor") from error
    try:
        roots = load_pem_x509_certificates(setting.roots.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"The root certificates in {setting.roots} cannot be read.", why=type(error).__name__,
            do="Name the PEM file of the authority's root in ledger_anchors.", code="E-SETTINGS",
        ) from error  # fmt: skip
    try:
        response = decode_timestamp_response(token)
        builder = VerifierBuilder(roots=roots, nonce=nonce)
        certificates = [load_der_x509_certificate(data) for data in response.signed_data.certificates]
        for certificate in certificates:
            if certificate not in roots and certificate.extensions and is_authority(certificate):
                builder = builder.add_intermediate_certificate(certificate)
        builder.build().verify(response, sha256(note).digest())
    except (VerificationError, ValueError) as error:
        raise Corrupt(f"The timestamp is not valid: {str(error).splitlines()[0][:200]}.") from error
    signer = next(iter(response.signed_data.signer_infos))
    leaf = next(c for c in certificates if (c.issuer, c.serial_number) == (signer.issuer, signer.serial_number))
    return response.tst_info.gen_time.replace(tzinfo=UTC).timestamp(), leaf.subject.rfc4514_string()


def is_authority(certificate: object) -> bool:
    """Return whether a certificate may issue others."""
    from cryptography.x509 import BasicConstraints, Certificate, ExtensionNotFound  # only timestamps need it

    assert isinstance(certificate, Certificate)
    try:
        return bool(certificate.extensions.get_extension_for_class(BasicConstraints).value.ca)
    except ExtensionNotFound:
        return False


def look_at_timestamps(setting: TimestampAnchor, origin: str, records: Sequence[AnchorRecord]) -> list[SeenCheckpoint]:
    """Return the stamped checkpoints, from the tokens that are kept here: an authority keeps none."""
    seen = []
    for record in records:
        try:
            time, name = verify_token(setting, record.note, record.token)
        except TrainyardError as error:
            error.what = f"{record.size:,} entries: {error.what}"
            raise
        checkpoint = parse_checkpoint(parse_note(record.note).text)
        seen.append(SeenCheckpoint(checkpoint.size, checkpoint.root, f"timestamp of {name}", time))
    return seen
