"""Processes that outlive the command that started them, found again and ended only if they are ours.

Each service leaves `TRAINYARD_HOME/services/<name>.json` {pid, create_time, url, log}: a pid alone may belong to
somebody else after a reboot, pid and start time together may not.
"""

from __future__ import annotations

import fcntl
import json
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from trainyard.compute.logs import rotate_log
from trainyard.errors import Conflict
from trainyard.inherited import UMASK, close_to_others
from trainyard.settings import Settings
from trainyard.stores.artifacts import write_json_durably
from trainyard.stores.processes import Start, find_process, process_start

STOP_GRACE_S = 30.0
"""A worker that ends first ends its flow runs, and those save a checkpoint."""
PORTS_TRIED = 100
LAUNCHED: list[subprocess.Popen[bytes]] = []
"""Processes that this one started: kept so that the interpreter does not complain that they outlive it."""


@dataclass(frozen=True)
class Service:
    """One process that `trainyard up` started."""

    name: str
    pid: int
    create_time: Start
    url: str
    log: str

    def process(self) -> psutil.Process | None:
        """The live process, or None when the pid is gone, a zombie, or somebody else's by now."""
        return find_process(self.pid, self.create_time)


def record_path(settings: Settings, name: str) -> Path:
    return settings.services / f"{name}.json"


def running(settings: Settings, name: str) -> Service | None:
    """The service of that name if its process is alive."""
    path = record_path(settings, name)
    if not path.is_file():
        return None
    service = Service(**json.loads(path.read_text(encoding="utf-8")))
    return service if service.process() else None


@contextmanager
def exclusive(settings: Settings, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """One `up` or `down` at a time on this home; a second one waits for the first.

    With `say`, a home that other users may read (made by an earlier version, say) is closed to them first.
    """
    settings.services.mkdir(parents=True, exist_ok=True)
    changed = close_to_others(settings.home) if say else 0
    if say and changed:
        say(f"closed {settings.home} to other users, who could read it: {changed:,} files and folders changed")
    with (settings.services / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def spawn(settings: Settings, name: str, argv: list[str], env: Mapping[str, str], url: str) -> Service:
    """Start a detached process: own session, no terminal, output to its log file."""
    settings.services.mkdir(parents=True, exist_ok=True)
    log = settings.services / f"{name}.log"
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell that starts us with `&` makes SIGINT ignored, and a Prefect worker ends itself by SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    rotate_log(log)
    with log.open("w", encoding="utf-8") as stream:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=dict(env), start_new_session=True,
            umask=UMASK,
        )  # fmt: skip
    LAUNCHED.append(child)
    service = Service(name, child.pid, process_start(child.pid), url, str(log))
    write_json_durably(record_path(settings, name), asdict(service))
    return service


def stop(settings: Settings, name: str, grace_s: float = STOP_GRACE_S) -> bool:
    """End our process of that name and everything below it; False if there was none."""
    service = running(settings, name)
    record_path(settings, name).unlink(missing_ok=True)
    process = service.process() if service else None
    if process is None:
        return False
    tree = [process, *process.children(recursive=True)]
    process.terminate()
    _, alive = psutil.wait_procs(tree, timeout=grace_s)
    for left in alive:
        left.kill()
    psutil.wait_procs(alive, timeout=5)
    return True


def free_port(first: int) -> int:
    """The first port from `first` up on which nobody listens on loopback; 0 lets the system choose."""
    last = min(first + PORTS_TRIED, 65536) if first else 1
    for port in range(first, last):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Conflict(
        f"No free port between {first} and {last - 1}.",
        do="Set TRAINYARD_PREFECT_PORT to the start of a free range.",
        code="E-NO-PORT",
    )
