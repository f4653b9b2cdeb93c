"""The common part of the doubles: files, jobs that move along their states, faults, and a record of every request."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson

from trainyard.json_types import JsonMapping, JsonObject
from trainyard.testing.loopback import LoopbackHandler, LoopbackServer
from trainyard.testing.providers.faults import CreateFault, Faults

KEY = "sk-double-of-a-provider"
"""The key that every double accepts."""
EXPIRED_KEY = "sk-expired-key-of-a-double"
COST_USD = 1.25
TOKENS = 123_456


@dataclass
class Call:
    """A request as it arrives."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.content) if self.content else {}


@dataclass
class Reply:
    """An answer; status 0 breaks the connection."""

    status: int
    value: Any = ""
    headers: JsonMapping = field(default_factory=dict)


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass
class JobDouble:
    """A job of a double: the body that made it, and where it is on its way."""

    id: str
    body: JsonObject
    words: list[str]
    """States that it still has before it; the first is the present one."""
    hidden_lists: int = 0
    missing_reads: int = 0
    events: int = 3

    @property
    def word(self) -> str:
        return self.words[0]

    def advance(self) -> None:
        """Move one state on; the last one stays."""
        if len(self.words) > 1:
            self.words.pop(0)


class ProviderDouble(LoopbackServer):
    """A provider on a free port of the loopback interface."""

    routes: Sequence[tuple[str, str, str]] = ()
    """(method, pattern of the path, name of the method that answers)."""
    walk: Sequence[str] = ()
    """States of a job that succeeds."""
    failed, canceled = "failed", "cancelled"
    key_header, key_prefix = "authorization", "Bearer "
    file_limit = 1 << 30
    storage_limit = 1 << 40
    """Bytes of all files of the account."""
    storage_status, storage_code = 403, "storage_quota_exceeded"
    """The answer to a file that does not fit any more."""
    models: Sequence[str] = ("meta-llama/Llama-3-8b",)
    """Models that can be trained here."""

    def __init__(self, faults: Faults | None = None, weights: dict[str, bytes] | None = None) -> None:
        super().__init__(DoubleHandler)
        self.prepare(faults, weights)

    def prepare(self, faults: Faults | None, weights: dict[str, bytes] | None) -> None:
        """Begin without files and jobs."""
        self.faults = faults or Faults()
        self.files: dict[str, bytes] = {}
        self.jobs: dict[str, JobDouble] = {}
        self.calls: list[Call] = []
        self.weights = weights or {}
        self.compiled = [(method, re.compile(pattern), name) for method, pattern, name in self.routes]

    # Requests

    def answer(self, call: Call) -> Reply:
        """Return the reply to a request: its own, or a fault's."""
        self.calls.append(call)
        try:
            self.check_key(call)
            for method, pattern, name in self.compiled:
                if method == call.method and (match := pattern.fullmatch(call.path)):
                    creates = name.startswith("create_job")
                    if not creates and (status := self.faults.next_trouble()) is not None:
                        return self.refuse(status, "try again")
                    handler = cast(Callable[..., Reply], getattr(self, name))
                    return self.create(handler, call) if creates else handler(call, *map(unquote, match.groups()))
            raise Refusal(404, f"There is no route {call.method} {call.path}.")
        except Refusal as refusal:
            return self.refuse(refusal.status, refusal.message, refusal.code)

    def create(self, handler: Callable[..., Reply], call: Call) -> Reply:
        """Answer a request that creates a job, by the next fault."""
        match self.faults.next_create():
            case CreateFault.REFUSED_503:
                return self.refuse(503, "overloaded")
            case CreateFault.REFUSED_429:
                return self.refuse(429, "slow down")
            case CreateFault.STORED_THEN_500:
                reply = handler(call)
                return self.refuse(500, "internal error") if reply.status < 300 else reply
            case CreateFault.STORED_THEN_LOST:
                reply = handler(call)
                return Reply(0) if reply.status < 300 else reply
        return handler(call)

    def check_key(self, call: Call) -> None:
        if call.headers.get(self.key_header, "") != self.key_prefix + KEY:
            wrong = call.headers.get(self.key_header, "").removeprefix(self.key_prefix)
            expired = f"The API key {wrong} has expired."
            raise Refusal(401, expired if wrong == EXPIRED_KEY else f"Incorrect API key provided: {wrong}.")

    def refuse(self, status: int, message: str, code: str | None = None) -> Reply:
        """Return an error as the provider writes it."""
        return Reply(status, {"error": {"message": message, "type": "invalid_request_error", "code": code}})

    # Jobs

    def add_job(self, job_id: str, body: JsonObject) -> JobDouble:
        """Store a job; its states, and what hides it, are the faults'."""
        words = list(self.walk)
        if self.faults.ends == "failed":
            words[-1] = self.failed
        if self.faults.unknown_word:
            words.insert(len(words) - 1, self.faults.unknown_word)
        job = JobDouble(job_id, body, words, self.faults.list_lag, self.faults.missing_reads, self.faults.events)
        self.jobs[job_id] = job
        return job

    def read_job(self, job_id: str) -> JobDouble:
        """Return a job after one more step of its way. Raises `Refusal` (404)."""
        job = self.jobs.get(job_id)
        if job is not None and job.missing_reads > 0:
            job.missing_reads -= 1
            raise Refusal(404, f"There is no job {job_id}.")
        if job is None:
            raise Refusal(404, f"There is no job {job_id}.")
        job.advance()
        return job

    def list_visible(self) -> list[JobDouble]:
        """Return the jobs that a list shows now."""
        visible = [job for job in self.jobs.values() if job.hidden_lists <= 0]
        for job in self.jobs.values():
            job.hidden_lists -= 1
        return visible

    def cancel_job(self, job_id: str) -> JobDouble:
        """End a job, unless it has ended."""
        job = self.jobs.get(job_id)
        if job is None:
            raise Refusal(404, f"There is no job {job_id}.")
        if len(job.words) == 1:
            raise Refusal(400, f"The job is {job.word}.")
        job.words = [self.canceled]
        return job

    def pack_weights(self) -> bytes:
        """Return the weights as an archive."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as opened:
            for name, content in self.weights.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                opened.addfile(entry, io.BytesIO(content))
        return archive.getvalue()

    def require_room(self, content: bytes) -> None:
        """Raise `Refusal` for a file that is more than the account may store."""
        if sum(map(len, self.files.values())) + len(content) > self.storage_limit:
            raise Refusal(self.storage_status, "The storage of this account is used up.", self.storage_code)

    def require_model(self, name: str, place: str = "") -> None:
        """Raise `Refusal` (404) for a model that cannot be trained here."""
        if name not in self.models:
            raise Refusal(404, f"The model {name} cannot be fine-tuned{place}.")

    def check_rows(self, content: bytes) -> None:
        """Refuse a file that a provider would refuse: too large, no JSON lines, no messages and no pair."""
        if len(content) > self.file_limit:
            raise Refusal(413, "The file is too large.")
        self.require_room(content)
        for number, line in enumerate(content.splitlines(), 1):
            row = orjson.loads(line)
            pair = {"input", "preferred_output", "non_preferred_output"} <= row.keys()
            turns = row.get("messages") or []
            if not pair and (not turns or turns[-1].get("role") != "assistant"):
                raise Refusal(400, f"Line {number} does not end with a turn of the assistant.")


class DoubleHandler(LoopbackHandler):
    """Hands each request to its double."""

    def handle_call(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        call = Call(self.command, parts.path, dict(parse_qsl(parts.query)), headers, self.body())
        reply = cast(ProviderDouble, self.server).answer(call)
        if reply.status == 0:
            self.close_connection = True
            return
        self.send(reply.status, reply.value, cast(Any, reply.headers))

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = handle_call
