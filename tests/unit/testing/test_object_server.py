"""The bucket's double by itself: what it refuses, and what it does wrong on request."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from trainyard.testing.object_server import Answered, ObjectServer, multipart


def test_create_only_is_refused_the_second_time_at_the_wire() -> None:
    body = b'--x\r\nContent-Type: application/json\r\n\r\n{"name": "a"}\r\n--x\r\n\r\nDATA\r\n--x--'
    with ObjectServer() as server:
        request = urllib.request.Request(
            f"{server.url}/upload/storage/v1/b/weights/o?uploadType=multipart&ifGenerationMatch=0",
            data=body,
            headers={"Content-Type": 'multipart/related; boundary="x"'},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["size"] == "4"
        with pytest.raises(urllib.error.HTTPError, match="412") as refused:
            urllib.request.urlopen(request)
        refused.value.close()
        assert server.objects["weights", "a"].data == b"DATA"


def test_bytes_that_hold_the_boundarys_line_ends_are_kept_whole() -> None:
    content = b"\r\n\r\n--y\r\n" * 3
    body = b"--x\r\n\r\n{}\r\n--x\r\n\r\n" + content + b"\r\n--x--"
    assert multipart("multipart/related; boundary=x", body) == ({}, content)
    with pytest.raises(Answered, match="boundary"):
        multipart("text/plain", body)


def test_the_same_seed_fails_at_the_same_places() -> None:
    def faults(seed: int) -> list[str]:
        server = ObjectServer(rates={"503": 0.2, "lost-ack": 0.2, "wrong-crc": 0.2}, seed=seed)
        server._server.server_close()
        return [server.next_fault(download=number % 2 == 0, changes=number % 2 == 1) for number in range(100)]

    assert faults(1) == faults(1) != faults(2)
    assert {"ok", "503", "lost-ack", "wrong-crc"} == set(faults(1))


def test_a_fault_that_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="unknown fault 'earthquake'"):
        ObjectServer(rates={"earthquake": 1.0})
    with ObjectServer() as server, pytest.raises(ValueError, match="unknown fault"):
        server.script("ok", "earthquake")


def test_as_a_program_it_serves_until_its_input_closes() -> None:
    command = [sys.executable, "-m", "trainyard.testing.object_server", "--rates", "503=1.0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(f"{url}/storage/v1/b/weights/o")
        refused.value.close()
        program.communicate(timeout=10)
        assert program.returncode == 0
