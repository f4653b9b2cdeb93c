"""Requests of an editor of chains."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.api.requests.base import Parameters, Request
from trainyard.api.requests.chains import PARAMETERS, ChainText, StoredName
from trainyard.api.requests.fields import Argument

MOST_TEXT = 1 << 20


class ExpandInput(Request):
    target: Annotated[str | ChainText | None, Argument("TEMPLATE|FILE", is_file=True, completes="template")] = Field(
        None, description="A template's name, or a chain or job file."
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    text: str = Field("", max_length=MOST_TEXT, description="A chain or a job as YAML or JSON, in place of a file.")


class LinksInput(Request):
    target: Annotated[str | ChainText, Argument("TEMPLATE|FILE", is_file=True, completes="template")] = Field(
        description="The chain, which need not be valid."
    )
    node: Annotated[str, Argument("NODE")] = Field(
        min_length=1, max_length=200, description="Id of the node at which the link begins."
    )


class DiffInput(StoredName):
    before: int = Field(ge=1, le=10**9, description="Revision.")
    after: int | None = Field(None, ge=1, le=10**9, description="Revision; default: the newest.")
