"""What the files of a run add to what Prefect says about it: its trainers, how far they are, and what they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainyard.api.training_logs import TrainingLogs, training_logs_of
from trainyard.stores.live.job_facts import WORDS, read_chain_facts
from trainyard.stores.live.job_index import Row

SHOWN = ("step", "total_steps", "loss")
"""Of the last trainer, in lists."""


def with_files(row: Row, runs: Path) -> Row:
    """The row of a job with the facts of its resolved chain and the progress of its trainers."""
    folder = runs / row["run_id"]
    trainings = [describe(work) for work in training_logs_of(folder)]
    progress = {name: trainings[-1][name] for name in SHOWN} if trainings else {}
    return {**with_chain_facts(row, folder), **progress, "trainings": trainings}


def with_chain_facts(row: Row, folder: Path) -> Row:
    """The row with the words of its resolved chain, which has every default. Whose it is, its tags say."""
    facts = read_chain_facts(folder)
    return row if facts is None else {**row, **{name: facts[name] for name in WORDS}}


def describe(work: TrainingLogs) -> dict[str, Any]:
    """One trainer of a row: its node, its work folder, since when it counts, and how far it is."""
    return {"node": work.node, "folder": str(work.folder), "since": work.since, **work.progress().model_dump()}


def trainings_of(row: Row) -> list[TrainingLogs]:
    """The trainers of a row that has its files' part."""
    return [TrainingLogs(one["node"], Path(one["folder"]), one["since"]) for one in row["trainings"]]
