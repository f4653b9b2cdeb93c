"""Files from http(s) addresses, without reaching into private networks (server-side request forgery).

Each redirect is a new address and is judged again, as `trainyard.data.remote.addresses` does it.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urljoin, urlsplit

import httpcore

from trainyard.data.readers.streams import Limits
from trainyard.data.remote.addresses import CheckedNetwork, Resolve, check_url, redact_url, refused_error
from trainyard.data.remote.fetching import FetchJob, LocalSet
from trainyard.errors import InvalidInput, LimitExceeded, NotFound, TrainyardError, Unavailable

MAX_REDIRECTS = 5
REPORT_EVERY_BYTES = 1 << 24
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, DEADLINE_S = 10.0, 30.0, 3600.0
REDIRECTS = {301, 302, 303, 307, 308}
SUFFIX_OF_TYPE = {
    "application/jsonl": ".jsonl",
    "application/x-ndjson": ".jsonl",
    "application/json": ".json",
    "application/vnd.apache.parquet": ".parquet",
    "text/csv": ".csv",
    "text/markdown": ".md",
    "text/plain": ".txt",
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "application/pdf": ".pdf",
}
UNANSWERED = (
    httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, httpcore.UnsupportedProtocol,
    ssl.SSLError, ValueError,  # a header that is not a number, or a redirect to an invalid address
)  # fmt: skip
"""How a request ends that brings no answer."""


@dataclass(frozen=True)
class Fetched:
    """A file that was fetched, and the name that its address or its type gives it."""

    path: Path
    name: str


def fetch_set(job: FetchJob) -> Iterator[LocalSet]:
    """Fetch the file of a set's address; report every 16 MiB. Raises what `fetch` raises."""
    last = -REPORT_EVERY_BYTES

    def report_bytes(count: int, total: int) -> None:
        nonlocal last
        if count - last >= REPORT_EVERY_BYTES:
            last = count
            job.report(count / total if total else 0.0, f"fetching: {count >> 20} MiB")

    assert job.source.url is not None
    allowed = job.settings.allow_private_urls
    file = fetch(job.source.url, job.folder, allowed=allowed, limits=job.limits, progress=report_bytes)
    yield LocalSet(file.path.absolute(), (job.folder.absolute(),), file.name, job.selection)


def quote_url(url: str) -> str:
    """Return a checked address as it is requested: other letters than ASCII in escapes (RFC 3986), no fragment."""
    parts = urlsplit(url)
    safe = "/%:@!$&'()*+,;=~?-._"
    path, query = (quote(part, safe=safe, errors="replace") for part in (parts.path or "/", parts.query))
    return f"{parts.scheme}://{parts.netloc}{path}{f'?{query}' if query else ''}"


def fetch(
    url: str,
    folder: Path,
    *,
    allowed: Iterable[str] = (),
    limits: Limits = Limits(),  # noqa: B008 - frozen
    resolve: Resolve = socket.getaddrinfo,
    deadline_s: float = DEADLINE_S,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Fetched:
    """Fetch a file into `folder`. `progress` gets bytes so far and in all (0 if the server does not say).

    Raises `Refused` (`R-URL`), `NotFound` (`E-URL`), `Unavailable` (`E-URL`) and
    `LimitExceeded` (`E-URL`).
    """
    network = CheckedNetwork(allowed, resolve)
    deadline = time.monotonic() + deadline_s

    def spend(url: str, done: int, size: int) -> None:
        if max(done, size) > limits.download:
            message = f"{redact_url(url)} is larger than {limits.download:,} bytes."
            raise LimitExceeded(message, do="Give a smaller file, or a path.", code="E-URL")
        if time.monotonic() > deadline:
            message = f"{redact_url(url)} did not arrive in time; {done:,} bytes did."
            raise LimitExceeded(message, do="Try again, or give a file.", code="E-URL")
        progress(done, size)

    with httpcore.ConnectionPool(network_backend=network, ssl_context=ssl.create_default_context()) as pool:
        for _ in range(MAX_REDIRECTS + 1):
            check_url(url)
            url = quote_url(url)
            try:
                target = follow(pool, url, folder, spend)
            except TrainyardError:  # some of these are ValueErrors, too
                raise
            except UNANSWERED as error:
                raise Unavailable(
                    f"{redact_url(url)} could not be read: {type(error).__name__} {error}".rstrip() + ".",
                    do="Try again later, or give a file.",
                    code="E-URL",
                ) from error
            if isinstance(target, Fetched):
                return target
            url = target
    raise refused_error(url, f"is reached only after more than {MAX_REDIRECTS} redirects", "The final address.")


def follow(
    pool: httpcore.ConnectionPool, url: str, folder: Path, spend: Callable[[str, int, int], None]
) -> Fetched | str:
    """Return one request: the file, or the address of a redirect. `spend` is called with bytes so far and in all."""
    timeouts = {"connect": CONNECT_TIMEOUT_S, "read": READ_TIMEOUT_S, "write": READ_TIMEOUT_S, "pool": READ_TIMEOUT_S}
    headers: Mapping[bytes | str, bytes | str] = {
        "Host": urlsplit(url).netloc,
        "Accept-Encoding": "identity",
        "User-Agent": "trainyard",
    }
    with pool.stream("GET", url, headers=headers, extensions={"timeout": timeouts}) as response:
        fields = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        if response.status in REDIRECTS and fields.get("location"):
            return urljoin(url, fields["location"])
        if (status := response.status) != 200:
            kind = Unavailable if status >= 500 or status == 429 else NotFound if status in (404, 410) else InvalidInput
            do = "Correct the address; a login is not supported."
            raise kind(f"{redact_url(url)} answered with status {status}.", do=do, code="E-URL")
        size = int(length) if re.fullmatch(r"[0-9]{1,18}", length := fields.get("content-length", "")) else 0
        done = 0
        path = folder / "fetched"
        with path.open("wb") as stream:
            for part in response.iter_stream():
                done += len(part)
                spend(url, done, size)
                stream.write(part)
        return Fetched(path, choose_name(url, fields.get("content-type", "")))


def choose_name(url: str, content_type: str) -> str:
    """File name of an address; the content type gives the extension where the address has none."""
    name = PurePosixPath(urlsplit(url).path).name or "index"
    kind = content_type.split(";", maxsplit=1)[0].strip().lower()
    return name if PurePosixPath(name).suffix else name + SUFFIX_OF_TYPE.get(kind, "")
