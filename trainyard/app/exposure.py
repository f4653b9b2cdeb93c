"""Listen beyond loopback: only with authentication, and only with TLS or behind a proxy that has it.

A server that is exposed answers on loopback without TLS as before, for the processes of this machine, and on the other
addresses with TLS, on the same port. `trainyard up --expose` keeps what was chosen in services/exposure.json, so that a
server that died comes back as it was.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from trainyard.errors import InvalidInput
from trainyard.loading import load_object
from trainyard.serve.listening import is_loopback
from trainyard.settings import Settings
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

EVERY_ADDRESS = ("0.0.0.0", "::")
WARN_DAYS = 30
DAY_S = 86_400


@dataclass(frozen=True)
class Exposure:
    """Addresses besides loopback on which a server listens, and their protection."""

    host: str = "127.0.0.1"
    """An address or a name of this machine; 0.0.0.0 or :: means each address that it has now."""
    tls_cert: str = ""
    tls_key: str = ""
    behind_proxy: str = ""
    """Address of the proxy that has the TLS; of no other address X-Forwarded-For and -Proto are believed."""
    names: tuple[str, ...] = ()
    """What clients call it, besides the addresses and the names in the certificate."""

    @property
    def beyond_loopback(self) -> bool:
        return not is_loopback(self.host)

    def arguments(self) -> list[str]:
        """As options of a command."""
        options = {"tls-cert": self.tls_cert, "tls-key": self.tls_key, "behind-proxy": self.behind_proxy}
        parts = [word for name, value in options.items() if value for word in (f"--{name}", value)]
        return ["--host", self.host, *parts, *(word for name in self.names for word in ("--allow-host", name))]


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, which fit."""

    path: str
    key: str
    names: tuple[str, ...]
    """For which it is made."""
    expires: float


def exposure_file(settings: Settings) -> Path:
    return settings.services / "exposure.json"


def keep_exposure(settings: Settings, exposure: Exposure | None) -> None:
    """Write down what `up --expose` chose; None removes it."""
    path = exposure_file(settings)
    if exposure is None:
        path.unlink(missing_ok=True)
    else:
        write_json_durably(path, add_version("exposure", asdict(exposure)))


def read_exposure(settings: Settings) -> Exposure | None:
    """Return what `up --expose` chose; None where nothing is exposed."""
    path = exposure_file(settings)
    if not path.is_file():
        return None
    fields = read_versioned("exposure", path.read_bytes(), path)
    return Exposure(**{**fields, "names": tuple(fields["names"])})


def require_safe(exposure: Exposure, *, everybody: bool) -> Certificate | None:
    """Refuse listeners without authentication or encryption. Return the certificate, if there is one.

    Raises `InvalidInput` (`E-AUTH`, `E-PARAMETER`).
    """
    if exposure.beyond_loopback and everybody:
        raise InvalidInput(
            f"The server does not listen on {exposure.host} with --no-auth.",
            why="Everybody who reaches it could start runs on this machine.",
            do="Leave --no-auth out, or use --host 127.0.0.1.", code="E-AUTH",
        )  # fmt: skip
    if bool(exposure.tls_cert) != bool(exposure.tls_key):
        raise InvalidInput(
            "--tls-cert and --tls-key belong together.", do="Give both: a certificate and its key, as PEM files.",
            code="E-PARAMETER",
        )  # fmt: skip
    if exposure.behind_proxy:
        require_address(exposure.behind_proxy)
    if exposure.beyond_loopback and not exposure.tls_cert and not exposure.behind_proxy:
        raise InvalidInput(
            f"The server does not listen on {exposure.host} without TLS.",
            why="Tokens, data and answers could be read on the way.",
            do="Give --tls-cert and --tls-key, or --behind-proxy ADDRESS where a proxy has the TLS.",
            code="E-PARAMETER",
        )  # fmt: skip
    return read_certificate(Path(exposure.tls_cert), Path(exposure.tls_key)) if exposure.tls_cert else None


def require_address(text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError as error:
        raise InvalidInput(
            f"--behind-proxy {text!r} is not an address.", why="A name could lead to another machine tomorrow.",
            do="Give the address from which the proxy connects, such as 192.0.2.10.", code="E-PARAMETER",
        ) from error  # fmt: skip


def read_certificate(path: Path, key: Path) -> Certificate:
    """Read a certificate and try it with its key. Raises `InvalidInput` (`E-PARAMETER`)."""
    for file in (path, key):
        try:
            file.read_bytes()
        except OSError as error:
            raise exposure_error(
                f"{file} cannot be read: {error.strerror}.", "Correct the path or its rights."
            ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(path, key, password=refuse_password)
    except (ssl.SSLError, ValueError) as error:
        if "MISMATCH" in str(error):
            raise exposure_error(f"{key} is not the key of {path}.", "Give the key that belongs to it.") from error
        remedy = "Give PEM files: the certificate with those above it, and its key without a password."
        raise exposure_error(f"{path} with {key} is not a valid certificate with its key.", remedy) from error
    certificates = load_object("cryptography.x509:load_pem_x509_certificates")(path.read_bytes())
    return Certificate(
        str(path), str(key), read_certificate_names(certificates[0]), certificates[0].not_valid_after_utc.timestamp()
    )


def refuse_password() -> bytes:
    raise ValueError("the key has a password")


def exposure_error(problem: str, do: str) -> InvalidInput:
    return InvalidInput(problem, do=do, code="E-PARAMETER")


def read_certificate_names(certificate: object) -> tuple[str, ...]:
    """Return the names and addresses in a certificate; one with `*` is the name of no host."""
    extension = load_object("cryptography.x509:SubjectAlternativeName")
    try:
        alternatives = certificate.extensions.get_extension_for_class(extension).value  # type: ignore[attr-defined]
    except load_object("cryptography.x509:ExtensionNotFound"):
        return ()
    names = [
        str(name)
        for name in alternatives.get_values_for_type(load_object("cryptography.x509:DNSName"))
        if "*" not in name
    ]
    return (
        *names,
        *(
            format_host(str(address))
            for address in alternatives.get_values_for_type(load_object("cryptography.x509:IPAddress"))
        ),
    )


def warn_of_expiry(certificate: Certificate, say: Callable[[str], None]) -> None:
    """Say when a certificate expires soon, or has expired."""
    days = (certificate.expires - time.time()) / DAY_S
    if days < 0:
        say(f"the certificate {certificate.path} has expired: clients refuse it")
    elif days < WARN_DAYS:
        say(f"the certificate {certificate.path} expires in {days:.0f} days")


def resolve_addresses(host: str) -> tuple[str, ...]:
    """Return the addresses besides loopback that a host means on this machine. Raises `InvalidInput`
    (`E-PARAMETER`).
    """
    if host in EVERY_ADDRESS:
        kinds = (socket.AF_INET,) if host == EVERY_ADDRESS[0] else (socket.AF_INET, socket.AF_INET6)
        rows = [row for each in psutil.net_if_addrs().values() for row in each if row.family in kinds]
        addresses = [row.address for row in rows if "%" not in row.address and not is_loopback(row.address)]
    else:
        try:
            addresses = [str(row[4][0]) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        except OSError as error:
            raise exposure_error(f"{host!r} is not an address of this machine: {error}.", "Correct --host.") from error
        addresses = [address for address in addresses if not is_loopback(address)]
    if not addresses and not is_loopback(host):
        raise exposure_error(f"This machine has no address besides loopback for {host}.", "Correct --host.")
    return tuple(dict.fromkeys(addresses))


def format_host(address: str) -> str:
    """Return an address as the Host header has it."""
    return f"[{address}]" if ":" in address else address


def list_host_names(exposure: Exposure, certificate: Certificate | None) -> tuple[str, ...]:
    """Return what clients may call this server in the Host header, besides loopback. An address cannot be rebound by
    DNS.
    """
    addresses = resolve_addresses(exposure.host) if exposure.beyond_loopback else ()
    host_names = () if is_loopback(exposure.host) or exposure.host in EVERY_ADDRESS else (format_host(exposure.host),)
    return (*map(format_host, addresses), *host_names, *(certificate.names if certificate else ()), *exposure.names)


def list_exposed_urls(settings: Settings, *urls: str) -> tuple[str, ...]:
    """Return the addresses beyond loopback of servers with these addresses on it."""
    exposure = read_exposure(settings)
    scheme = "https" if exposure is not None and exposure.tls_cert else "http"
    hosts = resolve_addresses(exposure.host) if exposure is not None and exposure.beyond_loopback else ()
    return tuple(f"{scheme}://{format_host(host)}:{urlsplit(url).port}" for url in urls for host in hosts)
