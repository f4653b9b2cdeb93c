"""The devices of this machine: GPUs by NVML and the kernel, CPU threads and the CPU's dtypes. Imports no torch.

"No NVIDIA driver" is a state like any other, not an error: most first runs happen without a GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from trainyard.spec.axes.devices import Device

MIB = 1 << 20
FIRST_BF16_CAPABILITY = (8, 0)
NVML_LIBRARY, NO_DRIVER = "libnvidia-ml.so.1", "no NVIDIA driver"
VIDEO_MEMORY = (1, 2)
"""Kinds of memory that are a GPU's own: visible to the CPU, and private."""
AMD_HIDING_VARIABLES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
HIDING_VARIABLE, SIMULATED_VARIABLE = "CUDA_VISIBLE_DEVICES", "TRAINYARD_SIMULATED_DEVICES"


@dataclass(frozen=True)
class Gpu:
    """A reading of one GPU."""

    index: int
    name: str
    uuid: str
    memory_mb: int
    memory_used_mb: int
    utilization_percent: int | None
    processes: tuple[int, ...]
    """Pids that compute on it now."""
    capability: tuple[int, int] = (0, 0)
    """CUDA's compute capability, (major, minor); (0, 0) where NVML does not know it."""

    @property
    def native_bf16(self) -> bool:
        """Whether it multiplies bf16 in hardware: from Ampere (8.0) on, and so not a V100 (7.0) or a T4 (7.5)."""
        return self.capability >= FIRST_BF16_CAPABILITY


@dataclass(frozen=True)
class GpuReadings:
    """All GPUs, or the reason why there are none."""

    state: str
    """`ok`, `NO_DRIVER`, or NVML's own words."""
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()


def import_nvml() -> Any:
    """Import pynvml (60 ms); None without the driver's library, which pynvml would look for in the same way."""
    try:
        ctypes.CDLL(NVML_LIBRARY)
    except OSError:
        return None
    return importlib.import_module("pynvml")


def read_gpus() -> GpuReadings:
    """Return a reading of every NVIDIA GPU through NVML; never raises."""
    pynvml = import_nvml()
    if pynvml is None:
        return GpuReadings(NO_DRIVER)
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return GpuReadings(NO_DRIVER)
    except pynvml.NVMLError as error:
        return GpuReadings(str(error))
    try:
        gpus = tuple(read_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        return GpuReadings("ok", pynvml.nvmlSystemGetDriverVersion(), gpus)
    except pynvml.NVMLError as error:
        return GpuReadings(str(error))
    finally:
        pynvml.nvmlShutdown()


def read_gpu(pynvml: Any, index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        memory_mb=memory.total // MIB,
        memory_used_mb=memory.used // MIB,
        utilization_percent=utilization(pynvml, handle),
        processes=tuple(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        capability=pynvml.nvmlDeviceGetCudaComputeCapability(handle),
    )


def list_devices() -> tuple[Device, ...]:
    """Return this machine's devices, the fastest first: the one answer for check, plan, run and every backend."""
    has_gpu = os.environ.get(HIDING_VARIABLE) != "" and bool(read_gpus().gpus)
    hidden = any(os.environ.get(name) == "" for name in (HIDING_VARIABLE, *AMD_HIDING_VARIABLES))
    has_amd = not hidden and bool(read_amd_memory()) and "+rocm" in version("torch")
    return select_devices(sys.platform, platform.machine(), has_gpu=has_gpu, has_amd=has_amd)


def select_devices(system: str, machine: str, *, has_gpu: bool, has_amd: bool = False) -> tuple[Device, ...]:
    """NVML sees NVIDIA's GPUs, the kernel AMD's; a Mac with a processor of Apple's has MPS; a CPU is everywhere."""
    has_mps = (system, machine) == ("darwin", "arm64")
    devices = {Device.CUDA: has_gpu, Device.ROCM: has_amd, Device.MPS: has_mps, Device.CPU: True}
    return tuple(device for device, present in devices.items() if present)


def read_amd_memory(nodes: Path = Path("/sys/class/kfd/kfd/topology/nodes")) -> tuple[int, ...]:
    """Bytes of each AMD GPU that the kernel's compute driver lists; a node without compute units is a CPU.

    Source: include/uapi/linux/kfd_sysfs.h of Linux. A GPU of which torch's build knows nothing, such as one in a
    processor, is listed too: it counts only where torch is a build for ROCm.
    """
    sizes = []
    for node in sorted(nodes.glob("*")):
        banks = [read_properties(path) for path in node.glob("mem_banks/*/properties")]
        size = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in VIDEO_MEMORY)
        if read_properties(node / "properties").get("simd_count", 0) > 0 and size > 0:
            sizes.append(size)
    return tuple(sizes)


def read_properties(path: Path) -> dict[str, int]:
    """Return the lines `name number` of a file of the kernel; {} where this process may not read it."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}


def device_numbers() -> tuple[int, ...]:
    """Return the devices that trainings of this process take turns on, in ascending order: GPUs by NVML's number, or 0.

    `CUDA_VISIBLE_DEVICES` leaves those that it names. Without a GPU the CPU is device 0;
    `TRAINYARD_SIMULATED_DEVICES` splits it into that many devices, whose trainings share the cores.
    """
    named = visible_devices()
    if named:
        return tuple(sorted(named))
    gpus = read_gpus().gpus if HIDING_VARIABLE not in os.environ else ()
    return tuple(gpu.index for gpu in gpus) or tuple(range(max(1, int(os.environ.get(SIMULATED_VARIABLE) or 1))))


def device_memory(device: Device) -> int | None:
    """Bytes of each device that a training may be given; None where they are not known.

    Of a CPU, and of MPS, which shares its memory: those of the machine, or of its container. What is in use now does
    not count, because a training has its device alone, and waits for it.
    """
    if device is Device.ROCM:
        return min(read_amd_memory(), default=None)
    if device is Device.CUDA:
        numbers = device_numbers()
        return min((gpu.memory_mb * MIB for gpu in read_gpus().gpus if gpu.index in numbers), default=None)
    return min(filter(None, (psutil.virtual_memory().total, container_memory())))


def container_memory(path: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    """Return the limit of the container that this process runs in; None without one (cgroup v2)."""
    text = path.read_text().strip() if path.is_file() else "max"
    return None if text == "max" else int(text)


def visible_devices() -> dict[int, str]:
    """NVML's number -> how `CUDA_VISIBLE_DEVICES` names it; empty if it is not set, hides all, or names slices."""
    entries = [word.strip() for word in os.environ.get(HIDING_VARIABLE, "").split(",") if word.strip()]
    if all(word.isdigit() for word in entries):
        return {int(word): word for word in entries}
    indices = {word: [gpu.index for gpu in read_gpus().gpus if gpu.uuid.startswith(word)] for word in entries}
    return {matches[0]: word for word, matches in indices.items()} if all(indices.values()) else {}


def utilization(pynvml: Any, handle: object) -> int | None:
    """Return the utilization in percent over the last sampling period; None for a slice of a GPU, which has none."""
    try:
        return int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError_NotSupported:
        return None


def physical_cores() -> int:
    """Physical cores that this process may use: two hyperthreads of one core do not multiply matrices faster."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed, cgroup_cores() or physical))


def cgroup_cores(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> int | None:
    """Cores that the container's quota allows, rounded up; None without a quota (cgroup v2 `cpu.max`)."""
    if not path.is_file():
        return None
    quota, _, period = path.read_text().strip().partition(" ")
    return None if quota == "max" else max(1, -(-int(quota) // int(period)))


def training_threads(threads: int) -> int:
    """Return the threads of a CPU training child: the requested number, or one per physical core when that is 0."""
    return threads or physical_cores()
