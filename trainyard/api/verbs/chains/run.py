"""Start a template, a chain or a job, or continue an ended run. The Prefect client is imported after all checks."""

from __future__ import annotations

import re
import time

from trainyard.api import planning
from trainyard.api.context import Context
from trainyard.api.records import REFRESH_TAG, RunResult
from trainyard.api.requests.chains import RunInput
from trainyard.api.stack import import_prefect_client
from trainyard.api.verbs.chains import missing_backend
from trainyard.errors import InvalidInput
from trainyard.settings import Settings

RUN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def run(given: RunInput, context: Context) -> RunResult:
    settings, since = context.settings, time.time()
    run_id = given.target if isinstance(given.target, str) and RUN_ID.fullmatch(given.target) else None
    started = continued(given, run_id, settings) if run_id else begun(given, context)
    context.say(f"run {started.name}: {started.url}")
    if not given.watch:
        return started
    watching = import_prefect_client(settings, "watching")
    result: RunResult = watching.watch(started.run_id, settings=settings, on_progress=context.on_progress, since=since)
    return result


def begun(given: RunInput, context: Context) -> RunResult:
    """A new run, checked here first: a refusal is reported at once and with all its reasons."""
    settings = context.settings
    wanted = planning.located(planning.asked(given.target, given.parameters, given.preset), settings)
    for note in wanted.notes:
        context.say(note)
    chain = planning.resolved(wanted.spec, settings)
    waits = missing_backend.refuse_or_wait(chain, settings, is_job=wanted.deployment == planning.JOB_DEPLOYMENT)
    tags = (*given.tags, *([REFRESH_TAG] if given.refresh else []))
    watching, called = import_prefect_client(settings, "watching"), f"{chain.name}-{chain.digest[:8]}"
    started: RunResult = watching.start_run(
        wanted.deployment, wanted.parameters, settings=settings, tags=tags, waits=waits, called=called
    )
    return started


def continued(given: RunInput, run_id: str, settings: Settings) -> RunResult:
    """An ended run, started again."""
    if given.parameters or given.preset or given.refresh or given.tags:
        raise InvalidInput(
            "A run that is continued takes no parameters, preset, tags or refresh.",
            why="It continues with those that it was started with.",
            do="Start a new run of the template or file.",
            code="E-PARAMETER",
        )
    started: RunResult = import_prefect_client(settings, "watching").continue_run(run_id)
    return started
