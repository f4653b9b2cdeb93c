"""The data worker as a service of one machine: `trainyard up` starts it where the setting `data_port` names a port."""

from __future__ import annotations

import sys
from collections.abc import Callable

from trainyard.app import services as stack
from trainyard.app.exposure import Exposure, read_exposure
from trainyard.app.stack.api_service import choose_port
from trainyard.compute.services import HOST, Service
from trainyard.inherited import bucket_variables
from trainyard.settings import Settings

NAME = "data"
"""Of its record and log among the services of a home."""


def start_data(settings: Settings, prefect_url: str, say: Callable[[str], None]) -> Service | None:
    """Return the data worker of this home: the running one, or a new one; None where no port is set.

    Does not wait for it. Raises `LimitExceeded` (`E-PORT`) for a port that is taken.
    """
    if settings.data_port is None:
        return None
    if (existing := stack.running(settings, NAME)) is not None:
        return existing
    port = choose_port(settings, settings.data_port, say)
    say(f"starting the data worker on port {port}")
    argv = [sys.executable, "-P", "-m", "trainyard", "serve", "--role", "data", "--port", str(port)]
    argv += (read_exposure(settings) or Exposure()).arguments()
    argv += [stack.NO_AUTH] if stack.open_server_mark(settings).exists() else []
    environment = {**bucket_variables(settings), **stack.service_environment(settings, prefect_url, NAME)}
    return stack.spawn(settings, NAME, argv, environment, f"http://{HOST}:{port}")
