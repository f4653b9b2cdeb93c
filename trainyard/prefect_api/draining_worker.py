"""Run a Prefect worker so that SIGTERM lets its runs save.

`python -m trainyard.prefect_api.draining_worker worker-command…`

A worker that receives SIGTERM kills its runs at once (measured: 0.16 s), so they save only what their children save on
the kernel's signal. Here the worker is frozen first, so that it takes no new run; its runs are asked to end, save, and
schedule themselves again as *preempted*; then the worker ends. A spot machine that is taken back needs this, and
`trainyard down` does it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil

from trainyard.compute.child import PR_SET_PDEATHSIG, alive, prctl

DRAIN_S = 24.0
"""Of the 30 s of a service manager or a spot machine; a run writes its state 22 s after the stop request."""
WORKER_STOP_S = 4.0
POLL_S = 0.2


def die_with_us() -> None:
    """Runs in the worker before it starts: a killed drainer must not leave an unknown worker."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def drain(worker: subprocess.Popen[bytes]) -> None:
    """Freeze the worker, let its runs save, end it."""
    worker.send_signal(signal.SIGSTOP)
    runs = psutil.Process(worker.pid).children()
    for run in runs:
        try:
            run.terminate()
        except psutil.NoSuchProcess:
            continue  # it has already ended
    deadline = time.monotonic() + DRAIN_S
    while any(map(alive, runs)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGCONT)
    try:
        worker.wait(WORKER_STOP_S)
    except subprocess.TimeoutExpired:
        worker.kill()


def main(argv: list[str]) -> int:
    """Run the worker to its end; return its exit code."""
    end = threading.Event()  # this process was asked to end
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _signal, _frame: end.set())
    worker = subprocess.Popen(argv, preexec_fn=die_with_us)  # noqa: PLW1509 (one thread)
    while worker.poll() is None:
        if end.is_set():
            drain(worker)
            worker.wait()
            return 0
        time.sleep(POLL_S)
    return worker.returncode if worker.returncode >= 0 else os.EX_SOFTWARE


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
