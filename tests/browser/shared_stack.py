"""One running stack for all test processes of a session: the first starts it, the last ends it.

`make test-browser` opens two browsers next to each other. A Prefect server, a worker, a model server and the jobs of
their own for each would cost more of two cores than the pages.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tests.browser.dashboard import DashboardService, find_processes
from tests.flows.real_stack import Stack, wait_until
from trainyard.app.services import running
from trainyard.stores.auth_string import read_auth

ENDS_S = 30.0
SERVES_S = 200.0
OTHERS_S = 300.0


@dataclass
class Shared:
    """Where the stack is, what was started in it, and who uses it."""

    folder: str = ""
    model: str = ""
    started: dict[str, str] = field(default_factory=dict)
    """Empty until the whole stack is there and has its first jobs."""
    failed: str = ""
    """Why that did not happen."""
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
def open_shared_service(folder: Path, beginning: Beginning) -> Iterator[DashboardService]:
    """A service that answers, started by the first process; one that was killed does not count as a user.

    Pages can be opened from then on. Its worker and its first jobs follow: who needs them asks for `find_id` a job.
    `folder` is the same for all processes.
    """
    with ThreadPoolExecutor(1) as aside:
        with change_shared(folder) as shared:
            shared.users = [pid for pid in shared.users if psutil.pid_exists(pid)]
            if not shared.users:
                start(folder, shared, beginning, aside)
            service = make_service(folder, Stack(Path(shared.folder), Path(shared.model)))
            shared.users.append(os.getpid())
        try:
            yield service
        finally:
            service.client.close()
            aside.shutdown()
            leave(folder)


def leave(folder: Path) -> bool:
    """Use the stack no more, if this process does; the last one ends it. Returns whether no process uses it now."""
    with change_shared(folder) as shared:
        users = [pid for pid in shared.users if pid != os.getpid() and psutil.pid_exists(pid)]
        if os.getpid() in shared.users and not users:
            end(Stack(Path(shared.folder), Path(shared.model)))
        shared.users = users
        return not users


def wait_for_others(folder: Path) -> None:
    """Return when the stack has ended, because no process has tests left that use it."""
    wait_until(lambda: leave(folder), OTHERS_S, "the end of the tests of the other process", every_s=0.5)


@contextmanager
def change_shared(folder: Path) -> Iterator[Shared]:
    """What is known of the stack, for one process at a time; changes are written at the end."""
    with (folder / "dashboard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = folder / "dashboard.json"
        shared = Shared(**json.loads(file.read_text())) if file.is_file() else Shared()
        yield shared
        file.write_text(json.dumps(asdict(shared)))


def start(folder: Path, shared: Shared, beginning: Beginning, aside: ThreadPoolExecutor) -> None:
    """Return when the service answers; the rest of the stack is started `aside`."""
    shared.count += 1
    stack_folder = folder / f"dashboard-{shared.count}"
    (stack_folder / "home").mkdir(parents=True)
    (stack_folder / "home" / "trainyard.toml").write_text("allow_scripts = true\n")
    model = beginning.build_model()  # `up` serves it
    stack = Stack(stack_folder, model)
    stack.write_data()
    shared.folder, shared.model, shared.started, shared.failed = str(stack_folder), str(model), {}, ""
    starting = aside.submit(stack.command, "up")
    try:
        beginning.seed(stack, model)
        wait_until(lambda: starting.done() or answers(stack), SERVES_S, "the start of the service")
        assert answers(stack), starting.result().stderr
    except BaseException:
        stack.command("down")
        raise
    aside.submit(start_jobs, folder, stack, beginning, starting)


def answers(stack: Stack) -> bool:
    api = running(stack.settings, "api")
    return api is not None and api.answers()


def start_jobs(
    folder: Path, stack: Stack, beginning: Beginning, starting: Future[subprocess.CompletedProcess[str]]
) -> None:
    """Start the first jobs when the whole stack is running, and let all processes know them."""
    started, failed = dict[str, str](), ""
    try:
        assert starting.result().returncode == 0, starting.result().stderr
        service = make_service(folder, stack)
        with service.client:
            beginning.start_jobs(service)
        started = service.started
    except Exception as error:  # `find_id` raises it, in the process that needs a job
        failed = f"{type(error).__name__}: {error}"
    with change_shared(folder) as shared:
        shared.started |= started
        shared.failed = shared.failed or failed


def make_service(folder: Path, stack: Stack) -> DashboardService:
    api = running(stack.settings, "api")
    assert api is not None

    def read_started() -> dict[str, str]:
        with change_shared(folder) as shared:
            assert not shared.failed, shared.failed
            return shared.started

    def publish(ids: dict[str, str], failed: str) -> None:
        with change_shared(folder) as shared:
            shared.started |= ids
            shared.failed = shared.failed or failed

    return DashboardService(stack, api.url, read_auth(stack.settings) or "", read_started, publish)


def end(stack: Stack) -> None:
    stack.command("down")
    assert not stack.children()
    wait_until(lambda: not find_processes(stack.settings.home), ENDS_S, "the end of all processes")
