"""The device lock between real processes, and what is read about the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainyard.compute.gpus import (
    cgroup_cores,
    device_numbers,
    list_devices,
    physical_cores,
    read_amd_memory,
    read_gpus,
    select_devices,
    training_threads,
)
from trainyard.compute.lease import (
    Patience,
    claim_devices,
    device_lock,
    device_locks,
    first_lock,
    holder,
    slot_lock,
    turn_lock,
)
from trainyard.errors import Conflict
from trainyard.settings import load_settings

HOLD = """
import sys, time
from pathlib import Path
from trainyard.compute.lease import device_lock
with device_lock(Path(sys.argv[1]), run="night-7"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold(path: Path, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_second_holder_is_told_who_has_the_device(tmp_path: Path) -> None:
    path = tmp_path / "cuda-0.lock"
    with hold(path, 60) as process:
        lock_holder = holder(path)
        assert lock_holder is not None
        assert (lock_holder.pid, lock_holder.run) == (process.pid, "night-7")
        with pytest.raises(Conflict, match=rf"cuda-0 is in use by process {process.pid} of run night-7"):
            device_lock(path).__enter__()
        process.kill()
        process.wait()
        assert holder(path) is None
        with device_lock(path, run="mine"):
            assert holder(path) is not None


def test_lock_waits_for_a_holder_that_is_leaving(tmp_path: Path) -> None:
    path = tmp_path / "cpu.lock"
    with hold(path, 0.5), device_lock(path, wait_s=10) as own_lock:
        assert own_lock.pid > 0


def test_waiting_for_the_lock_can_be_given_up(tmp_path: Path) -> None:
    path = tmp_path / "cpu.lock"
    start = time.monotonic()
    with device_lock(path), pytest.raises(Conflict, match="One training at a time"):
        device_lock(path, wait_s=60, give_up=lambda: True).__enter__()
    assert time.monotonic() - start < 120


def test_the_steps_of_a_claim_are_taken_in_their_order_and_given_back(home: Path) -> None:
    here, turn = load_settings(), turn_lock(home / "runs" / "training" / "abc")
    steps: list[tuple[int, bool, bool]] = []

    @contextmanager
    def limit(device: int, give_up: Callable[[], bool]) -> Iterator[None]:
        assert not give_up()
        steps.append((device, holder(turn) is not None, holder(slot_lock(here, device)) is not None))
        yield
        steps.append((device, False, False))

    with claim_devices(here, 2, run="mine", among=(3, 1, 2), turn=turn, limit=limit) as devices:
        assert devices == (1, 2)
        assert str(holder(slot_lock(here, 2))) == f"process {os.getpid()} of run mine"
        assert holder(slot_lock(here, 3)) is None
    assert steps == [(1, True, True), (2, True, True), (2, False, False), (1, False, False)]
    assert [holder(path) for path in (turn, slot_lock(here, 1), slot_lock(here, 2))] == [None] * 3


@pytest.mark.parametrize("wait_s", [0.0, 0.5])
def test_a_claim_waits_no_longer_than_it_may_and_names_the_holder(home: Path, wait_s: float) -> None:
    here = load_settings()
    with hold(slot_lock(here, 0), 60) as other:
        began = time.monotonic()
        with pytest.raises(Conflict, match=r"E-DEVICE-BUSY: slot-0 is in use by process \d+ of run night-7"):
            claim_devices(here, among=(0,), patience=Patience(wait_s=wait_s)).__enter__()
        assert wait_s <= time.monotonic() - began < 120
        other.kill()


def test_a_job_holds_the_lock_of_each_of_its_devices(tmp_path: Path) -> None:
    with device_locks(tmp_path, "cuda", (3, 1), run="mine"):
        held = [holder(tmp_path / f"cuda-{number}.lock") for number in range(4)]
        assert [lock_holder.run if lock_holder else "" for lock_holder in held] == ["", "mine", "", "mine"]
    with hold(tmp_path / "cuda-3.lock", 60) as other:
        with pytest.raises(Conflict, match="cuda-3 is in use"):
            device_locks(tmp_path, "cuda", (1, 3)).__enter__()
        assert holder(tmp_path / "cuda-1.lock") is None  # given back
        other.kill()


def test_a_job_waits_for_an_orphan_on_another_device_that_saves_in_its_folder(tmp_path: Path) -> None:
    with device_locks(tmp_path, "cuda", (0,), work=tmp_path):
        with pytest.raises(Conflict, match="work is in use by"):
            device_locks(tmp_path, "cuda", (1,), work=tmp_path).__enter__()
        assert holder(tmp_path / "cuda-1.lock") is None
    with device_locks(tmp_path, "cuda", (1,), work=tmp_path):
        assert holder(tmp_path / "cuda-1.lock") is not None


def test_the_first_free_lock_is_taken(tmp_path: Path) -> None:
    paths = [tmp_path / f"slot-{number}.lock" for number in range(2)]
    with hold(paths[0], 60) as other, first_lock(lambda: paths) as own_path:
        assert own_path == paths[1]
        with pytest.raises(Conflict, match="slot-0 is in use"):
            first_lock(lambda: paths, give_up=lambda: True).__enter__()
        other.kill()
        other.wait()
        with first_lock(lambda: paths) as second:
            assert second == paths[0]


@pytest.mark.parametrize(
    ("visible", "simulated", "numbers"),
    [(None, None, (0,)), (None, "3", (0, 1, 2)), ("", "2", (0, 1)), ("5, 2", "3", (2, 5)), ("MIG-4f", None, (0,))],
)
@pytest.mark.skipif(bool(read_gpus().gpus), reason="this machine has GPUs, which are counted first")
def test_the_devices_of_a_machine_without_a_gpu(
    visible: str | None, simulated: str | None, numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("TRAINYARD_SIMULATED_DEVICES", simulated)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert device_numbers() == numbers


def test_half_written_holder_is_not_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cpu.lock"
    with device_lock(path):
        path.write_text("{")
        lock_holder = holder(path)
    assert lock_holder is not None
    assert lock_holder.pid == 0


def test_machine_is_read_without_a_gpu_and_without_torch() -> None:
    readings = read_gpus()
    assert readings.state == "no NVIDIA driver" or readings.gpus or readings.state
    assert physical_cores() >= 1
    assert training_threads(0) == physical_cores()
    assert training_threads(3) == 3
    code = "import sys, trainyard.compute.gpus, trainyard.compute.supervise; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("text", "cores"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1)])
def test_quota_of_a_container_bounds_the_threads(tmp_path: Path, text: str, cores: int | None) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(text + "\n")
    assert cgroup_cores(path) == cores


@pytest.mark.parametrize(
    ("system", "machine", "has_gpu", "expected"),
    [
        ("linux", "x86_64", False, ["cpu"]),
        ("linux", "x86_64", True, ["cuda", "cpu"]),
        ("darwin", "arm64", False, ["mps", "cpu"]),
        ("darwin", "x86_64", False, ["cpu"]),
        ("linux", "aarch64", False, ["cpu"]),
    ],
)
def test_the_devices_of_a_machine_fastest_first(system: str, machine: str, has_gpu: bool, expected: list[str]) -> None:
    assert [device.value for device in select_devices(system, machine, has_gpu=has_gpu)] == expected


def test_an_amd_gpu_is_a_device_of_its_own() -> None:
    devices = select_devices("linux", "x86_64", has_gpu=False, has_amd=True)
    assert [device.value for device in devices] == ["rocm", "cpu"]


def test_amd_gpus_are_read_from_the_kernel(tmp_path: Path) -> None:
    """A processor is a node too, without compute units; of a GPU its own memory counts, not the CPU's."""
    for node, units, banks in (
        (0, 0, [(0, 64 << 30)]),
        (1, 304, [(1, 190 << 30), (2, 2 << 30), (0, 8 << 30)]),
        (2, 256, []),  # one that is not passed into this container
    ):
        node_folder = tmp_path / str(node)
        node_folder.mkdir()
        (node_folder / "properties").write_text(f"cpu_cores_count 0\nsimd_count {units}\nname x\n")
        for number, (kind, size) in enumerate(banks):
            bank = node_folder / "mem_banks" / str(number)
            bank.mkdir(parents=True)
            (bank / "properties").write_text(f"heap_type {kind}\nsize_in_bytes {size}\n")
    assert read_amd_memory(tmp_path) == (192 << 30,)
    assert read_amd_memory(tmp_path / "absent") == ()


def test_hidden_gpus_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "cuda" not in list_devices()
    assert "cpu" in list_devices()
