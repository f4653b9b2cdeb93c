"""The wall clock is set back or forward by five seconds while everything runs: nobody takes a process for another.

A stepped clock moves the kernel's boot time (`btime` in /proc/stat), and with it psutil's start times. It is simulated
by a /proc of our own in which that line alone is different: the machine's clock belongs to everybody.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from trainyard.app.services import running, spawn, stop
from trainyard.compute.lease import device_lock, holder
from trainyard.compute.leftovers import Sweeper
from trainyard.compute.services import EMBEDDED, Service, find_service, record_path, write_record
from trainyard.compute.supervise import ProcessTree
from trainyard.serve import embedded
from trainyard.serve.inference_server.life import InferenceServer
from trainyard.serve.inference_server.profiles import ServerProfile
from trainyard.settings import Settings, settings
from trainyard.stores.markers.records import find_owner, owner_alive
from trainyard.stores.processes import find_process, process_start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel notes a start once")

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@contextmanager
def clock_stepped(folder: Path, seconds: int) -> Iterator[None]:
    """psutil sees a kernel whose clock was stepped by so many seconds."""
    folder.mkdir()
    for path in Path("/proc").iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "stat").unlink()
    lines = Path("/proc/stat").read_text().splitlines()
    moved = [f"btime {int(line.split()[1]) + seconds}" if line.startswith("btime") else line for line in lines]
    (folder / "stat").write_text("\n".join(moved) + "\n")
    psutil.PROCFS_PATH = str(folder)
    try:
        yield
    finally:
        psutil.PROCFS_PATH = "/proc"


@pytest.fixture
def process(home: Path) -> Iterator[psutil.Process]:
    """A living service named `sleeper`."""
    sleeper = spawn(settings(), "sleeper", SLEEP, os.environ, "http://nowhere").process()
    assert sleeper is not None
    yield sleeper
    stop(settings(), "sleeper", grace_s=2)


def write_records(here: Settings, pid: int) -> InferenceServer:
    """Every kind of record of this process, as the product writes them."""
    start = process_start(pid)
    server = InferenceServer(ServerProfile(), here.home / "inference", here)
    for path in (record_path(here, EMBEDDED), record_path(here, "mlx-default-bot"), server.service.record):
        write_record(path, Service(pid, start, "http://127.0.0.1:1"))
    return server


@pytest.mark.parametrize("seconds", [-5, 5, 3_600])
def test_nothing_is_lost(process: psutil.Process, seconds: int, tmp_path: Path) -> None:
    here, pid, owner = settings(), process.pid, find_owner()
    server, before = write_records(here, pid), process.create_time()
    tree = ProcessTree(os.getpid())
    with device_lock(here.services / "cpu-0.lock", run="one"), clock_stepped(tmp_path / "proc", seconds):
        assert psutil.Process(pid).create_time() == pytest.approx(before + seconds, abs=0.1), "the step is seen"
        service, recorded = running(here, "sleeper"), embedded.instance(here)
        assert service is not None
        assert recorded is not None
        assert {service.pid, recorded.pid} == {pid}
        assert find_service(record_path(here, "mlx-default-bot")) == recorded
        assert find_service(server.service.record) == recorded
        assert owner_alive(owner) is True
        assert str(holder(here.services / "cpu-0.lock")) == f"process {os.getpid()} of run one"
        tree.refresh()
        assert psutil.Process(pid) in tree.processes
        assert Sweeper(here.home, grace_s=0.0).look() == []
        assert stop(here, "sleeper", grace_s=5), "`down` finds it"
    assert running(here, "sleeper") is None


def test_a_record_of_an_older_version_is_recognised(process: psutil.Process) -> None:
    """It has the wall time of the start."""
    path = record_path(settings(), "sleeper")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "create_time": process.create_time()}))
    assert running(settings(), "sleeper") is not None
    path.write_text(json.dumps({**record, "create_time": process.create_time() - 5}))
    assert running(settings(), "sleeper") is None
    path.write_text(json.dumps(record))


def test_the_same_pid_after_a_reboot_or_another_start_is_another_process() -> None:
    start = process_start()
    assert isinstance(start, str)
    boot, _, ticks = start.partition("/")
    assert find_process(os.getpid(), start) == psutil.Process()
    assert find_process(os.getpid(), f"another-boot/{ticks}") is None
    assert find_process(os.getpid(), f"{boot}/{int(ticks) + 1}") is None
    assert find_process(2**22 + 1, start) is None
    assert find_process(-1, start) is None


def test_a_name_with_parentheses_does_not_hide_the_start(tmp_path: Path) -> None:
    """The second field of /proc/PID/stat is whatever a program calls itself."""
    named = tmp_path / "a) R 1 (b"
    named.symlink_to(sys.executable)
    with psutil.Popen([str(named), *SLEEP[1:]]) as child:
        start = str(process_start(child.pid))
        assert int(start.partition("/")[2]) >= int(str(process_start()).partition("/")[2])
        child.kill()
