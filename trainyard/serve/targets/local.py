"""Model servers that a deployment starts itself, because their adapters are fixed when they start.

A new version gets a new server beside the one that answers; when its canary has answered, the ready file
`services/<kind>-<tenant>-<role>.json` is switched to it, and the old server ended. Until then nobody notices. Whoever
sends requests reads the address from the ready file; `trainyard down` ends the servers. Torch-free.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from trainyard.errors import Unavailable
from trainyard.serve.embedded import Instance, end_tree
from trainyard.settings import Settings
from trainyard.stores.artifacts import write_json_durably

START_S, POLL_S = 300.0, 0.1
KINDS = ("llama_server", "mlx")
"""Targets whose servers are started here."""
LAUNCHED: list[subprocess.Popen[bytes]] = []
"""Servers that this process started; the interpreter reaps those that ended."""


@dataclass
class Replacement:
    """A new server, and the one that it is to follow."""

    new: Instance
    old: Instance | None


def ready_file(settings: Settings, kind: str, tenant: str, role: str) -> Path:
    return settings.services / f"{kind}-{tenant}-{role}.json"


def running(path: Path) -> Instance | None:
    """The server of a ready file, if its process lives."""
    try:
        found = Instance(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return found if found.process() is not None else None


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(
    argv: Sequence[str], port: int, log: Path, model: str, variables: Mapping[str, str] | None = None
) -> Instance:
    """Start a server detached and wait until `/health` answers; it outlives the caller.

    Raises `Unavailable` (`E-SERVER-START`) with the last line of its log if it does not come up.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C and hang-up are not for this server
            env={**os.environ, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", **(variables or {})},
        )
    LAUNCHED.append(child)
    found = described(child, port, model)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and child.poll() is None:
        if found is not None and found.answers():
            return found
        time.sleep(POLL_S)
    ended = child.poll()
    if found is not None:
        end(found)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    how = f"(status {ended})" if ended is not None else f"within {START_S:g} s"
    raise Unavailable(
        f"{Path(argv[0]).name} did not come up {how}.",
        why=lines[-1][:500] if lines else "Its log is empty.",
        do=f"Read {log.name} in the services folder of TRAINYARD_HOME.",
        code="E-SERVER-START",
    )


def described(child: subprocess.Popen[bytes], port: int, model: str) -> Instance | None:
    try:
        born = psutil.Process(child.pid).create_time()
    except psutil.NoSuchProcess:
        return None
    return Instance(child.pid, born, port, f"http://127.0.0.1:{port}", model, started=time.time())


def end(instance: Instance) -> None:
    """End a server and what it started. Nothing else is ever signalled."""
    process = instance.process()
    if process is not None:
        end_tree(process)


def end_all(settings: Settings) -> list[str]:
    """End every server that deployments started here; returns the names of their ready files."""
    ended = []
    for path in sorted(path for kind in KINDS for path in settings.services.glob(f"{kind}-*.json")):
        found = running(path)
        if found is not None:
            end(found)
            ended.append(path.stem)
        path.unlink(missing_ok=True)
    return ended


def point(path: Path, instance: Instance | None) -> None:
    """Let the ready file mean this server, or none."""
    if instance is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_durably(path, asdict(instance))
