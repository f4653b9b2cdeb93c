"""The API as a service of one machine: started by `trainyard up` next to the Prefect server."""

from __future__ import annotations

import sys
from collections.abc import Callable

from trainyard.api import stack
from trainyard.api.access.exposure import Exposure, read_exposure
from trainyard.compute.services import HOST, Service, free_port
from trainyard.settings import Settings

NAME = "api"
"""Of its record and log among the services of a home."""
PORT = 8898
"""Where it answers by default."""


def start_api(settings: Settings, prefect_url: str, say: Callable[[str], None]) -> Service:
    """The API of this home: the running one, or a new one. Does not wait for it.

    It gets the first free port from 8898; after it died, the port that it had.
    """
    if (existing := stack.running(settings, NAME)) is not None:
        return existing
    port = stack.port_before(settings, NAME) or free_port(PORT)
    url = f"http://{HOST}:{port}"
    say(f"starting the API on port {port}")
    argv = [sys.executable, "-m", "trainyard.cli", "serve", "--role", "training", "--port", str(port)]
    argv += (read_exposure(settings) or Exposure()).arguments()
    argv += [stack.NO_AUTH] if stack.open_server_mark(settings).exists() else []
    return stack.spawn(settings, NAME, argv, stack.service_environment(settings, prefect_url, NAME), url)
