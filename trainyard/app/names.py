"""Resolution of the words for jobs, runs and artifacts: an id, the beginning of one, or a name that a user gave.

find_job         a job or a run, in whatever state: from the index or from Prefect
find_run         a run that has begun, by its folder; what is not there by its name is found as a job
find_ended_run   a run that has ended: from the runs' folders alone, no server has to run
find_artifact    what a node of a run left
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.app.context import Context
from trainyard.app.live.jobs import add_labels, find_recorded, open_index
from trainyard.app.live.trainings import add_files
from trainyard.app.live.waits import add_waits
from trainyard.app.run_folders import CHAIN_FILE, FoundArtifact, RunFolder, find_artifacts, run_folders
from trainyard.app.run_records import RunResult, read_result
from trainyard.app.runs import connect_runs
from trainyard.errors import Conflict, NotFound, TrainyardError, Unavailable
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import Port
from trainyard.spec.templates import TEMPLATES
from trainyard.stores.artifacts import ArtifactStore
from trainyard.stores.live.job_ids import JOB_ID, RUN_ID, find_given_name, is_named
from trainyard.stores.live.job_index import Row

RUN_START = re.compile(r"[0-9a-f][0-9a-f-]{3,35}")
SHOWN_AMBIGUOUS = 5


class FoundJob(NamedTuple):
    """The row of a job."""

    row: Row
    as_of: float | None
    """When the row was true, if that may be long ago (seconds of the epoch)."""


def is_run_or_job_id(target: object) -> bool:
    """Return whether a target is the whole id of a run or a job, and so names one that exists."""
    return isinstance(target, str) and bool(RUN_ID.fullmatch(target) or JOB_ID.fullmatch(target))


def find_job(word: str, context: Context) -> FoundJob:
    """Return the job that a word names, with the part of its files, and with what it waits for.

    Raises as `look_up_job`.
    """
    row, as_of = look_up_job(word, context)
    (row,) = add_waits([row], context.settings, context.caller.tenant)
    return FoundJob(add_labels(row, context.settings), as_of)


def look_up_job(word: str, context: Context) -> FoundJob:
    """Return the job that a word names, with the part of its files.

    A job that the index does not have may have been created a moment ago: then Prefect is asked. Raises `NotFound`
    (`E-JOB-NOT-FOUND`), `Conflict` (`E-JOB-NOT-FOUND`) naming the candidates, and `Unavailable` if neither Prefect nor
    the index can say.
    """
    settings, tenant, index = context.settings, context.caller.tenant, open_index(context.settings)
    if recorded := find_recorded(word, settings, tenant):
        return FoundJob(require_single(recorded, word), None)
    now, fresh = time.time(), index.freshness()
    if fresh.is_kept(now) and (rows := index.find(word, tenant)):
        return FoundJob(require_single(rows, word), fresh.as_of(now))
    try:
        row = connect_runs(settings).find_job(word, tenant)
    except Unavailable:
        rows = index.find(word, tenant)
        if not rows:
            raise
        return FoundJob(require_single(rows, word), fresh.as_of(now))
    return FoundJob(add_files(row, settings), None)


def shortest_name(run_id: str, name: str, context: Context) -> str:
    """Return the shortest name of a run that names no other one: without its digest, else `name`.

    The name of a template is not one that a user gave: the next run of the template has it, too.
    """
    short = find_given_name(name)
    try:
        is_alone = short not in (name, *TEMPLATES) and look_up_job(short, context).row["run_id"] == run_id
    except TrainyardError:  # of several runs, or nobody can say
        is_alone = False
    return short if is_alone else name


def require_single(rows: Sequence[JsonObject], word: str) -> JsonObject:
    """Return the only row. Raises `NotFound` (`E-JOB-NOT-FOUND`) and `Conflict` (`E-JOB-NOT-FOUND`)."""
    if not rows:
        raise NotFound(f"There is no job {word!r}.", do="List them by `trainyard jobs list`.", code="E-JOB-NOT-FOUND")
    if len(rows) > 1:
        raise ambiguous_error(word, [row["id"] for row in rows])
    return rows[0]


def ambiguous_error(word: str, ids: Sequence[str], order: str = "") -> Conflict:
    """Return the error of a word that means several jobs."""
    text = ", ".join(ids[:SHOWN_AMBIGUOUS]) + (" …" if len(ids) > SHOWN_AMBIGUOUS else "")
    return Conflict(
        f"{word!r} means several jobs: {text}.",
        why=f"It is the beginning of several ids, or a name that several runs were given{order}.",
        do="Give the id, or enough of its beginning.",
        code="E-JOB-NOT-FOUND",
    )


def find_run(word: str, context: Context) -> RunFolder:
    """Return the run that a word names.

    Raises `NotFound` (`E-JOB-NOT-FOUND`), also for another tenant's, and what `find_job` raises.
    """
    folders, lower = context.settings.runs, word.lower()
    names = [lower] if RUN_ID.fullmatch(lower) else list_starting(folders, lower)
    if len(names) != 1 or not (folders / names[0] / CHAIN_FILE).is_file():
        names = [find_job(word, context).row["run_id"]]
    path = folders / names[0]
    try:
        run = RunFolder(path, (path / CHAIN_FILE).stat().st_mtime)
    except OSError:
        run = None
    if run is None or context.caller.tenant not in ("", run.tenant):
        raise NotFound(
            f"There is no run {word!r} that has begun.", do="Look at `trainyard jobs list`.", code="E-JOB-NOT-FOUND"
        )
    return run


def list_starting(folders: Path, word: str) -> list[str]:
    """Return the names of the runs' folders that begin with a word; no part of the word becomes a path."""
    if not RUN_START.fullmatch(word) or not folders.is_dir():
        return []
    return [entry.name for entry in os.scandir(folders) if entry.name.startswith(word)]


def find_ended_run(word: str, context: Context) -> tuple[RunFolder, RunResult]:
    """Return the ended run that a word names. Raises `NotFound` and `Conflict` (`E-JOB-NOT-FOUND`)."""
    tenant, lower = context.caller.tenant, word.lower()
    candidates, is_running = [], False
    for run in run_folders(context):
        if tenant not in ("", run.tenant):
            continue
        result = read_result(run.path)
        if result is None:
            is_running = is_running or (bool(word) and (run.id.startswith(lower) or run.name == word))
        elif word and (run.id.startswith(lower) or result.id.startswith(lower) or is_named(word, result.name)):
            candidates.append((run, result))
    if len(candidates) > 1:
        raise ambiguous_error(word, [result.id or run.id for run, result in candidates], "; the newest is the first")
    if not candidates:
        raise NotFound(
            f"There is no ended job {word!r}.",
            why="It has not ended yet." if is_running else "",
            do="List them by `trainyard jobs list`.",
            code="E-JOB-NOT-FOUND",
        )
    return candidates[0]


def find_artifact(run: RunFolder, node: str, port: Port, store: ArtifactStore) -> FoundArtifact:
    """Return one result of a run. Raises `NotFound` (`E-NODE`, `E-NOT-FOUND`) naming what there is."""
    artifacts = list(find_artifacts(run, store))
    of_node = [artifact for artifact in artifacts if artifact.node == node]
    for artifact in of_node:
        if artifact.port is port:
            return artifact
    if of_node:
        has = ", ".join(artifact.port.value for artifact in of_node)
        raise NotFound(
            f"The node {node!r} of the run {run.id} has no {port.value}.", why=f"It left {has}.",
            do="Name one of those.", code="E-NOT-FOUND",
        )  # fmt: skip
    nodes = ", ".join(dict.fromkeys(artifact.node for artifact in artifacts)) or "none"
    raise NotFound(
        f"The run {run.id} has no finished node {node!r}.", why=f"Finished nodes: {nodes}.",
        do="Name one of those, or wait until it has ended.", code="E-NODE",
    )  # fmt: skip
