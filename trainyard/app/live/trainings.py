"""Facts of a run that its files have and Prefect does not: its trainers, how far they are, and what they train."""

from __future__ import annotations

from pathlib import Path

from trainyard.app.training_logs import TrainingLogs, find_training_logs
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import EventTail
from trainyard.json_types import JsonObject
from trainyard.settings import Settings
from trainyard.stores.live.curves import CurveStore, Position, curve_path, open_curve
from trainyard.stores.live.job_facts import WORDS, read_chain_facts
from trainyard.stores.live.job_index import Row
from trainyard.stores.metrics import select_since

SHOWN = ("node", "step", "total_steps", "loss")
"""Of the last trainer, in lists."""


def add_files(row: Row, settings: Settings) -> Row:
    """Return the row of a job with the facts of its resolved chain and the progress of its trainers."""
    folder = settings.runs / row["run_id"]
    trainings = [describe(work, curves_folder(settings)) for work in find_training_logs(folder)]
    progress = {name: trainings[-1][name] for name in SHOWN} if trainings else {}
    return {**add_chain_facts(row, folder), **progress, "trainings": trainings}


def add_chain_facts(row: Row, folder: Path) -> Row:
    """Return the row with the words of its resolved chain, which has every default. Whose it is, its tags say."""
    facts = read_chain_facts(folder)
    return row if facts is None else {**row, **{name: facts[name] for name in WORDS}}


def describe(work: TrainingLogs, curves: Path) -> JsonObject:
    """Return one trainer of a row: its node, its work folder, since when it counts, and how far it is."""
    progress = read_new_steps(work, curves).progress()
    return {"node": work.node, "folder": str(work.folder), "since": work.since, **progress.model_dump()}


def find_trainings(row: Row) -> list[TrainingLogs]:
    """Return the trainers of a row that has its files' part."""
    return [
        TrainingLogs(training["node"], Path(training["folder"]), training["since"]) for training in row["trainings"]
    ]


def curves_folder(settings: Settings) -> Path:
    return settings.home / "live" / "curves"


def read_new_steps(work: TrainingLogs, folder: Path) -> CurveStore:
    """Return the curve of a trainer with every step that it has written by now; only what is new is read."""
    store, path = open_curve(curve_path(folder, work.folder, work.since)), work.folder / EVENTS_FILE
    while path.is_file():
        before, there = store.position(), path.stat()
        if before.inode not in (0, there.st_ino) or there.st_size < before.offset:
            store.reset()  # the file was replaced
            continue
        tail = EventTail(path, before.offset)
        events = tail.read()
        after = Position(tail.offset - len(tail.pending), there.st_ino)
        if after == before or after.offset == before.offset:
            break
        store.extend(select_since(iter(events), work.since), before, after)
    return store
