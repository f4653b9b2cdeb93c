"""What killed processes leave: temporary folders, lock files, logs, and services that have to be started again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from trainyard.app.services import spawn, stop
from trainyard.compute.leftovers import LONGEST_PATH, sweep_locks, sweep_temporary, temporary_folder
from trainyard.compute.services import record_path, rotate_log
from trainyard.prefect_api.reviving import BACK_OFF_S, Reviver, list_dead_services
from trainyard.settings import settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.files import RealFiles

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_only_folders_that_nobody_uses_are_removed(home: Path) -> None:
    folder = temporary_folder(home)
    names = ("prefect-workspace-attempt-dead", "tmpdeadprefect", "tmplivingprefect", "tmpnamedprefect", "mine")
    for name in names:
        (folder / name / "flows").mkdir(parents=True)
    named = {**os.environ, "WORKSPACE": str(folder / "tmpnamedprefect" / "flows")}
    with (
        subprocess.Popen(SLEEP, cwd=folder / "tmplivingprefect" / "flows") as inside,
        subprocess.Popen(SLEEP, env=named) as naming,
    ):
        assert sweep_temporary(home) == [], "all are young"
        removed = sweep_temporary(home, young_s=0.0)
        inside.kill()
        naming.kill()
    assert sorted(path.name for path in removed) == ["prefect-workspace-attempt-dead", "tmpdeadprefect"]
    assert sorted(path.name for path in folder.iterdir()) == ["mine", "tmplivingprefect", "tmpnamedprefect"]
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir()


def test_the_folder_is_private_and_its_path_short(tmp_path: Path) -> None:
    long = tmp_path / ("x" * LONGEST_PATH)
    for home in (Path("/tmp") / f"ty-{os.getpid()}", long):
        folder = temporary_folder(home)
        assert len(str(folder)) <= LONGEST_PATH
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder == temporary_folder(home)
        folder.rmdir()
    (Path("/tmp") / f"ty-{os.getpid()}").rmdir()


def test_a_deployment_that_waits_for_a_swept_lock_still_has_it_alone(home: Path) -> None:
    registry = AdapterRegistry(home / "adapters")
    with registry.deploying("acme", "bot"):
        assert sweep_locks(home / "adapters") == [], "it is held"
    inside, most = [0], [0]

    def deploy() -> None:
        for _ in range(30):
            with RealFiles().locked(home / "adapters" / "acme" / "bot" / ".deploying"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.001)
                inside[0] -= 1

    threads = [threading.Thread(target=deploy) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        sweep_locks(home / "adapters")
    for thread in threads:
        thread.join()
    assert most == [1]
    sweep_locks(home / "adapters")
    assert list((home / "adapters").rglob(".deploying")) == []


def test_the_log_of_a_service_that_crashed_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    for number in range(4):
        rotate_log(log, keep=2)
        log.write_text(f"start {number}")
    rotate_log(log, keep=2)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "server.log.1": "start 3",
        "server.log.2": "start 2",
    }


def test_only_what_died_is_dead_and_what_was_stopped_is_not(home: Path) -> None:
    here = settings()
    service = spawn(here, "worker", SLEEP, os.environ, "http://127.0.0.1:1/api")
    assert list_dead_services(here) == []
    process = service.process()
    assert process is not None
    process.kill()
    process.wait()
    assert list_dead_services(here) == ["worker"]
    assert not stop(here, "worker"), "`down` removes the record"
    assert list_dead_services(here) == []


@pytest.mark.slow
def test_restarts_come_less_often_the_more_often_a_service_dies(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that restarts is real; here it finds no server that could be reached, and ends."""
    here = settings()
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    service = spawn(here, "worker", SLEEP, os.environ, "http://127.0.0.1:9/api")
    psutil.Process(service.pid).kill()
    psutil.Process(service.pid).wait()
    reviver = Reviver(here)
    assert reviver.look() == ["worker died and is started again (try 1)"]
    assert reviver.child is not None
    assert reviver.look() == [], "one at a time"
    reviver.child.wait(60)
    assert [reviver.look(), reviver.look()] == [[], []], "not before its time"
    reviver.next_at -= BACK_OFF_S[1]
    assert reviver.look() == ["worker died and is started again (try 2)"]
    reviver.child.wait(60)
    assert record_path(here, "worker").is_file()
