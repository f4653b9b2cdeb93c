"""The API as a process of its own, as `trainyard serve` starts it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainyard.compute.services import free_port

START_S = 60.0


@contextmanager
def serving(*options: str) -> Iterator[int]:
    """The API as `trainyard serve` starts it; yields its port."""
    port = free_port(20_000)
    argv = [sys.executable, "-m", "trainyard.cli", "serve", "--role", "training", "--port", str(port), *options]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            begun = time.monotonic()
            for line in process.stderr:
                assert time.monotonic() - begun < START_S
                if "answers at" in line:
                    break
            else:
                raise AssertionError(f"the service ended: {process.wait()}")
            yield port
        finally:
            process.terminate()
            process.wait(30)
