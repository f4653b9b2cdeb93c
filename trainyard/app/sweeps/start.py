"""Start a sweep, continue one wherever it was left, or stop it."""

from __future__ import annotations

import time

from trainyard.app.context import Context
from trainyard.app.runs import connect_runs
from trainyard.app.sweeps.build import build_sweep
from trainyard.app.sweeps.show import SweepReport, show_sweep
from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.operations.sweeps import ShowSweepInput, SweepInput, SweepNameInput
from trainyard.settings import Settings
from trainyard.stores.live.job_ids import JOB_TAG, TENANT_TAG, draw_job_id
from trainyard.sweeps.folder import SweepRecord, dump_spec, find_record, read_record, require_same, write_record

DEPLOYMENT = "sweep/local"


def sweep(request: SweepInput, context: Context) -> SweepReport:
    """Start or continue a sweep. The same command again continues it, too.

    Raises what `build_sweep` raises, `Conflict` (`E-PARAMETER`) for a name that is taken, `NotFound` (`E-NOT-FOUND`).
    """
    since = time.time()
    record = find_or_build_record(request, context)
    run_id, progress = continue_or_start(record, context.settings)
    context.say(f"sweep {record.spec.name}: {progress}, run {run_id}")
    if request.watch:
        connect_runs(context.settings).watch_run(run_id, on_progress=context.on_progress, since=since)
    return show_sweep(ShowSweepInput(name=record.spec.name), context)


def find_or_build_record(request: SweepInput, context: Context) -> SweepRecord:
    """Return the sweep that is there already, or a new record. Raises `InvalidInput` (`E-PARAMETER`)."""
    named = [source for source in (request.file, request.chain, request.continued) if source is not None]
    if len(named) != 1 or (request.continued and request.parameters):
        raise InvalidInput(
            "A sweep is begun from a file or a stored chain, or continued by its name.",
            why="One that is continued has its ranges and options already.",
            do="Give FILE or --chain NAME with -p, or --continue NAME alone.",
            code="E-PARAMETER",
        )
    if request.continued is not None:
        return read_record(context.settings, request.continued)
    spec = build_sweep(request, context)
    record = find_record(context.settings, spec.name)
    if record is not None:
        require_same(record, spec)
        return record
    return SweepRecord(spec=spec, created=time.time())


def continue_or_start(record: SweepRecord, settings: Settings) -> tuple[str, str]:
    """(run, what it is doing): the run of the sweep continued, or a new one where there is none any more."""
    if record.run_id:
        try:
            progress = connect_runs(settings).continue_unless_running(record.run_id)
        except NotFound:
            progress = ""
        if progress:
            return record.run_id, progress
    runs, spec = connect_runs(settings), record.spec
    write_record(settings, record)
    tags = (JOB_TAG, draw_job_id(), f"{TENANT_TAG}{spec.chain.tenant}")
    parameters = {"spec": dump_spec(spec)}
    started = runs.start_run(DEPLOYMENT, parameters, tags=tags, called=spec.name)
    write_record(settings, record.model_copy(update={"run_id": started.run_id}))
    return started.run_id, "started"


def stop_sweep(request: SweepNameInput, context: Context) -> SweepReport:
    """Cancel the run of a sweep. Raises `NotFound`, `Conflict` (`E-JOB-STATE`) if it has ended."""
    record = read_record(context.settings, request.name)
    if not record.run_id:
        raise Conflict(f"The sweep {request.name} has no run yet.", do="Start it.", code="E-JOB-STATE")
    connect_runs(context.settings).cancel_run(record.run_id)
    return show_sweep(ShowSweepInput(name=request.name), context)
