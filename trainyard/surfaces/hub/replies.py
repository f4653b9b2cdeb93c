"""Answers in the shape of the Hub: `{"error": …}` with `X-Error-Code` and `X-Error-Message`, which its clients read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import orjson
from starlette.responses import Response

from trainyard.errors import Conflict, Denied, InvalidInput, LimitExceeded, NotFound, TrainyardError, Unavailable
from trainyard.stores.repositories.quota import QuotaReached

NO_HEADERS: Mapping[str, str] = {}
REPO_MISSING, REVISION_MISSING, ENTRY_MISSING = "RepoNotFound", "RevisionNotFound", "EntryNotFound"


class HubRefusal(NotFound):
    """Something that does not exist, with the Hub's code for it."""

    def __init__(self, hub_code: str, what: str, *, headers: Mapping[str, str] = NO_HEADERS, **text: Any) -> None:
        super().__init__(what, **text)
        self.headers = {"x-error-code": hub_code, **headers}


class RangeRefused(InvalidInput):
    """A range outside of the file."""


STATUS: Mapping[type[TrainyardError], int] = {
    RangeRefused: 416,
    QuotaReached: 403,  # as the Hub answers over the limit of private storage
    Denied: 403,
    NotFound: 404,
    Conflict: 409,
    LimitExceeded: 413,
    InvalidInput: 400,
    Unavailable: 503,
}
STATUS_OF_CODE = {"E-AUTH": 401, "E-RATE": 429, "E-OBJECT-CHANGED": 412, "E-METHOD": 405}
BAD_TOKEN = "Invalid credentials in Authorization header"
"""The Hub's words, which mean a wrong token to its client, and not a missing repository."""


def reply_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers=dict(headers or {}), media_type="application/json")


def reply_error(error: TrainyardError) -> Response:
    """Return an error as the Hub words it; the code of Trainyard is in the body, too."""
    statuses = (status for kind, status in STATUS.items() if isinstance(error, kind))
    status = STATUS_OF_CODE.get(error.code) or next(statuses, 500)
    message = " ".join(filter(None, (error.what, error.why, error.do)))
    headers = {"x-error-message": re.sub(r"[^\x20-\x7e]", "?", message)[:1000]}
    if isinstance(error, HubRefusal):
        headers |= error.headers
    if error.code == "E-AUTH":
        headers["www-authenticate"] = 'Bearer realm="data worker"'
        headers["x-error-message"] = BAD_TOKEN if "wrong" in error.what else headers["x-error-message"]
    return reply_json({"error": message, "code": error.code}, status, headers)


def format_time(seconds: float) -> str:
    """Return a time as the Hub's JSON has it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(seconds * 1000) % 1000:03}Z"


def format_http_time(seconds: float) -> str:
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)
