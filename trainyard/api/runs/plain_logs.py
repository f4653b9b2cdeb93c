"""The log of a run, asked for by plain HTTP: the first line is there before Prefect's client would be imported.

Only the home's own server is asked so, whose login this home knows; any other one is asked by Prefect's client.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx

from trainyard.api.stack import import_prefect_client, is_own, known_api_url, locked_out, unreachable
from trainyard.cancellation import CALLER_HOOKS
from trainyard.settings import Settings
from trainyard.stores.auth_string import auth_header, read_auth

PAGE = 200
"""Lines that the server gives at once, at most."""
TIMEOUT_S = 30.0
NO_TRACEBACK = "\nNoneType: None"

ReadLog = Callable[[str, int], list[dict[str, Any]]]
"""(run id, offset) -> the lines from there on, in order: {time, level, text}."""


def choose_reader(settings: Settings) -> ReadLog:
    """Return what reads the logs of runs. Raises `Unavailable` (`E-NO-SERVER`) where there is no server."""
    url = known_api_url(settings)
    if not is_own(settings, url):
        read: ReadLog = import_prefect_client(settings, "listing").read_log
        return read
    return lambda run_id, offset: read_own_log(settings, url, run_id, offset)


def read_own_log(settings: Settings, url: str, run_id: str, offset: int) -> list[dict[str, Any]]:
    """Return the lines of a run on the home's own server from an offset on.

    Raises `Unavailable` (`E-SERVER-UNREACHABLE`, `E-AUTH`).
    """
    lines: list[dict[str, Any]] = []
    encrypted = not url.startswith("http://")
    headers = auth_header(read_auth(settings))
    try:
        with httpx.Client(timeout=TIMEOUT_S, verify=encrypted, headers=headers, event_hooks=CALLER_HOOKS) as client:
            while True:
                body = {
                    "logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC", "limit": PAGE,
                    "offset": offset + len(lines),
                }  # fmt: skip
                reply = client.post(f"{url}/logs/filter", json=body)
                if reply.status_code == httpx.codes.UNAUTHORIZED:
                    raise locked_out(settings, url)
                page = reply.raise_for_status().json()
                lines += map(line_of, page)
                if len(page) < PAGE:
                    return lines
    except httpx.HTTPError as error:
        raise unreachable(url) from error


def line_of(log: dict[str, Any]) -> dict[str, Any]:
    at = datetime.fromisoformat(log["timestamp"]).timestamp()
    return {"time": at, "level": log["level"], "text": text_of(log["message"])}


def text_of(message: str) -> str:
    """Return a message without the traceback of no exception, which Prefect adds where a flow returned a failure."""
    return message.removesuffix(NO_TRACEBACK)
