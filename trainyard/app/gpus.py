"""Load of the GPUs of this machine, and the jobs that use their memory.

The load of this machine without its GPUs: processors, memory, and what each running job uses of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil

from trainyard.app.context import Context
from trainyard.app.live.jobs import list_job_rows
from trainyard.app.live.waits import DeviceState, read_devices
from trainyard.app.responses import Response
from trainyard.compute.monitor import (
    Clocks,
    GpuMonitor,
    GpuReading,
    MonitorReading,
    ProcessMemory,
    read_amd,
    read_apple,
    read_nvidia,
)
from trainyard.errors import Unavailable
from trainyard.operations.base import Nothing
from trainyard.spec.states import JobState
from trainyard.stores.live.job_index import JobQuery, Row

MIB = 1024 * 1024


class CpuJob(Response):
    """Current load of the processes of one job."""

    job: str
    memory_mb: int
    processes: int


class MachineLoad(Response):
    """Processors and memory now."""

    processors: int
    load_1: float
    """Processes that run or wait for a processor, mean of one minute."""
    load_5: float
    memory_total_mb: int
    memory_used_mb: int
    """What no program could get now."""
    jobs: tuple[CpuJob, ...] = ()


def read_load(owners: dict[int, str]) -> MachineLoad:
    """Return the load now. `owners` has the job of each process."""
    memory = psutil.virtual_memory()
    load_1, load_5, _ = psutil.getloadavg()
    return MachineLoad(
        processors=os.cpu_count() or 1,
        load_1=round(load_1, 2),
        load_5=round(load_5, 2),
        memory_total_mb=memory.total // MIB,
        memory_used_mb=(memory.total - memory.available) // MIB,
        jobs=tuple(use_of_jobs(owners)),
    )


def use_of_jobs(owners: dict[int, str]) -> list[CpuJob]:
    """Return the resident memory of each job's processes, the largest first."""
    used: dict[str, list[int]] = {}
    for pid, job in owners.items():
        try:
            used.setdefault(job, []).append(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            continue  # it has ended meanwhile
    jobs = [CpuJob(job=job, memory_mb=sum(sizes) // MIB, processes=len(sizes)) for job, sizes in used.items()]
    return sorted(jobs, key=lambda job: -job.memory_mb)


MONITOR = GpuMonitor((read_nvidia, read_amd, read_apple))
"""One look for all who ask in this process."""
MOST_RUNNING = 1000


class GpuJob(Response):
    """The memory of one job on one GPU, or of the processes outside of jobs."""

    job: str | None
    """Its id; None for processes outside of jobs."""
    memory_mb: int | None
    """Of all its processes; None where the driver does not say."""
    pids: tuple[int, ...]


class GpuUse(Response):
    """A GPU now; used and free memory add up to the total. None: the device does not say."""

    index: int
    name: str
    memory_total_mb: int
    memory_used_mb: int
    memory_free_mb: int
    utilization_gpu: int | None
    utilization_memory: int | None
    temperature_c: int | None
    power_draw_w: float | None
    clock_graphics_mhz: int | None
    clock_memory_mhz: int | None
    processes: tuple[GpuJob, ...]


class GpuList(Response):
    state: str
    """`ok`, `no GPU`, or why they could not be read."""
    gpus: tuple[GpuUse, ...]
    driver_version: str | None
    cuda_version: str | None
    alerts: tuple[str, ...] = ()
    """GPUs that use more of their memory than `gpu_memory_alert_percent`."""
    devices: tuple[DeviceState, ...] = ()
    """Which job or session has each device of this machine, and which wait for it; 0 is the CPU where no GPU is."""
    machine: MachineLoad | None = None
    """Processors and memory, and what each running job uses of them."""


def show_gpus(request: Nothing, context: Context) -> GpuList:
    """Return every GPU as it was at most two seconds ago. A caller of one tenant sees the processes of its own jobs."""
    return list_gpus(MONITOR.read(), context)


def list_gpus(reading: MonitorReading, context: Context) -> GpuList:
    """Return a reading with the jobs that its processes belong to."""
    owners = find_owners(running_jobs(context))
    return GpuList(
        state=reading.state,
        gpus=tuple(describe_use(gpu, owners, only_jobs=bool(context.caller.tenant)) for gpu in reading.gpus),
        driver_version=reading.driver_version,
        cuda_version=reading.cuda_version,
        alerts=tuple(describe_full_gpus(reading, context.settings.gpu_memory_alert_percent)),
        devices=tuple(read_devices(context.settings, context.caller.tenant)),
        machine=read_load(owners),
    )


def describe_full_gpus(reading: MonitorReading, percent: int) -> Iterator[str]:
    """Yield a sentence for each GPU that uses at least so many percent of its memory; 0: none."""
    for gpu in reading.gpus if percent else ():
        if 100 * gpu.memory_used_mb >= percent * max(1, gpu.memory_total_mb):
            yield f"GPU {gpu.index} ({gpu.name}) uses {gpu.memory_used_mb:,} of {gpu.memory_total_mb:,} MiB."


def describe_use(gpu: GpuReading, owners: dict[int, str], *, only_jobs: bool) -> GpuUse:
    clocks: Clocks = gpu.clocks
    read: dict[str, object] = {name: getattr(gpu, name) for name in GpuUse.model_fields if hasattr(gpu, name)}
    read |= {"clock_graphics_mhz": clocks.graphics_mhz, "clock_memory_mhz": clocks.memory_mhz}
    return GpuUse(**read | {"processes": tuple(group_by_job(gpu.processes, owners, only_jobs=only_jobs))})


def group_by_job(processes: tuple[ProcessMemory, ...], owners: dict[int, str], *, only_jobs: bool) -> Iterator[GpuJob]:
    """Yield the processes of a GPU by their jobs, the others last."""
    jobs: dict[str | None, list[ProcessMemory]] = {}
    for process in processes:
        jobs.setdefault(owners.get(process.pid), []).append(process)
    for job in sorted(jobs, key=lambda job: (job is None, job or "")):
        if job is None and only_jobs:
            continue
        sizes = [process.memory_mb for process in jobs[job] if process.memory_mb is not None]
        pids = tuple(sorted(process.pid for process in jobs[job]))
        yield GpuJob(job=job, memory_mb=sum(sizes) if len(sizes) == len(jobs[job]) else None, pids=pids)


def running_jobs(context: Context) -> list[Row]:
    """Return the jobs that have a process here; empty where Prefect does not answer."""
    query = JobQuery(tenant=context.caller.tenant, state=JobState.RUNNING, limit=MOST_RUNNING)
    try:
        return [row for row in list_job_rows(query, context).page.rows if row["pid"]]
    except Unavailable:
        return []


def find_owners(rows: list[Row]) -> dict[int, str]:
    """Process -> its job: the run's own process and everything below it."""
    owners: dict[int, str] = {}
    for row in rows:
        try:
            root = psutil.Process(row["pid"])
            owners |= {process.pid: row["id"] for process in (root, *root.children(recursive=True))}
        except psutil.Error:
            continue  # it has ended meanwhile
    return owners
