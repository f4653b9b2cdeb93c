"""What a run would do, without doing it."""

from __future__ import annotations

from trainyard.api import planning
from trainyard.api.context import Context
from trainyard.api.requests.chains import PlanInput


def plan(given: PlanInput, context: Context) -> planning.ChainPlan:
    return planning.plan(planning.asked(given.target, given.parameters, given.preset).spec, context.settings)
