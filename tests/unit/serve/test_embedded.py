"""The embedded server's life: started once, found by anybody, replaced when its model changed, ended for sure."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from trainyard.compute.child import alive
from trainyard.compute.services import EMBEDDED, Service, record_path, write_record
from trainyard.errors import Conflict, InvalidInput, Unavailable
from trainyard.serve.embedded import find_running, instance, start, stop
from trainyard.settings import Settings, load_settings

pytestmark = pytest.mark.xdist_group("model-server")


@pytest.fixture
def configured(home: Path) -> Iterator[Settings]:
    loaded = load_settings()
    yield loaded
    stop(loaded)


@pytest.mark.slow  # tests/flows/test_installed.py starts and ends one
def test_it_is_started_once_found_again_and_ended(configured: Settings, tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    # Started by a program that ends at once, as the command line does.
    program = (
        "import sys; from trainyard.serve.embedded import start; from trainyard.settings import settings\n"
        "print(start(settings(), sys.argv[1], threads=1))"
    )
    completed = subprocess.run([sys.executable, "-c", program, str(model)], capture_output=True, text=True, check=True)
    url = completed.stdout.strip()
    assert find_running(configured) == url
    assert start(configured, str(model)) == url
    with pytest.raises(Conflict, match=f"E-MODEL-NOT-FOUND: The embedded server at {url} serves .*trainyard down"):
        start(configured, str(tiny_model))
    assert httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["root"] == str(model)
    first = instance(configured)
    assert first is not None
    process = first.process()
    assert process is not None
    assert os.getpgid(first.pid) == first.pid  # a session of its own
    assert stop(configured) is True
    assert not alive(process)
    assert (find_running(configured), stop(configured)) == (None, False)
    assert start(configured, str(model), threads=1) == url  # clients that know the address find the next server


def test_another_process_under_the_same_number_is_not_ours(configured: Settings) -> None:
    process_here = psutil.Process()
    path = record_path(configured, EMBEDDED)
    write_record(path, Service(process_here.pid, process_here.create_time() - 60, "http://127.0.0.1:1"))
    assert instance(configured) is None
    assert find_running(configured) is None
    assert stop(configured) is False
    assert not path.exists()


def test_a_process_that_does_not_answer_is_not_running(configured: Settings) -> None:
    process_here = psutil.Process()
    write_record(
        record_path(configured, EMBEDDED), Service(process_here.pid, process_here.create_time(), "http://127.0.0.1:1")
    )
    assert instance(configured) is not None
    assert find_running(configured) is None
    write_record(record_path(configured, EMBEDDED), None)


def test_a_model_that_must_not_be_loaded_starts_nothing(configured: Settings, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-MODEL-INVALID"):
        start(configured, str(tmp_path))
    assert not configured.services.exists()


def test_a_chat_template_that_attacks_starts_nothing(configured: Settings, tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").write_text("{{ ().__class__.__bases__ }}")
    with pytest.raises(InvalidInput, match="E-CHAT-TEMPLATE: The chat template is refused: access to attribute"):
        start(configured, str(model))
    assert not configured.services.exists()


@pytest.mark.slow
def test_a_server_that_does_not_come_up_says_why(home: Path, tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        configured = load_settings(embedded_port=busy.getsockname()[1])
        with pytest.raises(Unavailable, match=r"E-SERVER-START: .*\(status 6\).*E-PORT: Port \d+ .*embedded\.log"):
            start(configured, str(tiny_model), threads=1)
    assert instance(configured) is None
