from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trainyard.app.services import exclusive, running, spawn, stop
from trainyard.compute.services import record_path
from trainyard.settings import Settings, settings

pytestmark = pytest.mark.integration

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def here(home: Path) -> Iterator[Settings]:
    yield settings()
    stop(settings(), "sleeper", grace_s=2)


def start(here: Settings, code: str = "import time; time.sleep(60)") -> psutil.Process:
    service = spawn(here, "sleeper", [sys.executable, "-c", code], os.environ, "http://nowhere")
    process = service.process()
    assert process is not None
    return process


def wait_for(text_in: Path) -> str:
    for _ in range(200):
        if text_in.is_file() and text_in.read_text().endswith("\n"):
            return text_in.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{text_in} stayed empty")


def test_a_spawned_process_is_found_again_and_has_a_session_of_its_own(here: Settings) -> None:
    process = start(here)
    service = running(here, "sleeper")
    assert service is not None
    assert service.pid == process.pid
    assert os.getsid(process.pid) == process.pid != os.getsid(0)


def test_stop_ends_the_whole_tree(here: Settings) -> None:
    process = start(here, PARENT)
    grandchild = int(wait_for(here.services / "sleeper.log"))
    assert stop(here, "sleeper", grace_s=1)
    assert not psutil.pid_exists(process.pid) or process.status() == psutil.STATUS_ZOMBIE
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


def test_stopping_what_does_not_run_is_no_error(here: Settings) -> None:
    assert not stop(here, "sleeper")


def test_a_pid_that_belongs_to_somebody_else_by_now_is_not_ours(here: Settings) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        start(here)
        path = record_path(here, "sleeper")
        record = json.loads(path.read_text())
        pid = record["pid"]
        path.write_text(json.dumps({**record, "pid": stranger.pid, "create_time": 1.0}))
        assert running(here, "sleeper") is None
        assert not stop(here, "sleeper")
        assert stranger.poll() is None
        os.kill(pid, signal.SIGKILL)
        psutil.Process(pid).wait()
    finally:
        stranger.kill()
        stranger.wait()


def test_a_dead_service_is_not_running(here: Settings) -> None:
    process = start(here)
    process.kill()
    process.wait()
    assert running(here, "sleeper") is None


def test_two_commands_on_one_home_wait_for_each_other(here: Settings) -> None:
    code = (
        "import sys; from trainyard.settings import settings; from trainyard.app.services import exclusive\n"
        "with exclusive(settings()): print('inside', flush=True)"
    )
    with exclusive(here):
        second = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(timeout=2)
    out, _ = second.communicate(timeout=120)
    assert out == "inside\n"
