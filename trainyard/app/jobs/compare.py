"""Jobs next to each other: two trainings that have ended in everything, any others in their settings.

Settings are those of resolved chains: what was not written has its default there.
"""

from __future__ import annotations

from typing import Any

import orjson

from trainyard.app.artifacts.contents import damaged_error
from trainyard.app.chains.compare import Comparison, DifferingSetting, compare_trainings
from trainyard.app.context import Context
from trainyard.app.jobs.jobs import read_run_request
from trainyard.app.names import find_job
from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.runs import connect_runs
from trainyard.errors import InvalidInput, NotFound, Refused, Unavailable
from trainyard.operations import jobs as requests
from trainyard.spec.model_schema import list_node_changes, read_change
from trainyard.stores.live.job_index import Row

PAIR = 2
Nodes = dict[str, Any]
"""Node id -> its complete settings."""


def compare(request: requests.CompareInput, context: Context) -> Comparison:
    """Compare jobs: two trainings that have ended in everything, any others in their settings.

    Raises what `compare_trainings` and `find_job` raise, and `InvalidInput` (`E-PARAMETER`) for jobs that are the same.
    """
    jobs = request.job
    named_trainer = any("/" in word for word in jobs)
    left_out, missing = "Metrics, benchmarks and answers are compared of two jobs.", None
    if len(jobs) == PAIR:
        try:
            return compare_trainings((jobs[0], jobs[1]), context, plot=request.plot)
        except NotFound as error:
            if named_trainer:
                raise
            left_out, missing = f"Only settings are compared. {error.what} {error.do}", error
        except InvalidInput:
            if named_trainer:
                raise  # else the settings of the jobs say what is wrong
    elif named_trainer:
        raise InvalidInput(
            "A trainer is named, and more than two jobs.", do="Name two: JOB/TRAINER JOB/TRAINER.", code="E-PARAMETER"
        )
    try:
        return compare_settings(jobs, context).model_copy(update={"left_out": left_out})
    except Unavailable:
        if missing is None:
            raise
        raise missing from None  # without a server, ended jobs are all there is


def compare_settings(jobs: tuple[str, ...], context: Context) -> Comparison:
    """Compare all settings of jobs, whatever their states are."""
    rows = [find_job(job, context).row for job in jobs]
    ids = [row["id"] for row in rows]
    if len(set(ids)) != len(ids):
        raise InvalidInput(
            f"{', '.join(jobs)} mean the same job.", do="Name jobs that are not the same.", code="E-PARAMETER"
        )
    nodes = [resolve_settings(row, context) for row in rows]
    first, *other_nodes = nodes
    names = sorted({name for other in other_nodes for name, _, _ in list_node_changes(first, other)})
    settings = (DifferingSetting(name=name, values=tuple(read_change(node, name) for node in nodes)) for name in names)
    return Comparison(jobs=tuple(ids), settings=tuple(settings))


def resolve_settings(row: Row, context: Context) -> Nodes:
    """Return the settings of each node as the run has recorded them; of one that has not begun as it would begin here.

    Raises `InvalidInput` (`E-PARAMETER`) for one that this version cannot resolve, and `Corrupt` (`E-CORRUPT`).
    """
    path = context.settings.runs / row["run_id"] / "chain.json"
    if path.is_file():
        try:
            return {node["id"]: dict(node["config"]) for node in orjson.loads(path.read_bytes())["nodes"]}
        except (ValueError, KeyError, TypeError) as error:
            raise damaged_error(path, f"It is not a resolved chain: {error}") from error
    target, parameters = read_run_request(row, connect_runs(context.settings))
    try:
        chain = resolve_chain(parse_request(target, parameters).spec, context.settings)
    except Refused as error:
        raise InvalidInput(
            f"The settings of the job {row['name']} cannot be resolved.",
            why=str(error),
            do="Compare jobs that have begun.",
            code="E-PARAMETER",
        ) from error
    return {node.id: node.config.model_dump(mode="json") for node in chain.nodes}
