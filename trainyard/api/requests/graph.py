"""Requests to the knowledge graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trainyard.api.requests.base import Parameters, Request
from trainyard.api.requests.chains import PARAMETERS
from trainyard.api.requests.fields import Argument, Option

ADDRESS = "A graph server or file:// address; default: this home's."


class GraphInput(Request):
    tenant: str | None = Field(None, description="Only this tenant.")
    graph: Annotated[str, Option(local=True)] = Field("", description=ADDRESS)


class QueryInput(Request):
    cypher: Annotated[str, Argument("CYPHER")] = Field(min_length=1)
    parameters: Parameters = Field({}, description=PARAMETERS)
    graph: Annotated[str, Option(local=True)] = Field("", description=ADDRESS)


class ExportInput(GraphInput):
    file: Annotated[Path, Argument("FILE")]
