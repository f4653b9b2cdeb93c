"""Run a module with the garbage collector in a thread of its own.

`python -m trainyard.prefect_api.gc_thread MODULE ARGUMENTS…`

For the Prefect server on SQLite. A statement that fails with "database is locked" leaves its cursor in a reference
cycle. If the collector runs in the event loop and frees such a cursor while another thread waits on its connection for
the write lock, the loop waits with it: for a transaction that only the loop could end. SQLite gives up after a minute,
in which the server does not answer. In a thread of its own the collector waits alone, and the loop continues.

A short command of Prefect, most of which is imports, spends no time on collections this way.
"""

from __future__ import annotations

import gc
import runpy
import sys
import threading
import time

YOUNG_S = 1.0
"""Seconds between two collections of recent objects; each takes milliseconds."""
YOUNG_PER_FULL = 30
"""A full collection every 30 s. The first also freezes what was imported (`gc.freeze`); later ones are short."""


def collect_for_ever() -> None:
    frozen = False
    while True:
        for _ in range(YOUNG_PER_FULL):
            time.sleep(YOUNG_S)
            gc.collect(1)
        gc.collect()
        if not frozen:
            gc.freeze()
            frozen = True


def main(module: str) -> None:
    gc.disable()
    threading.Thread(target=collect_for_ever, name="garbage collector", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
