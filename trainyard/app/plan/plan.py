"""What a run would do, without doing it."""

from __future__ import annotations

from trainyard.app.context import Context
from trainyard.app.plan import resolve as planning
from trainyard.app.plan.tenancy import keep_to_tenant
from trainyard.app.reach import require_template
from trainyard.operations.chains import PlanInput


def plan(given: PlanInput, context: Context) -> planning.ChainPlan:
    if context.caller.remote:
        require_template(given.target, planning.NAMES)
    asked = planning.asked(given.target, given.parameters, given.preset)
    wanted = keep_to_tenant(asked, context.caller)
    for note in wanted.notes:
        context.say(note)
    return planning.plan(wanted.spec, context.settings, measure=given.measure, say=context.say)
