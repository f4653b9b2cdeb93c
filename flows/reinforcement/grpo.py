"""Examples, then answers that are checked, on one adapter: the form of the `grpo` template."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State

from flows.forms import template_flow
from flows.walker import run_chain
from trainyard.spec.templates import build_template


@template_flow("grpo")
async def grpo(**parameters: Any) -> State[dict[str, Any]]:
    """Supervised fine-tuning, then GRPO with a verifier that compares final answers."""
    return await run_chain(build_template("grpo", parameters))
