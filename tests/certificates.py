"""Certificates for tests: self-signed, made in milliseconds."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificate(
    folder: Path, *names: str, days: int = 365, password: bytes | None = None, word: str = "tls"
) -> tuple[Path, Path]:
    """Write a certificate for names and addresses, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainyard-test")])
    now = datetime.now(UTC)
    alternative_names = [
        x509.IPAddress(ipaddress.ip_address(name)) if is_address(name) else x509.DNSName(name) for name in names
    ]
    builder = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=400))
        .not_valid_after(now + timedelta(days=days))
    )  # fmt: skip
    if alternative_names:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    secrecy = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    paths = folder / f"{word}-cert.pem", folder / f"{word}-key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    kind = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, secrecy))
    return paths


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
