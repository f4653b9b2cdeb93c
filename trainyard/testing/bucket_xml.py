"""A Cloud Storage double for clients of its XML API, such as `obstore`: the state is that of `buckets.py`.

    with serving(XmlBucketServer(("repositories",))) as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", server.url)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", TOKEN)
        storage = open_bucket("gs://repositories/prefix")

It keeps the rules that data workers rely on: `x-goog-if-generation-match` (412), parts of 5 MiB and more, pages of a
list, ranges, and at most one change of an object in `change_s` (429), which is a second at Cloud Storage. Emulators
that were looked at accept every precondition.
"""

from __future__ import annotations

import hashlib
import re
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from trainyard.testing.buckets import Answered, Buckets, Stored
from trainyard.testing.loopback import LoopbackHandler, LoopbackServer

TOKEN = "the-token-of-the-double"
PART_BYTES = 5 << 20
PAGE = 1000
CHANGED = datetime(2026, 11, 28, 12, tzinfo=UTC)
CODES = {
    400: "InvalidArgument",
    401: "AuthenticationRequired",
    404: "NoSuchKey",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "SlowDown",
}
PART = re.compile(r"<PartNumber>(\d+)</PartNumber>")


class XmlReply(NamedTuple):
    """Status, headers and body of an answer."""

    status: int
    headers: dict[str, str]
    content: bytes = b""


class XmlBucketServer(LoopbackServer):
    """The double; only the named buckets exist."""

    def __init__(self, names: tuple[str, ...], change_s: float = 0.0) -> None:
        super().__init__(XmlHandler)
        self.state, self.names, self.change_s = Buckets(), names, change_s
        self.parts: dict[str, dict[int, bytes]] = {}
        self.changes: dict[tuple[str, str], float] = {}
        self.refused_changes = 0

    def require_rate(self, bucket: str, name: str) -> None:
        """Raise `Answered` (429) for an object that was changed a moment ago."""
        with self.state.lock:
            now = time.monotonic()
            if now - self.changes.get((bucket, name), -self.change_s) < self.change_s:
                self.refused_changes += 1
                raise Answered(429, "The object exceeded the rate limit for object mutation operations.")
            self.changes[bucket, name] = now

    def store(self, bucket: str, name: str, data: bytes, generation: str | None) -> Stored:
        """Store an object whose precondition is met."""
        with self.state.lock:
            self.state.expect(bucket, name, generation)
            self.require_rate(bucket, name)
            self.state.store(bucket, {"name": name}, data, {})
            return self.state.objects[bucket, name]


class XmlHandler(LoopbackHandler):
    """Answers requests of the XML API."""

    server: XmlBucketServer

    def handle_request(self) -> None:
        body, parts = self.body(), urlsplit(self.path)
        bucket, _, name = unquote(parts.path).lstrip("/").partition("/")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Answered(401, "Authentication required.")
            if bucket not in self.server.names:
                raise Answered(404, "The specified bucket does not exist.")
            reply = self.answer(bucket, name, query, body)
        except Answered as error:
            code = "NoSuchBucket" if "bucket" in str(error) else CODES.get(error.status, "InternalError")
            text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{escape(str(error))}</Message></Error>"
            reply = XmlReply(error.status, {"Content-Type": "application/xml"}, text.encode())
        self.send(reply.status, reply.content, reply.headers)

    def answer(self, bucket: str, name: str, query: dict[str, str], body: bytes) -> XmlReply:
        """Return the reply to a request. Raises `Answered`."""
        if query.keys() & {"uploads", "uploadId"}:
            return self.answer_upload(bucket, name, query, body)
        if self.command == "PUT":
            stored = self.server.store(bucket, name, body, self.headers.get("x-goog-if-generation-match"))
            return XmlReply(200, describe(stored))
        if self.command == "DELETE":
            self.server.state.remove(bucket, name, {})
            return XmlReply(204, {})
        if name:
            return self.read(self.server.state.find(bucket, name, query))
        return XmlReply(200, {"Content-Type": "application/xml"}, self.list_page(bucket, query).encode())

    def answer_upload(self, bucket: str, name: str, query: dict[str, str], body: bytes) -> XmlReply:
        """Return the reply to a request of an upload in parts."""
        if self.command == "PUT":
            self.find_parts(query)[int(query["partNumber"])] = body
            return XmlReply(200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
        if self.command == "DELETE":
            self.server.parts.pop(query["uploadId"], None)
            return XmlReply(204, {})
        if "uploadId" in query:
            return self.complete(bucket, name, query, body)
        upload = f"upload-{len(self.server.parts)}"
        self.server.parts[upload] = {}
        text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        return XmlReply(200, {"Content-Type": "application/xml"}, text.encode())

    def find_parts(self, query: dict[str, str]) -> dict[int, bytes]:
        if query["uploadId"] not in self.server.parts:
            raise Answered(404, "The upload does not exist.")
        return self.server.parts[query["uploadId"]]

    def complete(self, bucket: str, name: str, query: dict[str, str], body: bytes) -> XmlReply:
        """Make an object of the parts that are named."""
        parts = self.find_parts(query)
        chosen = [parts[int(number)] for number in PART.findall(body.decode())]
        if any(len(part) < PART_BYTES for part in chosen[:-1]):
            raise Answered(400, "A part but the last one has less than 5 MiB.")
        stored = self.server.store(bucket, name, b"".join(chosen), None)
        del self.server.parts[query["uploadId"]]
        etag = describe(stored)["ETag"]
        text = f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>"
        return XmlReply(200, {**describe(stored), "Content-Type": "application/xml"}, text.encode())

    def read(self, stored: Stored) -> XmlReply:
        """Return an object, or a range of its bytes."""
        headers, size = describe(stored), len(stored.data)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if match is None:
            return XmlReply(200, {**headers, "Content-Length": str(size)}, stored.data)
        first, last = int(match[1]), min(int(match[2] or size - 1), size - 1)
        if first > last:
            raise Answered(416, "The requested range cannot be satisfied.")
        return XmlReply(
            206, {**headers, "Content-Range": f"bytes {first}-{last}/{size}"}, stored.data[first : last + 1]
        )

    def list_page(self, bucket: str, query: dict[str, str]) -> str:
        """Return a page of the objects below a prefix, in the order of their names."""
        after, prefix = query.get("continuation-token", ""), query.get("prefix", "")
        with self.server.state.lock:
            names = sorted(
                name for owner, name in self.server.state.objects
                if owner == bucket and name.startswith(prefix) and name > after
            )  # fmt: skip
            page = [self.server.state.objects[bucket, name] for name in names[:PAGE]]
        rows = "".join(
            f"<Contents><Key>{escape(stored.name)}</Key><Generation>{stored.generation}</Generation>"
            f"<LastModified>{CHANGED.isoformat()}</LastModified><ETag>{escape(describe(stored)['ETag'])}</ETag>"
            f"<Size>{len(stored.data)}</Size></Contents>"
            for stored in page
        )
        more = len(names) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1].name)}</NextContinuationToken>" if more else ""
        return (
            f"<?xml version='1.0'?><ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        )

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request


def describe(stored: Stored) -> dict[str, str]:
    """Return the headers of an object."""
    return {
        "ETag": f'"{hashlib.md5(stored.data).hexdigest()}"',
        "x-goog-generation": str(stored.generation),
        "Last-Modified": format_datetime(CHANGED, usegmt=True),
        "Content-Type": "application/octet-stream",
    }
