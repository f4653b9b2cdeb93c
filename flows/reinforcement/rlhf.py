"""Examples, a reward model, then PPO, on one adapter: the form of the `rlhf` template."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State

from flows.forms import template_flow
from flows.walker import run_chain
from trainyard.spec.templates import build_template


@template_flow("rlhf")
async def rlhf(**parameters: Any) -> State[dict[str, Any]]:
    """Supervised fine-tuning, a reward model of the same adapter, and PPO with its scores."""
    return await run_chain(build_template("rlhf", parameters))
