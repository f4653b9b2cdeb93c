"""Start a template, a chain or a job, or continue an ended run. The Prefect client is imported after all checks."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

from trainyard.app.chains.next_commands import next_commands
from trainyard.app.context import Context, make_run_key
from trainyard.app.live.jobs import note_started
from trainyard.app.names import is_run_or_job_id, shortest_name
from trainyard.app.plan.limits import lock_free_worker, lock_worker_of, require_free_worker
from trainyard.app.plan.locate import locate_request
from trainyard.app.plan.parse import JOB_DEPLOYMENT, NAMES, parse_request
from trainyard.app.plan.refusals import refuse_or_wait
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.plan.tenancy import keep_to_tenant, require_free_tags
from trainyard.app.reach import refuse_whole_chain, require_template
from trainyard.app.run_records import FEW_ROWS_TAG, REFRESH_FROM, REFRESH_TAG, RunResult
from trainyard.app.runs import connect_runs
from trainyard.errors import InvalidInput, NotFound, Reason
from trainyard.operations.chains import RunInput
from trainyard.spec.chain import ResolvedChain
from trainyard.stores.live.job_ids import (
    DIGEST_LENGTH,
    GROUP_TAG,
    JOB_ID,
    JOB_TAG,
    LABEL_TAG,
    SENDER_TAG,
    TENANT_TAG,
    THEME_TAG,
    TRACE_TAG,
    draw_job_id,
)
from trainyard.stores.secret_files import hash_secret


def run(request: RunInput, context: Context) -> RunResult:
    if context.caller.remote and not is_run_or_job_id(request.target):
        refuse_whole_chain(request.target)
        require_template(request.target, NAMES)
    return start(request, context)


def start(request: RunInput, context: Context, own_tags: tuple[str, ...] = ()) -> RunResult:
    """Start a run, or continue one. `own_tags` are Trainyard's own, which users cannot give."""
    settings, since = context.settings, time.time()
    started = (
        continue_ended_run(request, context)
        if is_run_or_job_id(request.target)
        else start_new_run(request, context, own_tags)
    )
    context.say(f"run {started.name}: {started.url}")
    if not request.watch:
        return add_next_commands(started, context)
    result = connect_runs(settings).watch_run(started.run_id, on_progress=context.on_progress, since=since)
    return add_next_commands(result, context)


def add_next_commands(result: RunResult, context: Context) -> RunResult:
    """Return the same with the commands for what comes after it."""
    folder = context.settings.runs / result.run_id
    known_as = shortest_name(result.run_id, result.name, context)
    return result.model_copy(update={"next": next_commands(result, folder, known_as)})


def start_new_run(request: RunInput, context: Context, own_tags: tuple[str, ...]) -> RunResult:
    """Return a new run, checked here first: a refusal is reported at once and with all its reasons."""
    settings = context.settings
    require_free_tags(request.tags)
    chain_request = parse_request(request.target, request.parameters, request.preset)
    located_request = locate_request(keep_to_tenant(chain_request, context.caller), settings)
    for note in located_request.notes:
        context.say(note)
    chain = resolve_chain(located_request.spec, settings)
    few_rows = request.yes or FEW_ROWS_TAG in request.tags

    def allows(shortages: Sequence[Reason]) -> bool:
        nonlocal few_rows
        few_rows = few_rows or confirm(shortages, context)
        return few_rows

    trains = any(node.type == "trainer" for node in chain.nodes)
    if trains:  # before the data is read; again when it starts
        require_free_worker(chain.tenant, context)
    is_job = located_request.deployment == JOB_DEPLOYMENT
    waits = refuse_or_wait(chain, settings, is_job=is_job, allows=allows, say=context.say)
    own_tags = (*own_tags, FEW_ROWS_TAG) if few_rows and FEW_ROWS_TAG not in request.tags else own_tags
    own_tags = (*own_tags, f"{GROUP_TAG}{request.group}") if request.group else own_tags
    tags = (*request.tags, *own_tags, *refresh_tags(request, chain), *tags_of(chain, context))
    called = f"{chain.name}-{chain.digest[:DIGEST_LENGTH]}"
    with lock_free_worker(chain.tenant, context) if trains else nullcontext():
        started = connect_runs(settings).start_run(
            located_request.deployment,
            located_request.parameters,
            tags=tags,
            waits=waits,
            called=called,
            key=make_run_key(context),
            queue=request.queue,
        )
        note_started_job(started, context)
    return started.model_copy(update={"chain": chain.name, "digest": chain.digest})


def note_started_job(started: RunResult, context: Context) -> None:
    if JOB_ID.fullmatch(started.id):
        note_started(started, context)


def confirm(shortages: Sequence[Reason], context: Context) -> bool:
    """Ask the user of a terminal whether to train anyway; False without a terminal."""
    if context.surface != "cli" or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    for shortage in shortages:
        context.say(shortage.line())
    return input("Train on these rows all the same? [y/N] ").strip().lower() in ("y", "yes")


def refresh_tags(request: RunInput, chain: ResolvedChain) -> list[str]:
    """Return the tags by which a run makes finished results again. Raises `NotFound` (`E-PARAMETER`) for an unknown
    node.
    """
    node = request.refresh_from
    if node is not None and node not in chain.by_id:
        raise NotFound(
            f"The chain {chain.name} has no node {node!r}.", why=f"It has: {', '.join(chain.order)}.",
            do="Name one of them.", code="E-PARAMETER",
        )  # fmt: skip
    return [*([REFRESH_TAG] if request.refresh else []), *([f"{REFRESH_FROM}{node}"] if node else [])]


def tags_of(chain: ResolvedChain, context: Context) -> list[str]:
    """Return what a run is from its creation on: whose, by which request, and as a job if a trainer is part of it."""
    tags = [f"{TENANT_TAG}{chain.tenant}"]
    tags += [f"{TRACE_TAG}{context.trace}"] if context.trace else []
    tags += [f"{THEME_TAG}{chain.theme}"] if chain.theme else []
    tags += [f"{LABEL_TAG}{label}" for label in chain.tags]
    tags += [f"{SENDER_TAG}{hash_secret(context.caller.token_id)}"] if context.caller.token_id else []
    return tags + ([JOB_TAG, draw_job_id()] if any(node.type == "trainer" for node in chain.nodes) else [])


def continue_ended_run(request: RunInput, context: Context) -> RunResult:
    """Return an ended run, started again."""
    if (
        request.parameters
        or request.preset
        or request.refresh
        or request.refresh_from
        or request.tags
        or request.group
        or request.queue
    ):
        raise InvalidInput(
            "A run that is continued takes no parameters, preset, tags, group, queue or refresh.",
            why="It continues with those that it was started with.",
            do="Start a new run of the template or file.",
            code="E-PARAMETER",
        )
    runs = connect_runs(context.settings)
    row = runs.find_job(str(request.target), context.caller.tenant)
    with lock_worker_of(row, context):
        started = runs.continue_run(row["run_id"])
        note_started_job(started, context)
    return started
