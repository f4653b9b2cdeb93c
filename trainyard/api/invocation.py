"""The request and the implementation of an operation by its name: what every surface begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trainyard.api.operations import OPERATIONS, REQUESTS, VERBS
from trainyard.api.requests.fields import FieldError
from trainyard.loading import load


def request_of(name: str, given: Mapping[str, Any]) -> Any:
    """The request of an operation. Raises `FieldError` for a value that it does not take."""
    try:
        return load(REQUESTS + OPERATIONS[name].request)(**given)
    except ValidationError as error:
        first = error.errors()[0]
        raise FieldError(str(first["loc"][0]), first["msg"]) from error


def implementation_of(name: str) -> Any:
    """The function that carries an operation out: (request, context) -> response."""
    return load(VERBS + OPERATIONS[name].implementation)
