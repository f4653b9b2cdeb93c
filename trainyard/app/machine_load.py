"""The load of this machine without its GPUs: processors, memory, and what each running job uses of them."""

from __future__ import annotations

import os

import psutil

from trainyard.app.responses import Response

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
