"""The API as a service of one machine, which `trainyard up` starts; and the link to its dashboard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from trainyard.app import services as stack
from trainyard.app.context import Context
from trainyard.app.exposure import Exposure, read_exposure
from trainyard.app.responses import Response
from trainyard.compute.services import HOST, Service, free_port
from trainyard.errors import Conflict, LimitExceeded, Unavailable
from trainyard.operations.base import Nothing
from trainyard.settings import Settings
from trainyard.stores.auth_string import read_auth
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.secret_files import CODE_S, LoginFile, id_of_string
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
                f"Port {requested} is taken by {find_listener(requested)}.",
                why="It was requested for the API or the data worker.",
                do="End that process, or choose another port by `trainyard up --port`, api_port or data_port.",
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


class DashboardLink(Response):
    """Login link of the dashboard; the first browser to open it is logged in as the owner of this home."""

    url: str
    expires: float
    """Seconds of the epoch."""


def show_dashboard(_request: Nothing, context: Context) -> DashboardLink:
    """Make a link. Raises `Unavailable` (`E-SERVER-UNREACHABLE`) while the REST service is not running."""
    service = stack.running(context.settings, "api")
    if service is None:
        raise Unavailable(
            "The dashboard is not running.", why=f"No REST service of {context.settings.home} is.",
            do="Start it by `trainyard up`.", code="E-SERVER-UNREACHABLE",
        )  # fmt: skip
    return DashboardLink(url=link_to(service.url, context.settings), expires=time.time() + CODE_S)


def link_to(service_url: str, settings: Settings) -> str:
    """Return the page of a service with a new code. It is behind the #, which browsers keep out of requests and
    logs.
    """
    return (
        f"{service_url}/dashboard#login={LoginFile(settings.home).offer_code(id_of_string(read_auth(settings) or ''))}"
    )
