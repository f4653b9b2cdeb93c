"""A source tree in, an adapter that knows it out, with its evaluation: the form of the `code-tuning` template."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State

from flows.forms import template_flow
from flows.walker import run_chain
from trainyard.settings import settings
from trainyard.spec.roles import name_current_folder
from trainyard.spec.templates import build_template


@template_flow("code-tuning")
async def code_tuning(**parameters: Any) -> State[dict[str, Any]]:
    """Train on the code or the history of a repository and evaluate the result."""
    named = name_current_folder({"repository": ".", **parameters}, settings().working_folder)
    return await run_chain(build_template("code-tuning", named))
