"""A module that runs while its garbage is collected in another thread, so that nothing there holds the main one up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, sys, threading, time

class Stubborn:
    def __init__(self): self.itself = self
    def __del__(self):
        told.append(threading.current_thread().name)
        time.sleep(5)

told = []
Stubborn()
deadline = time.monotonic() + 60
while not told and time.monotonic() < deadline:
    many = [[] for _ in range(10_000)]  # enough for a collection of its own, were there one
    time.sleep(0.01)
print(__name__, sys.argv[1:], told, gc.isenabled())
"""


def test_the_collector_waits_in_a_thread_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "trainyard.prefect_api.gc_thread", "stubborn", "start", "--port", "1"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == "__main__ ['start', '--port', '1'] ['garbage collector'] False\n"


def test_the_status_of_the_module_is_the_programs(tmp_path: Path) -> None:
    (tmp_path / "refusing.py").write_text("raise SystemExit('the port is taken')")
    argv = [sys.executable, "-m", "trainyard.prefect_api.gc_thread", "refusing"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "the port is taken\n")
