"""Requests about tokens of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.api.requests.base import Request
from trainyard.api.requests.fields import Argument

NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"


class CreateTokenInput(Request):
    name: str = Field(pattern=NAME, description="Name in the audit log, such as ci.")
    scope: Literal["read", "run", "admin"] = Field(
        "read", description="What it may do; each scope contains those before it."
    )
    tenant: str | None = Field(
        None, pattern=NAME, description="Only what belongs to this tenant; default: every tenant."
    )
    days: int = Field(365, ge=1, le=3650, description="It expires after so many days.")


class RevokeTokenInput(Request):
    name: Annotated[str, Argument("NAME")] = Field(pattern=NAME, description="Name of the token.")
