"""Long-lived processes: each one is recorded, started, found, awaited and ended here. Torch-free.

    log = settings.services / "embedded.log"
    service = spawn_service(argv, environment, log, url="http://127.0.0.1:4200")
    await_ready(service, "The server", 180)                    or `E-SERVER-START` with the last line of the log
    write_record(record_path(settings, "embedded"), service)
    find_service(record_path(settings, "embedded"))            the same by any process; None once it has ended
    stop_service(record_path(settings, "embedded"))            its whole tree, and nothing else

After a reboot a pid may belong to another process, so a record also has the start time of its process; a record whose
process is another one is stale (`stores/processes.py`). There are two kinds:

- *detached*: in a session of its own, it outlives the process that started it. `trainyard up` and deployments start
  these; their records are `TRAINYARD_HOME/services/<name>.json`.
- *supervised* (`SupervisedService`): it always ends with the process that started it. Nodes and nights start these; the
  record is in their own folder, for the process that runs after a crash of both.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil

from trainyard.cancellation import require_caller
from trainyard.compute.child import LOG_FILE, alive
from trainyard.compute.supervise import DesiredState, Outcome, ProcessTree, last_line, supervise
from trainyard.errors import Conflict, TrainyardError, Unavailable
from trainyard.inherited import UMASK
from trainyard.json_types import JsonObject
from trainyard.settings import Settings
from trainyard.stores.processes import Start, find_process, process_start
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kept = TypeVar("Kept", bound="DataclassInstance")

HOST = "127.0.0.1"
EMBEDDED = "embedded"
"""The name of the model server that `trainyard up` starts."""
RECORD_FILE = "server.json"
"""The record of a supervised service, in its folder."""
POLL_S, ANSWER_S = 0.1, 2.0
STOP_S = 10.0
"""Time for a model server to end after a signal."""
KILL_S = 15.0
"""Time for the shim, beyond the program's grace, to end the tree."""
PORTS_TRIED, KEPT_LOGS = 100, 5
LAUNCHED: dict[int, subprocess.Popen[bytes]] = {}
"""Detached processes that this one started: kept so that the interpreter does not warn that they outlive it."""


@dataclass(frozen=True)
class Service:
    """A process that was started, and where it answers: the contents of its record."""

    pid: int
    create_time: Start
    url: str = ""
    name: str = ""
    log: str = ""
    port: int = 0
    model: str = ""
    model_sha256: str = ""
    started: float = 0.0

    def process(self) -> psutil.Process | None:
        """Return the live process, or None when the pid is gone, a zombie, or another process by now."""
        return find_process(self.pid, self.create_time)

    def pids(self) -> frozenset[int]:
        """Return the pids of the process and everything below it; empty when it has ended."""
        process = self.process()
        with suppress(psutil.NoSuchProcess):
            if process is not None:
                return frozenset(member.pid for member in (process, *process.children(recursive=True)))
        return frozenset()

    def answers(self, timeout_s: float = ANSWER_S) -> bool:
        return is_healthy(self.url, timeout_s)


def is_healthy(url: str, timeout_s: float = ANSWER_S) -> bool:
    """Whether a server answers `/health` below this address with 200.

    Without TLS no certificates are loaded, which takes 46 ms; on this machine no proxy is asked.
    """
    import httpx  # a supervised child, and a check of a chain, ask no server

    verify, proxy = not url.startswith("http://"), HOST not in url

    try:
        return httpx.get(f"{url}/health", timeout=timeout_s, trust_env=proxy, verify=verify).status_code == 200
    except httpx.HTTPError:
        return False


# records


def record_path(settings: Settings, name: str) -> Path:
    return settings.services / f"{name}.json"


def read_fields(path: Path, kind: type[Kept]) -> Kept | None:
    """Return what `write_record` wrote; None without a readable file. Fields of other versions are ignored."""
    try:
        record, names = read_versioned("service", path.read_bytes(), path), {field.name for field in fields(kind)}
        return kind(**{name: value for name, value in record.items() if name in names})
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return None


def read_record(path: Path) -> Service | None:
    """Return a record, whether its process lives or not."""
    return read_fields(path, Service)


def write_record(path: Path, value: DataclassInstance | None) -> None:
    """Let the record mean this service, or none."""
    if value is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_durably(path, add_version("service", asdict(value)))


def find_service(path: Path) -> Service | None:
    """Return the service of a record if its process lives."""
    service = read_record(path)
    return service if service is not None and service.process() is not None else None


def list_own_services(settings: Settings) -> frozenset[int]:
    """Pids of the model server that `trainyard up` started here: it may share a device with a training."""
    service = find_service(record_path(settings, EMBEDDED))
    return service.pids() if service is not None else frozenset()


# start


def spawn_service(
    argv: Sequence[str], env: Mapping[str, str], log: Path, *, name: str = "", url: str = "", port: int = 0,
    model: str = "",
) -> Service:  # fmt: skip
    """Start a detached process: own session, no terminal, output to its log file."""
    reap_launched()
    log.parent.mkdir(parents=True, exist_ok=True)
    rotate_log(log)
    with log.open("wb") as stream:
        # A session of its own: the terminal's Ctrl-C and hang-up are not for this process.
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=dict(env), start_new_session=True,
            umask=UMASK,
        )  # fmt: skip
    LAUNCHED[child.pid] = child
    return Service(child.pid, process_start(child.pid), url, name, str(log), port, model, started=time.time())


def reap_launched() -> None:
    """Read the status of the detached processes of this one that have ended: until then they are zombies."""
    for pid in [pid for pid, child in list(LAUNCHED.items()) if child.poll() is not None]:
        LAUNCHED.pop(pid, None)


def rotate_log(log: Path, keep: int = KEPT_LOGS) -> None:
    """Make room for a new log: `name.log` becomes `name.log.1`, that `.2`, …; the oldest goes. Empty ones do not count.

    So the last lines of a crashed process are still there after the next `up`.
    """
    if not log.is_file() or log.stat().st_size == 0:
        return
    names = [log, *(log.with_name(f"{log.name}.{number}") for number in range(1, keep + 1))]
    for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
        if newer.is_file():
            newer.replace(older)


def await_ready(service: Service, name: str, start_s: float, record: Path | None = None) -> Service:
    """Return a service that was just spawned when it answers `/health`; with `record`, as it recorded itself there.

    Raises `Unavailable` (`E-SERVER-START`) with the last line of its log if it ends or is late; it is ended then.
    """
    child = LAUNCHED[service.pid]

    def answering() -> bool:
        current = find_service(record) if record is not None else service
        return current is not None and current.pid == service.pid and current.answers()

    def ended() -> str:
        status = child.poll()
        return "" if status is None else f"ended before it was ready (status {status})"

    if problem := wait_until(answering, ended, start_s):
        end_service(service)
        raise not_started_error(name, problem, Path(service.log))
    return service if record is None else read_record(record) or service


def wait_until(ready: Callable[[], bool], ended: Callable[[], str], timeout_s: float) -> str:
    """Wait for `ready()`. Returns why it is not: what `ended()` returns, or that the time is over; else ""."""
    deadline = time.monotonic() + timeout_s
    while True:
        require_caller()
        if problem := ended():  # asked first: on the port of a dead server another one may answer
            return problem
        if ready():
            return ""
        if time.monotonic() > deadline:
            return f"was not ready within {round(timeout_s, 1):g} s"
        time.sleep(POLL_S)


def not_started_error(name: str, how: str, log: Path, *, why: str = "", do: str = "") -> Unavailable:
    """Return `E-SERVER-START`: the one error of every service that does not start."""
    return Unavailable(
        f"{name} {how}.",
        why=why or last_line(log) or "Its log is empty.",
        do=f"Read {log}{do}.",
        code="E-SERVER-START",
    )


# end


def stop_service(path: Path, grace_s: float = STOP_S) -> bool:
    """End the service of a record, then remove the record; False if it was not running.

    In this order, so that the next `down` finds what a killed `down` has not ended.
    """
    ended = end_service(read_record(path), grace_s)
    path.unlink(missing_ok=True)
    return ended


def end_service(service: Service | None, grace_s: float = STOP_S) -> bool:
    """End a service and everything below it; False if it was not running. Nothing else is ever signalled.

    After `grace_s` seconds what is left of its tree is killed; without grace, at once. Only the process itself is
    asked, because it ends what it started: a worker its runs, which save a checkpoint.
    """
    process = service.process() if service is not None else None
    if process is None:
        return False
    tree = ProcessTree(process.pid)
    tree.refresh()
    with suppress(psutil.NoSuchProcess):  # it has ended already
        if grace_s:
            process.terminate()
    deadline = time.monotonic() + grace_s
    while any(map(alive, tree.processes)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    tree.end()
    if (child := LAUNCHED.pop(process.pid, None)) is not None:
        with suppress(subprocess.TimeoutExpired):  # a killed process needs a moment until its status can be read
            child.wait(ANSWER_S)
    return True


# ports


def free_port(first: int = 0) -> int:
    """Return the first free loopback port from `first` up; 0 lets the system choose.

    A server that loses the race for the port ends, and its log says so. Raises `Conflict` (`E-PORT`).
    """
    last = min(first + PORTS_TRIED, 65536) if first else 1
    for port in range(first, last):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Conflict(
        f"No free port between {first} and {last - 1}.",
        do="Set TRAINYARD_PREFECT_PORT to the start of a free range.",
        code="E-PORT",
    )


def confirm_closed(port: int) -> None:
    """Raise `TrainyardError` (`E-SERVER-STOP`) if the port is still in use after Trainyard's process tree has ended."""
    with socket.socket() as probe:
        probe.settimeout(ANSWER_S)
        if probe.connect_ex((HOST, port)) == 0:
            raise TrainyardError(
                f"Port {port} still answers after its server was ended.",
                do="Find the process that listens there; it is not one of Trainyard's.",
                code="E-SERVER-STOP",
            )


class SupervisedService:
    """A service in `folder` (log, events, record) that ends with this process, its whole tree included.

    It runs under `trainyard.compute.shim`, a sub-reaper, so its descendants end with it, detached ones included.
    """

    def __init__(self, folder: Path, grace_s: float) -> None:
        self.folder, self.grace_s, self.port = folder, grace_s, 0
        self.record = folder / RECORD_FILE
        self.running: Future[Outcome] | None = None
        self.ending = threading.Event()

    def start(self, argv: Sequence[str], env: Mapping[str, str], port: int) -> None:
        """Start it; returns before it answers."""
        self.port = port
        self.ending.clear()
        shim = [sys.executable, "-P", "-m", "trainyard.compute.shim", str(self.folder), str(self.grace_s), "--"]
        # The kernel ends the child when the thread that started it ends; this one waits for the child.
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="service")
        self.running = thread.submit(
            supervise,
            [*shim, *argv],
            self.folder,
            env=env,
            desired_state=lambda: DesiredState.CANCEL if self.ending.is_set() else DesiredState.RUN,
            on_event=self.write_started,
            grace_s=self.grace_s + KILL_S,
            poll_s=POLL_S,
        )
        thread.shutdown(wait=False)

    def write_started(self, event: JsonObject) -> None:
        """Write the supervised process's identity to a file for a later process."""
        if event["event"] == "started":
            with suppress(psutil.NoSuchProcess):  # it ended already, and the outcome says why
                url = f"http://{HOST}:{self.port}"
                write_record(self.record, Service(event["pid"], process_start(event["pid"]), url, port=self.port))

    def why_ended(self) -> str:
        """Return the last line that it wrote, or how it was ended; empty while it runs, or where it was not started."""
        if self.running is None or not self.running.done():
            return ""
        outcome = self.running.result()
        error = outcome.error or {}
        return str(error.get("why") or error.get("what") or f"It stopped with exit code {outcome.exit_code}.")

    def await_ready(self, name: str, url: str, timeout_s: float, do: str) -> None:
        """Return when `url` answers `/health`. Raises `Unavailable` (`E-SERVER-START`); it keeps running then."""

        def ended() -> str:
            return "ended before it was ready" if self.why_ended() else ""

        if problem := wait_until(lambda: is_healthy(url), ended, timeout_s):
            raise not_started_error(name, problem, self.folder / LOG_FILE, why=self.why_ended(), do=do)

    def end(self) -> None:
        """End its process tree; twice does no more. Raises `TrainyardError` (`E-SERVER-STOP`)."""
        self.ending.set()
        if self.running is not None:
            self.running.result()
            self.running = None
            confirm_closed(self.port)
            self.record.unlink(missing_ok=True)

    def end_leftover(self) -> None:
        """End what an earlier process started in this folder and left running."""
        stop_service(self.record, grace_s=0)
