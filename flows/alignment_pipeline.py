"""Examples, then preferences, on one adapter: the form of the `alignment-pipeline` template."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State

from flows.forms import template_flow
from flows.walker import run_chain
from trainyard.spec.templates import build_template


@template_flow("alignment-pipeline")
async def alignment_pipeline(**parameters: Any) -> State[dict[str, Any]]:
    """Supervised fine-tuning, then direct preference optimisation of the same adapter."""
    return await run_chain(build_template("alignment-pipeline", parameters))
