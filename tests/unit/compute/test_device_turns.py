"""Two processes that want one device never have it at once, and nobody else is on it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from trainyard.compute.gpus import Gpu, GpuReadings
from trainyard.compute.lease import OCCUPIED_MEMORY_MB, device_lock, occupants, wait_until_empty
from trainyard.errors import Conflict

pytestmark = pytest.mark.integration

TRIES, CONTENDERS = 200, 4
TAKE_TURNS = """
import sys, time
from pathlib import Path
from trainyard.compute import lease
lease.POLL_S = 0.001
lock, times, spans = Path(sys.argv[1]), int(sys.argv[2]), []
for _ in range(times):
    with lease.device_lock(lock, run="turns", wait_s=60):
        start = time.monotonic()
        time.sleep(0.002)
        spans.append(f"{start} {time.monotonic()}")
print("\\\\n".join(spans))
""".replace("\\\\n", "\\n")


def test_processes_never_overlap_on_a_device(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", TAKE_TURNS, str(tmp_path / "cuda-0.lock"), str(TRIES // CONTENDERS)]
    contenders = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(CONTENDERS)]
    lines = [line for contender in contenders for line in contender.communicate(timeout=120)[0].splitlines()]
    spans = sorted(tuple(map(float, line.split())) for line in lines)
    assert len(spans) == TRIES
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))


@pytest.mark.slow
@pytest.mark.faults
def test_a_killed_holder_hands_over_within_a_second(tmp_path: Path) -> None:
    hold = "import sys, time; from pathlib import Path; from trainyard.compute.lease import device_lock\n"
    hold += "with device_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    for _ in range(10):
        argv = [sys.executable, "-c", hold, str(tmp_path / "cpu.lock")]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            threading.Timer(0.2, holder.kill).start()
            with device_lock(tmp_path / "cpu.lock", wait_s=1.2):
                assert holder.wait() == -9


def gpu(*pids: int, used_mb: int = 900) -> GpuReadings:
    return GpuReadings("ok", "580.1", (Gpu(0, "H200", "GPU-1", 141_000, used_mb, 0, pids),))


@pytest.mark.parametrize(
    ("readings", "own_pids", "expected"),
    [
        (GpuReadings("no NVIDIA driver"), frozenset(), ""),
        (gpu(), frozenset(), ""),
        (gpu(4711), frozenset(), "process 4711"),
        (gpu(4711, 4712), frozenset({4711}), "process 4712"),
        (gpu(os.getpid()), frozenset(), ""),
        (gpu(used_mb=OCCUPIED_MEMORY_MB + 1), frozenset(), "an unknown process that uses 2,049 MB of its memory"),
        (gpu(4711, used_mb=90_000), frozenset({4711}), ""),
    ],
)
def test_who_is_on_a_device(readings: GpuReadings, own_pids: frozenset[int], expected: str) -> None:
    assert occupants(0, readings, own_pids) == expected
    assert occupants(1, readings, own_pids) == ""


def test_a_device_is_waited_for_until_the_other_has_left() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"]) as other:

        def read() -> GpuReadings:
            return gpu(other.pid) if other.poll() is None else gpu()

        wait_until_empty(0, read=read, wait_s=30)
        assert other.poll() == 0


def test_a_device_that_stays_taken_is_told() -> None:
    message = r"E-DEVICE-OCCUPIED: The device cuda:0 is in use by process 4711\..*CUDA_VISIBLE_DEVICES"
    with pytest.raises(Conflict, match=message):
        wait_until_empty(0, read=lambda: gpu(4711), wait_s=0)
    with pytest.raises(Conflict, match="E-DEVICE-OCCUPIED"):
        wait_until_empty(0, read=lambda: gpu(4711), wait_s=60, give_up=lambda: True)
