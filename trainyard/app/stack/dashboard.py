"""A link to the dashboard that logs a browser in, once."""

from __future__ import annotations

import time

from trainyard.app import services as stack
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.errors import Unavailable
from trainyard.operations.base import Nothing
from trainyard.settings import Settings
from trainyard.stores.auth_string import read_auth
from trainyard.stores.secret_files import CODE_S, LoginFile, id_of_string


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
