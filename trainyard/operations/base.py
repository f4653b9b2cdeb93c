"""Base class of all requests."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from trainyard.operations.fields import Option


class Request(BaseModel):
    """Request of an operation. A misspelt field is an error.

    As JSON, a NaN is written as such, and refused: as null it would mean that nothing was given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Nothing(Request):
    """An operation without arguments."""


Parameters = Annotated[dict[str, Any], Option("-p", "--param")]
TENANT = "Only this tenant's."
Tenant = Annotated[str | None, Option(completes="tenant")]
