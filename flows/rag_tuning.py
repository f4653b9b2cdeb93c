"""Pairs whose answers are grounded in the documents: the form of the `rag-tuning` template."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State

from flows.forms import template_flow
from flows.walker import run_chain
from trainyard.spec.templates import build_template


@template_flow("rag-tuning")
async def rag_tuning(**parameters: Any) -> State[dict[str, Any]]:
    """Train on a knowledge base; every answer is checked against its document."""
    return await run_chain(build_template("rag-tuning", parameters))
