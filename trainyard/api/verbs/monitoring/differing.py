"""The settings in which jobs differ, on their resolved chains: what was not written has its default there."""

from __future__ import annotations

from typing import Any

import orjson

from trainyard.api import planning
from trainyard.api.context import Context
from trainyard.api.live import found
from trainyard.api.requests import jobs as requests
from trainyard.api.responses import Response
from trainyard.api.stack import import_prefect_client
from trainyard.api.verbs.chains.compare import list_setting_changes
from trainyard.api.verbs.monitoring.retrying import asked_by
from trainyard.api.verbs.records.contents import damaged
from trainyard.errors import InvalidInput, Refused
from trainyard.spec.load.changes import flatten_settings
from trainyard.stores.live.job_index import Row

Nodes = dict[str, Any]
"""Node id -> its complete settings."""


class DifferingSetting(Response):
    name: str
    """Node and path: `trainer.hyperparameters.learning_rate`; of variants of several types their types."""
    values: tuple[Any, ...]
    """One for each job, in their order; null where a job has no such setting, or it is null."""


class ComparedJobs(Response):
    jobs: tuple[str, ...]
    """Their ids, in the order of the question."""
    settings: tuple[DifferingSetting, ...]
    """Only what differs, by name."""


def compare_jobs(given: requests.CompareJobsInput, context: Context) -> ComparedJobs:
    """Raises what `find_job` raises, and `InvalidInput` (`E-PARAMETER`) for jobs that are the same one."""
    rows = [found.find_job(one, context).row for one in given.job]
    ids = [row["id"] for row in rows]
    if len(set(ids)) != len(ids):
        raise InvalidInput(
            f"{', '.join(given.job)} mean the same job.", do="Name jobs that are not the same.", code="E-PARAMETER"
        )
    nodes = [resolved_settings(row, context) for row in rows]
    first, *others = nodes
    names = sorted({name for other in others for name, _, _ in list_setting_changes(first, other)})
    settings = (DifferingSetting(name=name, values=tuple(value_of(one, name) for one in nodes)) for name in names)
    return ComparedJobs(jobs=tuple(ids), settings=tuple(settings))


def resolved_settings(row: Row, context: Context) -> Nodes:
    """The settings of each node as the run has recorded them; of one that has not begun as it would begin here.

    Raises `InvalidInput` (`E-PARAMETER`) for one that this version cannot resolve, and `Corrupt` (`E-CORRUPT`).
    """
    path = context.settings.runs / row["run_id"] / "chain.json"
    if path.is_file():
        try:
            return {node["id"]: dict(node["config"]) for node in orjson.loads(path.read_bytes())["nodes"]}
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(path, f"It is not a resolved chain: {error}") from error
    listing = import_prefect_client(context.settings, "listing")
    target, parameters = asked_by(row, listing)
    try:
        chain = planning.resolved(planning.asked(target, parameters).spec, context.settings)
    except Refused as error:
        raise InvalidInput(
            f"The settings of the job {row['name']} cannot be resolved.",
            why=str(error),
            do="Compare jobs that have begun.",
            code="E-PARAMETER",
        ) from error
    return {node.id: node.config.model_dump(mode="json") for node in chain.nodes}


def value_of(nodes: Nodes, name: str) -> Any:
    """The value of a differing setting: of a node that only some have, whether it is one."""
    if name in nodes:
        return "a node"
    flat = flatten_settings(nodes)
    return flat.get(name, flat.get(f"{name}.type"))
