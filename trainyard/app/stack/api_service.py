"""The API as a service of one machine: started by `trainyard up` next to the Prefect server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from trainyard.app import services as stack
from trainyard.app.exposure import Exposure, read_exposure
from trainyard.compute.services import HOST, Service, free_port
from trainyard.errors import Conflict, LimitExceeded
from trainyard.settings import Settings
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.whole import write_whole

NAME = "api"
"""Of its record and log among the services of a home."""
PORT = 8898
"""Where it answers by default."""


def start_api(settings: Settings, prefect_url: str, say: Callable[[str], None], port: int | None = None) -> Service:
    """Return the API of this home: the running one, or a new one. Does not wait for it.

    It gets the requested port (`port`, else the setting `api_port`), else the one that it had in this home, else the
    first free one from 8898. Raises `LimitExceeded` (`E-PORT`) for a requested port that is taken, and `Conflict`
    (`E-SERVER-RUNS`) for `port` while it runs on another.
    """
    if (existing := stack.running(settings, NAME)) is not None:
        if port is not None and existing.url != f"http://{HOST}:{port}":
            raise Conflict(
                f"--port {port} has no effect on the API, which runs at {existing.url}.",
                do=f"Run `trainyard down`, then `trainyard up --port {port}`.", code="E-SERVER-RUNS",
            )  # fmt: skip
        return existing
    port = choose_port(settings, port or settings.api_port, say)
    make_folders(DISK, settings.services)
    write_whole(DISK, port_file(settings), f"{port}\n".encode())
    url = f"http://{HOST}:{port}"
    say(f"starting the API on port {port}")
    argv = [sys.executable, "-P", "-m", "trainyard", "serve", "--role", "training", "--port", str(port)]
    argv += (read_exposure(settings) or Exposure()).arguments()
    argv += [stack.NO_AUTH] if stack.open_server_mark(settings).exists() else []
    return stack.spawn(settings, NAME, argv, stack.service_environment(settings, prefect_url, NAME), url)


def port_file(settings: Settings) -> Path:
    """Return the file with the port of this home's API, so that its address stays the same after `down` and `up`."""
    return settings.services / "api.port"


def choose_port(settings: Settings, requested: int | None, say: Callable[[str], None]) -> int:
    """Return the port of a new API. Raises `LimitExceeded` (`E-PORT`) for a requested one that is taken."""
    if requested is not None:
        if free_port(requested) != requested:
            raise LimitExceeded(
                f"Port {requested} is taken by {find_listener(requested)}.", why="It was requested for the API.",
                do="End that process, or choose another port by `trainyard up --port` or the setting api_port.",
                code="E-PORT",
            )  # fmt: skip
        return requested
    last = read_port(settings)
    if last is None or free_port(last) == last:
        return last or free_port(PORT)
    port = free_port(PORT)
    say(
        f"port {last}, where the API of this home was, is taken by {find_listener(last)}: "
        f"it answers on {port} from now on"
    )
    return port


def read_port(settings: Settings) -> int | None:
    """Return the port that the API of this home had last; None if it never had one."""
    try:
        return int(port_file(settings).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return stack.read_previous_port(settings, NAME)


def find_listener(port: int) -> str:
    """Return the process that listens on a port, with its home if it is one of Trainyard."""
    try:
        listening = (entry for entry in psutil.net_connections("tcp") if entry.status == psutil.CONN_LISTEN)
        pid = next((entry.pid for entry in listening if entry.laddr.port == port), None)
        process = psutil.Process(pid) if pid else None
        if process is None:
            return "another process"
        home = process.environ().get("TRAINYARD_HOME", "")
        return f"{process.name()} (pid {process.pid}{f', home {home}' if home else ''})"
    except (psutil.Error, OSError):  # another user's
        return "another process"
