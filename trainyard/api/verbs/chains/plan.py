"""What a run would do, without doing it."""

from __future__ import annotations

from trainyard.api import planning
from trainyard.api.access.reaching import require_template
from trainyard.api.context import Context
from trainyard.api.requests.chains import PlanInput
from trainyard.api.verbs.chains.tenancy import keep_to_tenant


def plan(given: PlanInput, context: Context) -> planning.ChainPlan:
    if context.caller.remote:
        require_template(given.target, planning.NAMES)
    asked = planning.asked(given.target, given.parameters, given.preset)
    wanted = keep_to_tenant(asked, context.caller)
    for note in wanted.notes:
        context.say(note)
    return planning.plan(wanted.spec, context.settings, measure=given.measure, say=context.say)
