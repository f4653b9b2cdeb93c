"""Requests about the nights that were, and about the knowledge graph that they wrote."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.api.requests.base import Request
from trainyard.api.requests.fields import Argument, Option
from trainyard.api.requests.graph import ADDRESS

TENANT = "Only this tenant's."
Tenant = Annotated[str | None, Option(completes="tenant")]


class NightsInput(Request):
    tenant: Tenant = Field(None, description=TENANT)
    limit: int = Field(30, ge=1, le=200, description="At most so many.")


class NightNameInput(Request):
    night: Annotated[str, Argument("NIGHT", completes="night")] = Field(
        min_length=1, max_length=63, description="Its name: a date."
    )
    tenant: Tenant = Field(None, description="Whose night it is; default: this home's tenant.")


class EntitiesInput(Request):
    text: Annotated[str, Argument("TEXT")] = Field("", max_length=200, description="Only names that contain this.")
    kind: str = Field("", max_length=40, description="Only this kind: person, company, project, account, location.")
    tenant: Tenant = Field(None, description=TENANT)
    limit: int = Field(50, ge=1, le=200, description="At most so many.")
    offset: int = Field(0, ge=0, le=1_000_000_000, description="So many are left out at the beginning.")
    graph: Annotated[str, Option(local=True)] = Field("", description=ADDRESS)


class NeighborsInput(Request):
    key: Annotated[str, Argument("KEY")] = Field(pattern=r"^[0-9a-f]{32}$", description="Key of an entity.")
    tenant: Tenant = Field(None, description=TENANT)
    limit: int = Field(100, ge=1, le=500, description="At most so many relations, and as many documents.")
    graph: Annotated[str, Option(local=True)] = Field("", description=ADDRESS)
