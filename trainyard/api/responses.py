"""What every operation returns is a `Response`: frozen, and without fields that nobody declared."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Response(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
