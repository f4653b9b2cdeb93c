"""Long-lived processes: their records, also those of an earlier commit, their start, their end, their ports."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trainyard.compute.child import alive
from trainyard.compute.services import (
    EMBEDDED,
    LAUNCHED,
    Service,
    SupervisedService,
    await_ready,
    confirm_closed,
    end_service,
    find_service,
    free_port,
    list_own_services,
    read_record,
    record_path,
    spawn_service,
    stop_service,
    write_record,
)
from trainyard.errors import Conflict, TrainyardError, Unavailable
from trainyard.settings import settings
from trainyard.stores.processes import process_start

SERVER = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]))"
"""A server of any kind; `/health` is a file in its folder."""
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
EARLIER = {
    "server.json": {"name": "server", "url": "http://127.0.0.1:4200/api", "log": "server.log"},
    "embedded.json": {"port": 1, "url": "http://127.0.0.1:1", "model": "m", "model_sha256": "0", "started": 1.5},
    "mlx-acme-bot.json": {"port": 1, "url": "http://127.0.0.1:1", "model": "acme/bot/v1", "model_sha256": "",
                          "started": 1.5},
    "night-server.json": {"port": 4711},
}  # fmt: skip
"""Every kind of record as commit 4b25bfd wrote it, without pid and start."""


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """No process outlives its test."""
    yield
    for child in LAUNCHED.values():
        if child.poll() is None:
            child.kill()
        child.wait()


@pytest.mark.parametrize("name", EARLIER)
@pytest.mark.parametrize("wall_time", [False, True])
def test_a_record_of_an_earlier_commit_is_read(name: str, wall_time: bool, tmp_path: Path) -> None:
    process_facts = {
        "pid": os.getpid(),
        "create_time": psutil.Process().create_time() if wall_time else process_start(),
    }
    path = tmp_path / name
    path.write_text(json.dumps({**process_facts, **EARLIER[name]}))
    service = find_service(path)
    assert service is not None
    assert {key: getattr(service, key) for key in EARLIER[name]} == EARLIER[name]


def test_a_record_of_a_later_commit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "embedded.json"
    path.write_text(json.dumps({"pid": 1, "create_time": "boot/1", "url": "http://x", "something": "new"}))
    assert read_record(path) == Service(1, "boot/1", "http://x")
    assert find_service(path) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"pid": 1}', "null"])
def test_a_damaged_record_counts_as_none(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "embedded.json"
    path.write_text(damage)
    assert read_record(path) is None
    assert not stop_service(path)
    assert not path.exists()


def test_a_service_is_ready_when_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "health").touch()
    port = free_port()
    argv = [sys.executable, "-c", SERVER, str(port)]
    service = spawn_service(argv, os.environ, tmp_path / "a.log", url=f"http://127.0.0.1:{port}", port=port)
    assert await_ready(service, "The server", 60) == service
    assert os.getsid(service.pid) == service.pid
    write_record(tmp_path / "a.json", service)
    assert find_service(tmp_path / "a.json") == service
    with pytest.raises(TrainyardError, match=r"E-SERVER-STOP: Port \d+ still answers"):
        confirm_closed(port)
    assert stop_service(tmp_path / "a.json")
    assert not service.answers()
    assert not (tmp_path / "a.json").exists()
    confirm_closed(port)


def test_a_service_that_ends_says_its_last_line(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit('no such model')"]
    service = spawn_service(argv, os.environ, tmp_path / "a.log", url="http://127.0.0.1:9")
    message = (
        r"E-SERVER-START: The server ended before it was ready \(status 1\)\. Why: no such model Do: Read .*a\.log"
    )
    with pytest.raises(Unavailable, match=message):
        await_ready(service, "The server", 60)


def test_a_service_that_is_late_is_ended(tmp_path: Path) -> None:
    service = spawn_service(SLEEP, os.environ, tmp_path / "a.log", url="http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"was not ready within 0\.3 s"):
        await_ready(service, "The server", 0.3)
    assert service.process() is None


def test_what_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    service = spawn_service([sys.executable, "-c", STUBBORN], os.environ, tmp_path / "a.log")
    deadline = time.monotonic() + 30
    while not (text := (tmp_path / "a.log").read_text()).endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    below = psutil.Process(int(text))
    assert service.pids() == {service.pid, below.pid}
    began = time.monotonic()
    assert end_service(service, 0.5)
    assert 0.5 <= time.monotonic() - began < 60
    assert service.process() is None
    assert not alive(below)
    assert service.pids() == frozenset()
    assert not end_service(service)


def test_the_model_server_of_this_home_may_share_a_device(home: Path, tmp_path: Path) -> None:
    assert list_own_services(settings()) == frozenset()
    service = spawn_service(SLEEP, os.environ, tmp_path / "a.log")
    write_record(record_path(settings(), EMBEDDED), service)
    assert list_own_services(settings()) == {service.pid}
    end_service(service, 0)
    assert list_own_services(settings()) == frozenset()


def test_a_supervised_service_is_found_by_a_later_process_until_it_is_ended(tmp_path: Path) -> None:
    service = SupervisedService(tmp_path / "run", 1)
    service.start(SLEEP, {}, free_port())
    with pytest.raises(Unavailable, match=r"was not ready within 1 s\..*Do: Read .*child\.log; look\."):
        service.await_ready("It", f"http://127.0.0.1:{service.port}", 1, "; look")
    deadline = time.monotonic() + 60  # a busy machine takes more than that second to start it
    while (left := find_service(service.record)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left is not None
    while len(left.pids()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left.port == service.port
    assert len(left.pids()) == 2  # the shim and the program
    service.end()
    service.end()
    assert left.process() is None
    assert not service.record.exists()


def test_a_supervised_service_that_dies_says_why(tmp_path: Path) -> None:
    service = SupervisedService(tmp_path / "run", 1)
    service.start([sys.executable, "-c", "raise SystemExit('no room')"], {}, free_port())
    with pytest.raises(Unavailable, match=r"It ended before it was ready\. Why: no room"):
        service.await_ready("It", f"http://127.0.0.1:{service.port}", 60, "")
    service.end()


def test_what_a_dead_process_left_is_ended_and_a_stranger_is_not(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEP) as left, subprocess.Popen(SLEEP) as stranger:
        for child, start in ((left, process_start(left.pid)), (stranger, 1.0)):
            service = SupervisedService(tmp_path / str(child.pid), 1)
            write_record(service.record, Service(child.pid, start))
            service.end_leftover()
            assert not service.record.exists()
        assert left.wait(60) != 0
        assert stranger.poll() is None
        stranger.kill()


def test_free_port_skips_a_port_that_is_taken() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert free_port(port) > port


def test_free_port_lets_the_system_choose() -> None:
    assert free_port(0) > 1023


def test_no_free_port_names_the_range() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 65535))
        busy.listen()
        with pytest.raises(Conflict, match=r"E-PORT: No free port between 65535 and 65535\. Do: Set TRAINYARD_"):
            free_port(65535)
