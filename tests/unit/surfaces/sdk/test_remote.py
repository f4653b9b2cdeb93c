"""The SDK over HTTP, blocking and awaited, against the service of this home on a real socket."""

from __future__ import annotations

import json
import re
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.answering import answering
from tests.certificates import make_certificate
from trainyard import Chain, DataSource, Trainer, aio, connect, connect_async, here
from trainyard.app.jobs.jobs import Job, JobDetail
from trainyard.errors import (
    Conflict,
    Denied,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Refused,
    TrainyardError,
    Unavailable,
)
from trainyard.operations.table import OPERATIONS, find_route
from trainyard.spec.states import NO_TRAINER_DETAIL, JobState
from trainyard.surfaces.sdk import asynchronous, wire
from trainyard.surfaces.sdk.remote import RemoteSurface, client_options
from trainyard.surfaces.sdk.wire import HttpExchange, build_exchange, parse_error, request_words

pytestmark = pytest.mark.integration

ROWS = '{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS * 8)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wire, "LONGEST_WAIT_S", 0.01)
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def url() -> Iterator[str]:
    with answering() as service_url:
        yield service_url


def chain(**options: Any) -> Chain:
    return Chain([DataSource(path="rows.jsonl"), Trainer(stage="sft", hyperparameters={"max_steps": 3})], **options)


def test_a_call_over_http_is_the_call_here(url: str) -> None:
    with connect(url, "owner") as remote:
        assert remote.templates() == here.templates()
        assert remote.templates(name="qa-pipeline") == here.templates(name="qa-pipeline")
        assert remote.adapters.list() == here.adapters.list()
        assert remote.backends().model_dump_json() == here.backends().model_dump_json()
        assert remote.schema(name="trainer").document == here.schema(name="trainer").document
        assert remote.check(files=(chain().definition,)) == here.check(files=(chain().definition,))
        assert dir(remote) == dir(here)


def test_files_are_read_where_they_are(url: str, tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text(chain(name="guide").to_yaml())
    digest = here.check(files=(Path("chain.yaml"),)).files[0].digest
    with connect(url, "owner") as remote:
        assert remote.check(files=(Path("chain.yaml"),)).files[0].digest == digest
        assert remote.plan(target="chain.yaml").digest == digest
        stored = remote.chains.create(file=Path("chain.yaml"))
        assert (stored.name, stored.digest) == ("guide", digest)
        newer = remote.chains.update(
            chain="guide", file=Path("chain.yaml"), spec={"description": "More."}, if_match=stored.etag
        )
        assert newer.revision == 2
        with pytest.raises(NotFound, match="E-PARAMETER"):
            remote.chains.create(file=Path("nothing.yaml"))


def test_a_chain_of_objects_speaks_to_a_service(url: str) -> None:
    with connect(url, "owner") as remote:
        guide = chain(name="guide", on=remote)
        assert guide.check().ok
        assert guide.plan().digest == guide.check().digest
        for _ in range(2):
            with pytest.raises(Unavailable, match="E-NO-SERVER"):
                guide.run()
        stored = remote.chains.show(chain="guide")
        assert (stored.revision, stored.digest) == (1, guide.check().digest)


def test_errors_are_those_of_the_operation(url: str) -> None:
    with connect(url, "owner") as remote, connect(url, "reader") as reader, connect(url, "acme") as acme:
        with pytest.raises(Refused) as refused:
            remote.chains.create(spec={"nodes": [{"type": "trainr"}, {"type": "trainer", "config": {"foo": 1}}]})
        with pytest.raises(Refused) as local:
            here.chains.create(spec={"nodes": [{"type": "trainr"}, {"type": "trainer", "config": {"foo": 1}}]})
        assert refused.value.reasons == local.value.reasons
        with pytest.raises(NotFound, match="E-NOT-FOUND: There is no stored chain 'x'"):
            remote.chains.show(chain="x")
        with pytest.raises(InvalidInput, match="E-PARAMETER: jobs list does not take this value of 'limit'"):
            remote.jobs.list(limit=0)
        with pytest.raises(Denied, match="E-SCOPE"):
            reader.chains.create(spec=chain().definition)
        with pytest.raises(Denied, match="E-LOCAL"):
            remote.up()
        with pytest.raises(Denied, match="E-SCOPE"):
            acme.sweep.list()
        with connect(url, "nobody") as nobody, pytest.raises(Denied, match="E-AUTH"):
            nobody.jobs.list()
        stored = remote.chains.create(spec=chain().definition)
        with pytest.raises(Conflict, match="E-CONFLICT"):
            remote.chains.update(chain=stored.id, spec=chain().definition, if_match="7-abc")


def test_a_certificate_is_verified(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "127.0.0.1")
    with answering(certificate) as url:
        with connect(url, "owner", ca_file=str(certificate[0])) as remote:
            assert remote.chains.list().total == 0
        with connect(url, "owner") as remote, pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            remote.chains.list()


def test_an_address_where_nothing_answers() -> None:
    with answering() as url:
        pass
    with connect(url) as remote, pytest.raises(Unavailable, match="E-SERVER-UNREACHABLE: The service does not answer"):
        remote.jobs.list()


async def test_calls_are_awaited_here_and_over_http(url: str) -> None:
    assert (await aio.templates()).templates == here.templates().templates
    async with connect_async(url, "owner") as remote:
        assert await remote.templates() == here.templates()
        stored = await remote.chains.create(spec=chain(name="guide").definition)
        assert [chain.id for chain in (await aio.chains.list()).chains] == [stored.id]
        with pytest.raises(NotFound, match="E-NOT-FOUND"):
            await remote.chains.show(chain="x")
        with pytest.raises(Unavailable, match="E-NO-SERVER"):
            await remote.run(target=chain(name="guide").definition, watch=True)
        assert (await remote.chains.show(chain="guide")).revision == 1


def test_a_request_has_its_fields_where_the_table_says() -> None:
    def build_sent(name: str, **fields: Any) -> Any:
        return build_exchange(name, OPERATIONS[name].request(**fields))

    show = build_sent("chains show", chain="a b/c", revision=2)
    assert (show.method, show.path, dict(show.params)) == ("GET", "/api/v1/chains/a%20b%2Fc", {"revision": 2})
    update = build_sent("chains update", chain="x", spec={"name": "x"}, if_match="3-ab")
    assert update.headers["if-match"] == '"3-ab"'
    assert json.loads(update.content) == {"name": "x"}
    assert "idempotency-key" in update.headers
    assert "idempotency-key" not in build_sent("check", files=({},)).headers
    assert json.loads(build_sent("chains run", chain="x", refresh=True).content) == {"refresh": True}
    tensors = build_sent(
        "sessions forward", session="session-0123456789ab", tensors=b64encode(b"abc"), outputs=("logits",)
    )
    assert (tensors.content, tensors.headers["content-type"]) == (b"abc", "application/x-safetensors")
    assert dict(tensors.params) == {"outputs": ["logits"]}
    for name in OPERATIONS:
        assert find_route(name)[1].startswith("/api/v1/")


def test_what_json_does_not_have_is_sent_as_it_is_and_never_as_nothing() -> None:
    """Null would mean that a field was not given."""

    def build_sent(**fields: Any) -> str:
        request = OPERATIONS["sessions forward"].request(session="session-0123456789ab", **fields)
        return (build_exchange("sessions forward", request).content or b"").decode()

    assert build_sent(batch={"x": [1.5, float("nan")]}) == '{"batch":{"x":[1.5,NaN]}}'
    assert json.loads(build_sent(rows=({"text": "\ud800"},))) == {"rows": [{"text": "\ud800"}]}


@pytest.mark.parametrize("batch", [{"input_ids": [[1.0, float("nan")]]}, {"input_ids": "\ud800"}])
def test_what_json_does_not_have_is_refused_by_the_service(url: str, batch: dict[str, Any]) -> None:
    with connect(url, "owner") as remote, pytest.raises(InvalidInput):
        remote.sessions.forward(session="session-0123456789ab", batch=batch)


def test_a_client_knows_the_path_of_its_service_and_repeats_lists() -> None:
    client = httpx.Client(**client_options("https://train.example/below/api/v1/", "ty_x", None, 10))
    query = HttpExchange("GET", "/api/v1/jobs", {"state": ["failed", "paused"], "limit": 5})
    listed = client.build_request(**request_words(query))
    assert str(listed.url) == "https://train.example/below/api/v1/jobs?state=failed&state=paused&limit=5"
    assert (listed.headers["authorization"], listed.headers["host"]) == ("Bearer ty_x", "train.example")
    with pytest.raises(httpx.InvalidURL):
        connect("https://train.example:port")


@pytest.mark.parametrize("address", ["train.example:8898", "127.0.0.1", "", "ftp://train.example", "//train.example"])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    for open_client in (connect, connect_async):
        with pytest.raises(InvalidInput, match=r"E-PARAMETER: .* is not the address of a service.*https://"):
            open_client(address)


def test_a_body_that_is_too_long_is_refused_with_its_reason(url: str) -> None:
    """The service answers before it has read all of it."""
    nodes = [{"type": "validator", "name": "x" * 200} for _ in range(60_000)]
    with connect(url, "owner") as remote:
        for _ in range(3):
            with pytest.raises(LimitExceeded, match="E-BODY-LENGTH"):
                remote.chains.create(spec={"name": "long", "nodes": nodes})
            assert remote.templates().templates


# A service that fails


@dataclass
class Failing:
    """Answers with what is scripted, and remembers the keys of what it was sent."""

    script: list[tuple[int, dict[str, str], bytes]]
    keys: list[str | None] = field(default_factory=list)

    def serve(self) -> ThreadingHTTPServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.keys.append(self.headers.get("idempotency-key"))
                status, headers, body = outer.script.pop(0)
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                for key, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(key, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def call_against(
    script: list[tuple[int, dict[str, str], bytes]], name: str, **fields: Any
) -> tuple[Any, list[str | None]]:
    failing = Failing(script)
    server = failing.serve()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with connect(f"http://127.0.0.1:{server.server_address[1]}") as remote:
            try:
                return getattr(remote.chains, name)(**fields), failing.keys
            except TrainyardError as error:
                return error, failing.keys
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


DELETED = json.dumps({"id": "chain-1", "name": "x", "revisions": 2}).encode()
RUN = json.dumps({
    "run_id": "r", "name": "x", "state": "pending", "message": "", "chain_id": "chain-1", "revision": 1
}).encode()  # fmt: skip
BUSY = json.dumps({"detail": "The first request with this Idempotency-Key is still worked on."}).encode()


def test_what_starts_something_is_sent_again_with_the_same_key() -> None:
    result, keys = call_against([(0, {}, b""), (409, {}, BUSY), (503, {}, b"{}"), (202, {}, RUN)], "run", chain="x")
    assert result.run_id == "r"
    assert len(keys) == 4
    assert len(set(keys)) == 1
    assert keys[0]


def test_what_is_no_answer_of_the_api_is_an_error_with_its_status() -> None:
    error, keys = call_against([(502, {}, b"<html>")] * 4, "run", chain="x")
    assert isinstance(error, Unavailable)
    assert "answered 502" in str(error)
    assert len(keys) == 4
    assert isinstance(call_against([(404, {}, b"[]")], "run", chain="x")[0], Unavailable)


def test_a_problem_document_is_the_error_that_was_raised() -> None:
    problem = {"code": "E-LIMIT", "kind": "LimitExceeded", "detail": "Too much.", "why": "w", "do": "d", "errors": []}
    error = parse_error(httpx.Response(422, json=problem))
    assert isinstance(error, LimitExceeded)
    assert (error.code, error.what, error.why, error.do) == ("E-LIMIT", "Too much.", "w", "d")


# A run that is followed


def job_event(state: str, number: int, detail: str = "") -> bytes:
    """An event as the service writes it: the job as a list shows it."""
    job = Job(id="job-1", run_id="r", name="x", state=JobState(state), detail=detail, message=state)
    return f": a comment\n\nevent: job\nid: {number}\ndata: {job.model_dump_json()}\n\n".encode()


@dataclass
class Streaming:
    """Starts a run, and then answers with streams of its state: each is a list of pieces, or a status."""

    streams: list[list[bytes] | int]
    last_ids: list[str | None] = field(default_factory=list)
    last_job: bytes = b""

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(202, content=RUN, headers={"content-type": "application/json"})
        assert request.url.path == "/api/v1/jobs/r"
        if request.headers["accept"] != "text/event-stream":  # asked for once, at the end
            job = Job.model_validate_json(self.last_job)
            whole = JobDetail(**dict(job), parameters={}, trainings=(), nodes=())
            return httpx.Response(200, content=whole.model_dump_json(), headers={"content-type": "application/json"})
        self.last_ids.append(request.headers.get("last-event-id"))
        stream = self.streams.pop(0)
        if isinstance(stream, int):
            return httpx.Response(stream, json={"detail": "Not now."})
        self.last_job = (re.findall(rb"data: (\{.*\"id\".*\})", b"".join(stream)) or [self.last_job])[-1]
        return httpx.Response(200, stream=Cut(stream), headers={"content-type": "text/event-stream; charset=utf-8"})


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream; where its last piece is empty, the connection breaks there."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if not piece:
                raise httpx.ReadError("cut off")
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def make_client(service: Streaming) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(service.answer), base_url="http://x")


def watch_streams(streams: list[list[bytes] | int]) -> tuple[Any, list[str | None]]:
    """What a blocking and an awaited client return for the same streams, and the ids that each sent."""
    blocking, awaited = Streaming(list(streams)), Streaming(list(streams))
    with RemoteSurface(make_client(blocking)) as remote:
        result = remote.chains.run(chain="x", watch=True)

    async def follow() -> Any:
        async with httpx.AsyncClient(transport=httpx.MockTransport(awaited.answer), base_url="http://x") as client:
            return await asynchronous.call_over_http(client, "chains run", {"chain": "x", "watch": True})

    assert anyio.run(follow) == result
    assert (blocking.last_ids, blocking.streams) == (awaited.last_ids, awaited.streams)
    return result, blocking.last_ids


END = b'event: end\nid: 2\ndata: {"state": "completed"}\n\n'


def test_a_watched_run_is_followed_by_the_stream_of_its_state() -> None:
    running, done = job_event("running", 1), job_event("completed", 2)
    job, ids = watch_streams([[running[:30], running[30:] + done[:50], done[50:] + END]])
    assert (job.state.value, job.revision, job.message, ids) == ("completed", 1, "completed", [None])
    for state in ("paused", "failed", "canceled"):
        assert watch_streams([[job_event(state, 1), b""]])[0].state.value == state
    assert watch_streams([[job_event("pending", 1, NO_TRAINER_DETAIL), b""]])[0].state.value == "pending"


@pytest.mark.parametrize("end", [[], [b""], [b"event: job\ndata: {", b""]])
def test_a_stream_that_was_cut_off_is_continued_after_its_last_event(end: list[bytes]) -> None:
    streams: list[list[bytes] | int] = [[job_event("running", 1), *end], 503, 502, [job_event("completed", 2), END]]
    job, ids = watch_streams(streams)
    assert (job.state.value, ids) == ("completed", [None, "1", "1", "1"])


def test_a_job_that_cannot_be_followed_is_the_error_of_the_service() -> None:
    with RemoteSurface(make_client(Streaming([404]))) as remote, pytest.raises(Unavailable, match="answered 404"):
        remote.chains.run(chain="x", watch=True)
