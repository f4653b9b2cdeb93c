"""Prefect's task runners for pieces: a cluster of this machine's own for the time of a node, or one that runs already.

A cluster of its own listens on loopback alone and takes no work without its certificate (Dask) or token (Ray): who can
send it a task can run code. Its files are in a temporary folder.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import parent_process
from typing import Any, NamedTuple

from prefect.futures import PrefectFuture
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from trainyard.settings import FanOutSettings

Runner = TaskRunner[Any]
Future = PrefectFuture[Any]
CONNECT_S = 15
RAY_STORE_BYTES = 80 << 20
"""Memory of the object store of a local Ray; pieces send a few hundred bytes."""
LOOPBACK = "127.0.0.1"


class Engine(NamedTuple):
    """How an engine's runner is started, and how a piece that nobody waits for any more is given up."""

    start: Callable[[FanOutSettings], AbstractContextManager[Runner]]
    give_up: Callable[[Any], None]
    is_lost: Callable[[Any], bool] = lambda _: False
    """Whether a runner has lost its cluster; its pieces then never end."""


@contextmanager
def start_threads(settings: FanOutSettings) -> Iterator[Runner]:
    runner: Runner = ThreadPoolTaskRunner(max_workers=settings.num_workers)
    with runner:
        yield runner


def end_with_parent() -> None:
    """End this worker with the process that started it: a pool's workers wait for each other's pipes otherwise."""
    parent = parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def start_processes(settings: FanOutSettings) -> Iterator[Runner]:
    with ProcessPoolTaskRunner(max_workers=settings.num_workers, initializer=end_with_parent) as runner:
        yield runner


@contextmanager
def start_dask(settings: FanOutSettings) -> Iterator[Runner]:
    from prefect_dask import DaskTaskRunner  # an extra; imports all of distributed

    logging.getLogger("distributed").setLevel(logging.ERROR)  # keeps its hellos and goodbyes out of the run's log
    with tempfile.TemporaryDirectory(prefix="trainyard-dask-", ignore_cleanup_errors=True) as folder:
        if settings.address:
            runner = DaskTaskRunner(address=settings.address, client_kwargs={"timeout": CONNECT_S})
        else:
            local: Mapping[str, Any] = {
                "n_workers": settings.num_workers, "threads_per_worker": 1, "host": LOOPBACK, "security": True,
                "dashboard_address": f"{LOOPBACK}:0", "local_directory": folder, "silence_logs": logging.ERROR,
                "memory_limit": 0,
            }  # fmt: skip
            runner = DaskTaskRunner(cluster_kwargs=dict(local))
        with runner:
            assert runner.client is not None  # connects, which the first piece would do
            yield runner


@contextmanager
def start_ray(settings: FanOutSettings) -> Iterator[Runner]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not settings.address:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    from prefect_ray import RayTaskRunner  # an extra

    short = min(tempfile.gettempdir(), "/tmp", key=len)  # paths of Unix sockets have at most 107 bytes
    with tempfile.TemporaryDirectory(prefix="ty-ray-", dir=short, ignore_cleanup_errors=True) as folder:
        local: Mapping[str, Any] = {
            "num_cpus": settings.num_workers, "include_dashboard": False, "object_store_memory": RAY_STORE_BYTES,
            "_temp_dir": folder, "_node_ip_address": LOOPBACK,
        }  # fmt: skip
        init: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        with RayTaskRunner(
            address=settings.address, init_kwargs=init | ({} if settings.address else dict(local))
        ) as runner:
            yield runner


def cancel_local(future: Any) -> None:
    future.wrapped_future.cancel()


def cancel_ray(future: Any) -> None:
    import ray  # an extra

    ray.cancel(future.wrapped_future, force=True)


def lost_scheduler(runner: Any) -> bool:
    return runner.client.status not in ("running", "connecting")


ENGINES: Mapping[str, Engine] = {
    "threads": Engine(start_threads, cancel_local),
    "processes": Engine(start_processes, cancel_local),
    "dask": Engine(start_dask, cancel_local, lost_scheduler),
    "ray": Engine(start_ray, cancel_ray),
}
