"""Children whose parent died without them, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trainyard.compute.child import PARENT_VARIABLE
from trainyard.compute.leftovers import Sweeper, orphans, sweep

pytestmark = pytest.mark.integration

STUBBORN = """
import signal, time
for number in (signal.SIGTERM, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
time.sleep(120)
"""
PARENT = """
import os, subprocess, sys
environment = {**os.environ, sys.argv[2]: str(os.getpid())}
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=environment, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def family(home: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A parent of this home, and its child that ignores every request to end."""
    argv = [sys.executable, "-c", PARENT, STUBBORN, PARENT_VARIABLE]
    environment = {**os.environ, "TRAINYARD_HOME": str(home)}
    parent = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    while PARENT_VARIABLE not in child.environ():  # the kernel shows it a moment after the parent's `Popen` returns
        time.sleep(0.01)
    with parent:
        yield parent, child
        parent.kill()
    if child.is_running():
        child.kill()


def end(parent: subprocess.Popen[str]) -> None:
    parent.kill()
    parent.wait()


def orphan_pids(home: Path) -> list[int]:
    return [process.pid for process in orphans(home)]


def test_a_child_is_an_orphan_when_its_parent_is_gone(
    family: tuple[subprocess.Popen[str], psutil.Process], home: Path, tmp_path: Path
) -> None:
    parent, child = family
    assert orphan_pids(home) == []
    end(parent)
    assert orphan_pids(home) == [child.pid]
    assert orphan_pids(tmp_path / "another-home") == []


def test_an_orphan_has_its_grace_and_is_ended_then(
    family: tuple[subprocess.Popen[str], psutil.Process], home: Path
) -> None:
    parent, child = family
    end(parent)
    sweeper = Sweeper(home, grace_s=0.5)
    assert sweeper.look() == []
    assert child.is_running()
    time.sleep(0.6)
    assert sweeper.look() == [child.pid]
    assert orphan_pids(home) == []


def test_a_sweep_waits_for_the_grace(family: tuple[subprocess.Popen[str], psutil.Process], home: Path) -> None:
    parent, child = family
    assert sweep(home) == [], "the child of a living parent is left alone, at once"
    end(parent)
    assert sweep(home, grace_s=30, give_up=lambda: True) == []
    assert sweep(home, grace_s=0.3) == [child.pid]
