"""Requests about the audit log."""

from __future__ import annotations

from pydantic import Field

from trainyard.api.requests.base import Request


class AuditInput(Request):
    caller: str | None = Field(None, max_length=100, description="Only of this caller: a token's name, or owner.")
    operation: str | None = Field(None, max_length=100, description="Only this operation, such as `jobs cancel`.")
    tenant: str | None = Field(None, max_length=100, description="Only of callers of this tenant.")
    outcome: str | None = Field(
        None, pattern="^(done|failed|denied|stopped|unfinished)$", description="Only those that ended so."
    )
    hours: float | None = Field(None, gt=0, le=1e6, description="Only those of so many last hours.")
    limit: int = Field(50, ge=1, le=10_000, description="At most so many, the newest first.")
