"""Documents in, an adapter that knows them out: the form of the `qa-pipeline` template."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State

from flows.forms import template_flow
from flows.walker import run_chain
from trainyard.spec.templates import build_template


@template_flow("qa-pipeline")
async def qa_pipeline(**parameters: Any) -> State[dict[str, Any]]:
    """Generate question and answer pairs from documents and train an adapter on them."""
    return await run_chain(build_template("qa-pipeline", parameters))
