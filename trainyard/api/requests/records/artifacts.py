"""Requests about finished results: sets of rows, adapters and reports, each by its run, node and port."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.api.requests.base import Request
from trainyard.api.requests.fields import Argument, Option
from trainyard.spec.axes.data import Port

RUN = "Id of a run or of its job, or enough of its beginning."
NodeId = Annotated[str, Field(min_length=1, max_length=200)]
Cursor = Annotated[str | None, Field(max_length=200, description="Continue after a page: its `next`.")]


class ArtifactsInput(Request):
    run: Annotated[str | None, Option(completes="run")] = Field(None, min_length=1, max_length=200, description=RUN)
    port: Port | None = Field(None, description="Only results of this kind.")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="Only results with this digest.")
    tenant: Annotated[str | None, Option(completes="tenant")] = Field(None, description="Only this tenant's.")
    limit: int = Field(50, ge=1, le=200, description="At most so many.")
    cursor: Cursor = None


class ArtifactInput(Request):
    run: Annotated[str, Argument("RUN", completes="run")] = Field(min_length=1, max_length=200, description=RUN)
    node: Annotated[NodeId, Argument("NODE")] = Field(description="Id of the node that made it.")
    port: Annotated[Port, Argument("PORT")] = Field(description="What it is: documents, sft, adapter, report, …")


class ArtifactRowsInput(ArtifactInput):
    part: str = Field(
        "rows", min_length=1, max_length=200,
        description="rows, dropped (with reasons), or a held-out set such as unseen_wording.",
    )  # fmt: skip
    offset: int = Field(0, ge=0, le=2**53, description="Number of the first row to look at, from 0.")
    limit: int = Field(20, ge=1, le=200, description="At most so many rows.")
    reason: str | None = Field(None, min_length=1, max_length=200, description="Of dropped rows: only with this one.")
    text: str | None = Field(None, min_length=1, max_length=200, description="Only rows that contain this text.")
    text_chars: int = Field(
        2_000, ge=1, le=4_000_000, description="Characters of a text that are given; the row names what is cut."
    )


class EvaluationsInput(Request):
    run: Annotated[str | None, Option(completes="run")] = Field(None, min_length=1, max_length=200, description=RUN)
    tenant: Annotated[str | None, Option(completes="tenant")] = Field(None, description="Only this tenant's.")
    limit: int = Field(50, ge=1, le=200, description="At most so many.")
    cursor: Cursor = None


class EvaluationInput(Request):
    run: Annotated[str, Argument("RUN", completes="run")] = Field(min_length=1, max_length=200, description=RUN)
    node: Annotated[NodeId, Argument("NODE")] = Field("evaluator", description="Id of the evaluator.")
