"""A job once more: a new run with the parameters of an earlier one."""

from __future__ import annotations

from trainyard.app.chains.run import start
from trainyard.app.context import Context
from trainyard.app.plan.parse import JOB
from trainyard.app.run_records import REFRESH_FROM, REFRESH_TAG, RunResult
from trainyard.app.runs import RunsClient, connect_runs
from trainyard.errors import NotFound
from trainyard.json_types import JsonObject
from trainyard.operations import jobs as requests
from trainyard.operations.chains import RunInput
from trainyard.spec.templates import TEMPLATES
from trainyard.stores.live.job_ids import CHAIN_ID, CONTINUES_TAG, REVISION_TAG, find_continued_run, is_reserved


def retry_job(request: requests.RetryInput, context: Context) -> RunResult:
    """Start a new job with the parameters of an earlier one, whatever became of that.

    A training that is the same continues where the earlier job left it, and finished results are taken over; with
    `refresh` everything is made again. Raises `NotFound` (`E-NOT-FOUND`) where the template of
    the job is not there any more, and what `start` raises.
    """
    runs = connect_runs(context.settings)
    row = runs.find_job(request.job, context.caller.tenant)
    target, parameters = read_run_request(row, runs)
    tags = tuple(
        tag for tag in row["tags"] if not is_reserved(tag) and not tag.startswith(REFRESH_FROM) and tag != REFRESH_TAG
    )
    chain = tuple(tag for tag in row["tags"] if CHAIN_ID.fullmatch(tag) or REVISION_TAG.fullmatch(tag))
    work = () if request.refresh else (f"{CONTINUES_TAG}{find_continued_run(row['tags']) or row['run_id']}",)
    again = RunInput(target=target, parameters=parameters, refresh=request.refresh, watch=request.watch, tags=tags)
    return start(again, context, own_tags=(*chain, *work))


def read_run_request(row: JsonObject, runs: RunsClient) -> tuple[str | JsonObject, JsonObject]:
    """Return the target and the parameters that a job was started with."""
    parameters = row["parameters"]
    if "job" in parameters:
        return JOB, parameters["job"]
    if "spec" in parameters:
        return parameters["spec"], {}
    template = runs.find_deployment(row["run_id"]).partition("/")[0]
    if template not in TEMPLATES:
        raise NotFound(
            f"The job {row['name']} cannot be started again.",
            why="The deployment that started it is not there any more, or is of no template.",
            do="Start a new job, or resume this one.",
            code="E-NOT-FOUND",
        )
    return template, parameters
