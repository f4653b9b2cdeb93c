"""One running stack for all test processes of a session: the first starts it, the last ends it.

`make test-browser` opens two browsers next to each other. A Prefect server, a worker, a model server and the jobs of
their own for each would cost more of two cores than the pages.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tests.browser.dashboard import DashboardService, processes_of
from tests.flows.real_stack import Stack, until
from trainyard.api.stack import running
from trainyard.stores.auth_string import read_auth

ENDS_S = 30.0


@dataclass
class Shared:
    """Where the stack is, what was started in it, and who uses it."""

    folder: str = ""
    model: str = ""
    started: dict[str, str] = field(default_factory=dict)
    users: list[int] = field(default_factory=list)
    """Ids of test processes."""
    count: int = 0
    """Stacks that this session has started."""


@dataclass(frozen=True)
class Beginning:
    """What the process that starts the stack does for all."""

    build_model: Callable[[], Path]
    seed: Callable[[Stack, Path], None]
    """Stores records, while the servers start."""
    start_jobs: Callable[[DashboardService], None]
    """Puts what it starts into `started`."""


@contextmanager
def shared_service(folder: Path, beginning: Beginning) -> Iterator[DashboardService]:
    """A running service, started and begun by the first process; one that was killed does not count as a user.

    `folder` is the same for all processes.
    """
    with changed(folder) as shared:
        shared.users = [pid for pid in shared.users if psutil.pid_exists(pid)]
        if shared.users:
            service = service_of(Stack(Path(shared.folder), Path(shared.model)), shared.started)
        else:
            service = start(folder, shared, beginning)
        shared.users.append(os.getpid())
    try:
        yield service
    finally:
        with changed(folder) as shared:
            shared.users.remove(os.getpid())
            if not any(map(psutil.pid_exists, shared.users)):
                end(service.stack)


@contextmanager
def changed(folder: Path) -> Iterator[Shared]:
    """What is known of the stack, for one process at a time; changes are written at the end."""
    with (folder / "dashboard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = folder / "dashboard.json"
        shared = Shared(**json.loads(file.read_text())) if file.is_file() else Shared()
        yield shared
        file.write_text(json.dumps(asdict(shared)))


def start(folder: Path, shared: Shared, beginning: Beginning) -> DashboardService:
    shared.count += 1
    place = folder / f"dashboard-{shared.count}"
    (place / "home").mkdir(parents=True)
    (place / "home" / "trainyard.toml").write_text("allow_scripts = true\n")
    model = beginning.build_model()  # `up` serves it
    stack = Stack(place, model)
    stack.write_data()
    try:
        with ThreadPoolExecutor(1) as aside:
            starting = aside.submit(stack.command, "up")  # next to it a core is free
            beginning.seed(stack, model)
            up = starting.result()
        assert up.returncode == 0, up.stderr
        service = service_of(stack, {})
        beginning.start_jobs(service)
    except BaseException:
        stack.command("down")
        raise
    shared.folder, shared.model, shared.started = str(place), str(model), service.started
    return service


def service_of(stack: Stack, started: dict[str, str]) -> DashboardService:
    api = running(stack.settings, "api")
    assert api is not None
    return DashboardService(stack, api.url, read_auth(stack.settings) or "", started)


def end(stack: Stack) -> None:
    stack.command("down")
    assert not stack.children()
    until(lambda: not processes_of(stack.settings.home), ENDS_S, "the end of all processes")
