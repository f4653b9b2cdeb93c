"""Sessions of several processes over REST, the SDK, MCP and the command line: the same bits on all of them; a client
that leaves, and a process that is killed while a call runs.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from tests.answering import answering
from tests.session_sequence import START, sequence_over
from tests.unit.backends.session_host import ROWS, HostedSession, host_session, make_record
from tests.unit.surfaces.test_sessions_over_the_wire import make_client, train_by_mcp, train_by_rest, train_by_sdk
from trainyard.backends.sessions.frames import send_frame
from trainyard.compute.rank_process import read_notes, running
from trainyard.settings import settings
from trainyard.surfaces.cli.main import app
from trainyard.tracing import new_traceparent

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LAUNCHES = [("zero2", 2), ("ddp", 2), ("zero1", 2), ("fsdp_hybrid", 4), ("zero2", 3)]
MARKED = [LAUNCHES[0], *(pytest.param(launch, marks=pytest.mark.slow) for launch in LAUNCHES[1:])]
"""The first runs with every change, the others with `make test-all`."""
LONG = {"prompts": [{"tokens": [5, 6]}], "max_new_tokens": 1900, "stop_ids": [1], "samples": 64}


@pytest.fixture(params=MARKED, ids=lambda launch: "-".join(map(str, launch)))
def session(
    request: pytest.FixtureRequest, home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HostedSession]:
    strategy, processes = request.param
    monkeypatch.setenv("TRAINYARD_THREADS", "1")
    settings.cache_clear()
    record = make_record(tiny_model, launch={"strategy": strategy, "processes": processes})
    with host_session(settings(), record) as session:
        yield session


def run_command(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["sessions", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    reply: dict[str, Any] = json.loads(done.stdout)
    return reply


def to_options(name: str, value: Any) -> list[str]:
    """A field of a request as the command line takes it."""
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bytes):
        return [option, base64.b64encode(value).decode()]
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    if isinstance(value, list | tuple):
        texts = [item if isinstance(item, str) else json.dumps(item) for item in value]
        return [
            word for text in texts for word in ({"--rows": "--row", "--prompts": "--prompt"}.get(option, option), text)
        ]
    return [option, str(value)]


def train_by_cli(session: HostedSession) -> dict[str, Any]:
    name = session.record.id

    def call(verb: str, **fields: Any) -> dict[str, Any]:
        positional = [name]
        options = [word for field, value in fields.items() for word in to_options(field, value)]
        return run_command(verb.replace("_", "-"), *positional, *options)

    def read(output: str) -> bytes:
        return Path(run_command("output", name, "--name", output)["path"]).read_bytes()

    return sequence_over(call, read, "cli")


def leave_in_the_middle(session: HostedSession) -> int:
    """A client that asks for a step and leaves; returns the number of its operation."""
    before = int(session.status()["op_seq"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(session.socket_path())
        send_frame(connection, {"call": "verb", "verb": "forward", "given": {"rows": ROWS}, "wait_s": 100})
    deadline = time.monotonic() + 60
    while session.status()["op_seq"] == before and time.monotonic() < deadline:
        time.sleep(0.02)  # another connection may be read first
    return before + 1


def kill_rank_during_a_call(session: HostedSession, url: str) -> tuple[httpx.Response, float]:
    """The answer of a call during which the last process is killed, and the seconds until it came."""
    answers: list[httpx.Response] = []
    notes = read_notes(session.folder)
    last = notes[max(notes)]["pid"]
    os.kill(last, signal.SIGSTOP)  # a fast machine would answer before the kill
    with make_client(url, session) as client:
        thread = threading.Thread(target=lambda: answers.append(client.post("/generate", json=LONG)))
        thread.start()
        time.sleep(0.5)
        killed = time.monotonic()
        os.kill(last, signal.SIGKILL)
        thread.join(60)
    return answers[0], time.monotonic() - killed


def test_several_processes_have_the_same_bits_on_every_surface(session: HostedSession, url: str) -> None:
    session.call("save", name=START, kind="full")
    results = {
        "rest": train_by_rest(url, session, new_traceparent()),
        "sdk": train_by_sdk(url, session),
        "cli": train_by_cli(session),
        "mcp": train_by_mcp(url, session, new_traceparent()),
    }
    for name, numbers in results.items():
        assert numbers == results["rest"], name
    launch = session.record.config.launch
    assert run_command("list")["sessions"][0]["processes"] == launch.processes

    left = leave_in_the_middle(session)
    assert session.call("zero_grad") == {}
    assert session.status()["op_seq"] == left + 1, "what a client has asked for is done, also if it leaves"

    pids = [note["pid"] for note in read_notes(session.folder).values()]
    answer, seconds = kill_rank_during_a_call(session, url)
    assert (answer.status_code, answer.json().get("code")) == (409, "E-SESSION-STATE"), answer.text[:600]
    assert f"E-RANK-LOST: Process {launch.processes - 1} of {launch.processes}" in answer.text
    assert seconds < 20
    session.wait(30)
    assert not any(map(running, pids))
    with make_client(url, session) as client:
        again = client.post("/step", json={})
        assert (again.status_code, again.json()["code"]) == (409, "E-SESSION-STATE")
    with host_session(session.settings, session.record) as resumed:
        resumed.call("load", name=START)
        assert resumed.call("forward", rows=ROWS)["loss"] == results["rest"]["losses"][0]


@pytest.fixture
def url(session: HostedSession) -> Iterator[str]:
    with answering() as url:
        yield url
