"""The eight verbs over REST, the SDK and MCP: the bits of the same verbs in one process, carried out once, audited."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client

from tests.answering import answering
from tests.session_sequence import START, VERBS, sequence_over
from tests.unit.backends.session_host import ROWS, HostedSession, host_session, make_record
from trainyard import connect
from trainyard.app.access.audit import open_log
from trainyard.settings import settings
from trainyard.surfaces.bodies import TENSORS_TYPE
from trainyard.tracing import new_traceparent, trace_id

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def session(home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostedSession]:
    monkeypatch.setenv("TRAINYARD_THREADS", "1")
    settings.cache_clear()
    with host_session(settings(), make_record(tiny_model)) as session:
        yield session


@pytest.fixture
def url(session: HostedSession) -> Iterator[str]:
    with answering() as url:
        yield url


def make_client(url: str, session: HostedSession, **headers: str) -> httpx.Client:
    all_headers = {"authorization": "Bearer owner", **headers}
    return httpx.Client(base_url=f"{url}/api/v1/sessions/{session.record.id}", headers=all_headers, timeout=60)


def post(client: httpx.Client, verb: str, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """The reply of a verb; tensors go as they are."""
    if "tensors" in fields:
        kind = {"content-type": TENSORS_TYPE}
        answer = client.post(f"/{verb}", content=fields["tensors"], headers={**kind, **(headers or {})})
    else:
        answer = client.post(f"/{verb}", json=fields, headers=headers)
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def train_by_rest(url: str, session: HostedSession, traceparent: str) -> dict[str, Any]:
    with make_client(url, session, traceparent=traceparent) as client:

        def read(name: str) -> bytes:
            answer = client.get(f"/outputs/{name}")
            assert answer.headers["content-type"] == TENSORS_TYPE
            return answer.content

        return sequence_over(partial(post, client), read, "rest")


def encode_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Bytes as an SDK and a tool take them."""
    return {
        key: base64.b64encode(value).decode() if isinstance(value, bytes) else value for key, value in fields.items()
    }


def train_by_sdk(url: str, session: HostedSession) -> dict[str, Any]:
    name = session.record.id
    with connect(url, "owner") as remote:

        def call(verb: str, **fields: Any) -> dict[str, Any]:
            reply = getattr(remote.sessions, verb)(session=name, **encode_fields(fields))
            result: dict[str, Any] = reply.model_dump(mode="json")
            return result

        return sequence_over(call, lambda output: remote.sessions.output(session=name, name=output), "sdk")  # type: ignore[return-value]


@asynccontextmanager
async def open_client(url: str, traceparent: str) -> Any:
    headers = {"authorization": "Bearer owner", "traceparent": traceparent}
    async with (
        httpx.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


@contextmanager
def tools(url: str, traceparent: str) -> Iterator[Any]:
    """Calls of tools by an official client, which is awaited in a thread of its own."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(open_client(url, traceparent)) as client:

        def call(tool: str, **fields: Any) -> types.CallToolResult:
            result: types.CallToolResult = portal.call(client.call_tool, tool, encode_fields(fields))
            assert not result.is_error, result.content
            return result

        yield call


def train_by_mcp(url: str, session: HostedSession, traceparent: str) -> dict[str, Any]:
    name = session.record.id
    with tools(url, traceparent) as call_tool:

        def call(verb: str, **fields: Any) -> dict[str, Any]:
            reply: dict[str, Any] = call_tool(f"sessions_{verb}", session=name, **fields).structured_content
            return reply

        def read(output: str) -> bytes:
            parts = call_tool("sessions_output", session=name, name=output).content
            (blob,) = [part.resource for part in parts if isinstance(part, types.EmbeddedResource)]
            assert isinstance(blob, types.BlobResourceContents)
            return base64.b64decode(blob.blob)

        return sequence_over(call, read, "mcp")


def train_in_process(session: HostedSession, out: Path) -> dict[str, Any]:
    arguments = [str(session.settings.home), session.record.id, str(out)]
    program = [sys.executable, "-m", "tests.session_sequence", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers: dict[str, Any] = json.loads(out.read_text())
    return numbers


def list_audited(session: HostedSession) -> list[dict[str, Any]]:
    lines = [line for line in open_log(session.settings.home).lines() if line["phase"] == "ended"]
    return [line for line in lines if line["targets"].get("session") == session.record.id]


def test_the_eight_verbs_have_the_same_bits_on_every_surface(session: HostedSession, url: str, tmp_path: Path) -> None:
    session.call("save", name=START, kind="full")
    over_rest, over_mcp = new_traceparent(), new_traceparent()
    results = {
        "rest": train_by_rest(url, session, over_rest),
        "sdk": train_by_sdk(url, session),
        "mcp": train_by_mcp(url, session, over_mcp),
        "python": train_in_process(session, tmp_path / "in.json"),
    }
    for name, numbers in results.items():
        assert numbers == results["python"], name
    assert results["python"]["losses"][0] != results["python"]["losses"][1]
    assert results["python"]["logprobs"] == results["python"]["after"]

    lines = list_audited(session)
    for surface, trace in (("rest", trace_id(over_rest)), ("mcp", trace_id(over_mcp))):
        entries = [line for line in lines if line["surface"] == surface and line["trace"] == trace]
        assert {line["operation"] for line in entries} == {f"sessions {verb.replace('_', '-')}" for verb in VERBS}
        assert {(line["caller"], line["outcome"]) for line in entries} == {("owner", "done")}
    assert len([line for line in lines if line["surface"] == "rest"]) == 2 * len(
        [line for line in lines if line["surface"] == "mcp"]
    ), "the SDK's calls are requests"


def test_a_call_with_a_key_is_carried_out_once(session: HostedSession, url: str) -> None:
    with make_client(url, session) as client:

        def twice(verb: str, **fields: Any) -> dict[str, Any]:
            headers = {"idempotency-key": f"key-{verb}"}
            first, second = (post(client, verb, headers, **fields) for _ in range(2))
            assert first == second, verb
            return first

        forward = twice("forward", rows=ROWS)
        twice("backward", forward_id=forward["forward_id"])
        assert twice("step")["global_step"] == 1
        twice("zero_grad")
        twice("generate", prompts=["Hi"], max_new_tokens=4)
        twice("logprobs", rows=["Hi there"])
        twice("save", name="once")
        twice("load", name="once")
        status = session.status()
        assert (status["op_seq"], status["global_step"]) == (len(VERBS), 1)
        other = client.post("/generate", json={"prompts": ["Ho"]}, headers={"idempotency-key": "key-generate"})
        assert (other.status_code, other.json()["code"]) == (422, "E-PARAMETER")
        assert session.status()["op_seq"] == len(VERBS)
    entries = [line["operation"] for line in list_audited(session)]
    assert entries.count("sessions step") == 2, "each request has its entry"


def test_the_reply_of_a_call_that_is_not_waited_for(session: HostedSession, url: str) -> None:
    with make_client(url, session) as client:
        future = post(client, "forward", rows=ROWS, wait=False)
        assert future["state"] in ("pending", "running", "done")
        done = client.get(f"/results/{future['op_seq']}", params={"wait": "true"}).json()
        assert (done["verb"], done["state"]) == ("forward", "done")
        again = post(client, "forward", rows=ROWS, op_seq=future["op_seq"])
        assert again["loss"] == done["result"]["loss"]
        absent = client.get("/results/99")
        assert (absent.status_code, absent.json()["code"]) == (409, "E-STEP"), "no operation has this number"
        expired = client.get("/outputs/forward-99-logits")
        assert (expired.status_code, expired.json()["code"]) == (404, "E-NOT-FOUND")
