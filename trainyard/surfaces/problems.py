"""Errors as problem documents (RFC 9457): `application/problem+json` with the code and the remedy of every error here.

{"type": "urn:trainyard:E-JOB-STATE", "title": "Conflict", "status": 409, "detail": what, "why": …, "do": …,
 "code": "E-JOB-STATE", "trace": …, "errors": [{"code", "node", "field", "because", "instead"}, …]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from trainyard.errors import (
    Conflict,
    Corrupt,
    Denied,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Refused,
    TrainyardError,
    Unavailable,
)

MEDIA_TYPE = "application/problem+json"
STATUS: dict[type[TrainyardError], int] = {
    InvalidInput: 422,
    NotFound: 404,
    Conflict: 409,
    Denied: 403,
    LimitExceeded: 422,
    Unavailable: 424,
    Corrupt: 409,
}
"""The status of each class of error; what no row has, such as a training that failed, is 422, too."""
STATUS_OF_CODE = {
    "E-AUTH": 401,
    "E-BODY-LENGTH": 413,
    "E-RATE": 429,
    "E-METHOD": 405,
    "E-MEDIA-TYPE": 415,
    "E-JSON": 400,
    "E-NO-SERVER": 503,
    "E-SERVER-UNREACHABLE": 503,
    "E-BUG": 500,
}
"""Codes with a status of their own. 503 means Prefect's server alone; it is worth a retry."""
RETRY_AFTER_S = 2


class FieldProblem(BaseModel):
    """A reason of several."""

    field: str
    """Path of the field, with dots; empty for the whole."""
    because: str
    code: str = ""
    node: str | None = None
    instead: str = ""
    row: str = ""


class ProblemDocument(BaseModel):
    """The body of every answer with a status from 400 on."""

    type: str
    title: str
    status: int
    detail: str
    """The given value, or the event."""
    code: str
    kind: str
    """Class of the error, such as Refused or NotFound; the SDK raises it."""
    why: str
    do: str
    """What to do about it."""
    trace: str
    """The correlation id of the request; it is in the audit log, too."""
    errors: tuple[FieldProblem, ...]


def http_status(error: TrainyardError) -> int:
    status = (status for kind, status in STATUS.items() if isinstance(error, kind))
    return STATUS_OF_CODE.get(error.code) or next(status, 422)


def error_kind(error: TrainyardError) -> str:
    """Return the class of the error tree that an error is of."""
    return next(class_.__name__ for class_ in type(error).__mro__ if class_.__module__ == TrainyardError.__module__)


def describe_bug(error: Exception, trace: str) -> TrainyardError:
    """Return the error that a caller gets for an exception that nothing handles: its kind, and where the log has it."""
    return TrainyardError(
        f"The service failed: {type(error).__name__}.", do=f"Its log has the traceback, by trace {trace}.", code="E-BUG"
    )


def build_problem(
    error: TrainyardError, trace: str = "", fields: Sequence[FieldProblem] = (), status: int = 0
) -> ProblemDocument:
    """Return the document about an error; `status` in place of that of its class."""
    status = status or http_status(error)
    reasons = error.reasons if isinstance(error, Refused) else ()
    return ProblemDocument(
        type=f"urn:trainyard:{error.code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=error.what,
        code=error.code,
        kind=error_kind(error),
        why=error.why,
        do=error.do,
        trace=trace,
        errors=(*(FieldProblem(**reason.as_dict()) for reason in reasons), *fields),
    )


def answer_problem(
    error: TrainyardError,
    trace: str = "",
    fields: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
    status: int = 0,
) -> Response:
    """Return the answer with the document. A 401 names the scheme, a 503 when to try again."""
    problem = build_problem(error, trace, fields, status)
    own_headers: dict[int, dict[str, str]] = {
        401: {"www-authenticate": "Bearer"},
        429: {"retry-after": str(getattr(error, "retry_after_s", RETRY_AFTER_S))},
        503: {"retry-after": str(RETRY_AFTER_S)},
    }
    return Response(
        orjson.dumps(problem.model_dump()),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers={**own_headers.get(problem.status, {}), **(headers or {})},
    )
