"""A Cloud Storage double that keeps its preconditions and fails on demand, for the real client over real sockets.

    with ObjectServer(rates={"503": 0.05, "lost-ack": 0.05}, seed=1) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        store = open_store("gs://weights")

It speaks the part of the JSON API that Trainyard uses (insert by multipart and resumable upload, get, download, list,
delete, each with its generation preconditions) and keeps everything in memory. Popular emulators answer 200 to
`ifGenerationMatch=0` on an object that exists: what is tested on them is not tested.

`script("503", "ok", "lost-ack")` says what the next requests meet; afterwards `rates` decide, by chance from `seed`:

    429 500 502 503 504 408   that status, nothing is done
    401 403 404 412           that status, nothing is done (401: an expired token, 404: no such bucket)
    reset                     the connection breaks before an answer; of a resumable chunk a half has arrived
    stall                     silence for `stall_s`, then the connection breaks; nothing is done
    delay                     `delay_s` later, then as usual
    lost-ack                  it is done, and the connection breaks before the answer
    broken-download           the connection breaks amid the bytes
    wrong-crc                 a byte of the download is changed on the way

As a program, `python -m trainyard.testing.object_server --rates 503=0.05` prints its URL and serves until its standard
input closes.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from trainyard.json_types import JsonObject
from trainyard.testing.buckets import Answered, Buckets
from trainyard.testing.loopback import LoopbackHandler, LoopbackServer, serving

GRANULE = 256 << 10
STATUSES = frozenset({"401", "403", "404", "408", "412", "429", "500", "502", "503", "504"})
DOWNLOAD_FAULTS = frozenset({"broken-download", "wrong-crc"})
FAULTS = STATUSES | DOWNLOAD_FAULTS | {"ok", "reset", "stall", "delay", "lost-ack"}
_ROUTE = re.compile(r"(?:/(upload|download))?/(?:resumable/)?storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?")


@dataclass
class Upload:
    """A resumable upload that is under way."""

    bucket: str
    resource: dict[str, object]
    query: dict[str, str]
    data: bytearray = field(default_factory=bytearray)
    done: JsonObject | None = None


@dataclass(frozen=True)
class SeenRequest:
    """A request as the server saw it."""

    method: str
    path: str
    query: dict[str, str]
    content_range: str
    fault: str


class ObjectServer(Buckets):
    """The double. `buckets` lists those that exist; empty: every one does."""

    def __init__(
        self,
        *,
        rates: Mapping[str, float] | None = None,
        seed: int = 0,
        delay_s: float = 0.05,
        stall_s: float = 90.0,
        buckets: tuple[str, ...] = (),
        port: int = 0,
    ) -> None:
        super().__init__(seed)
        self.rates = dict(rates or {})
        self.delay_s, self.stall_s, self.buckets = delay_s, stall_s, buckets
        self.uploads: dict[str, Upload] = {}
        self.requests: list[SeenRequest] = []
        self.faults: Counter[str] = Counter()
        """How many requests met what."""
        self.closing = threading.Event()
        self._script: deque[str] = deque()
        for fault in self.rates:
            check_fault(fault)
        self._server = _Listener(type("Handler", (_Handler,), {"double": self}), port)
        self._serving = ExitStack()

    def __enter__(self) -> ObjectServer:
        self._serving.enter_context(serving(self._server))
        return self

    def __exit__(self, *_error: object) -> None:
        self.closing.set()
        self._serving.close()

    @property
    def url(self) -> str:
        return self._server.url

    def script(self, *faults: str) -> None:
        """Set the outcomes of the next requests, one each, in this order."""
        for fault in faults:
            check_fault(fault)
        with self.lock:
            self._script.extend(faults)

    def next_fault(self, *, download: bool, changes: bool) -> str:
        with self.lock:
            if self._script:
                fault = self._script.popleft()
            else:
                fault = self._by_chance(download=download, changes=changes)
            self.faults[fault] += 1
            return fault

    def _by_chance(self, *, download: bool, changes: bool) -> str:
        roll = self._random.random()
        for fault, rate in self.rates.items():
            if roll < rate:
                fits = download if fault in DOWNLOAD_FAULTS else changes if fault == "lost-ack" else True
                return fault if fits else "ok"
            roll -= rate
        return "ok"


class _Listener(LoopbackServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is part of the play."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(LoopbackHandler):
    double: ObjectServer

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        self.route, self.query = parts.path, dict(parse_qsl(parts.query, keep_blank_values=True))
        body = self.body()
        if self.command == "GET" and re.fullmatch(r"/storage/v1/b/[^/]+", self.route):  # not one of our operations
            return self._send(*self._json({"kind": "storage#bucket", "name": self.route[14:]}), whole=True)
        download = self.command == "GET" and self.query.get("alt") == "media"
        fault = self.double.next_fault(download=download, changes=self.command != "GET")
        ranged = self.headers.get("Content-Range") or self.headers.get("Range") or ""
        self.double.requests.append(SeenRequest(self.command, self.route, self.query, ranged, fault))
        if fault == "delay":
            time.sleep(self.double.delay_s)
        elif fault == "stall":
            self.double.closing.wait(self.double.stall_s)
            return self._break()
        elif fault == "reset":
            self._half_a_chunk(body)
            return self._break()
        try:
            if fault in STATUSES:
                raise Answered(int(fault))
            status, headers, content = self._answer(body)
        except Answered as error:
            text = json.dumps({"error": {"code": error.status, "message": str(error), "errors": []}}).encode()
            status, headers, content = error.status, {"Content-Type": "application/json"}, text
        if fault == "lost-ack":
            return self._break()
        if fault == "wrong-crc" and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        return self._send(status, headers, content, whole=fault != "broken-download")

    def _answer(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        match = _ROUTE.fullmatch(self.route)
        if not match:
            raise Answered(404, f"There is no {self.route}.")
        kind, bucket, name = match[1] or "", unquote(match[2]), match[3]
        if self.double.buckets and bucket not in self.double.buckets:
            raise Answered(404)
        if kind == "upload":
            return self._upload(bucket, body)
        if name is None:
            return self._json(self.double.listing(bucket, self.query))
        return self._object(bucket, name)

    def _object(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        if self.command == "POST":
            raise Answered(404, "This double knows no such method.")
        if self.command == "DELETE":
            self.double.remove(bucket, unquote(name), self.query)
            return 204, {}, b""
        stored = self.double.find(bucket, unquote(name), self.query)
        if self.query.get("alt") != "media":
            return self._json(stored.resource(bucket))
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Goog-Hash": f"crc32c={stored.crc32c}",
            "X-Goog-Generation": str(stored.generation),
        }
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not match:
            return 200, headers, stored.data
        first, size = int(match[1]), len(stored.data)
        last = min(int(match[2] or size - 1), size - 1)
        if first > last:
            raise Answered(416, "Requested range not satisfiable.")
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        return 206, headers, stored.data[first : last + 1]

    def _upload(self, bucket: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self.command == "PUT":
            return self._chunk(body)
        if self.query.get("uploadType") == "resumable":
            with self.double.lock:
                key = f"upload-{len(self.double.uploads)}"
                resource = json.loads(body or b"{}")
                self.double.expect(
                    bucket, resource.get("name") or self.query.get("name", ""), self.query.get("ifGenerationMatch")
                )
                self.double.uploads[key] = Upload(bucket, resource, self.query)
            location = f"{self.double.url}{self.route}?uploadType=resumable&upload_id={key}"
            return 200, {"Location": location}, b""
        resource, data = multipart(self.headers.get("Content-Type") or "", body)
        return self._json(self.double.store(bucket, resource, data, self.query))

    def _chunk(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return a chunk of a resumable upload, or the question how much has arrived."""
        upload = self.double.uploads.get(self.query.get("upload_id", ""))
        if upload is None:
            raise Answered(404, "There is no such upload.")
        with self.double.lock:
            if upload.done is None:
                complete = self._take(upload, body)
                if complete:
                    upload.done = self.double.store(upload.bucket, upload.resource, bytes(upload.data), upload.query)
            if upload.done is not None:
                return self._json(upload.done)
            arrived = len(upload.data)
        return 308, {"Range": f"bytes=0-{arrived - 1}"} if arrived else {}, b""

    def _take(self, upload: Upload, body: bytes) -> bool:
        """Add the new bytes of a chunk; return whether that was the end."""
        ranged = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers.get("Content-Range") or "")
        if not ranged:
            raise Answered(400, "A chunk needs a Content-Range.")
        if ranged[1] is not None:
            first = int(ranged[1])
            if first > len(upload.data):
                raise Answered(503, "A part before this one is missing.")
            upload.data += body[len(upload.data) - first :]
        return ranged[3] != "*" and len(upload.data) == int(ranged[3])

    def _half_a_chunk(self, body: bytes) -> None:
        """What a connection that broke amid a chunk had brought: whole granules of it."""
        upload = self.double.uploads.get(self.query.get("upload_id", ""))
        if upload is not None and self.command == "PUT" and upload.done is None:
            half = len(body) // 2 // GRANULE * GRANULE
            with self.double.lock:
                self._take(upload, body[:half])

    def _json(self, value: Mapping[str, object]) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/json; charset=UTF-8"}, json.dumps(value).encode()

    def _send(self, status: int, headers: dict[str, str], content: bytes, *, whole: bool) -> None:
        """Head and body in one write: two small ones would wait for each other's acknowledgement."""
        phrase = self.responses.get(status, ("",))[0]
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        lines += [f"Content-Length: {len(content)}", "", ""]
        self.wfile.write("\r\n".join(lines).encode() + (content if whole else content[: len(content) // 2]))
        if not whole:
            self._break()

    def _break(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_POST = do_PUT = do_DELETE = _handle


def multipart(content_type: str, body: bytes) -> tuple[dict[str, object], bytes]:
    """(resource, bytes) of a multipart/related upload."""
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)
    if not boundary:
        raise Answered(400, "A multipart upload needs a boundary.")
    mark = b"--" + boundary[1].encode()
    first = body.index(mark) + len(mark)
    second = body.index(b"\r\n" + mark, first)
    end = body.rindex(b"\r\n" + mark + b"--")
    resource = body[first:second].split(b"\r\n\r\n", 1)[1]
    data = body[second + 2 + len(mark) : end].split(b"\r\n\r\n", 1)[1]
    return json.loads(resource), data


def check_fault(fault: str) -> None:
    if fault not in FAULTS:
        raise ValueError(f"unknown fault {fault!r}; known are {', '.join(sorted(FAULTS))}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="A Cloud Storage double that fails on demand.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rates", default="", help="such as 503=0.05,lost-ack=0.05")
    options = parser.parse_args(arguments)
    rates = {
        fault: float(rate) for fault, _, rate in (part.partition("=") for part in options.rates.split(",") if part)
    }
    with ObjectServer(rates=rates, seed=options.seed, port=options.port) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
