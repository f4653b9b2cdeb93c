"""A Dask scheduler and its workers as an operator starts them, each a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

START_S = 120


class Cluster:
    """A scheduler on loopback, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.file = folder / "scheduler.json"
        self.scheduler = self.start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
        deadline = time.monotonic() + START_S
        while not self.file.is_file() or not self.file.read_text():
            assert time.monotonic() < deadline, "the scheduler did not start"
            time.sleep(0.05)
        self.address: str = json.loads(self.file.read_text())["address"]

    def start(
        self, program: str, *options: str, environment: Mapping[str, str] | None = None, before: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        argv = [
            *before,
            sys.executable,
            "-m",
            f"distributed.cli.{program}",
            "--no-dashboard",
            "--scheduler-file",
            str(self.file),
        ]
        # The flow tests of this process may have set the address of their server: an operator's shell has none.
        shell = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
        with (self.folder / f"{program}-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*argv, *options], stdout=log, stderr=log, cwd=self.folder, env={**shell, **(environment or {})}
            )
        self.processes.append(process)
        return process

    def start_worker(
        self, environment: Mapping[str, str] | None = None, before: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a worker of this checkout, by the command `before` if there is one; return when it is registered."""
        log = self.folder / f"dask_worker-{len(self.processes)}.log"
        worker = self.start(
            "dask_worker",
            "--no-nanny",
            "--nthreads",
            "1",
            "--local-directory",
            str(self.folder),
            environment=environment,
            before=before,
        )
        deadline = time.monotonic() + START_S
        while b"Registered to" not in log.read_bytes():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        return worker

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
