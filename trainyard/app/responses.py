"""Base class of the responses of operations: frozen, and without undeclared fields."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trainyard.json_types import JsonObject


class Response(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Record(Response):
    """Stored record of one thing: an adapter version, or a model that was built."""

    record: JsonObject


class Blob(Response):
    """Bytes: a file that REST streams, and that other surfaces name."""

    path: Path
    name: str
    media_type: str
    sha256: str
